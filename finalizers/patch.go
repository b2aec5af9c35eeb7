package finalizers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"gomodules.xyz/jsonpatch/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
)

// direction is what becomes of a finalizer.
type direction string

const (
	add    direction = ""
	remove direction = "$deleteFromPrimitiveList/"
)

// patchFinalizer adds our finalizer to a Pod or Node, or removes it. The patch names the UID, so that it never touches
// another object of that name, and nothing of the list but our own entry. An object that is gone, or is another one by
// now, needs nothing any more.
func patchFinalizer(ctx context.Context, c client.Client, target, seen client.Object, d direction) error {
	target.SetNamespace(seen.GetNamespace())
	target.SetName(seen.GetName())
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"%sfinalizers":[%q]}}`, seen.GetUID(), d, v1alpha1.AddressesFinalizer)
	err := c.Patch(ctx, target, client.RawPatch(types.StrategicMergePatchType, []byte(patch)))
	if apierrors.IsNotFound(err) || anotherUID(err) {
		return nil
	}
	return err
}

// anotherUID tells whether a patch was refused because its UID is not the object's: the answer is Invalid, with the
// cause metadata.uid.
func anotherUID(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Field == "metadata.uid" {
			return true
		}
	}
	return false
}

// dropFinalizer takes a finalizer off one of our own kinds. The answer is a conflict if the object was written since
// it was read; an object that is gone needs nothing any more.
func dropFinalizer(ctx context.Context, c client.Client, object client.Object, finalizer string) error {
	i := slices.Index(object.GetFinalizers(), finalizer)
	if i < 0 {
		return nil
	}
	return patchJSON(ctx, c, object, jsonpatch.NewOperation("remove", fmt.Sprintf("/metadata/finalizers/%d", i), nil))
}

// addFinalizer puts a finalizer on one of our own kinds, likewise.
func addFinalizer(ctx context.Context, c client.Client, object client.Object, finalizer string) error {
	if len(object.GetFinalizers()) == 0 {
		return patchJSON(ctx, c, object, jsonpatch.NewOperation("add", "/metadata/finalizers", []string{finalizer}))
	}
	return patchJSON(ctx, c, object, jsonpatch.NewOperation("add", "/metadata/finalizers/-", finalizer))
}

// patchJSON begins the patch by replacing the resourceVersion with the one that was read, which makes a stale one a
// conflict.
func patchJSON(ctx context.Context, c client.Client, object client.Object, op jsonpatch.Operation) error {
	patch, err := json.Marshal([]jsonpatch.Operation{jsonpatch.NewOperation("replace", "/metadata/resourceVersion", object.GetResourceVersion()), op})
	if err != nil {
		return fmt.Errorf("encoding a patch: %w", err)
	}
	target := object.DeepCopyObject().(client.Object)
	return client.IgnoreNotFound(c.Patch(ctx, target, client.RawPatch(types.JSONPatchType, patch)))
}
