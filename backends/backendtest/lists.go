package backendtest

import (
	"context"
	"errors"
	"testing"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/ipam"
)

func testLists(t *testing.T, setup func(*testing.T) Fixture) {
	t.Run("nothing where nothing is handed out", func(t *testing.T) {
		f := setup(t)
		nobody := ipam.Owner{Kind: ipam.OwnerPod, Namespace: "default", Name: "nobody", UID: "none"}
		for name, found := range map[string][]ipam.Allocation{
			"Allocations":       all(t, f.Backend()),
			"AllocationsOf":     of(t, f.Backend().AllocationsOf, nobody),
			"LiveAllocationsOf": of(t, f.Backend().LiveAllocationsOf, nobody),
		} {
			if len(found) > 0 {
				t.Errorf("%s found %v", name, found)
			}
		}
	})
	t.Run("every hand-out with all of its places", func(t *testing.T) {
		f := setup(t)
		want := crowd(t, f)
		if diff := compare(ordered(want...), all(t, f.Backend())); diff != "" {
			t.Errorf("Allocations (-want +got):\n%s", diff)
		}
	})
	t.Run("the backend's own name and a revision with every place", func(t *testing.T) {
		f := setup(t)
		crowd(t, f)
		for _, a := range must(f.Backend().Allocations(t.Context()))(t) {
			if a.Backend != f.Backend().Name() {
				t.Errorf("%s is of backend %q", a.Handle, a.Backend)
			}
			for _, p := range a.Places {
				if p.Revision == "" {
					t.Errorf("offset %d of %s has no revision", p.Offset, p.Block)
				}
			}
		}
	})
	t.Run("the hand-outs of an owner, by UID where it has one and by name where it has none", func(t *testing.T) {
		f := setup(t)
		everybody := crowd(t, f)
		for _, a := range everybody {
			var want []ipam.Allocation
			for _, other := range everybody {
				if sameOwner(a.Owner, other.Owner) {
					want = append(want, other)
				}
			}
			for name, list := range map[string]listOf{"AllocationsOf": f.Backend().AllocationsOf, "LiveAllocationsOf": f.Backend().LiveAllocationsOf} {
				if diff := compare(ordered(want...), of(t, list, a.Owner)); diff != "" {
					t.Errorf("%s(%s) (-want +got):\n%s", name, a.Owner, diff)
				}
			}
		}
	})
	t.Run("live, what the cache does not know yet", func(t *testing.T) {
		f := setup(t)
		f.Freeze(t)
		a := f.HandOut(t, Who{}, Spot{0, 1})
		if diff := compare(ordered(a), of(t, f.Backend().LiveAllocationsOf, a.Owner)); diff != "" {
			t.Errorf("LiveAllocationsOf (-want +got):\n%s", diff)
		}
	})
}

// crowd hands out addresses to two lives of one name, and to another name: single ones, two in one record, and two in
// two records.
func crowd(t *testing.T, f Fixture) []ipam.Allocation {
	return []ipam.Allocation{
		f.HandOut(t, Who{Name: 0, Life: 0}, Spot{0, 0}),
		f.HandOut(t, Who{Name: 0, Life: 0}, Spot{0, 1}, Spot{1, 0}),
		f.HandOut(t, Who{Name: 0, Life: 1}, Spot{1, 1}, Spot{1, 2}),
		f.HandOut(t, Who{Name: 1, Life: 0}, Spot{2, 2}),
	}
}

type listOf func(context.Context, ipam.Owner) ([]ipam.Allocation, error)

func of(t *testing.T, list listOf, owner ipam.Owner) []ipam.Allocation {
	t.Helper()
	return ordered(must(list(t.Context(), owner))(t)...)
}

func sameOwner(a, b ipam.Owner) bool {
	if a.UID != "" || b.UID != "" {
		return a.UID == b.UID
	}
	return a.Kind == b.Kind && a.Namespace == b.Namespace && a.Name == b.Name
}

// testFailures takes care that what cannot be told is not told to be absent, free or released.
func testFailures(t *testing.T, setup func(*testing.T) Fixture) {
	broken := errors.New("the API server is on fire")
	tests := map[string]struct {
		call Call
		ask  func(context.Context, backends.Backend, ipam.Allocation) error
	}{
		"Allocations": {Read, func(ctx context.Context, b backends.Backend, _ ipam.Allocation) error {
			return failure(b.Allocations(ctx))
		}},
		"AllocationsOf": {Read, func(ctx context.Context, b backends.Backend, a ipam.Allocation) error {
			return failure(b.AllocationsOf(ctx, a.Owner))
		}},
		"LiveAllocationsOf": {Read, func(ctx context.Context, b backends.Backend, a ipam.Allocation) error {
			return failure(b.LiveAllocationsOf(ctx, a.Owner))
		}},
		"Release that cannot read":  {Read, func(ctx context.Context, b backends.Backend, a ipam.Allocation) error { return b.Release(ctx, a) }},
		"Release that cannot write": {Write, func(ctx context.Context, b backends.Backend, a ipam.Allocation) error { return b.Release(ctx, a) }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := setup(t)
			a := f.HandOut(t, Who{}, Spot{0, 0})
			f.Before(tt.call, func() error { return broken })
			unchanged(t, f, func() error { return tt.ask(t.Context(), f.Backend(), a) }, broken)
		})
	}
}
