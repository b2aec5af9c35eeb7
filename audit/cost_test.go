//go:build unix

package audit

import (
	"runtime"
	"syscall"
	"testing"
	"time"
)

// The promises, with room for a busy machine: 100,000 hand-outs cost less than a second and 300 MB, and not more than 12
// times what 10,000 cost.
func TestARunIsLinear(t *testing.T) {
	few, _ := cost(t, 10_000)
	many, memory := cost(t, 100_000)
	t.Logf("10,000 hand-outs: %s; 100,000: %s and %d MB", few, many, memory>>20)
	if many > 2*time.Second {
		t.Errorf("100,000 hand-outs cost %s", many)
	}
	if memory > 300<<20 {
		t.Errorf("100,000 hand-outs cost %d MB", memory>>20)
	}
	if many > 24*few {
		t.Errorf("10,000 hand-outs cost %s, and 100,000 cost %s", few, many)
	}
}

// cost returns the least processor time of some runs, which counts garbage collection and not who else uses the machine;
// and the most memory that one allocated, which is at least as much as it held at any time.
func cost(t *testing.T, pods int) (least time.Duration, memory uint64) {
	t.Helper()
	a := newCrowd(pods).auditor()
	for range 5 {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		start := processorTime(t)
		a.Run(t.Context())
		took := processorTime(t) - start
		runtime.ReadMemStats(&after)
		memory = max(memory, after.TotalAlloc-before.TotalAlloc)
		if least == 0 || took < least {
			least = took
		}
	}
	return least, memory
}

func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
