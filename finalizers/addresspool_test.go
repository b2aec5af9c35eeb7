package finalizers

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

// What is sent for pool default. What a status is must be looked up in the status.
const (
	holdingPool  = `PATCH addresspools default [{"op":"replace","path":"/metadata/resourceVersion","value":"<current>"},{"op":"add","path":"/metadata/finalizers","value":["ipam.oakum.dev/blocks"]}]`
	droppingPool = `PATCH addresspools default [{"op":"replace","path":"/metadata/resourceVersion","value":"<current>"},{"op":"remove","path":"/metadata/finalizers/0"}]`
	tellingPool  = `PATCH addresspools/status default`
)

// The usual conditions.
const (
	poolReady       = "Ready True Available: nodes can take blocks"
	poolUnready     = "Ready False Draining: the pool is being deleted and gives out no more blocks"
	poolFree        = "Exhausted False AddressesFree: addresses can be had"
	poolExhausted   = "Exhausted True NoFreeAddress: every block is taken and none has a free address: append a subnet, or find out who holds the addresses"
	poolNotDraining = "Draining False NotDeleted: the pool is not being deleted"
	poolSettling    = "Draining True Settling: no block remains; a last look follows in 10s at the latest"
)

func draining(message string) string {
	return fmt.Sprintf("Normal PoolDraining (Drain) on AddressPool default (uid default-uid): %s", message)
}

func TestAddressPool(t *testing.T) {
	broken := errors.New("the API server is on fire")
	tests := map[string]struct {
		pool   []func(*v1alpha1.AddressPool)
		blocks []client.Object
		set    func(*Reconcilers)
		unseen func(*stage)
		fails  map[string]error
		want   outcome
		// status has the counts and the conditions afterwards.
		status []string
	}{
		"a pool is held as soon as it is seen": {
			pool: []func(*v1alpha1.AddressPool){unguardedPool},
			want: outcome{Calls: []string{holdingPool}},
		},
		"the status counts blocks, capacity and what is allocated": {
			blocks: []client.Object{block("default", 0, "n1", fixture.Reservations(0, 1)), block("default", 1, "n2", fixture.Reservations(0, 0)), block("other", 0, "n1")},
			want:   outcome{Calls: []string{tellingPool}, Recorded: "reserved-0 reserved-0 reserved-1"},
			status: []string{"2 blocks, 256 addresses, 3 allocated, generation 1", poolReady, poolFree, poolNotDraining},
		},
		"a pool of which every block is taken and full is exhausted": {
			pool:   []func(*v1alpha1.AddressPool){subnets("10.0.0.0/29"), fixture.Reserved("10.0.0.7")},
			blocks: []client.Object{block("default", 0, "n1", fixture.Reservations(0, 3)), block("default", 1, "n2", fixture.Reservations(0, 1), cooling(2, time.Second))},
			want:   outcome{Calls: []string{tellingPool}, Recorded: "reserved-0 reserved-0 reserved-1 reserved-1 reserved-2 reserved-3"},
			status: []string{"2 blocks, 8 addresses, 6 allocated, generation 1", poolReady, poolExhausted, poolNotDraining},
		},
		"a pool of which a block has an address free is not exhausted": {
			pool:   []func(*v1alpha1.AddressPool){subnets("10.0.0.0/30")},
			blocks: []client.Object{block("default", 0, "n1", fixture.Reservations(0, 2))},
			want:   outcome{Calls: []string{tellingPool}, Recorded: "reserved-0 reserved-1 reserved-2"},
			status: []string{"1 blocks, 4 addresses, 3 allocated, generation 1", poolReady, poolFree, poolNotDraining},
		},
		"a pool that was written before a rule that it breaks says so": {
			pool: []func(*v1alpha1.AddressPool){subnets("10.0.0.1/24", "10.1.0.0/24"), func(p *v1alpha1.AddressPool) { p.Spec.BlockSizeBits = nil }},
			want: outcome{Calls: []string{tellingPool}},
			status: []string{
				"0 blocks, 256 addresses, 0 allocated, generation 1",
				"Ready False Malformed: spec.subnets[0].ipv4: must have no host bits set: did you mean 10.0.0.0/24?",
				poolFree, poolNotDraining,
			},
		},
		"a pool that is deleted waits for its blocks, and says for what": {
			pool:   []func(*v1alpha1.AddressPool){goingPool(time.Hour)},
			blocks: []client.Object{block("default", 0, "n1", fixture.Reservations(0, 1)), block("default", 1, "n1"), block("default", 2, "n2", fixture.Reservations(0, 0))},
			want: outcome{
				Calls: []string{tellingPool}, Recorded: "reserved-0 reserved-0 reserved-1",
				Events: []string{draining("3 addresses in 3 blocks on 2 nodes remain")},
			},
			status: []string{"3 blocks, 256 addresses, 3 allocated, generation 1", poolUnready, poolFree, "Draining True BlocksRemain: 3 addresses in 3 blocks on 2 nodes remain"},
		},
		"the last block is a block": {
			pool:   []func(*v1alpha1.AddressPool){goingPool(time.Hour)},
			blocks: []client.Object{block("default", 0, "n1")},
			want:   outcome{Calls: []string{tellingPool}, Events: []string{draining("0 addresses in 1 block on 1 node remain")}},
			status: []string{"1 blocks, 256 addresses, 0 allocated, generation 1", poolUnready, poolFree, "Draining True BlocksRemain: 0 addresses in 1 block on 1 node remain"},
		},
		"a pool without blocks waits for those that may be on their way": {
			pool:   []func(*v1alpha1.AddressPool){goingPool(3 * time.Second)},
			want:   outcome{Calls: []string{tellingPool}, Events: []string{draining("no block remains; a last look follows in 10s at the latest")}, Again: 7 * time.Second},
			status: []string{"0 blocks, 256 addresses, 0 allocated, generation 1", poolUnready, poolFree, poolSettling},
		},
		"a pool that has waited so long goes": {
			pool: []func(*v1alpha1.AddressPool){goingPool(10 * time.Second)},
			want: outcome{Calls: []string{droppingPool}},
		},
		"a block that only the cache does not show keeps the pool, and is looked for again": {
			pool:   []func(*v1alpha1.AddressPool){goingPool(10 * time.Second)},
			unseen: func(s *stage) { s.put(block("default", 0, "n1")) },
			want:   outcome{Calls: []string{tellingPool}, Events: []string{draining("0 addresses in 1 block on 1 node remain")}, Again: 10 * time.Second},
			status: []string{"1 blocks, 256 addresses, 0 allocated, generation 1", poolUnready, poolFree, "Draining True BlocksRemain: 0 addresses in 1 block on 1 node remain"},
		},
		"a list that fails proves nothing": {
			pool: []func(*v1alpha1.AddressPool){goingPool(time.Hour)}, fails: map[string]error{"LIST addressblocks": broken},
			want: outcome{Err: "the API server is on fire"},
		},
		"a pool that somebody else holds tells that nothing of ours is left": {
			pool:   []func(*v1alpha1.AddressPool){goingPool(time.Hour), func(p *v1alpha1.AddressPool) { p.Finalizers = []string{"example.org/guard"} }},
			want:   outcome{Calls: []string{tellingPool}, Events: []string{draining("no block remains; a last look follows in 10s at the latest")}},
			status: []string{"0 blocks, 256 addresses, 0 allocated, generation 1", poolUnready, poolFree, poolSettling},
		},
		"where pools are not to be held the finalizer comes off, even of one that lives": {
			blocks: []client.Object{block("default", 0, "n1")}, set: func(r *Reconcilers) { r.Pool.Wanted = false },
			want: outcome{Calls: []string{droppingPool}},
		},
		"where pools are not to be held the status is kept all the same": {
			pool: []func(*v1alpha1.AddressPool){unguardedPool}, set: func(r *Reconcilers) { r.Pool.Wanted = false },
			want:   outcome{Calls: []string{tellingPool}},
			status: []string{"0 blocks, 256 addresses, 0 allocated, generation 1", poolReady, poolFree, poolNotDraining},
		},
		"a status that was computed from what is no longer true is not written": {
			unseen: func(s *stage) { change(s.store, pool(), subnets("10.0.0.0/24", "10.1.0.0/24")) },
			want:   outcome{Calls: []string{tellingPool}, Err: `Operation cannot be fulfilled on addresspools.ipam.oakum.dev "default": object was modified`},
		},
		"a pool that is gone needs nothing": {
			unseen: func(s *stage) { change(s.store, pool(), unguardedPool); s.remove(pool()); s.catchUp() },
		},
		"a pool that went unseen needs nothing either": {
			pool:   []func(*v1alpha1.AddressPool){goingPool(time.Hour)},
			unseen: func(s *stage) { change(s.store, pool(), unguardedPool) },
			want:   outcome{Calls: []string{strings.Replace(droppingPool, "<current>", "<stale>", 1)}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, append([]client.Object{pool(tt.pool...)}, tt.blocks...)...)
			if tt.set != nil {
				s.settings = append(s.settings, tt.set)
			}
			s.start()
			if tt.unseen != nil {
				tt.unseen(s)
			}
			s.fault = failing(tt.fails)
			if diff := cmp.Diff(tt.want, s.poolOutcome()); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.status, s.poolStatus()); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
		})
	}
}

func unguardedPool(p *v1alpha1.AddressPool) { p.Finalizers = nil }

// subnets gives the pool others.
func subnets(ipv4 ...string) func(*v1alpha1.AddressPool) {
	return func(p *v1alpha1.AddressPool) {
		p.Spec.Subnets = nil
		for _, cidr := range ipv4 {
			fixture.Subnet(cidr, "")(p)
		}
	}
}

// poolOutcome is what a look at pool default does. Its status is not in it.
func (s *stage) poolOutcome() outcome {
	o := s.outcome(&v1alpha1.AddressPool{}, "default")
	for i, c := range o.Calls {
		if strings.HasPrefix(c, tellingPool) {
			o.Calls[i] = tellingPool
		}
	}
	return o
}

// poolStatus tells the status of pool default; nothing if it has none.
func (s *stage) poolStatus() []string {
	p, ok := look(s.store, pool())
	if !ok || len(p.Status.Conditions) == 0 {
		return nil
	}
	told := []string{fmt.Sprintf("%d blocks, %d addresses, %d allocated, generation %d", p.Status.Blocks, p.Status.Capacity, p.Status.Allocated, p.Status.ObservedGeneration)}
	for _, c := range p.Status.Conditions {
		told = append(told, fmt.Sprintf("%s %s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	return told
}

// An Event tells of each change, and of nothing else.
func TestADrainingPoolIsToldOncePerChange(t *testing.T) {
	s := play(t, pool(), block("default", 0, "n1", entry(0, "h1", "web-0", "u1")), block("default", 1, "n2"))
	var got []outcome
	for _, happens := range []func(){
		func() {},
		func() {},
		func() { s.remove(pool()) },
		func() {},
		func() {
			change(s.store, block("default", 0, "n1"), entry(1, "h2", "web-1", "u2"))
			change(s.store, block("default", 0, "n1"), func(b *v1alpha1.AddressBlock) { b.Status.Allocated = 2 })
		},
		func() { change(s.store, block("default", 1, "n2"), unguarded); s.remove(block("default", 1, "n2")) },
		func() {
			change(s.store, block("default", 0, "n1"), func(b *v1alpha1.AddressBlock) { b.Labels = map[string]string{"a": "b"} })
		},
		func() { change(s.store, block("default", 0, "n1"), unguarded); s.remove(block("default", 0, "n1")) },
		func() { s.pass(settle) },
	} {
		happens()
		s.catchUp()
		o := s.poolOutcome()
		o.Recorded = ""
		got = append(got, o)
	}
	told := func(message string) outcome {
		return outcome{Calls: []string{tellingPool}, Events: []string{draining(message)}}
	}
	want := []outcome{
		{Calls: []string{tellingPool}},
		{},
		told("1 address in 2 blocks on 2 nodes remain"),
		{},
		told("2 addresses in 2 blocks on 2 nodes remain"),
		told("2 addresses in 1 block on 1 node remain"),
		{},
		{Calls: []string{tellingPool}, Events: []string{draining("no block remains; a last look follows in 10s at the latest")}, Again: settle},
		{Calls: []string{droppingPool}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("looks (-want +got):\n%s", diff)
	}
}
