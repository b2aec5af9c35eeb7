package envtest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/fixture"
)

// unled are the settings of a manager that need not wait until the Lease of a killed one is over.
const unled = settings + "leaderElection: {enabled: false}\n"

// Each of these scenarios has the managers for itself.
func TestScenariosOfRestarts(t *testing.T) {
	t.Parallel()
	p := own(t, controlplane.Start)
	for _, scenario := range []struct {
		name, about string
		play        func(*scene)
	}{
		{"Scenario09KilledBetweenReleaseAndPatchI6I9", "killed", killedInBetween},
		{"Scenario12ErrorsAfterTheWriteI6I9", "errors", errorsAfterTheWrite},
		{"Scenario13EtcdRestartsI1I6", "etcd", etcdRestarts},
		{"Scenario14AllReplicasDownI3", "replicas", allReplicasDown},
		{"Scenario25ChangesOfModeI3", "mode", changesOfMode},
	} {
		t.Run(scenario.name, func(t *testing.T) { scenario.play(p.scene(t, scenario.about)) })
	}
}

// quit ends a manager, which has told everything that it had to tell then.
func quit(t *testing.T, m *controlplane.Manager) {
	t.Helper()
	if err := m.Stop(); err != nil {
		t.Error(err)
	}
}

func killedInBetween(s *scene) {
	t := s.t
	m := s.start(t, unled)
	s.create(fixture.Pool(s.name, fixture.Subnet("10.109.0.0/24", ""), fixture.Cooldown(time.Hour)))
	s.node(s.name)
	block := s.block()
	pod := s.tenant(s.name, block, 0)
	s.known(block)
	blocks := record(s, block, &v1alpha1.AddressBlockList{})
	lift := s.obstruct(pod)

	s.delete(pod)
	s.ends(pod)
	blocks.until("free, and reported so", func(f frame[*v1alpha1.AddressBlock]) bool {
		return entries(f.object) == "" && f.object.Status.ObservedGeneration == f.object.Generation
	})
	given := released(pod, "10.109.0.0")
	stuck := told{
		Type: corev1.EventTypeWarning, Reason: "FinalizerStuck",
		Note: fmt.Sprintf(`taking finalizer ipam.oakum.dev/addresses off: pods %[1]q is forbidden: `+
			`ValidatingAdmissionPolicy '%[1]s' with binding '%[1]s' denied request: it stands in the way`, s.name),
	}
	eventually(t, func() error {
		heard := s.events(pod)
		for i := range heard {
			heard[i].Count = 0 // It is tried again and again.
		}
		if !slices.Equal(heard, []told{given, stuck}) {
			return fmt.Errorf("events: %v, want %v and %v", heard, given, stuck)
		}
		return nil
	})
	m.Kill()
	s.held(pod)
	s.read(block)
	before := block.DeepCopy()

	lift()
	pods := record(s, pod, &corev1.PodList{})
	m = s.start(t, unled)
	pods.letGo()
	s.finish(pod)
	pods.gone()
	s.overtaken()
	quit(t, m)
	s.read(block)
	same(t, "the block's version", before.ResourceVersion, block.ResourceVersion)
	same(t, "the cooling entries", before.Spec.Cooling, block.Spec.Cooling)
	same(t, "releases that were told of", []told{given}, slices.DeleteFunc(s.events(pod), func(e told) bool { return e.Reason != given.Reason }))
}

// obstruct makes the API server refuse Oakum's writes to a pod, and returns a function that makes it stop.
func (s *scene) obstruct(p *corev1.Pod) (lift func()) {
	s.t.Helper()
	name := metav1.ObjectMeta{Name: s.name}
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: name,
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
					RuleWithOperations: admissionregistrationv1.RuleWithOperations{
						Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
						Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
					},
				}},
			},
			MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "one-pod", Expression: fmt.Sprintf("object.metadata.uid == %q", p.UID)}},
			Validations: []admissionregistrationv1.Validation{{
				Expression: fmt.Sprintf("request.userInfo.username != %q", controlplane.ServiceAccount),
				Message:    "it stands in the way",
				Reason:     new(metav1.StatusReasonForbidden),
			}},
		},
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: name,
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName:        s.name,
			ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	s.create(policy, binding)
	oakum := s.connect(s.Oakum())
	eventually(s.t, func() error {
		label := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`))
		if err := oakum.Patch(s.t.Context(), p.DeepCopy(), label, client.DryRunAll); !apierrors.IsForbidden(err) {
			return errors.Join(errors.New("the policy is not heeded yet"), err)
		}
		return nil
	})
	return func() {
		s.delete(binding)
		s.delete(policy)
	}
}

func allReplicasDown(s *scene) {
	t := s.t
	replicas := s.replicas(2)
	w := s.settle("10.114.0.0/18", 512)
	if err := replicas.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := each(t.Context(), len(w.pods), func(i int) error { return w.end(t.Context(), w.pods[i]) }); err != nil {
		t.Fatal(err)
	}
	same(t, "what is there while nobody is", population{Pods: 512, Held: 512, Allocations: 512}, w.count())

	began := time.Now()
	s.replicas(2)
	eventually(t, func() error {
		if now := w.count(); now != (population{}) {
			return fmt.Errorf("%d pods, %d of them held, and %d allocations remain", now.Pods, now.Held, now.Allocations)
		}
		return nil
	})
	within(t, "512 pods were gone", time.Minute, time.Since(began))
}

// replicas starts n managers that end with the test.
func (s *scene) replicas(n int) *controlplane.Replicas {
	s.t.Helper()
	r, err := s.StartReplicas(s.t.Context(), s.binary, settings, n)
	s.t.Cleanup(func() {
		if err := r.Stop(); err != nil {
			s.t.Error(err)
		}
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}
