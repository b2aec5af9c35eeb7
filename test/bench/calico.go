package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/test/controlplane"
)

// calicoSize is how many addresses Calico's blocks have, if nobody says otherwise.
const calicoSize = 64

// calico measures the write that Calico makes for every pod, with Oakum's policies and without: a block of which half is
// taken, written whole with one address more. The opposite write is measured too.
func (r *report) calico(ctx context.Context, with, without *controlplane.ControlPlane) error {
	root, err := controlplane.Root()
	if err != nil {
		return err
	}
	if err := with.Apply(ctx, filepath.Join(root, "config", "calico", "policy.yaml")); err != nil {
		return err
	}
	for _, plane := range []*controlplane.ControlPlane{with, without} {
		if err := plane.Apply(ctx, filepath.Join(root, "test", "fixture", "calico", "crd", "v1.yaml")); err != nil {
			return err
		}
		if err := newCalicoBlock(ctx, plane); err != nil {
			return err
		}
	}
	if err := awaitRefusal(ctx, with); err != nil {
		return err
	}
	var take, give sides
	for round := range r.rounds + 1 {
		for _, side := range []struct {
			plane *controlplane.ControlPlane
			of    func(*sides) *[]float64
		}{
			{with, func(s *sides) *[]float64 { return &s.with }},
			{without, func(s *sides) *[]float64 { return &s.without }},
			{without, func(s *sides) *[]float64 { return &s.control }},
		} {
			taking, giving, err := calicoRound(ctx, side.plane)
			if err != nil {
				return err
			}
			if round > 0 { // The first one warms up caches and connections.
				*side.of(&take) = append(*side.of(&take), taking)
				*side.of(&give) = append(*side.of(&give), giving)
			}
		}
	}
	r.row("CalicoTake", "≤ 1.10", take)
	r.row("CalicoGive", "≤ 1.10", give)
	return nil
}

// calicoBlock is a block of which so many addresses are taken.
func calicoBlock(taken int) (*unstructured.Unstructured, error) {
	allocations, unallocated, attributes, sequence := make([]*int, calicoSize), []int{}, []any{}, map[string]int{}
	for i := range allocations {
		if i >= taken {
			unallocated = append(unallocated, i)
			continue
		}
		allocations[i] = &i
		sequence[fmt.Sprint(i)] = i
		attributes = append(attributes, map[string]any{
			"handle_id": fmt.Sprintf("k8s-pod-network.%064x", i),
			"secondary": map[string]any{"namespace": "default", "node": "bench", "pod": fmt.Sprintf("bench-%d", i), "timestamp": "2026-11-30 12:40:46.393856399 +0000 UTC"},
		})
	}
	data, err := json.Marshal(map[string]any{
		"apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock", "metadata": map[string]any{"name": "bench"},
		"spec": map[string]any{
			"cidr": "10.99.0.0/26", "affinity": "host:bench", "strictAffinity": false, "deleted": false,
			"allocations": allocations, "unallocated": unallocated, "attributes": attributes, "sequenceNumberForAllocation": sequence,
		},
	})
	if err != nil {
		return nil, err
	}
	block := &unstructured.Unstructured{}
	return block, block.UnmarshalJSON(data)
}

// newCalicoBlock creates the block as soon as its kind is served.
func newCalicoBlock(ctx context.Context, plane *controlplane.ControlPlane) error {
	block, err := calicoBlock(calicoSize / 2)
	if err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, controlplane.Deadline, true, func(ctx context.Context) (bool, error) {
		return plane.Client.Create(ctx, block.DeepCopy()) == nil, nil
	})
	if err != nil {
		return fmt.Errorf("creating a block of Calico's: %w", err)
	}
	return nil
}

// awaitRefusal returns when the policies are heeded.
func awaitRefusal(ctx context.Context, plane *controlplane.ControlPlane) error {
	broken := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"attributes":[]}}`))
	block, err := calicoBlock(0)
	if err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, controlplane.Deadline, true, func(ctx context.Context) (bool, error) {
		return apierrors.IsForbidden(plane.Client.Patch(ctx, block.DeepCopy(), broken, client.DryRunAll)), nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the policies: %w", err)
	}
	return nil
}

// calicoRound takes and gives back an address perRound times, and returns the mean time of each in nanoseconds.
func calicoRound(ctx context.Context, plane *controlplane.ControlPlane) (take, give float64, err error) {
	var spent [2]time.Duration
	for range perRound {
		for i, taken := range []int{calicoSize/2 + 1, calicoSize / 2} {
			block, err := calicoBlock(taken)
			if err != nil {
				return 0, 0, err
			}
			current := block.DeepCopy()
			if err := plane.Client.Get(ctx, client.ObjectKeyFromObject(block), current); err != nil {
				return 0, 0, fmt.Errorf("reading a block of Calico's: %w", err)
			}
			block.SetResourceVersion(current.GetResourceVersion())
			began := time.Now()
			if err := plane.Client.Update(ctx, block); err != nil {
				return 0, 0, fmt.Errorf("writing a block of Calico's: %w", err)
			}
			spent[i] += time.Since(began)
		}
	}
	return float64(spent[0].Nanoseconds()) / perRound, float64(spent[1].Nanoseconds()) / perRound, nil
}
