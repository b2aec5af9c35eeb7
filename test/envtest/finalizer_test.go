package envtest

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

// applier owns what the scenes of this file apply.
const applier = client.FieldOwner("applier")

// held is an object with a finalizer of ours that the manager wants there.
type held struct {
	object              client.Object
	resource, finalizer string
	// core objects know strategic merge patches, and their status subresource lets finalizers be changed.
	core bool
}

// apply applies an object, and reads what becomes of it.
func (s *scene) apply(object client.Object) {
	s.t.Helper()
	if err := s.client.Apply(s.t.Context(), client.ApplyConfigurationFromUnstructured(s.plain(object)), applier, client.ForceOwnership); err != nil {
		s.t.Fatal(err)
	}
	s.read(object)
}

// plain returns an object as somebody would write it: without what the API server fills in.
func (s *scene) plain(object client.Object) *unstructured.Unstructured {
	s.t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		s.t.Fatal(err)
	}
	delete(content, "status")
	kind, err := s.client.GroupVersionKindFor(object)
	if err != nil {
		s.t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(kind)
	u.SetManagedFields(nil)
	u.SetResourceVersion("")
	u.SetUID("")
	unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
	unstructured.RemoveNestedField(content, "metadata", "generation")
	return u
}

// hold makes one held object of each kind. They belong to one field owner, so that it can apply the finalizers away.
func (s *scene) hold() []held {
	s.t.Helper()
	pool := fixture.Pool(s.name, fixture.Subnet("10.100.0.0/24", ""))
	pool.Finalizers = []string{v1alpha1.PoolFinalizer}
	node := fixture.Node(s.name)
	node.Finalizers = []string{v1alpha1.AddressesFinalizer}
	pod := fixture.Pod(s.name, s.name)
	pod.Finalizers = []string{v1alpha1.AddressesFinalizer}
	for _, object := range []client.Object{pool, node, pod} {
		s.apply(object)
	}
	running := fixture.Pod(s.name, s.name, fixture.Running())
	s.report(running)
	block := fixture.Block(s.name, 0, s.name, fixture.Entry(0, "h", fixture.OfPod(pod)))
	block.Finalizers = []string{v1alpha1.BlockFinalizer}
	s.apply(block)
	return []held{
		{pool, "addresspools.ipam.oakum.dev", v1alpha1.PoolFinalizer, false},
		{block, "addressblocks.ipam.oakum.dev", v1alpha1.BlockFinalizer, false},
		{pod, "pods", v1alpha1.AddressesFinalizer, true},
		{node, "nodes", v1alpha1.AddressesFinalizer, true},
	}
}

// strip is a way to take the finalizer off. All of them are dry runs.
type strip func(ctx context.Context, c client.Client, h held) error

// The patches that do it.
const (
	jsonStrip      = `[{"op":"test","path":"/metadata/finalizers/0","value":"FINALIZER"},{"op":"remove","path":"/metadata/finalizers/0"}]`
	mergeStrip     = `{"metadata":{"finalizers":null}}`
	strategicStrip = `{"metadata":{"$deleteFromPrimitiveList/finalizers":["FINALIZER"]}}`
)

func (h held) patch(t types.PatchType, patch string) (client.Object, client.Patch) {
	return h.object.DeepCopyObject().(client.Object), client.RawPatch(t, []byte(strings.ReplaceAll(patch, "FINALIZER", h.finalizer)))
}

func patching(t types.PatchType, patch string) strip {
	return func(ctx context.Context, c client.Client, h held) error {
		object, p := h.patch(t, patch)
		return c.Patch(ctx, object, p, client.DryRunAll)
	}
}

func patchingStatus(t types.PatchType, patch string) strip {
	return func(ctx context.Context, c client.Client, h held) error {
		object, p := h.patch(t, patch)
		return c.Status().Patch(ctx, object, p, client.DryRunAll)
	}
}

func updating(write func(ctx context.Context, c client.Client, object client.Object) error) strip {
	return func(ctx context.Context, c client.Client, h held) error {
		return rewrite(ctx, c, h.object.DeepCopyObject().(client.Object), func(object client.Object) error {
			object.SetFinalizers(nil)
			return write(ctx, c, object)
		})
	}
}

// strips are the ways for any kind.
func strips(s *scene) map[string]strip {
	return map[string]strip{
		"update": updating(func(ctx context.Context, c client.Client, object client.Object) error {
			return c.Update(ctx, object, client.DryRunAll)
		}),
		"json patch":  patching(types.JSONPatchType, jsonStrip),
		"merge patch": patching(types.MergePatchType, mergeStrip),
		"apply": func(ctx context.Context, c client.Client, h held) error {
			u := s.plain(h.object)
			u.SetFinalizers(nil)
			return c.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), applier, client.ForceOwnership, client.DryRunAll)
		},
	}
}

// coreStrips are the others.
func coreStrips() map[string]strip {
	return map[string]strip{
		"strategic merge patch": patching(types.StrategicMergePatchType, strategicStrip),
		"update of the status": updating(func(ctx context.Context, c client.Client, object client.Object) error {
			return c.Status().Update(ctx, object, client.DryRunAll)
		}),
		"json patch of the status":            patchingStatus(types.JSONPatchType, jsonStrip),
		"merge patch of the status":           patchingStatus(types.MergePatchType, mergeStrip),
		"strategic merge patch of the status": patchingStatus(types.StrategicMergePatchType, strategicStrip),
	}
}

const (
	promise  = `Oakum takes its finalizer off when the addresses are free; `
	annotate = promise + `to take it off all the same, annotate the object first: ipam.oakum.dev/force-release=`
)

func TestNobodyStripsAFinalizer(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "strip")
	objects := s.hold()
	s.create(&rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: s.name},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"pods", "pods/status", "nodes", "nodes/status"}, Verbs: []string{"get", "update", "patch"}},
			{APIGroups: []string{v1alpha1.Group}, Resources: []string{"addresspools", "addressblocks"}, Verbs: []string{"get", "update", "patch"}},
		},
	})
	s.bind(s.name+"-editor", s.name)
	s.bind(s.name+"-releaser", s.name)
	s.bind(s.name+"-releaser", "oakum-releaser")
	s.bind(s.name+"-admin", "cluster-admin")
	for who, user := range map[string]struct {
		client client.Client
		// refusal is what the user reads; with the object's UID behind it, if it is about the annotation.
		refusal string
	}{
		"an editor": {
			s.connect(s.As(s.name+"-editor", nil)),
			promise + s.name + `-editor may not release addresses: that takes the verb release on addresses.ipam.oakum.dev`,
		},
		"an editor who may release": {s.connect(s.As(s.name+"-releaser", nil)), annotate},
		"a cluster-admin":           {s.connect(s.As(s.name+"-admin", nil)), annotate},
		"system:masters":            {s.client, annotate},
	} {
		for _, h := range objects {
			for annotation, value := range map[string]string{"no": "", "another UID in the": "6f0c11d2-0000-4000-8000-000000000000", "its UID in the": string(h.object.GetUID())} {
				t.Run(fmt.Sprintf("%s with %s annotation by %s", h.resource, annotation, who), func(t *testing.T) {
					want := answer{
						Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
						Message: fmt.Sprintf(`%s %q is forbidden: %s%s`, h.resource, h.object.GetName(), byPolicy("finalizers"), user.refusal),
					}
					switch {
					case user.refusal == annotate && value == string(h.object.GetUID()):
						want = answer{}
					case user.refusal == annotate:
						want.Message += string(h.object.GetUID())
					}
					s := s.in(t)
					s.annotate(h.object.DeepCopyObject().(client.Object), v1alpha1.ForceReleaseAnnotation, value)
					s.strip(user.client, h, want)
				})
			}
		}
	}
}

// strip tries all ways to take the finalizer off.
func (s *scene) strip(c client.Client, h held, want answer) {
	ways := strips(s)
	if h.core {
		maps.Copy(ways, coreStrips())
	}
	for how, strip := range ways {
		s.t.Run(how, func(t *testing.T) { s.in(t).wants(want, strip(t.Context(), c, h)) })
	}
}

// Who applies the status of an object can own its finalizers, and apply them away.
func TestNobodyStripsAFinalizerByApplyingTheStatus(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "applied")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.100.0.0/24", "")))
	s.node(s.name)
	pod := s.pod(s.name, s.name)
	apply := func(finalizers ...string) error {
		u := &unstructured.Unstructured{}
		u.SetAPIVersion("v1")
		u.SetKind("Pod")
		u.SetNamespace(pod.Namespace)
		u.SetName(pod.Name)
		u.SetFinalizers(finalizers)
		return s.client.Status().Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), applier)
	}
	s.wants(answer{}, apply(v1alpha1.AddressesFinalizer))
	s.held(pod)
	s.block(fixture.Entry(0, "h", fixture.OfPod(pod)))
	s.wants(answer{
		Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
		Message: `pods "NAME" is forbidden: ` + byPolicy("finalizers") + annotate + string(pod.UID),
	}, apply())
	s.held(pod)
}

func TestStatusOfOurKindsLeavesFinalizers(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "status")
	for _, h := range s.hold() {
		if h.core {
			continue
		}
		t.Run(h.resource, func(t *testing.T) {
			patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null},"status":{"allocated":1}}`))
			s.in(t).wants(answer{}, s.client.Status().Patch(t.Context(), h.object, patch, client.DryRunAll))
			if diff := gocmp.Diff([]string{h.finalizer}, h.object.GetFinalizers()); diff != "" {
				t.Errorf("finalizers (-want +got):\n%s", diff)
			}
		})
	}
}
