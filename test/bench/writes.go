package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/fixture"
)

const (
	// entries is how many allocations each block has; it has room for twice as many.
	entries = 32
	// perRound is how many writes of a kind make a round.
	perRound = 60
	// blocks are written in turn, so that an address has cooled down when it is taken again.
	blocks = 12
)

// target is a control plane with blocks to write to.
type target struct {
	client client.Client
	blocks []*v1alpha1.AddressBlock
	pods   []*corev1.Pod
	turn   int
}

// party writes in several ways. Each call returns what it writes next, a function for each way, and these return how long
// their write took.
type party func() []func(context.Context) (time.Duration, error)

// compare prints what each way to write costs the party with Oakum and the one without, and in an empty webhook, which may be
// nil. Everybody writes once in one way before anybody does again, so that all of them meet the same noise: in an order
// drawn by lot, because a server that was asked a moment ago answers faster; and twice, so that they find their servers
// that way equally often.
func (r *report) compare(ctx context.Context, ways []way, with, without, empty party) error {
	parties := []party{with, with, without, without}
	if empty != nil {
		parties = append(parties, empty, empty)
	}
	measured := make([]sides, len(ways))
	for round := range r.rounds + 1 {
		medians, err := writeInTurn(ctx, len(ways), parties)
		if err != nil {
			return err
		}
		if round == 0 {
			continue // caches and connections warm up
		}
		for way, of := range medians {
			s := &measured[way]
			s.with, s.without, s.control, s.floor = append(s.with, of[:2]...), append(s.without, of[2]), append(s.control, of[3]), append(s.floor, of[4:]...)
		}
	}
	for i, way := range ways {
		r.row(way.name, way.target, measured[i])
	}
	return nil
}

// way is a way to write, as it is called in the table, and the ratio that is wanted.
type way struct{ name, target string }

// writeInTurn lets everybody write perRound times in each way. It returns the medians of each way and party, in nanoseconds.
func writeInTurn(ctx context.Context, ways int, parties []party) ([][]float64, error) {
	spent := make([][][]float64, ways)
	for way := range spent {
		spent[way] = make([][]float64, len(parties))
	}
	for range perRound {
		next := make([][]func(context.Context) (time.Duration, error), len(parties))
		for i, p := range parties {
			next[i] = p()
		}
		for way := range ways {
			for _, i := range rand.Perm(len(parties)) {
				took, err := next[i][way](ctx)
				if err != nil {
					return nil, err
				}
				spent[way][i] = append(spent[way][i], float64(took.Nanoseconds()))
			}
		}
	}
	medians := make([][]float64, ways)
	for way := range medians {
		for _, all := range spent[way] {
			medians[way] = append(medians[way], median(all))
		}
	}
	return medians, nil
}

// writes measures single writes of a block through the API server.
func (r *report) writes(ctx context.Context, p *planes) error {
	return p.judging(ctx, "", func() error {
		var targets [3]*target
		for i, plane := range []*controlplane.ControlPlane{p.with, p.without, p.empty} {
			var err error
			if targets[i], err = newTarget(ctx, plane, "written", "10.0.0.0/16"); err != nil {
				return err
			}
		}
		ways := []way{{"Label", "≤ 1.05"}, {"Take", "≤ 1.25"}, {"Give", "≤ 1.30"}, {"TakeForPod", "two writes"}, {"GiveOfPod", ""}}
		return r.compare(ctx, ways, targets[0].next, targets[1].next, targets[2].next)
	})
}

// newTarget makes a pool, and blocks that are half full.
func newTarget(ctx context.Context, plane *controlplane.ControlPlane, name, subnet string) (*target, error) {
	t := &target{client: plane.Client}
	pool := fixture.Pool(name, fixture.Subnet(subnet, ""), fixture.BlockSize(6), fixture.Cooldown(time.Second))
	if err := t.client.Create(ctx, pool); err != nil {
		return nil, err
	}
	for i := range int32(blocks) {
		// A node may have a second block only if the first one is full: here each has a node of its own.
		node := fixture.Node(fmt.Sprintf("%s-%d", name, i))
		block := fixture.Block(name, i, node.Name, fixture.Reservations(0, entries-1))
		pod := fixture.Pod(node.Name, node.Name)
		for _, o := range []client.Object{node, block, pod} {
			if err := t.client.Create(ctx, o); err != nil {
				return nil, err
			}
		}
		t.blocks, t.pods = append(t.blocks, block), append(t.pods, pod)
	}
	return t, nil
}

// next writes to the next block.
func (t *target) next() []func(context.Context) (time.Duration, error) {
	i := t.turn % blocks
	offset := int32(entries + t.turn/blocks%entries)
	t.turn++
	external := v1alpha1.Allocation{Offset: offset, Handle: fmt.Sprintf("bench-%d", t.turn), Attributes: fixture.External("bench")}
	owned := v1alpha1.Allocation{Offset: (offset+entries/2-entries)%entries + entries, Handle: fmt.Sprintf("bench-pod-%d", t.turn), Attributes: fixture.OfPod(t.pods[i])}
	write := func(as types.PatchType, body any) func(context.Context) (time.Duration, error) {
		return func(ctx context.Context) (time.Duration, error) {
			text, err := json.Marshal(body)
			if err != nil {
				return 0, err
			}
			object := t.blocks[i].DeepCopy()
			began := time.Now()
			if err := t.client.Patch(ctx, object, client.RawPatch(as, text)); err != nil {
				return 0, fmt.Errorf("writing block %s: %w", object.Name, err)
			}
			return time.Since(began), nil
		}
	}
	take := func(a v1alpha1.Allocation) any {
		return []any{map[string]any{"op": "add", "path": "/spec/allocations/-", "value": a}}
	}
	give := []any{map[string]any{"op": "remove", "path": fmt.Sprintf("/spec/allocations/%d", entries)}}
	return []func(context.Context) (time.Duration, error){
		write(types.MergePatchType, map[string]any{"metadata": map[string]any{"labels": map[string]string{"bench": fmt.Sprint(t.turn)}}}),
		write(types.JSONPatchType, take(external)),
		write(types.JSONPatchType, give),
		write(types.JSONPatchType, take(owned)),
		write(types.JSONPatchType, give),
	}
}
