package main

import (
	"context"
	"encoding/json"
	"fmt"
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

// writes measures single writes of a block through the API server.
func (r *report) writes(ctx context.Context, with, without, empty *controlplane.ControlPlane) error {
	w, err := newTarget(ctx, with)
	if err != nil {
		return err
	}
	o, err := newTarget(ctx, without)
	if err != nil {
		return err
	}
	e, err := newTarget(ctx, empty)
	if err != nil {
		return err
	}
	actors := []*target{w, o, o, e}
	var label, take, give, pod, back sides
	for round := range r.rounds + 1 {
		figures, err := writeInTurn(ctx, actors)
		if err != nil {
			return err
		}
		if round == 0 {
			continue // caches and connections warm up
		}
		for i, s := range []*sides{&label, &take, &give, &pod, &back} {
			for side, into := range []*[]float64{&s.with, &s.without, &s.control, &s.floor} {
				*into = append(*into, figures[side][i])
			}
		}
	}
	r.row("Label", "≤ 1.05", label)
	r.row("Take", "≤ 1.25", take)
	r.row("Give", "≤ 1.30", give)
	r.row("TakeForPod", "two writes", pod)
	r.row("GiveOfPod", "", back)
	return nil
}

func newTarget(ctx context.Context, plane *controlplane.ControlPlane) (*target, error) {
	t := &target{client: plane.Client}
	pool := fixture.Pool("bench", fixture.Subnet("10.0.0.0/16", ""), fixture.BlockSize(6), fixture.Cooldown(time.Second))
	node := fixture.Node("bench")
	for _, o := range []client.Object{pool, node} {
		if err := t.client.Create(ctx, o); err != nil {
			return nil, err
		}
	}
	for i := range int32(blocks) {
		// A node may have a second block only if the first one is full: here each has a node of its own.
		node := fixture.Node(fmt.Sprintf("bench-%d", i))
		block := fixture.Block("bench", i, node.Name, fixture.Reservations(0, entries-1))
		pod := fixture.Pod(fmt.Sprintf("bench-%d", i), node.Name)
		for _, o := range []client.Object{node, block, pod} {
			if err := t.client.Create(ctx, o); err != nil {
				return nil, err
			}
		}
		t.blocks, t.pods = append(t.blocks, block), append(t.pods, pod)
	}
	return t, nil
}

// kinds are the ways to write.
const kinds = 5

// writeInTurn writes perRound times in each way, and lets every actor write once before any writes again, so that all of
// them meet the same noise. It returns the medians of each actor, in nanoseconds.
func writeInTurn(ctx context.Context, actors []*target) ([][kinds]float64, error) {
	spent := make([][kinds][]float64, len(actors))
	for turn := range perRound {
		patches := make([]func(kind int) (time.Duration, error), len(actors))
		for i, t := range actors {
			patches[i] = t.next(ctx)
		}
		for kind := range kinds {
			for i := range patches {
				i = (i + turn) % len(patches) // Who is first finds the processors' caches as others left them.
				took, err := patches[i](kind)
				if err != nil {
					return nil, err
				}
				spent[i][kind] = append(spent[i][kind], float64(took.Nanoseconds()))
			}
		}
	}
	medians := make([][kinds]float64, len(actors))
	for i := range medians {
		for kind := range kinds {
			medians[i][kind] = median(spent[i][kind])
		}
	}
	return medians, nil
}

// next returns a function that writes the next block in one way after the other.
func (t *target) next(ctx context.Context) func(kind int) (time.Duration, error) {
	i := t.turn % blocks
	offset := int32(entries + t.turn/blocks%entries)
	t.turn++
	external := v1alpha1.Allocation{Offset: offset, Handle: fmt.Sprintf("bench-%d", t.turn), Attributes: fixture.External("bench")}
	owned := v1alpha1.Allocation{Offset: (offset+entries/2-entries)%entries + entries, Handle: fmt.Sprintf("bench-pod-%d", t.turn), Attributes: fixture.OfPod(t.pods[i])}
	bodies := [kinds]any{
		map[string]any{"metadata": map[string]any{"labels": map[string]string{"bench": fmt.Sprint(t.turn)}}},
		[]any{map[string]any{"op": "add", "path": "/spec/allocations/-", "value": external}},
		[]any{map[string]any{"op": "remove", "path": fmt.Sprintf("/spec/allocations/%d", entries)}},
		[]any{map[string]any{"op": "add", "path": "/spec/allocations/-", "value": owned}},
		[]any{map[string]any{"op": "remove", "path": fmt.Sprintf("/spec/allocations/%d", entries)}},
	}
	return func(kind int) (time.Duration, error) {
		as := types.JSONPatchType
		if kind == 0 {
			as = types.MergePatchType
		}
		body, err := json.Marshal(bodies[kind])
		if err != nil {
			return 0, err
		}
		object := t.blocks[i].DeepCopy()
		began := time.Now()
		if err := t.client.Patch(ctx, object, client.RawPatch(as, body)); err != nil {
			return 0, fmt.Errorf("writing block %s: %w", object.Name, err)
		}
		return time.Since(began), nil
	}
}
