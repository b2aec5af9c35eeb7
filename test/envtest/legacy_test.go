package envtest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/fixture"
)

// verb is a way to write an allocation beside another one. It returns the name of the block.
type verb func(s *scene, a v1alpha1.Allocation) (block string, err error)

func verbs() map[string]verb {
	// with returns a block that holds a reservation and the allocation.
	with := func(s *scene, index int32, node string, a v1alpha1.Allocation) *v1alpha1.AddressBlock {
		b := fixture.Block(s.name, index, node, fixture.Reservations(0, 0))
		b.Spec.Allocations = append(b.Spec.Allocations, a)
		return b
	}
	return map[string]verb{
		"create": func(s *scene, a v1alpha1.Allocation) (string, error) {
			b := with(s, 1, s.name+"-other", a)
			return b.Name, s.client.Create(s.t.Context(), b)
		},
		"update": func(s *scene, a v1alpha1.Allocation) (string, error) {
			b := fixture.Block(s.name, 0, s.name)
			return b.Name, rewrite(s.t.Context(), s.client, b, func(b *v1alpha1.AddressBlock) error {
				b.Spec.Allocations = append(b.Spec.Allocations, a)
				return s.client.Update(s.t.Context(), b)
			})
		},
		"json patch": func(s *scene, a v1alpha1.Allocation) (string, error) {
			b := fixture.Block(s.name, 0, s.name, fixture.Reservations(0, 0))
			return b.Name, s.take(b, func(b *v1alpha1.AddressBlock) { b.Spec.Allocations = []v1alpha1.Allocation{a} })
		},
		"merge patch": func(s *scene, a v1alpha1.Allocation) (string, error) {
			b := with(s, 0, s.name, a)
			return b.Name, s.client.Patch(s.t.Context(), b, client.RawPatch(types.MergePatchType, s.allocations(b.Spec.Allocations...)))
		},
		"apply": func(s *scene, a v1alpha1.Allocation) (string, error) {
			b := with(s, 0, s.name, a)
			return b.Name, s.client.Apply(s.t.Context(), client.ApplyConfigurationFromUnstructured(s.plain(b)), applier, client.ForceOwnership)
		},
	}
}

// allocations is a merge patch.
func (s *scene) allocations(all ...v1alpha1.Allocation) []byte {
	s.t.Helper()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"allocations": all}})
	if err != nil {
		s.t.Fatal(err)
	}
	return patch
}

// unowned are allocations that do not say whose they are, and what is missing below spec.allocations[1].
func unowned(node string) map[string]struct {
	entry          v1alpha1.Allocation
	field, message string
} {
	return map[string]struct {
		entry          v1alpha1.Allocation
		field, message string
	}{
		"without a handle": {
			v1alpha1.Allocation{Offset: 1, Attributes: fixture.External("router")},
			"handle", "name this hand-out, so that exactly it can be given back",
		},
		"without attributes": {
			v1alpha1.Allocation{Offset: 1, Handle: "h"},
			"attributes", "say whose the address is, or it can never be proven free",
		},
		"of a pod without a UID": {
			v1alpha1.Allocation{Offset: 1, Handle: "h", Attributes: v1alpha1.Attributes{
				Type: v1alpha1.OwnerPod, Namespace: "default", Name: "web-0", Node: node,
			}},
			"attributes.uid", "required for type Pod, Node, VirtualMachine and Service: a name alone is no identity",
		},
	}
}

// refuseUnowned tries every verb with every allocation that lacks something, and wants a refusal that begins thus.
func refuseUnowned(s *scene, begins func(how string) string) {
	for how, write := range verbs() {
		node := s.name
		if how == "create" {
			node += "-other"
		}
		for what, u := range unowned(node) {
			s.t.Run(fmt.Sprintf("%s of an allocation %s", how, what), func(t *testing.T) {
				s := s.in(t)
				block, err := write(s, u.entry)
				field := "spec.allocations[1]." + u.field
				s.wants(answer{
					Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
					Message: begins(how) + `AddressBlock.ipam.oakum.dev "` + block + `" is invalid: ` + field + `: Required value: ` + u.message,
					Causes:  []metav1.StatusCause{missing(field, "Required value: "+u.message)},
				}, err)
			})
		}
	}
}

// begin makes a pool, two nodes, and the first one's block with a reservation in it.
func (s *scene) begin() *v1alpha1.AddressBlock {
	s.t.Helper()
	s.create(fixture.Pool(s.name, fixture.Subnet("10.100.0.0/24", "")))
	s.node(s.name)
	s.node(s.name + "-other")
	return s.block(fixture.Reservations(0, 0))
}

func TestI5NoVerbAdmitsAnUnownedAllocation(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "unowned")
	s.begin()
	refuseUnowned(s, func(string) string { return "" })
}

func TestI5WithoutTheSchema(t *testing.T) {
	t.Parallel()
	p := own(t, controlplane.Start)
	p.start(t, settings)
	s := p.scene(t, "legacy")
	b := s.begin()

	tighten := s.loosen()
	s.soon(handleMissing(deniedTake, 1), func() error { return s.dry().take(b, fixture.Entry(1, "", fixture.External("router"))) })
	t.Run("the webhook refuses", func(t *testing.T) {
		refuseUnowned(s.in(t), func(how string) string {
			if how == "create" {
				return deniedNew
			}
			return deniedTake
		})
	})

	restore := s.withoutWebhooks()
	eventually(t, func() error {
		return s.take(b, fixture.Entry(1, "", v1alpha1.Attributes{}), fixture.Entry(2, "old", v1alpha1.Attributes{}))
	})
	restore()
	fourth := func() error { return s.dry().take(b, fixture.Entry(3, "", fixture.External("router"))) }
	s.soon(handleMissing(deniedTake, 3), fourth)
	tighten()
	refused := handleMissing("", 3)
	refused.Warnings = []string{nameless(1), ownerless(1), ownerless(2)}
	s.soon(refused, fourth)
	t.Run("legacy allocations are left alone", func(t *testing.T) { besideLegacy(s.in(t), b) })
}

// nameless and ownerless are what the API server itself says about an allocation that was there before the rules.
func nameless(place int) string {
	return fmt.Sprintf("spec.allocations[%d].handle: Required value: name this hand-out, so that exactly it can be given back", place)
}

func ownerless(place int) string {
	return fmt.Sprintf("spec.allocations[%d].attributes: Required value: say whose the address is, or it can never be proven free", place)
}

// handleMissing is the refusal of an allocation in the scene's first block.
func handleMissing(begins string, place int) answer {
	const message = "Required value: name this hand-out, so that exactly it can be given back"
	field := fmt.Sprintf("spec.allocations[%d].handle", place)
	return answer{
		Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: begins + `AddressBlock.ipam.oakum.dev "NAME-0" is invalid: ` + field + `: ` + message,
		Causes:  []metav1.StatusCause{missing(field, message)},
	}
}

// besideLegacy tries writes of a block whose second and third allocations do not say whose they are. None is kept.
func besideLegacy(s *scene, b *v1alpha1.AddressBlock) {
	s.read(b)
	want := []v1alpha1.Allocation{
		{Offset: 0, Handle: "reserved-0", Attributes: fixture.External("router")}, {Offset: 1}, {Offset: 2, Handle: "old"},
	}
	if diff := gocmp.Diff(want, b.Spec.Allocations); diff != "" {
		s.t.Fatalf("allocations (-want +got):\n%s", diff)
	}
	json := func(patch string) client.Patch { return client.RawPatch(types.JSONPatchType, []byte(patch)) }
	merge := func(patch string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(patch)) }
	next := v1alpha1.Allocation{Offset: 3, Handle: "new", Attributes: fixture.External("switch")}
	unchanged := []string{nameless(1), ownerless(1), ownerless(2)}
	for name, tt := range map[string]struct {
		patch client.Patch
		want  answer
	}{
		"it is labelled": {
			patch: merge(`{"metadata":{"labels":{"a":"b"}}}`),
			want:  answer{Warnings: unchanged},
		},
		"it gets somebody else's finalizer": {
			patch: json(`[{"op":"add","path":"/metadata/finalizers/-","value":"example.org/mine"}]`),
			want:  answer{Warnings: unchanged},
		},
		"another address is given back": {
			patch: json(`[{"op":"remove","path":"/spec/allocations/0"}]`),
			want:  answer{Warnings: []string{nameless(0), ownerless(0), ownerless(1)}},
		},
		"an allocation gets a note": {
			patch: json(`[{"op":"add","path":"/spec/allocations/0/attributes/extra","value":{"rack":"7"}}]`),
			want:  answer{Warnings: unchanged},
		},
		"another address is taken by a merge patch that repeats all": {
			patch: merge(string(s.allocations(append(want, next)...))),
			want:  answer{Warnings: unchanged},
		},
		"one of them is given back": {
			patch: json(`[{"op":"remove","path":"/spec/allocations/1"}]`),
			want:  answer{Warnings: []string{ownerless(1)}},
		},
		"all are given back": {patch: json(`[{"op":"remove","path":"/spec/allocations"}]`)},
		"one of them gets an owner": {
			patch: json(`[{"op":"add","path":"/spec/allocations/2/attributes","value":{"type":"External","name":"router"}}]`),
			want:  answer{Warnings: []string{nameless(1), ownerless(1)}},
		},
		"one of them gets an owner that does not exist": {
			patch: json(`[{"op":"add","path":"/spec/allocations/2/attributes","value":{"type":"Pod","namespace":"default","name":"web-0","uid":"6f0c","node":"` + s.name + `"}}]`),
			want: answer{
				Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
				Message:  invalidTake + `"NAME-0" is invalid: spec.allocations[2].attributes.name: Invalid value: "web-0": Pod default/web-0 does not exist`,
				Causes:   []metav1.StatusCause{wrong("spec.allocations[2].attributes.name", `Invalid value: "web-0": Pod default/web-0 does not exist`)},
				Warnings: []string{nameless(1), ownerless(1)},
			},
		},
	} {
		s.t.Run(name, func(t *testing.T) {
			s := s.in(t)
			s.wants(tt.want, s.dry().client.Patch(t.Context(), b.DeepCopy(), tt.patch))
		})
	}
	s.t.Run("its status is written", func(t *testing.T) {
		s := s.in(t)
		s.wants(answer{Warnings: unchanged}, s.dry().client.Status().Patch(t.Context(), b.DeepCopy(), merge(`{"status":{"allocated":3}}`)))
	})
	for how, write := range verbs() {
		if how == "create" || how == "merge patch" {
			continue // The one knows no legacy, the other would give it back.
		}
		s.t.Run("another address is taken by "+how, func(t *testing.T) {
			s := s.in(t)
			_, err := write(s.dry(), next)
			s.wants(answer{Warnings: unchanged}, err)
		})
	}
}

// loosen lets the schema admit any allocation until the answer is called.
func (s *scene) loosen() (tighten func()) {
	s.t.Helper()
	crd := &unstructured.Unstructured{}
	crd.SetAPIVersion("apiextensions.k8s.io/v1")
	crd.SetKind("CustomResourceDefinition")
	crd.SetName("addressblocks." + v1alpha1.Group)
	s.read(crd)
	versions := func() string {
		s.t.Helper()
		all, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
		if err != nil {
			s.t.Fatal(err)
		}
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"versions": all}})
		if err != nil {
			s.t.Fatal(err)
		}
		return string(patch)
	}
	strict := versions()
	drop(crd.Object, "x-kubernetes-validations")
	s.patch(crd, types.MergePatchType, versions())
	return func() { s.patch(crd, types.MergePatchType, strict) }
}

// drop removes a key wherever it is.
func drop(from any, key string) {
	switch from := from.(type) {
	case map[string]any:
		delete(from, key)
		for _, value := range from {
			drop(value, key)
		}
	case []any:
		for _, value := range from {
			drop(value, key)
		}
	}
}

// withoutWebhooks takes our webhooks away until the answer is called.
func (s *scene) withoutWebhooks() (restore func()) {
	s.t.Helper()
	configurations := []client.Object{&admissionregistrationv1.MutatingWebhookConfiguration{}, &admissionregistrationv1.ValidatingWebhookConfiguration{}}
	for _, c := range configurations {
		c.SetName("oakum")
		s.read(c)
		s.wants(answer{}, s.client.Delete(s.t.Context(), c))
	}
	return func() {
		s.t.Helper()
		for _, c := range configurations {
			c.SetResourceVersion("")
			c.SetUID("")
			s.create(c)
		}
	}
}
