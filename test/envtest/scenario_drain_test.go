package envtest

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

// The namespace controller deletes everything, waits, and then gives the namespace free. No Event can be written about
// its pods.
func TestNamespaceDeletedWhilePodsAreHeldI1I3(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "namespace")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.134.0.0/24", "")))
	s.node(s.name)
	block := s.block()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name}}
	s.create(namespace)
	var tenants []*corev1.Pod
	for i := range int32(3) {
		tenants = append(tenants, s.tenant(fmt.Sprintf("%s/web-%d", s.name, i), block, i))
	}
	s.known(block)
	blocks, namespaces := record(s, block, &v1alpha1.AddressBlockList{}), record(s, namespace, &corev1.NamespaceList{})
	films := make([]*film[*corev1.Pod], len(tenants))
	for i, pod := range tenants {
		films[i] = record(s, pod, &corev1.PodList{})
	}

	s.delete(namespace)
	s.wants(answer{}, s.client.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(s.name)))
	s.overtaken()
	s.read(block)
	same(t, "the allocations while the pods are held", entry(0, tenants[0])+", "+entry(1, tenants[1])+", "+entry(2, tenants[2]), entries(block))
	start := block.DeepCopy()
	for i, pod := range tenants {
		s.ends(pod)
		films[i].letGo()
		s.finish(pod)
		films[i].gone()
		same(t, "the story of "+pod.Name, graceful(), podStory(films[i]))
	}
	blocks.until("free", func(f frame[*v1alpha1.AddressBlock]) bool { return entries(f.object) == "" })
	same(t, "the block's story", []string{
		entries(start), entry(1, tenants[1]) + ", " + entry(2, tenants[2]), entry(2, tenants[2]), "",
	}, blockStory(start, blocks))

	s.read(namespace)
	namespace.Spec.Finalizers = nil
	s.wants(answer{}, s.client.SubResource("finalize").Update(t.Context(), namespace))
	namespaces.gone()
}

// settling is how long a pool stays after its deletion at least, whether it has blocks or not.
const settling = 10 * time.Second

func TestPoolDrainedByTheLastGiveI2(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "drained")
	pool := fixture.Pool(s.name, fixture.Subnet("10.135.0.0/24", ""))
	s.create(pool)
	s.node(s.name)
	block := s.block()
	pod := s.tenant(s.name, block, 0)
	s.known(block)
	s.read(pool)
	blocks, pools := record(s, block, &v1alpha1.AddressBlockList{}), record(s, pool, &v1alpha1.AddressPoolList{})

	const (
		warning = "pool-in-use: 1 block with 1 allocation remain; deletion completes when they have drained"
		remains = "1 address in 1 block on 1 node remain"
	)
	s.wants(answer{Warnings: []string{warning}}, s.client.Delete(t.Context(), pool))
	deleted := time.Now()
	pools.until("draining", func(f frame[*v1alpha1.AddressPool]) bool {
		for _, c := range f.object.Status.Conditions {
			if c.Type == string(v1alpha1.Draining) && c.Status == metav1.ConditionTrue {
				same(t, "the condition Draining", metav1.Condition{
					Type: c.Type, Status: c.Status, ObservedGeneration: f.object.Generation, LastTransitionTime: c.LastTransitionTime,
					Reason: string(v1alpha1.ReasonBlocksRemain), Message: remains,
				}, c)
				return true
			}
		}
		return false
	})
	s.tells(pool,
		told{Type: corev1.EventTypeWarning, Reason: "AdmissionWarning", Note: warning},
		told{Type: corev1.EventTypeNormal, Reason: "PoolDraining", Note: remains})
	s.delete(pod)
	s.ends(pod)
	blocks.gone()
	same(t, "the block's story", []string{entry(0, pod), "", "gone"}, blockStory(block, blocks))
	gone := pools.gone().at.Sub(deleted)
	within(t, "the pool was gone", settling+prompt, gone)
	if gone < settling-time.Second { // The deletionTimestamp has whole seconds.
		t.Errorf("the pool was gone %s after its deletion: a block that was admitted just before may have been lost", gone)
	}
}
