package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/go-logr/logr"
)

// asked is set for the process that tells its limit.
const asked = "OAKUM_TEST_MEMORY_LIMIT"

func TestTheMemoryLimitFollowsTheContainer(t *testing.T) {
	if os.Getenv(asked) != "" {
		limitMemory(logr.Discard())
		fmt.Fprintf(os.Stdout, "the limit is %d\n", debug.SetMemoryLimit(-1))
		return
	}
	const limit = 512 << 20
	procs := container(t, limit)
	for name, tt := range map[string]struct {
		environment []string
		want        int
	}{
		"nine tenths of the container's": {nil, limit / 10 * 9},
		"what the environment says":      {[]string{"GOMEMLIMIT=100MiB"}, 100 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			// The shell joins the container, and then becomes the process.
			cmd := exec.CommandContext(t.Context(), "sh", "-c", `echo $$ > "$0" && exec "$@"`, procs, os.Args[0], "-test.run=^TestTheMemoryLimitFollowsTheContainer$")
			cmd.Env = append(append(os.Environ(), asked+"=1"), tt.environment...)
			out, err := cmd.CombinedOutput()
			got := 0
			_, line, _ := strings.Cut(string(out), "the limit is ")
			fmt.Sscan(line, &got) //nolint:errcheck // Then it is 0.
			if err != nil || tt.want-got > 10 || got-tt.want > 10 {
				t.Errorf("the limit is %d, want %d: %v: %s", got, tt.want, err, out)
			}
		})
	}
}

// container makes a cgroup with that limit, and returns the file that takes in processes.
func container(t *testing.T, limit int) (procs string) {
	name := fmt.Sprintf("oakum-test-%d", os.Getpid())
	for root, file := range map[string]string{"/sys/fs/cgroup/memory": "memory.limit_in_bytes", "/sys/fs/cgroup": "memory.max"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
			continue
		}
		group := filepath.Join(root, name)
		if err := os.Mkdir(group, 0o755); err != nil {
			continue
		}
		t.Cleanup(func() {
			if err := os.Remove(group); err != nil {
				t.Error(err)
			}
		})
		if err := os.WriteFile(filepath.Join(group, file), fmt.Append(nil, limit), 0o600); err == nil {
			return filepath.Join(group, "cgroup.procs")
		}
	}
	t.Skip("no cgroup can be made here")
	return ""
}
