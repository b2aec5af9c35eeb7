package envtest

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/oakum-dev/oakum/apis/ipam/allocator"
	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/fixture"
)

// impatience is the deadline of pods in the scenarios in which nothing else lets them go.
const impatience = 3 * time.Second

func TestScenariosAtTheDeadline(t *testing.T) {
	t.Parallel()
	p := own(t, controlplane.Start)
	p.start(t, unled+"finalizers: {pods: {deadline: 3s}}\n")
	t.Run("Scenario03ForceDeleteOnASilentNodeI1I3I9", func(t *testing.T) {
		t.Parallel()
		leftOnASilentNode(p.scene(t, "silent"))
	})
	for name, forge := range map[string]forgery{
		"running":                          {subnet: "10.105.0.0/24"},
		"in ContainerCreating":             {subnet: "10.105.1.0/24", before: creating},
		"that its kubelet ends afterwards": {subnet: "10.105.2.0/24", after: failed},
	} {
		t.Run("Scenario05ForgedEndI1: over a pod "+name, func(t *testing.T) {
			t.Parallel()
			forged(p.scene(t, "forged"), forge)
		})
	}
}

// left is the Event about a pod that was let go at the deadline.
func left(addresses, why string) told {
	return told{
		Type: corev1.EventTypeWarning, Reason: "AddressesLeft",
		Note: fmt.Sprintf("let go (DeadlineExceeded), and %s stays allocated: %s", addresses, why),
	}
}

// atTheDeadline checks that a pod that was deleted by force was let go when its deadline came.
func atTheDeadline(t *testing.T, deleted *corev1.Pod, gone frame[*corev1.Pod]) {
	t.Helper()
	after := gone.at.Sub(deleted.DeletionTimestamp.Time)
	within(t, "the pod was let go", 2*impatience, after)
	if after < impatience {
		t.Errorf("the pod was let go %s after its deletion, want %s at least", after, impatience)
	}
}

func leftOnASilentNode(s *scene) {
	t := s.t
	s.create(fixture.Pool(s.name, fixture.Subnet("10.103.0.0/24", "")))
	node := s.node(s.name)
	other := s.node(s.name + "-other")
	block := s.block()
	pod := s.tenant(s.name, block, 0)
	s.known(block)
	pods, blocks := record(s, pod, &corev1.PodList{}), record(s, block, &v1alpha1.AddressBlockList{})

	s.becomes(node, fixture.NotReady)
	s.force(pod)
	s.read(pod)
	gone := pods.gone()
	atTheDeadline(t, pod, gone)
	same(t, "the pod's story", []string{"Running, grace 0, held", "gone"}, podStory(pods))
	s.tells(pod, waits(pod, impatience),
		left("10.103.0.0", fmt.Sprintf("%s is going, and node %q is not ready: the sandbox may still run", called(pod), s.name)))

	// Its successor runs elsewhere, and has another address.
	successor := fixture.Pod(s.name, other.Name)
	s.create(successor)
	grant, err := allocator.Allocator{Client: s.client}.Take(t.Context(), allocator.Request{
		Pool: s.name, Node: other.Name, Handle: handle(successor), Attributes: fixture.OfPod(successor),
	})
	if err != nil {
		t.Fatal(err)
	}
	if grant.Block == block.Name || grant.Addresses[0].String() == address(block, 0) {
		t.Errorf("the successor has %s of block %s, its predecessor %s of block %s", grant.Addresses[0], grant.Block, address(block, 0), block.Name)
	}

	// The address stays allocated, whatever becomes of the node, as long as there is one.
	s.becomes(node)
	s.overtaken()
	s.becomes(node, fixture.NotReady)
	s.overtaken()
	s.read(block)
	same(t, "the allocations in the end", entry(0, pod), entries(block))
	same(t, "the block's story", []string{entry(0, pod)}, blockStory(block, blocks))
}

// forgery is what happens to a pod before PodGC says that it failed, and after.
type forgery struct {
	subnet        string
	before, after func(*corev1.Pod)
}

// creating sets the status that a kubelet writes while it makes the sandbox.
func creating(p *corev1.Pod) {
	fixture.Running()(p)
	p.Status.Phase = corev1.PodPending
	p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == corev1.PodReadyToStartContainers {
			p.Status.Conditions[i].Status = corev1.ConditionFalse
		}
	}
}

// failed sets the status that a kubelet writes about the end of a pod that has failed already.
func failed(p *corev1.Pod) {
	fixture.Ended(p)
	p.Status.Phase = corev1.PodFailed
}

// forged plays PodGC, which takes a pod for lost while its node is away. When the node is back, the pod may well run.
func forged(s *scene, f forgery) {
	t := s.t
	s.create(fixture.Pool(s.name, fixture.Subnet(f.subnet, "")))
	node := s.node(s.name)
	block := s.block()
	pod := s.tenant(s.name, block, 0)
	s.known(block)
	start := block.DeepCopy()
	if f.before != nil {
		f.before(pod)
		s.report(pod)
	}
	pods, blocks := record(s, pod, &corev1.PodList{}), record(s, block, &v1alpha1.AddressBlockList{})

	s.becomes(node, fixture.NotReady)
	fixture.CollectedByPodGC(pod)
	s.report(pod)
	s.force(pod)
	s.read(pod)
	s.becomes(node)
	if f.after != nil {
		f.after(pod)
		s.report(pod)
	}
	gone := pods.gone()
	atTheDeadline(t, pod, gone)
	ending := left(address(block, 0), fmt.Sprintf("%s is going, and the kubelet of node %q has not reported its end", called(pod), s.name))
	eventually(t, func() error {
		heard := s.events(pod)
		if len(heard) == 0 || heard[len(heard)-1] != ending {
			return fmt.Errorf("the last event is not as wanted: %v, want %v", heard, ending)
		}
		return nil
	})
	s.overtaken()
	s.read(block)
	same(t, "the allocations in the end", entry(0, pod), entries(block))
	same(t, "the block's story", []string{entry(0, pod)}, blockStory(start, blocks))
}
