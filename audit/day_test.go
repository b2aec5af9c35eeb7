package audit

import (
	"iter"
	"strings"
	"testing"
	"time"
)

const (
	// day is how long such a history lasts; in each run of the test there are so many of them.
	day, days = 24 * time.Hour, 20
	// stretch is after how long all faults end for a while: what leaked until then must go.
	stretch = 6 * time.Hour
)

// I1, I2, I6, I9: a process that works for a whole day, and its successors when it dies, get nothing wrong that a short
// history would not show: what the ledger, the journal and the caches gather over hours is there too.
func TestADayBreaksNoInvariant(t *testing.T) {
	t.Parallel()
	done := map[string]int{}
	var lasted time.Duration
	for seed := range seeds(days) {
		d := newDiary(variant{})
		if d.live(seed); d.broken != "" {
			t.Fatalf("seed %d: %s", seed, d.broken)
		}
		for what, n := range d.done {
			done[what] += n
		}
		done["given back by the audit"] += len(d.given)
		lasted += d.truth.steady
	}
	if lasted < days*day {
		t.Errorf("%d days lasted %s", days, lasted)
	}
	for what, least := range map[string]int{
		"run": 1000, "kill": 100, "freeze": 200, "miss": 50, "fail": 50, "cut": 50, "unregister": 100, "given back by the audit": 100,
	} {
		if done[what] < least {
			t.Errorf("done %d times, want %d: %s", done[what], least, what)
		}
	}
	t.Logf("%s: %v", lasted, done)
}

// Days catch what is wrong with the audit: however it begins, one of them shows it.
func TestABrokenAuditIsCaughtInDays(t *testing.T) {
	tests := map[string]struct {
		variant variant
		want    string
	}{
		"that takes PodGC's word for the kubelet's": {variant{blur: blindToPodGC}, "I1"},
		"for which one sighting is enough":          {variant{hasty: true}, "I1"},
		"whose release does not compare":            {variant{careless: true}, "I6"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range seeds(10 * days) {
				d := newDiary(tt.variant)
				if d.live(seed); strings.Contains(d.broken, tt.want) {
					t.Logf("caught on a day that began with seed %d: %s", seed, d.broken)
					return
				}
			}
			t.Errorf("not caught in %d days", 10*days)
		})
	}
}

// seeds are what so many days begin with, others each time.
func seeds(n int) iter.Seq[int] {
	first := int(time.Now().UnixNano())
	return func(yield func(int) bool) {
		for i := range n {
			if !yield(first + i) {
				return
			}
		}
	}
}

// diary is a model and what has been done in it.
type diary struct {
	*model
	done map[string]int
}

func newDiary(v variant) diary {
	return diary{newModel(false, false, v), map[string]int{}}
}

// live lets a day pass, or as much of it as passes until an invariant is broken.
func (d diary) live(seed int) {
	next := anyStep(false)
	for end := stretch; d.broken == "" && d.truth.steady < day; seed += 1 << 20 {
		s := next.Example(seed)
		if d.do(s) {
			d.done[s.Do]++
		}
		d.check()
		if d.truth.steady >= end && d.broken == "" {
			d.settle()
			end = d.truth.steady + stretch
		}
	}
}
