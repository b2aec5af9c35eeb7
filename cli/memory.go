package cli

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// collectEarly is how much garbage may pile up, in percent of what is in use, before it is collected. The manager holds what
// a cluster records and now and then needs as much again for a moment, while its processor is idle most of the time.
const collectEarly = 50

// spare takes care that the garbage collector knows what a container may use, and returns that limit; 0 if there is none. What
// GOGC or GOMEMLIMIT says in the environment counts more. The file is the one in which the container's limit stands.
func spare(environment func(string) string, file string) (limit int64) {
	if environment("GOGC") == "" {
		debug.SetGCPercent(collectEarly)
	}
	if environment("GOMEMLIMIT") != "" {
		return debug.SetMemoryLimit(-1)
	}
	if limit = containerLimit(file); limit > 0 {
		debug.SetMemoryLimit(limit)
	}
	return limit
}

// containerLimit returns nine tenths of a container's limit: the rest is for what Go does not count, such as the binary. It
// returns 0 if there is no limit or if it cannot be read.
func containerLimit(file string) int64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64) // "max" is none.
	if err != nil || limit <= 0 || limit > math.MaxInt64/10 {
		return 0
	}
	return limit / 10 * 9
}

// cgroup is where a container of cgroup v2 reads its limit.
const cgroup = "/sys/fs/cgroup/memory.max"
