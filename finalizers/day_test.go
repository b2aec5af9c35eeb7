package finalizers

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// I1, I3, I6, I9: nor is one released in the course of a day, in which the process begins anew whenever it dies: what
// gathers over hours is there then too.
func TestNoLiveAddressIsReleasedInADay(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	seen := map[string]int{}
	var lasted time.Duration
	rapid.Check(t, func(t *rapid.T) {
		if lasted >= day {
			return // One is enough.
		}
		l := begin(t, seen)
		began := l.now.Steady
		for l.now.Steady < began+day {
			t.Repeat(l.steps())
		}
		l.fault = nil
		l.work(15 * time.Minute)
		lasted = l.now.Steady - began
	})
	for what, least := range map[string]int{"step": 1000, "E2": 20, "crash": 5, "lost answer": 3, "failed call": 3} {
		if seen[what] < least {
			t.Errorf("seen %d times, want %d: %s", seen[what], least, what)
		}
	}
}
