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

// calico measures the write that Calico makes for every pod, with Oakum in Enforce and without: a block of which half is
// taken, written whole with one address more. The opposite write is measured too.
func (r *report) calico(ctx context.Context, p *planes) error {
	root, err := controlplane.Root()
	if err != nil {
		return err
	}
	for _, plane := range []*controlplane.ControlPlane{p.with, p.without} {
		if err := plane.Apply(ctx, filepath.Join(root, "test", "fixture", "calico", "crd", "v1.yaml")); err != nil {
			return err
		}
		if err := newCalicoBlock(ctx, plane); err != nil {
			return err
		}
	}
	if err := awaitRefusal(ctx, p.with); err != nil {
		return err
	}
	manager, err := p.with.StartManager(ctx, p.binary, "backends: {calico: {mode: Enforce}}\n")
	if err != nil {
		return err
	}
	defer manager.Kill()
	return r.compare(ctx, []way{{"CalicoTake", "≤ 1.05"}, {"CalicoGive", "≤ 1.05"}}, calicoParty(p.with), calicoParty(p.without), nil)
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

// calicoParty takes an address and gives it back.
func calicoParty(plane *controlplane.ControlPlane) party {
	write := func(taken int) func(context.Context) (time.Duration, error) {
		return func(ctx context.Context) (time.Duration, error) {
			block, err := calicoBlock(taken)
			if err != nil {
				return 0, err
			}
			current := block.DeepCopy()
			if err := plane.Client.Get(ctx, client.ObjectKeyFromObject(block), current); err != nil {
				return 0, fmt.Errorf("reading a block of Calico's: %w", err)
			}
			block.SetResourceVersion(current.GetResourceVersion())
			began := time.Now()
			if err := plane.Client.Update(ctx, block); err != nil {
				return 0, fmt.Errorf("writing a block of Calico's: %w", err)
			}
			return time.Since(began), nil
		}
	}
	return func() []func(context.Context) (time.Duration, error) {
		return []func(context.Context) (time.Duration, error){write(calicoSize/2 + 1), write(calicoSize / 2)}
	}
}
