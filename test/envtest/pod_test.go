package envtest

import (
	"net/http"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/test/fixture"
)

func TestPodWithAnAddressWaits(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "waits")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.100.0.0/24", "")))
	s.node(s.name)
	b := s.block()
	a, z := s.pod(s.name+"-a", s.name), s.pod(s.name+"-z", s.name)

	// If one entry of a write is refused, the others' pods are left alone.
	gone := fixture.OfPod(z)
	gone.Name += "-gone"
	s.wants(answer{
		Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: invalidTake + `"NAME-0" is invalid: spec.allocations[1].attributes.name: Invalid value: "NAME-z-gone": Pod default/NAME-z-gone does not exist`,
		Causes:  []metav1.StatusCause{wrong("spec.allocations[1].attributes.name", `Invalid value: "NAME-z-gone": Pod default/NAME-z-gone does not exist`)},
	}, s.take(b, fixture.Entry(0, "a", fixture.OfPod(a)), fixture.Entry(1, "z", gone)))
	s.read(a)
	if diff := gocmp.Diff([]string(nil), a.Finalizers); diff != "" {
		t.Errorf("finalizers of a pod without an address (-want +got):\n%s", diff)
	}

	s.wants(answer{}, s.take(b, fixture.Entry(0, "a", fixture.OfPod(a)), fixture.Entry(1, "z", fixture.OfPod(z)), fixture.Entry(2, "z-2", fixture.OfPod(z))))
	s.held(a)
	s.held(z)
}

// The patch that puts the finalizer on would succeed on a pod that has it already, whatever became of the pod.
func TestPodThatIsGoingGetsNoOtherAddress(t *testing.T) {
	t.Parallel()
	for name, grace := range map[string]client.GracePeriodSeconds{"deleted": 3, "deleted by force": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := shared.scene(t, "held")
			s.create(fixture.Pool(s.name, fixture.Subnet("10.100.0.0/24", "")))
			s.node(s.name)
			pod := s.pod(s.name, s.name)
			b := s.block(fixture.Entry(0, "h", fixture.OfPod(pod)))
			s.wants(answer{}, s.client.Delete(t.Context(), pod, grace))
			s.held(pod)
			s.wants(answer{
				Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
				Message: noTake + `"NAME-0" is forbidden: spec.allocations[1].attributes.name: Pod default/NAME is being deleted`,
			}, s.take(b, fixture.Entry(1, "h-2", fixture.OfPod(pod))))
		})
	}
}

func TestPodOfAnExcludedNamespaceDoesNotWait(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "excluded")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.100.0.0/24", "")))
	s.node(s.name)
	pod := s.pod(metav1.NamespaceSystem+"/"+s.name, s.name)
	b := s.block()
	s.wants(answer{}, s.take(b, fixture.Entry(0, "h", fixture.OfPod(pod))))
	s.read(pod)
	if diff := gocmp.Diff([]string(nil), pod.Finalizers); diff != "" {
		t.Errorf("finalizers (-want +got):\n%s", diff)
	}
}
