package finalizers

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

// outbox is a client that keeps the last patch.
type outbox struct {
	client.Client
	patch []byte
}

// Patch implements client.Client.
func (o *outbox) Patch(_ context.Context, object client.Object, patch client.Patch, _ ...client.PatchOption) (err error) {
	o.patch, err = patch.Data(object)
	return err
}

// FuzzFinalizerPatch puts our finalizer on objects that have others', as one text with commas, and takes it off. I7.
func FuzzFinalizerPatch(f *testing.F) {
	f.Add("example.org/guard", "x")
	f.Add("example.org/guard,ipam.oakum.dev/addresses,a", `"`)
	f.Add("ipam.oakum.dev/addresses", "")
	f.Add("", "$patch")
	f.Fuzz(func(t *testing.T, text, unknown string) {
		text, unknown = fixture.Text(text), fixture.Text(unknown)
		const ours = v1alpha1.AddressesFinalizer
		var had []any
		for name := range strings.SplitSeq(text, ",") {
			if name != "" && !slices.Contains(had, any(name)) {
				had = append(had, name)
			}
		}
		without := slices.DeleteFunc(slices.Clone(had), func(name any) bool { return name == ours })
		with := had
		if len(without) == len(had) {
			with = append(slices.Clone(had), ours)
		}
		stored := func(finalizers []any) []byte {
			meta := map[string]any{"name": "web-0", "uid": "u1", "resourceVersion": "7", "annotations": map[string]string{"a" + unknown: unknown}}
			if len(finalizers) > 0 {
				meta["finalizers"] = finalizers
			}
			return fixture.JSON(t, map[string]any{"metadata": meta, "unknown": unknown})
		}
		// A merge puts what it adds first.
		anyOrder := cmpopts.SortSlices(func(a, b any) bool { return fmt.Sprint(a) < fmt.Sprint(b) })
		compare := func(what string, want []any, got map[string]any) {
			t.Helper()
			if meta := got["metadata"].(map[string]any); len(want) == 0 && cmp.Equal(meta["finalizers"], []any{}) {
				delete(meta, "finalizers") // The API server does not tell one from the other.
			}
			if diff := cmp.Diff(fixture.Parsed(t, stored(want)), got, anyOrder); diff != "" {
				t.Errorf("the object after %s (-want +got):\n%s", what, diff)
			}
		}
		for direction, want := range map[direction][]any{add: with, remove: without} {
			var box outbox
			if err := patchFinalizer(t.Context(), &box, &corev1.Pod{}, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: "u1"}}, direction); err != nil {
				t.Fatal(err)
			}
			after, err := strategicpatch.StrategicMergePatch(stored(had), box.patch, &corev1.Pod{})
			if err != nil {
				t.Fatal(err)
			}
			compare(string(box.patch), want, fixture.Parsed(t, after))
		}

		var box outbox
		object := &metav1.PartialObjectMetadata{}
		if err := json.Unmarshal(stored(had), object); err != nil {
			t.Fatal(err)
		}
		change, want := dropFinalizer, without
		if len(without) == len(had) {
			change, want = addFinalizer, with
		}
		if err := change(t.Context(), &box, object, ours); err != nil {
			t.Fatal(err)
		}
		compare(string(box.patch), want, fixture.Patched(t, stored(had), box.patch))
	})
}
