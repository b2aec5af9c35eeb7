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
func (r *report) writes(ctx context.Context, with, without *controlplane.ControlPlane) error {
	w, err := newTarget(ctx, with)
	if err != nil {
		return err
	}
	o, err := newTarget(ctx, without)
	if err != nil {
		return err
	}
	var label, take, give, pod, back sides
	for round := range r.rounds + 1 {
		for _, side := range []struct {
			target *target
			of     func(*sides) *[]float64
		}{
			{w, func(s *sides) *[]float64 { return &s.with }},
			{o, func(s *sides) *[]float64 { return &s.without }},
			{o, func(s *sides) *[]float64 { return &s.control }},
		} {
			figures, err := side.target.round(ctx)
			if err != nil {
				return err
			}
			if round == 0 {
				continue // caches and connections warm up
			}
			for i, s := range []*sides{&label, &take, &give, &pod, &back} {
				*side.of(s) = append(*side.of(s), figures[i])
			}
		}
	}
	r.row("Label", "≤ 1.10", label)
	r.row("Take", "≤ 1.30", take)
	r.row("Give", "≤ 1.35", give)
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

// round writes perRound times in each way and returns the mean time of each, in nanoseconds.
func (t *target) round(ctx context.Context) ([5]float64, error) {
	var spent [5]time.Duration
	for range perRound {
		i := t.turn % blocks
		offset := int32(entries + t.turn/blocks%entries)
		t.turn++
		external := v1alpha1.Allocation{Offset: offset, Handle: fmt.Sprintf("bench-%d", t.turn), Attributes: fixture.External("bench")}
		owned := v1alpha1.Allocation{Offset: (offset+entries/2-entries)%entries + entries, Handle: fmt.Sprintf("bench-pod-%d", t.turn), Attributes: fixture.OfPod(t.pods[i])}
		for j, patch := range []struct {
			kind types.PatchType
			body any
		}{
			{types.MergePatchType, map[string]any{"metadata": map[string]any{"labels": map[string]string{"bench": fmt.Sprint(t.turn)}}}},
			{types.JSONPatchType, []any{map[string]any{"op": "add", "path": "/spec/allocations/-", "value": external}}},
			{types.JSONPatchType, []any{map[string]any{"op": "remove", "path": fmt.Sprintf("/spec/allocations/%d", entries)}}},
			{types.JSONPatchType, []any{map[string]any{"op": "add", "path": "/spec/allocations/-", "value": owned}}},
			{types.JSONPatchType, []any{map[string]any{"op": "remove", "path": fmt.Sprintf("/spec/allocations/%d", entries)}}},
		} {
			body, err := json.Marshal(patch.body)
			if err != nil {
				return [5]float64{}, err
			}
			began := time.Now()
			if err := t.client.Patch(ctx, t.blocks[i].DeepCopy(), client.RawPatch(patch.kind, body)); err != nil {
				return [5]float64{}, fmt.Errorf("writing block %s: %w", t.blocks[i].Name, err)
			}
			spent[j] += time.Since(began)
		}
	}
	var means [5]float64
	for j, d := range spent {
		means[j] = float64(d.Nanoseconds()) / perRound
	}
	return means, nil
}
