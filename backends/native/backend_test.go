package native_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends/backendtest"
	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/fixture"
)

func TestBackendKeepsTheContract(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) backendtest.Fixture { return newStore(t) })
}

func TestAllocations(t *testing.T) {
	router := v1alpha1.Attributes{Type: v1alpha1.OwnerExternal, Name: "router"}
	service := v1alpha1.Attributes{Type: v1alpha1.OwnerService, Namespace: "default", Name: "web", UID: "s1"}
	at := func(pool, block string, offset int, addrs ...string) ipam.Place {
		p := ipam.Place{Pool: pool, Block: block, Offset: offset}
		for _, a := range addrs {
			p.Addresses = append(p.Addresses, netip.MustParseAddr(a))
		}
		return p
	}
	routers := ipam.Owner{Kind: ipam.OwnerExternal, Name: "router"}
	services := ipam.Owner{Kind: ipam.OwnerService, Namespace: "default", Name: "web", UID: "s1"}
	tests := map[string]struct {
		stored []client.Object
		of     ipam.Owner
		want   []ipam.Allocation
	}{
		"the places of one handle in one network are one hand-out": {
			stored: []client.Object{
				fixture.Block("a", 2, "n1", cidrs("10.0.0.8/30", "fd00::8/126"), fixture.Entry(3, "web", service), fixture.Entry(0, "web", service)),
				fixture.Block("a", 3, "n2", cidrs("10.0.0.12/30", "fd00::c/126"), fixture.Entry(1, "web", service)),
			},
			of: services,
			want: []ipam.Allocation{{
				Backend: "native", Network: "a", Handle: "web", Owner: services,
				Places: []ipam.Place{
					at("a", "a-2", 3, "10.0.0.11", "fd00::b"), at("a", "a-2", 0, "10.0.0.8", "fd00::8"), at("a", "a-3", 1, "10.0.0.13", "fd00::d"),
				},
			}},
		},
		"the same handle in another network is another hand-out": {
			stored: []client.Object{
				fixture.Block("a", 2, "n1", cidrs("10.0.0.8/30", ""), fixture.Entry(0, "web", service)),
				fixture.Block("b", 2, "n1", cidrs("10.1.0.8/30", ""), fixture.Entry(0, "web", service)),
			},
			of: services,
			want: []ipam.Allocation{
				{Backend: "native", Network: "a", Handle: "web", Owner: services, Places: []ipam.Place{at("a", "a-2", 0, "10.0.0.8")}},
				{Backend: "native", Network: "b", Handle: "web", Owner: services, Places: []ipam.Place{at("b", "b-2", 0, "10.1.0.8")}},
			},
		},
		"an owner without a UID is found by kind and name": {
			stored: []client.Object{
				fixture.Block("b", 2, "n1", cidrs("10.1.0.8/30", ""), fixture.Entry(0, "r", router), fixture.Entry(1, "web", service)),
			},
			of:   routers,
			want: []ipam.Allocation{{Backend: "native", Network: "b", Handle: "r", Owner: routers, Places: []ipam.Place{at("b", "b-2", 0, "10.1.0.8")}}},
		},
		"a hand-out outlives its pool": {
			stored: []client.Object{fixture.Block("gone", 0, "n1", cidrs("10.9.0.0/30", ""), fixture.Entry(0, "r", router))},
			of:     routers,
			want:   []ipam.Allocation{{Backend: "native", Handle: "r", Owner: routers, Places: []ipam.Place{at("gone", "gone-0", 0, "10.9.0.0")}}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			s.plant(t, tt.stored...)
			for question, list := range map[string]func(context.Context, ipam.Owner) ([]ipam.Allocation, error){
				"AllocationsOf": s.backend.AllocationsOf, "LiveAllocationsOf": s.backend.LiveAllocationsOf,
			} {
				got, err := list(t.Context(), tt.of)
				check(t, err)
				for _, a := range got {
					for i := range a.Places {
						a.Places[i].Revision = ""
					}
				}
				if diff := cmp.Diff(tt.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
					t.Errorf("%s (-want +got):\n%s", question, diff)
				}
			}
		})
	}
}

// I7: what is sent is the whole of what can change.
func TestReleaseSendsTheRemovalAlone(t *testing.T) {
	one, both := []backendtest.Spot{{Record: 0, Address: 0}}, []backendtest.Spot{{Record: 0, Address: 0}, {Record: 0, Address: 2}}
	tests := map[string]struct {
		spots []backendtest.Spot
		want  string
	}{
		"of one entry": {one, `{"op":"remove","path":"/spec/allocations/1"}`},
		"of two entries, from the end of the list so that the first keeps its place": {
			both, `{"op":"remove","path":"/spec/allocations/2"},{"op":"remove","path":"/spec/allocations/1"}`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			s.HandOut(t, backendtest.Who{Name: 1}, backendtest.Spot{Record: 0, Address: 1})
			a := s.HandOut(t, backendtest.Who{}, tt.spots...)
			s.HandOut(t, backendtest.Who{Name: 2}, backendtest.Spot{Record: 0, Address: 3})
			block, err := s.backend.LiveBlock(t.Context(), "a-0")
			check(t, err)
			check(t, s.backend.Release(t.Context(), a))
			want := []string{`application/json-patch+json [{"op":"replace","path":"/metadata/resourceVersion","value":"` + block.Revision + `"},` + tt.want + `]`}
			if diff := cmp.Diff(want, s.patches); diff != "" {
				t.Errorf("patches (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReleaseWhoseAnswerWasLost(t *testing.T) {
	s := newStore(t)
	empty := s.Stored(t)
	a := s.HandOut(t, backendtest.Who{}, backendtest.Spot{Record: 0, Address: 0})
	s.Before(backendtest.Write, func() error {
		s.Store(t, empty)
		return errors.New("the connection was cut")
	})
	if err := s.backend.Release(t.Context(), a); err != nil {
		t.Errorf("the error is %v, although the write was carried out", err)
	}
}

func TestReclaim(t *testing.T) {
	tests := map[string]struct {
		finalizers []string
		// want are the finalizers of what is left; nil if nothing is.
		want []string
	}{
		"a block goes":      {},
		"a block is let go": {finalizers: []string{v1alpha1.BlockFinalizer}},
		"somebody else's finalizer holds the block":      {finalizers: []string{"example.org/guard"}, want: []string{"example.org/guard"}},
		"somebody else's finalizer stays when ours goes": {[]string{v1alpha1.BlockFinalizer, "example.org/guard"}, []string{"example.org/guard"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			block := fixture.Block("a", 2, "n1")
			block.Finalizers = tt.finalizers
			s.plant(t, block)
			seen, err := s.backend.LiveBlock(t.Context(), "a-2")
			check(t, err)
			check(t, s.backend.Reclaim(t.Context(), seen))
			want := []client.DeleteOptions{{Preconditions: &metav1.Preconditions{UID: new(types.UID(seen.UID)), ResourceVersion: &seen.Revision}}}
			if diff := cmp.Diff(want, s.deletions); diff != "" {
				t.Errorf("deletions (-want +got):\n%s", diff)
			}
			var left v1alpha1.AddressBlock
			err = s.typed(func() client.WithWatch { return s.live }).Get(t.Context(), client.ObjectKey{Name: "a-2"}, &left)
			if apierrors.IsNotFound(err) != (tt.want == nil) {
				t.Fatalf("reading the block: %v", err)
			}
			if diff := cmp.Diff(tt.want, left.Finalizers); diff != "" {
				t.Errorf("finalizers (-want +got):\n%s", diff)
			}
		})
	}
}

func TestErrorsSayWhatWasBeingDone(t *testing.T) {
	broken := errors.New("the API server is on fire")
	owner := ipam.Owner{Kind: ipam.OwnerPod, Namespace: "default", Name: "web-0", UID: "web-0-life-0", Node: "n1"}
	tests := map[string]struct {
		call backendtest.Call
		ask  func(context.Context, *store, ipam.Allocation) error
		want string
	}{
		"listing": {backendtest.Read, func(ctx context.Context, s *store, _ ipam.Allocation) error {
			_, err := s.backend.AllocationsOf(ctx, owner)
			return err
		}, "listing AddressBlocks: the API server is on fire"},
		"reading a pool": {backendtest.Read, func(ctx context.Context, s *store, _ ipam.Allocation) error {
			_, err := s.backend.Pool(ctx, "a")
			return err
		}, `reading AddressPool "a": the API server is on fire`},
		"looking for a block": {backendtest.Read, func(ctx context.Context, s *store, _ ipam.Allocation) error {
			_, err := s.backend.Block(ctx, "a-0")
			return err
		}, `reading AddressBlock "a-0": the API server is on fire`},
		"releasing": {backendtest.Write, func(ctx context.Context, s *store, a ipam.Allocation) error {
			return s.backend.Release(ctx, a)
		}, `releasing handle-1 of Pod default/web-0 (uid web-0-life-0) in AddressBlock "a-0": the API server is on fire`},
		"reclaiming": {backendtest.Write, func(ctx context.Context, s *store, _ ipam.Allocation) error {
			return s.backend.Reclaim(ctx, ipam.Block{Name: "a-0"})
		}, `deleting AddressBlock "a-0": the API server is on fire`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			a := s.HandOut(t, backendtest.Who{}, backendtest.Spot{Record: 0, Address: 0})
			s.Before(tt.call, func() error { return broken })
			if err := tt.ask(t.Context(), s, a); err == nil || err.Error() != tt.want {
				t.Errorf("the error is %v, want %s", err, tt.want)
			}
		})
	}
}
