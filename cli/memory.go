package cli

import (
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/go-logr/logr"
)

// collectEarly is how much garbage may pile up, in percent of what is in use, before it is collected. The manager holds what
// a cluster records and now and then needs as much again for a moment, while its processor is idle most of the time.
const collectEarly = 50

// limitMemory has Go collect garbage harder as the container's memory fills up, instead of growing until the kernel ends
// it. The limit is nine tenths of the container's; the environment variable GOMEMLIMIT goes before that. How many
// processors the container has, the runtime finds out itself. The environment variable GOGC goes before collectEarly.
func limitMemory(log logr.Logger) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectEarly)
	}
	limit, err := memlimit.Set()
	if err != nil {
		log.Info("no limit of memory is known", "reason", err.Error())
		return
	}
	log.V(1).Info("limiting memory", "bytes", limit)
}
