package finalizers

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/fixture"
)

// moment is when the process looks at block default-0, after something happened and it has caught up.
type moment struct {
	after time.Duration
	do    func(*stage)
	want  outcome
}

// What becomes of a block of four addresses that is empty.
func TestEmptyBlock(t *testing.T) {
	broken := errors.New("the API server is on fire")
	wait := func(d time.Duration) outcome { return outcome{Again: d} }
	gone := outcome{Calls: []string{deleting("default-0")}}
	spare := func(s *stage) { s.put(block("default", 1, "n1", vacant)) }
	forget := func(s *stage) { s.put(block("default", 0, "n1", vacant)) }
	tests := map[string][]moment{
		"it goes after the grace, not before, if its node has room elsewhere": {
			{do: spare, want: wait(5 * time.Minute)},
			{after: 5*time.Minute - 1, want: wait(1)},
			{after: 1, want: gone},
		},
		"it stays if it is the only one with room": {
			{want: wait(5 * time.Minute)},
			{after: 5 * time.Minute, want: wait(5 * time.Minute)},
			{after: 24 * time.Hour, want: wait(5 * time.Minute)},
		},
		"it stays if the other ones are full, being deleted, another pool's or another node's": {
			{do: func(s *stage) {
				s.put(block("default", 1, "n1", fixture.Reservations(0, 3)), block("default", 2, "n1", going), block("other", 3, "n1"), block("default", 4, "n2"))
			}, want: outcome{Again: 5 * time.Minute, Recorded: "reserved-0 reserved-1 reserved-2 reserved-3"}},
			{after: 5 * time.Minute, want: outcome{Again: 5 * time.Minute, Recorded: "reserved-0 reserved-1 reserved-2 reserved-3"}},
		},
		"it stays if the other one is full by now": {
			{do: spare, want: wait(5 * time.Minute)},
			{after: 5 * time.Minute, do: func(s *stage) {
				s.catchUp()
				change(s.store, block("default", 1, "n1"), fixture.Reservations(0, 3))
				s.lags = true
			}, want: outcome{Again: 5 * time.Minute, Recorded: "reserved-0 reserved-1 reserved-2 reserved-3"}},
		},
		"it goes after the grace if its node is gone": {
			{want: wait(5 * time.Minute)},
			{after: time.Minute, do: func(s *stage) { s.remove(fixture.Node("n1")) }, want: wait(4 * time.Minute)},
			{after: 4 * time.Minute, want: gone},
		},
		"it stays if only the cache does not show the node": {
			{do: func(s *stage) {
				_, nodes := s.witness.Informers()
				s.must(nodes.GetIndexer().Delete(s.witness.CachedNode("n1")))
			}, want: wait(5 * time.Minute)},
			{after: 5 * time.Minute, want: wait(5 * time.Minute)},
		},
		"it stays if nobody can tell about the node": {
			{do: func(s *stage) { s.remove(fixture.Node("n1")) }, want: wait(5 * time.Minute)},
			{
				after: 5 * time.Minute, do: func(s *stage) { s.fault = failing(map[string]error{"GET nodes": broken}) },
				want: outcome{Err: "reading node n1: the API server is on fire"},
			},
		},
		"it stays if nobody can tell about the other one": {
			{do: spare, want: wait(5 * time.Minute)},
			{
				after: 5 * time.Minute, do: func(s *stage) { s.fault = failing(map[string]error{"GET addressblocks": broken}) },
				want: outcome{Err: "the API server is on fire"},
			},
		},
		"it goes at once when its pool is deleted": {
			{want: wait(5 * time.Minute)},
			{after: time.Second, do: func(s *stage) { s.remove(pool()) }, want: gone},
		},
		"it waits anew after it was used": {
			{do: spare, want: wait(5 * time.Minute)},
			{
				after: 4 * time.Minute, do: func(s *stage) {
					change(s.store, block("default", 0, "n1"), both(entry(0, "h1", "web-0", "u1"), told))
				},
				want: outcome{Recorded: "h1"},
			},
			{after: time.Minute, do: func(s *stage) { change(s.store, block("default", 0, "n1"), vacant) }, want: wait(5 * time.Minute)},
		},
		"it begins to wait when the last address has cooled down": {
			{do: func(s *stage) {
				spare(s)
				change(s.store, block("default", 0, "n1"), both(cooling(0, 30*time.Second), func(b *v1alpha1.AddressBlock) { b.Status.Free = 3 }))
			}, want: wait(30 * time.Second)},
			{after: 30 * time.Second, do: func(s *stage) { change(s.store, block("default", 0, "n1"), vacant) }, want: wait(5 * time.Minute)},
		},
		"another one of its name waits for itself": {
			{do: spare, want: wait(5 * time.Minute)},
			{after: 4 * time.Minute, do: func(s *stage) {
				change(s.store, block("default", 0, "n1"), unguarded)
				s.remove(block("default", 0, "n1"))
				forget(s)
			}, want: wait(5 * time.Minute)},
		},
		"what another one of its name waited is forgotten when that goes": {
			{do: spare, want: wait(5 * time.Minute)},
			{do: func(s *stage) {
				change(s.store, block("default", 0, "n1"), unguarded)
				s.remove(block("default", 0, "n1"))
			}},
			{after: 5 * time.Minute, do: func(s *stage) {
				s.put(block("default", 0, "n1", vacant, func(b *v1alpha1.AddressBlock) { b.UID = "default-0-uid" }))
			}, want: wait(5 * time.Minute)},
		},
		"a new process begins to wait anew": {
			{do: spare, want: wait(5 * time.Minute)},
			{after: 4 * time.Minute, do: (*stage).start, want: wait(5 * time.Minute)},
		},
		"a wall clock that jumps ahead does not shorten the grace": {
			{do: spare, want: wait(5 * time.Minute)},
			{after: time.Minute, do: func(s *stage) { s.now.Wall = s.now.Wall.Add(time.Hour) }, want: wait(4 * time.Minute)},
			{after: 4 * time.Minute, want: gone},
		},
		"a wall clock that jumps back does not lengthen it": {
			{do: spare, want: wait(5 * time.Minute)},
			{after: time.Minute, do: func(s *stage) { s.now.Wall = s.now.Wall.Add(-time.Hour) }, want: wait(4 * time.Minute)},
			{after: 4 * time.Minute, want: gone},
		},
		"it stays if an address is taken at that moment": {
			{do: spare, want: wait(5 * time.Minute)},
			{after: 5 * time.Minute, do: func(s *stage) {
				s.fault = func(c call) (error, bool) {
					if c.verb == "DELETE" {
						change(s.store, block("default", 0, "n1"), entry(0, "h1", "web-0", "u1"))
					}
					return nil, false
				}
			}, want: outcome{Calls: []string{deleting("default-0")}, Recorded: "h1"}},
		},
		"what cannot be deleted is tried again": {
			{do: spare, want: wait(5 * time.Minute)},
			{
				after: 5 * time.Minute, do: func(s *stage) { s.fault = failing(map[string]error{"DELETE addressblocks": broken}) },
				want: outcome{Calls: []string{deleting("default-0")}, Err: "the API server is on fire"},
			},
			{do: func(s *stage) { s.fault = nil }, want: gone},
		},
	}
	for name, moments := range tests {
		t.Run(name, func(t *testing.T) {
			s := play(t, fixture.Node("n1"), pool(), block("default", 0, "n1", vacant))
			for i, m := range moments {
				s.pass(m.after)
				if m.do != nil {
					m.do(s)
				}
				if !s.lags {
					s.catchUp()
				}
				if diff := cmp.Diff(m.want, s.outcome(&v1alpha1.AddressBlock{}, "default-0")); diff != "" {
					t.Fatalf("moment %d (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}

// vacant empties a block.
func vacant(b *v1alpha1.AddressBlock) {
	b.Spec.Allocations, b.Spec.Cooling = nil, nil
	told(b)
}

func both(knobs ...func(*v1alpha1.AddressBlock)) func(*v1alpha1.AddressBlock) {
	return func(b *v1alpha1.AddressBlock) {
		for _, knob := range knobs {
			knob(b)
		}
	}
}

// hesitant answers, and lets others go first before its caller hears of it.
type hesitant struct{ *records }

func (h hesitant) LiveBlock(ctx context.Context, name string) (ipam.Block, error) {
	b, err := h.records.LiveBlock(ctx, name)
	for range 1000 {
		runtime.Gosched()
	}
	return b, err
}

// Two empty blocks that are looked at side by side do not each rely on the other one.
func TestOneOfTwoEmptyBlocksStays(t *testing.T) {
	for range 20 {
		s := play(t, fixture.Node("n1"), pool(), block("default", 0, "n1", vacant), block("default", 1, "n1", vacant))
		s.Block.Blocks = hesitant{s.Block.Blocks.(*records)}
		for range 2 {
			var looks sync.WaitGroup
			for _, name := range []string{"default-0", "default-1"} {
				looks.Go(func() {
					if _, err := s.reconcile(&v1alpha1.AddressBlock{}, name); err != nil {
						t.Error(err)
					}
				})
			}
			looks.Wait()
			s.pass(5 * time.Minute)
		}
		left := slices.DeleteFunc(all(s.store, &v1alpha1.AddressBlock{}), func(b *v1alpha1.AddressBlock) bool { return b.DeletionTimestamp != nil })
		if len(left) != 1 {
			t.Fatalf("%d blocks are left", len(left))
		}
	}
}
