package finalizers

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
)

// I7: what others have written into an object stays, whatever we do to it.
func TestForeignFieldsSurvive(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := busy(t)
		s.decorate(t)
		before := s.foreign()
		s.finish()
		after := s.foreign()
		for name, content := range before {
			left, stays := after[name]
			if guarded := len(nested(content, "metadata", "finalizers").([]any)) > 0; !stays {
				if guarded {
					t.Errorf("%s is gone, and somebody else held it", name)
				}
				continue
			}
			if diff := cmp.Diff(content, left, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s (-before +after):\n%s", name, diff)
			}
		}
	})
}

// decorate writes into every object what we know nothing of.
func (s *stage) decorate(t *rapid.T) {
	word := rapid.StringMatching(`[a-z]{1,4}`)
	texts := rapid.MapOfN(rapid.Map(word, func(w string) string { return "example.org/" + w }), word, 0, 3)
	fields := rapid.MapOfN(rapid.Map(word, func(w string) string { return "x-" + w }), rapid.OneOf(
		rapid.Map(word, func(w string) any { return w }), rapid.Map(rapid.Int64(), func(n int64) any { return n }), rapid.Just[any](nil),
		rapid.Map(word, func(w string) any { return map[string]any{w: []any{w, int64(1), true}} }),
	), 0, 3)
	guards := rapid.SliceOfNDistinct(rapid.Map(word, func(w string) string { return "example.org/" + w }), 0, 3, rapid.ID)
	for _, of := range kinds() {
		if _, ours := of.(*coordinationv1.Lease); ours {
			continue // Nobody holds these, and they go as a whole.
		}
		list, err := s.tracker.List(s.resource(of), s.kind(of), "")
		s.must(err)
		objects, err := meta.ExtractList(list)
		s.must(err)
		for _, stored := range objects {
			o := stored.(client.Object)
			o.SetLabels(texts.Draw(t, "labels"))
			o.SetAnnotations(texts.Draw(t, "annotations"))
			all := slices.Concat(o.GetFinalizers(), guards.Draw(t, "finalizers"))
			if len(all) > 0 {
				all = rapid.Permutation(all).Draw(t, "order")
			}
			o.SetFinalizers(all)
			if u, ok := o.(*unstructured.Unstructured); ok {
				places := []map[string]any{u.Object, nested(u.Object, "spec").(map[string]any)}
				if entries, ok := nested(u.Object, "spec", "allocations").([]any); ok {
					for _, e := range entries {
						places = append(places, e.(map[string]any))
					}
				}
				u.Object["status"] = map[string]any{}
				for _, place := range append(places, nested(u.Object, "status").(map[string]any)) {
					for name, value := range fields.Draw(t, "fields") {
						place[name] = runtime.DeepCopyJSONValue(value)
					}
				}
			}
			o.SetResourceVersion(s.revision())
			s.must(s.tracker.Update(s.resource(of), o, o.GetNamespace()))
		}
	}
}

// foreign returns every object as JSON has it, without all that is ours to write.
func (s *stage) foreign() map[string]map[string]any {
	found := map[string]map[string]any{}
	for _, of := range kinds() {
		list, err := s.tracker.List(s.resource(of), s.kind(of), "")
		s.must(err)
		objects, err := meta.ExtractList(list)
		s.must(err)
		for _, o := range objects {
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
			s.must(err)
			content = runtime.DeepCopyJSON(content)
			metadata := content["metadata"].(map[string]any)
			delete(metadata, "resourceVersion")
			delete(metadata, "deletionTimestamp")
			finalizers, _ := metadata["finalizers"].([]any)
			metadata["finalizers"] = slices.DeleteFunc(finalizers, func(f any) bool {
				return strings.HasPrefix(f.(string), v1alpha1.Group+"/")
			})
			if status, ok := content["status"].(map[string]any); ok && s.kind(of).Group == v1alpha1.Group {
				for _, name := range []string{"allocated", "blocks", "capacity", "conditions", "free", "observedGeneration"} {
					delete(status, name)
				}
			}
			if entries, ok := nested(content, "spec", "allocations").([]any); ok {
				content["spec"].(map[string]any)["allocations"] = slices.DeleteFunc(entries, func(e any) bool {
					return slices.Contains([]any{"h0", "h1", "h1b", "h3"}, e.(map[string]any)["handle"])
				})
			}
			found[fmt.Sprintf("%T %s/%s", of, metadata["namespace"], metadata["name"])] = content
		}
	}
	return found
}

// nested returns what lies at a path; nil if nothing does.
func nested(content map[string]any, path ...string) any {
	value, _, err := unstructured.NestedFieldNoCopy(content, path...)
	if err != nil {
		return nil
	}
	return value
}
