//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends/whereabouts"
	"github.com/oakum-dev/oakum/test/e2e/cluster"
)

// early looks on while records go, and notes those that go before the pod's sandbox does.
type early struct {
	w      *town
	unique bool

	mu sync.Mutex
	// freed has what went, and when, by a name for it.
	freed map[string]time.Time
	wrong []string
}

// early begins to look at Whereabouts' records and at AddressBlocks. If no two pods bear the same name, reservations are judged
// too, which do not tell which of them has the address.
func (w *town) early(unique bool) *early {
	w.t.Helper()
	e := &early{w: w, unique: unique, freed: map[string]time.Time{}}
	shoot(w, &whereabouts.IPPoolList{}, func(before, now frame[*whereabouts.IPPool]) {
		if before.object == nil {
			return
		}
		for offset, entry := range before.object.Spec.Allocations {
			if now.object.Spec.Allocations[offset].ID != entry.ID {
				e.went(now.at, "entry "+entry.ID+"/"+entry.IfName, entry.PodRef, func(s cluster.Sandbox) bool { return s.ID == entry.ID })
			}
		}
	})
	shoot(w, &v1alpha1.AddressBlockList{}, func(before, now frame[*v1alpha1.AddressBlock]) {
		if before.object == nil {
			return
		}
		for _, a := range before.object.Spec.Allocations {
			same := func(b v1alpha1.Allocation) bool { return b.Offset == a.Offset && b.Handle == a.Handle }
			if !slices.ContainsFunc(now.object.Spec.Allocations, same) {
				e.went(now.at, "allocation "+a.Handle, a.Attributes.Namespace+"/"+a.Attributes.Name, func(s cluster.Sandbox) bool { return s.UID == a.Attributes.UID })
			}
		}
	})
	shoot(w, &whereabouts.OverlappingRangeIPReservationList{}, func(_, now frame[*whereabouts.OverlappingRangeIPReservation]) {
		if ref := now.object.Spec.PodRef; now.event == watch.Deleted {
			e.went(now.at, "reservation "+now.object.Name, ref, func(s cluster.Sandbox) bool { return e.unique && s.Pod == ref })
		}
	})
	return e
}

// went notes that something went.
func (e *early) went(at time.Time, what, pod string, its func(cluster.Sandbox) bool) {
	sandboxes, err := e.w.Sandboxes()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.freed[what] = at
	if err != nil || slices.ContainsFunc(sandboxes, its) {
		e.wrong = append(e.wrong, fmt.Sprintf("%s of %s has gone, and its sandbox runs (%v)", what, pod, err))
	}
}

// at returns when something went; the zero time if it did not.
func (e *early) at(what string) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.freed[what]
}

// none checks that so many went, and none of them early.
func (e *early) none(t *testing.T, n int) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.freed) < n {
		t.Errorf("%d records have gone, want %d: %q", len(e.freed), n, slices.Sorted(maps.Keys(e.freed)))
	}
	for _, wrong := range e.wrong {
		t.Error(wrong)
	}
}
