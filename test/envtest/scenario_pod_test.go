package envtest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

func TestScenario01GracefulDeleteI1I9(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "graceful")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.101.0.0/24", "fd00:101::/120"), fixture.Cooldown(time.Hour)))
	s.node(s.name)
	block := s.block()
	pod := s.tenant(s.name, block, 1)
	s.known(block)
	running := pod.DeepCopy()
	pods, blocks := record(s, pod, &corev1.PodList{}), record(s, block, &v1alpha1.AddressBlockList{})

	s.delete(pod)
	s.overtaken()
	s.ends(pod)
	ended := pod.DeepCopy()
	letGo := pods.letGo()
	s.finish(pod)
	gone := pods.gone()
	free := blocks.until("free", func(f frame[*v1alpha1.AddressBlock]) bool { return len(f.object.Spec.Allocations) == 0 })

	same(t, "the pod's story", graceful(), podStory(pods))
	same(t, "the block's story", []string{entry(1, pod), ""}, blockStory(block, blocks))
	s.inOrder(running, ended, free.object, letGo.object, gone.object)
	if len(free.object.Spec.Cooling) != 1 || free.object.Spec.Cooling[0].Offset != 1 {
		t.Fatalf("the address should cool down, and nothing else: %v", free.object.Spec.Cooling)
	}
	if left := free.object.Spec.Cooling[0].Until.Sub(free.at); left < time.Hour-10*time.Second || left > time.Hour+time.Second {
		t.Errorf("the address cools down for %s, want an hour", left)
	}
	s.tells(pod, released(pod, "10.101.0.1,fd00:101::1"))
}

func TestScenario02ForceDeleteOnAReadyNodeI1(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "forced")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.102.0.0/24", "")))
	s.node(s.name)
	block := s.block()
	pod := s.tenant(s.name, block, 0)
	s.known(block)
	pods, blocks := record(s, pod, &corev1.PodList{}), record(s, block, &v1alpha1.AddressBlockList{})

	s.force(pod)
	s.overtaken()
	s.ends(pod)
	ended := pod.DeepCopy()
	gone := pods.gone()
	free := blocks.until("free", func(f frame[*v1alpha1.AddressBlock]) bool { return entries(f.object) == "" })

	same(t, "the pod's story", []string{"Running, grace 0, held", "Succeeded, grace 0, held", "gone"}, podStory(pods))
	same(t, "the block's story", []string{entry(0, pod), ""}, blockStory(block, blocks))
	s.inOrder(ended, free.object, gone.object)
	s.tells(pod, released(pod, "10.102.0.0"))
}

func TestScenario08FinishedJobI2(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "job")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.108.0.0/24", "")))
	s.node(s.name)
	block := s.block()
	pod := s.tenant(s.name, block, 0)
	s.known(block)
	pods, blocks := record(s, pod, &corev1.PodList{}), record(s, block, &v1alpha1.AddressBlockList{})

	s.ends(pod)
	letGo := pods.letGo()
	free := blocks.until("free", func(f frame[*v1alpha1.AddressBlock]) bool { return entries(f.object) == "" })
	s.inOrder(pod, free.object, letGo.object)
	s.overtaken()
	s.read(pod)
	same(t, "the version that stays", letGo.object.ResourceVersion, pod.ResourceVersion)
	same(t, "the pod's story", []string{"Succeeded, held", "Succeeded"}, podStory(pods))
	s.tells(pod, released(pod, "10.108.0.0"))
}

// Each successor takes the very address of its predecessor, as soon as it can: the pool has no other one.
func TestScenario10SuccessorOfTheSameNameI1I6(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "successor")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.110.0.0/32", ""), fixture.BlockSize(0)))
	s.node(s.name)
	block := s.block()
	start := block.DeepCopy()
	blocks := record(s, block, &v1alpha1.AddressBlockList{})
	want := []string{""}
	for range 3 {
		pod := s.tenant(s.name, block, 0)
		s.known(block)
		pods := record(s, pod, &corev1.PodList{})
		s.delete(pod)
		s.ends(pod)
		pods.letGo()
		s.finish(pod)
		want = append(want, entry(0, pod), "")
	}
	s.read(block)
	blocks.until("caught up", func(f frame[*v1alpha1.AddressBlock]) bool { return f.object.ResourceVersion == block.ResourceVersion })
	same(t, "the block's story", want, blockStory(start, blocks))
}

// A mutating webhook of somebody else's writes into every update, so into Oakum's own patches too.
func TestScenario17bAnotherWebhookI3I7(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "webhook")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.117.0.0/24", "")))
	node := s.node(s.name)
	block := s.block()
	pod := s.tenant(s.name, block, 0)
	s.known(block)
	s.meddle()
	for _, object := range []client.Object{pod, node} {
		eventually(t, func() error {
			s.patch(object, types.MergePatchType, `{"metadata":{"labels":{"scene":"`+s.name+`"}}}`)
			if object.GetLabels()["meddled"] != "yes" {
				return errors.New("the other webhook is not called yet")
			}
			return nil
		})
	}
	s.adopted(node)
	pods, nodes := record(s, pod, &corev1.PodList{}), record(s, node, &corev1.NodeList{})

	s.delete(pod)
	s.ends(pod)
	letGo := pods.letGo().object
	s.finish(pod)
	pods.gone()
	s.delete(node)
	nodes.gone()
	same(t, "the pod's story", graceful(), podStory(pods))
	same(t, "the label of the other webhook on the pod that is let go", "yes", letGo.Labels["meddled"])
	s.tells(pod, released(pod, "10.117.0.0"))
}

// The network plugin has given the address back before the kubelet reports the end.
func TestReleasedByThePluginI6(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "plugin")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.131.0.0/24", "")))
	s.node(s.name)
	block := s.block()
	pod := s.tenant(s.name, block, 0)
	s.known(block)
	held := block.DeepCopy()
	pods, blocks := record(s, pod, &corev1.PodList{}), record(s, block, &v1alpha1.AddressBlockList{})

	s.delete(pod)
	s.patch(block, types.JSONPatchType, `[{"op":"remove","path":"/spec/allocations/0"}]`)
	blocks.until("seen to be free by Oakum", func(f frame[*v1alpha1.AddressBlock]) bool {
		return f.object.Status.ObservedGeneration == block.Generation
	})
	s.ends(pod)
	pods.letGo()
	s.finish(pod)
	pods.gone()
	s.overtaken()
	same(t, "the pod's story", graceful(), podStory(pods))
	given := block.Generation
	s.read(block)
	same(t, "the block's generation", given, block.Generation)
	same(t, "the block's story", []string{entry(0, pod), ""}, blockStory(held, blocks))
	same(t, "events", []told(nil), s.events(pod))
}

// A hand-out may lie in several blocks; all of it goes together.
func TestHandOutInTwoBlocksI2I9(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "two")
	s.create(
		fixture.Pool(s.name, fixture.Subnet("10.132.0.0/24", "")),
		fixture.Pool(s.name+"-b", fixture.Subnet("10.133.0.0/24", ""), fixture.Network(s.name)),
	)
	s.node(s.name)
	a, b := s.block(), fixture.Block(s.name+"-b", 0, s.name)
	s.create(b)
	pod := s.tenant(s.name, a, 1)
	s.lend(b, 2, pod)
	s.known(a, b)
	firstOf, secondOf := record(s, a, &v1alpha1.AddressBlockList{}), record(s, b, &v1alpha1.AddressBlockList{})
	pods := record(s, pod, &corev1.PodList{})

	s.delete(pod)
	s.ends(pod)
	letGo := pods.letGo()
	s.finish(pod)
	empty := func(f frame[*v1alpha1.AddressBlock]) bool { return entries(f.object) == "" }
	s.inOrder(firstOf.until("free", empty).object, letGo.object)
	s.inOrder(secondOf.until("free", empty).object, letGo.object)
	s.tells(pod, released(pod, "10.132.0.1,10.133.0.2"))
}

// Each hand-out is told of by an Event of its own, whose note tells what became of it.
func TestTwoHandOutsOfOnePodI9(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "handouts")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.136.0.0/24", "")))
	s.node(s.name)
	block := s.block()
	pod := s.tenant(s.name, block, 0)
	s.wants(answer{}, s.take(block, fixture.Entry(1, string(pod.UID)+"-net1", fixture.OfPod(pod))))
	s.known(block)
	s.force(pod)
	s.ends(pod)
	one, two := released(pod, "10.136.0.0"), released(pod, "10.136.0.1")
	two.Note = strings.Replace(two.Note, "-eth0", "-net1", 1)
	eventually(t, func() error {
		heard := s.events(pod)
		slices.SortFunc(heard, func(a, b told) int { return strings.Compare(a.Note, b.Note) })
		if diff := gocmp.Diff([]told{one, two}, heard); diff != "" {
			return fmt.Errorf("events (-want +got):\n%s", diff)
		}
		return nil
	})
}

// A node is drained: all its pods are about one block, and those that end while it is written share the next write.
func TestAllPodsOfABlockEndAtOnceI6I9(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "drain")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.138.0.0/27", ""), fixture.BlockSize(5)))
	s.node(s.name)
	block := s.block()
	var pods []*corev1.Pod
	for i := range int32(32) {
		pods = append(pods, s.tenant(fmt.Sprintf("%s-%d", s.name, i), block, i))
	}
	s.known(block)
	start := block.DeepCopy()
	blocks := record(s, block, &v1alpha1.AddressBlockList{})
	began := time.Now()
	if err := each(t.Context(), len(pods), func(i int) error {
		ended := pods[i].DeepCopy()
		fixture.Ended(ended)
		return s.client.Status().Patch(t.Context(), ended, client.MergeFrom(pods[i]))
	}); err != nil {
		t.Fatal(err)
	}
	free := blocks.until("free", func(f frame[*v1alpha1.AddressBlock]) bool { return entries(f.object) == "" })
	t.Logf("%d addresses of one block were free after %s", len(pods), free.at.Sub(began).Round(time.Millisecond))
	writes := len(blockStory(start, blocks)) - 1
	t.Logf("that took %d writes", writes)
	if writes > len(pods) {
		t.Errorf("%d releases took %d writes", len(pods), writes)
	}
	for i, pod := range pods {
		s.tells(pod, released(pod, address(block, int32(i))))
	}
}

// The note of an Event is all that tells what a pod waits for.
func TestHeldForAnotherReasonI9(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "reasons")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.137.0.0/24", "")))
	node := s.node(s.name, func(n *corev1.Node) { n.Status = corev1.NodeStatus{} })
	block := s.block()
	pod := s.tenant(s.name, block, 0)
	s.known(block)
	s.force(pod)
	s.read(pod)
	unknown := waits(pod, 10*time.Minute)
	unknown.Note = strings.Replace(unknown.Note, fmt.Sprintf("node %q is not ready: the sandbox may still run", s.name), fmt.Sprintf("nothing is known about node %q", s.name), 1)
	s.tells(pod, unknown)
	s.becomes(node, fixture.NotReady)
	s.tells(pod, unknown, waits(pod, 10*time.Minute))
}
