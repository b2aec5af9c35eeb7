package finalizers

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
)

// An AddressPool plays the pool of another program here, and its subnets the addresses that are recorded in it.
func TestRecordPool(t *testing.T) {
	pool := func(addresses int, finalizers ...string) *v1alpha1.AddressPool {
		p := &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: "range", UID: "range-uid", Finalizers: finalizers}}
		for i := range addresses {
			p.Spec.Subnets = append(p.Spec.Subnets, v1alpha1.Subnet{IPv4: fmt.Sprintf("10.0.%d.0/24", i)})
		}
		return p
	}
	going := func(p *v1alpha1.AddressPool) *v1alpha1.AddressPool {
		p.DeletionTimestamp = ago(0)
		return p
	}
	const ours, guard = v1alpha1.PoolFinalizer, "example.org/guard"
	patch := func(rest string) []string {
		return []string{`PATCH addresspools range [{"op":"replace","path":"/metadata/resourceVersion","value":"<current>"},` + rest + `]`}
	}
	takeOff := patch(`{"op":"remove","path":"/metadata/finalizers/0"}`)
	tests := map[string]struct {
		pool     *v1alpha1.AddressPool
		unwanted bool
		calls    []string
		events   []string
	}{
		"a pool is held": {pool: pool(1), calls: patch(`{"op":"add","path":"/metadata/finalizers","value":["` + ours + `"]}`)},
		"a pool that somebody holds is held too": {
			pool: pool(1, guard), calls: patch(`{"op":"add","path":"/metadata/finalizers/-","value":"` + ours + `"}`),
		},
		"a pool that is held stays so":               {pool: pool(0, ours)},
		"a pool that is going cannot be held":        {pool: going(pool(1, guard))},
		"a pool with addresses waits":                {pool: going(pool(2, ours)), events: []string{"Normal PoolDraining (Drain) on AddressPool range (uid range-uid): its deletion waits until the addresses that are recorded in it are given back: 2"}},
		"a pool without goes":                        {pool: going(pool(0, ours)), calls: takeOff},
		"nobody wants a pool held":                   {pool: pool(1), unwanted: true},
		"nobody wants it any more":                   {pool: pool(1, ours), unwanted: true, calls: takeOff},
		"nobody wants it any more while it is going": {pool: going(pool(1, ours)), unwanted: true, calls: takeOff},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := play(t, tt.pool)
			if err := s.lookAt(!tt.unwanted); err != nil {
				t.Fatal(err)
			}
			var calls []string
			for _, c := range s.calls {
				calls = append(calls, c.String())
			}
			if diff := cmp.Diff(tt.calls, calls); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.events, s.events); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

// An address that is recorded between the look and the patch keeps the pool.
func TestARecordPoolThatHasChangedIsNotLetGo(t *testing.T) {
	pool := &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: "range", DeletionTimestamp: ago(0), Finalizers: []string{v1alpha1.PoolFinalizer}}}
	s := play(t, pool)
	stored, _ := look(s.store, pool)
	stored.Spec.Subnets = []v1alpha1.Subnet{{IPv4: "10.0.0.0/24"}}
	s.save(stored)
	if err := s.lookAt(true); err == nil {
		t.Error("a stale patch went through")
	}
	s.catchUp()
	if err := s.lookAt(true); err != nil || len(s.events) != 1 {
		t.Errorf("the pool does not wait: %v, Events %q", err, s.events)
	}
}

func (s *stage) lookAt(wanted bool) error {
	r := &RecordPool{
		Client: s.managerClient(), Voice: s.Pool.Voice, Kind: v1alpha1.SchemeGroupVersion.WithKind("AddressPool"), Wanted: wanted,
		New:   func() client.Object { return &v1alpha1.AddressPool{} },
		Count: func(o client.Object) int { return len(o.(*v1alpha1.AddressPool).Spec.Subnets) },
	}
	_, err := r.Reconcile(s.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "range"}})
	return err
}
