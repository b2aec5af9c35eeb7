package envtest

import (
	"net/http"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/fixture"
)

// claim returns the Lease in which a node claims a block of the pool that bears the scene's name.
func (s *scene) claim(node string) (*coordinationv1.Lease, error) {
	lease := &coordinationv1.Lease{}
	return lease, s.client.Get(s.t.Context(), types.NamespacedName{Namespace: controlplane.Namespace, Name: ipam.ClaimName(s.name, node)}, lease)
}

func TestDryRunAnswersTheSameAndWritesNothing(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "dry")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.100.0.0/24", "")))
	s.node(s.name)
	pod := s.pod(s.name, s.name)
	nothing := func() {
		t.Helper()
		s.read(pod)
		if diff := gocmp.Diff([]string(nil), pod.Finalizers); diff != "" {
			t.Errorf("finalizers (-want +got):\n%s", diff)
		}
	}

	b := fixture.Block(s.name, 0, s.name, fixture.Entry(0, "h", fixture.OfPod(pod)))
	s.wants(answer{}, s.dry().client.Create(t.Context(), b.DeepCopy()))
	nothing()
	if _, err := s.claim(s.name); !apierrors.IsNotFound(err) {
		t.Errorf("the claim after a dry run: %v, want none", err)
	}

	b = fixture.Block(s.name, 0, s.name)
	s.create(b)
	claim, err := s.claim(s.name)
	if err != nil {
		t.Fatal(err)
	}
	second := func(s *scene) error { return s.client.Create(t.Context(), fixture.Block(s.name, 1, s.name)) }
	refused := answer{
		Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
		Message: noNew + `"NAME-1" is forbidden: spec.node: node "NAME" has free addresses in AddressBlock "NAME-0": take one of those`,
	}
	s.wants(refused, second(s.dry()))
	s.wants(refused, second(s))

	take := func(s *scene, pod *corev1.Pod) error { return s.take(b, fixture.Entry(0, "h", fixture.OfPod(pod))) }
	s.wants(answer{}, take(s.dry(), pod))
	nothing()
	stranger := pod.DeepCopy()
	stranger.UID = "6f0c"
	refused = answer{
		Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: invalidTake + `"NAME-0" is invalid: spec.allocations[0].attributes.uid: Invalid value: "6f0c": Pod default/NAME has uid UID: a pod of the same name is another owner`,
		Causes:  []metav1.StatusCause{wrong("spec.allocations[0].attributes.uid", `Invalid value: "6f0c": Pod default/NAME has uid UID: a pod of the same name is another owner`)},
	}
	s.wants(refused, take(s.dry(), stranger), "UID", string(pod.UID))
	s.wants(refused, take(s, stranger), "UID", string(pod.UID))

	// Had the claim been written meanwhile, it would have another revision.
	after, err := s.claim(s.name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(claim, after); diff != "" {
		t.Errorf("the claim (-before +after):\n%s", diff)
	}
}
