package coil

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"gomodules.xyz/jsonpatch/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/ipam"
)

// attempts is how often a write is tried that was refused although what it is about had not changed.
const attempts = 5

// Release implements backends.Backend. It deletes the block of a node that is gone, as Coil's own collector does: Coil's
// finalizer comes off first, and others stay. It refuses while the Node exists, since a coild that runs would go on giving
// out addresses of a block that is another node's by then.
func (b *Backend) Release(ctx context.Context, a ipam.Allocation) error {
	if a.Owner.Kind != ipam.OwnerAgent || len(a.Places) != 1 {
		return fmt.Errorf("releasing %s: its record does not tell whose it is: delete the block by hand once nobody uses it", a.Handle)
	}
	for attempt := 1; ; attempt++ {
		block, err := b.standing(ctx, a)
		if block == nil || err != nil {
			return err
		}
		if err := b.gone(ctx, a.Owner.Node); err != nil {
			return fmt.Errorf("releasing AddressBlock %q: %w", block.Name, err)
		}
		err = b.remove(ctx, block)
		passing := apierrors.IsConflict(err) || apierrors.IsInvalid(err)
		if err != nil && (!passing || attempt == attempts) {
			return fmt.Errorf("releasing AddressBlock %q of %s: %w", block.Name, a.Owner, err)
		}
		if err == nil {
			return nil
		}
	}
}

// standing reads, live, the block of a hand-out; nil if it is gone, ErrStale if it is another hand-out by now.
func (b *Backend) standing(ctx context.Context, a ipam.Allocation) (*AddressBlock, error) {
	name, block := a.Places[0].Block, &AddressBlock{}
	switch err := b.live.Get(ctx, client.ObjectKey{Name: name}, block); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading AddressBlock %q: %w", name, err)
	case string(block.UID) != a.Handle:
		return nil, fmt.Errorf("AddressBlock %q is uid %s now: %w", name, block.UID, backends.ErrStale)
	case block.owner() != a.Owner:
		return nil, fmt.Errorf("AddressBlock %q is of %s now: %w", name, block.owner(), backends.ErrStale)
	}
	return block, nil
}

// gone returns an error unless there is no Node of that name.
func (b *Backend) gone(ctx context.Context, name string) error {
	node := &metav1.PartialObjectMetadata{}
	node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	switch err := b.live.Get(ctx, client.ObjectKey{Name: name}, node); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("reading node %q: %w", name, err)
	}
	return fmt.Errorf("node %q exists, and a block is never deleted under its coild: restart that, and it gives back what it does not use", name)
}

// remove takes Coil's finalizer off the block as it was read, and deletes the block.
func (b *Backend) remove(ctx context.Context, block *AddressBlock) error {
	uid := block.UID
	if i := slices.Index(block.Finalizers, finalizer); i >= 0 {
		path := fmt.Sprintf("/metadata/finalizers/%d", i)
		patch, err := json.Marshal([]jsonpatch.Operation{
			jsonpatch.NewOperation("replace", "/metadata/resourceVersion", block.ResourceVersion),
			jsonpatch.NewOperation("test", "/metadata/uid", string(uid)),
			jsonpatch.NewOperation("test", path, finalizer),
			jsonpatch.NewOperation("remove", path, nil),
		})
		if err != nil {
			return err
		}
		if err := b.writer.Patch(ctx, block, client.RawPatch(types.JSONPatchType, patch)); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	return client.IgnoreNotFound(b.writer.Delete(ctx, block, client.Preconditions{UID: &uid}))
}
