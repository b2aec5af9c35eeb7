package finalizers

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

// What is sent for block default-0.
const (
	droppingBlock = `PATCH addressblocks default-0 [{"op":"replace","path":"/metadata/resourceVersion","value":"<current>"},{"op":"remove","path":"/metadata/finalizers/0"}]`
	holdingBlock  = `PATCH addressblocks default-0 [{"op":"replace","path":"/metadata/resourceVersion","value":"<current>"},{"op":"add","path":"/metadata/finalizers","value":["ipam.oakum.dev/allocations"]}]`
)

// counting is what is sent to write the status of block default-0.
func counting(status string) string {
	return `PATCH addressblocks/status default-0 {"status":` + status + `}`
}

func TestAddressBlock(t *testing.T) {
	broken := errors.New("the API server is on fire")
	tests := map[string]struct {
		block  []func(*v1alpha1.AddressBlock)
		beside []client.Object
		pool   []func(*v1alpha1.AddressPool)
		set    func(*Reconcilers)
		unseen func(*stage)
		fails  map[string]error
		want   outcome
	}{
		"a block is held as soon as it is seen": {
			block: []func(*v1alpha1.AddressBlock){unguarded},
			want:  outcome{Calls: []string{holdingBlock}},
		},
		"a block that somebody else holds is held as well": {
			block: []func(*v1alpha1.AddressBlock){func(b *v1alpha1.AddressBlock) { b.Finalizers = []string{"example.org/guard"} }},
			want: outcome{Calls: []string{
				`PATCH addressblocks default-0 [{"op":"replace","path":"/metadata/resourceVersion","value":"<current>"},{"op":"add","path":"/metadata/finalizers/-","value":"ipam.oakum.dev/allocations"}]`,
			}},
		},
		"the status counts what is allocated and what is free": {
			block: []func(*v1alpha1.AddressBlock){entry(0, "h1", "web-0", "u1"), cooling(1, 20*time.Second)}, pool: []func(*v1alpha1.AddressPool){fixture.Reserved("10.0.0.3")},
			want: outcome{Calls: []string{counting(`{"allocated":1,"free":1,"observedGeneration":1}`)}, Again: 20 * time.Second, Recorded: "h1"},
		},
		"a status that says so already is not written": {
			block: []func(*v1alpha1.AddressBlock){entry(0, "h1", "web-0", "u1"), told},
			want:  outcome{Recorded: "h1"},
		},
		"a status that somebody else wrote unseen is corrected all the same": {
			block:  []func(*v1alpha1.AddressBlock){entry(0, "h1", "web-0", "u1")},
			unseen: func(s *stage) { change(s.store, block("default", 0, "n1"), told) },
			want:   outcome{Calls: []string{counting(`{"allocated":1,"free":3,"observedGeneration":1}`)}, Recorded: "h1"},
		},
		"a block that is deleted and has an allocation stays": {
			block: []func(*v1alpha1.AddressBlock){going, entry(0, "h1", "web-0", "u1"), told},
			want:  outcome{Recorded: "h1"},
		},
		"a block that is deleted and has an address that cools down stays until it has": {
			block: []func(*v1alpha1.AddressBlock){going, cooling(0, 7*time.Second), cooling(1, 5*time.Second)},
			want:  outcome{Calls: []string{counting(`{"allocated":0,"free":2,"observedGeneration":1}`)}, Again: 5 * time.Second},
		},
		"a block that is deleted and empty goes": {
			block: []func(*v1alpha1.AddressBlock){going, cooling(0, 0)},
			want:  outcome{Calls: []string{droppingBlock}},
		},
		"a block that is deleted and empty goes for us, if somebody else holds it too": {
			block: []func(*v1alpha1.AddressBlock){going, func(b *v1alpha1.AddressBlock) { b.Finalizers = []string{"example.org/guard", v1alpha1.BlockFinalizer} }},
			want:  outcome{Calls: []string{strings.Replace(droppingBlock, "finalizers/0", "finalizers/1", 1)}},
		},
		"a block that is deleted and held by somebody else is not held again": {
			block: []func(*v1alpha1.AddressBlock){going, func(b *v1alpha1.AddressBlock) { b.Finalizers = []string{"example.org/guard"} }},
			want:  outcome{Calls: []string{counting(`{"allocated":0,"free":4,"observedGeneration":1}`)}},
		},
		"a block in which an address was taken unseen is not let go": {
			block:  []func(*v1alpha1.AddressBlock){going},
			unseen: func(s *stage) { change(s.store, block("default", 0, "n1"), entry(0, "h1", "web-0", "u1")) },
			want: outcome{
				Calls:    []string{`PATCH addressblocks default-0 [{"op":"replace","path":"/metadata/resourceVersion","value":"<stale>"},{"op":"remove","path":"/metadata/finalizers/0"}]`},
				Err:      `Operation cannot be fulfilled on addressblocks.ipam.oakum.dev "default-0": object was modified`,
				Recorded: "h1",
			},
		},
		"where blocks are not to be held the finalizer comes off": {
			block: []func(*v1alpha1.AddressBlock){entry(0, "h1", "web-0", "u1")}, set: func(r *Reconcilers) { r.Block.Wanted = false },
			want: outcome{Calls: []string{droppingBlock}, Recorded: "h1"},
		},
		"where blocks are not to be held none is, and none is reclaimed": {
			block: []func(*v1alpha1.AddressBlock){unguarded}, beside: []client.Object{block("default", 1, "n1")},
			set:  func(r *Reconcilers) { r.Block.Wanted, r.Block.Grace = false, 0 },
			want: outcome{Calls: []string{counting(`{"allocated":0,"free":4,"observedGeneration":1}`)}},
		},
		"an empty block waits for the whole grace": {
			beside: []client.Object{block("default", 1, "n1")},
			want:   outcome{Calls: []string{counting(`{"allocated":0,"free":4,"observedGeneration":1}`)}, Again: 5 * time.Minute},
		},
		"an empty block of a pool that is being deleted goes at once": {
			pool: []func(*v1alpha1.AddressPool){goingPool(0)},
			want: outcome{Calls: []string{deleting("default-0")}},
		},
		"an address that cools down makes a block not empty, even of a pool that is being deleted": {
			pool: []func(*v1alpha1.AddressPool){goingPool(0)}, block: []func(*v1alpha1.AddressBlock){cooling(0, 20*time.Second)},
			want: outcome{Calls: []string{counting(`{"allocated":0,"free":3,"observedGeneration":1}`)}, Again: 20 * time.Second},
		},
		"a block that is gone needs nothing": {
			unseen: func(s *stage) {
				change(s.store, block("default", 0, "n1"), unguarded)
				s.remove(block("default", 0, "n1"))
				s.catchUp()
			},
		},
		"a status for a block that went unseen is nobody's": {
			block: []func(*v1alpha1.AddressBlock){entry(0, "h1", "web-0", "u1")},
			unseen: func(s *stage) {
				change(s.store, block("default", 0, "n1"), unguarded)
				s.remove(block("default", 0, "n1"))
			},
			want: outcome{Calls: []string{counting(`{"allocated":1,"free":3,"observedGeneration":1}`)}},
		},
		"a pool that cannot be read proves nothing": {
			unseen: func(s *stage) {
				change(s.store, pool(), func(p *v1alpha1.AddressPool) { p.Finalizers = nil })
				s.remove(pool())
				s.catchUp()
			},
			fails: map[string]error{"GET addresspools": broken},
			want:  outcome{Err: "the API server is on fire"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, append([]client.Object{fixture.Node("n1"), pool(tt.pool...), block("default", 0, "n1", tt.block...)}, tt.beside...)...)
			if tt.set != nil {
				s.settings = append(s.settings, tt.set)
			}
			s.start()
			if tt.unseen != nil {
				tt.unseen(s)
			}
			s.fault = failing(tt.fails)
			if diff := cmp.Diff(tt.want, s.outcome(&v1alpha1.AddressBlock{}, "default-0")); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
		})
	}
}

func unguarded(b *v1alpha1.AddressBlock) { b.Finalizers = nil }

func going(b *v1alpha1.AddressBlock) { b.DeletionTimestamp = ago(0) }

// goingPool lets the pool have been deleted so long ago.
func goingPool(since time.Duration) func(*v1alpha1.AddressPool) {
	return func(p *v1alpha1.AddressPool) { p.DeletionTimestamp = ago(since) }
}
