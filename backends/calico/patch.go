package calico

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// escape writes a key as a part of a JSON pointer.
func escape(key string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(key) }

// patch sends operations for an object as it was read. What was read must still be what is stored, else the answer is
// a conflict. Afterwards the object is what the server answered.
func (b *Backend) patch(ctx context.Context, o client.Object, operations []jsonpatch.Operation) error {
	data, err := json.Marshal(append([]jsonpatch.Operation{jsonpatch.NewOperation("replace", "/metadata/resourceVersion", o.GetResourceVersion())}, operations...))
	if err != nil {
		return err
	}
	return b.writer.Patch(ctx, object(b.served, o), client.RawPatch(types.JSONPatchType, data))
}

// delete deletes an object, if it is the one that was read. That it is gone is no error.
func (b *Backend) delete(ctx context.Context, o client.Object) error {
	uid, version := o.GetUID(), o.GetResourceVersion()
	return client.IgnoreNotFound(b.writer.Delete(ctx, object(b.served, o), client.Preconditions{UID: &uid, ResourceVersion: &version}))
}

// remove deletes an object in two steps, as Calico does: it is marked as deleted first, with whatever else changes. Then
// everybody takes it for absent, and whoever comes upon it may finish the deletion. Calico does not write to it any more,
// so that a conflict means that somebody has.
func (b *Backend) remove(ctx context.Context, o client.Object, mark jsonpatch.Operation, others ...jsonpatch.Operation) error {
	if err := b.patch(ctx, o, append(others, mark)); err != nil {
		return client.IgnoreNotFound(err)
	}
	if err := b.delete(ctx, o); err != nil && !apierrors.IsConflict(err) {
		return err
	}
	return nil
}

// deleted marks an object as deleted.
func deleted() jsonpatch.Operation { return jsonpatch.NewOperation("add", "/spec/deleted", true) }

// patch returns what turns the stored block into another one. Attributes that stay are not written, nor is any field that
// is not known here.
func (r record) patch(after block) []jsonpatch.Operation {
	before := r.Spec
	var patch []jsonpatch.Operation
	add := func(path string, value any) {
		patch = append(patch, jsonpatch.NewOperation("add", "/spec/"+path, value))
	}
	if before.Affinity != after.Affinity {
		patch = append(patch, jsonpatch.NewOperation("remove", "/spec/affinity", nil))
		if before.AffinityClaimTime != nil {
			patch = append(patch, jsonpatch.NewOperation("remove", "/spec/affinityClaimTime", nil))
		}
	}
	if !slices.EqualFunc(before.Allocations, after.Allocations, same) {
		add("allocations", after.Allocations)
	}
	if !slices.Equal(before.Unallocated, after.Unallocated) {
		add("unallocated", after.Unallocated)
	}
	for i := range slices.Backward(before.Attributes) {
		if !slices.Contains(after.kept, i) {
			patch = append(patch, jsonpatch.NewOperation("remove", "/spec/attributes/"+strconv.Itoa(i), nil))
		}
	}
	if before.Attributes == nil {
		add("attributes", []Attribute{})
	}
	for _, a := range after.Attributes[len(after.kept):] {
		add("attributes/-", a)
	}
	if before.SequenceNumberForAllocation == nil && len(after.SequenceNumberForAllocation) > 0 {
		add("sequenceNumberForAllocation", struct{}{})
	}
	for _, o := range slices.Sorted(maps.Keys(before.SequenceNumberForAllocation)) {
		if _, ok := after.SequenceNumberForAllocation[o]; !ok {
			patch = append(patch, jsonpatch.NewOperation("remove", "/spec/sequenceNumberForAllocation/"+escape(o), nil))
		}
	}
	for _, o := range slices.Sorted(maps.Keys(after.SequenceNumberForAllocation)) {
		if number := after.SequenceNumberForAllocation[o]; number != before.SequenceNumberForAllocation[o] {
			add("sequenceNumberForAllocation/"+escape(o), number)
		}
	}
	add("sequenceNumber", after.SequenceNumber)
	return patch
}

func same(a, b *int) bool { return a == nil && b == nil || a != nil && b != nil && *a == *b }
