package envtest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

// prompt is how long Oakum may take to act on what it can act on at once.
const prompt = 2 * time.Second

// adopted waits until Oakum holds a node, and reads it as it is then.
func (s *scene) adopted(n *corev1.Node) {
	s.t.Helper()
	eventually(s.t, func() error {
		s.read(n)
		if !slices.Contains(n.Finalizers, v1alpha1.AddressesFinalizer) {
			return errors.New("the node is not held yet")
		}
		return nil
	})
}

// owns gives a node an address of one of its blocks, and reads the block as it is then.
func (s *scene) owns(n *corev1.Node, b *v1alpha1.AddressBlock, offset int32) {
	s.t.Helper()
	s.read(b)
	s.wants(answer{}, s.take(b, fixture.Entry(offset, string(n.UID), fixture.OfNode(n))))
	s.read(b)
}

// waits is the Event about a pod that is being deleted while its node is silent.
func waits(p *corev1.Pod, deadline time.Duration) told {
	return told{
		Type: corev1.EventTypeNormal, Reason: "AddressesHeld",
		Note: fmt.Sprintf(`waits to be proven gone: %s is going, and node %q is not ready: the sandbox may still run. Let go at %s at the latest`,
			called(p), p.Spec.NodeName, p.DeletionTimestamp.Add(deadline).UTC().Format(time.RFC3339)),
	}
}

func TestScenario04OutOfServiceI1I9(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "taint")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.104.0.0/24", "")))
	node := s.node(s.name)
	block := s.block()
	pod := s.tenant(s.name, block, 0)
	s.known(block)
	pods, blocks := record(s, pod, &corev1.PodList{}), record(s, block, &v1alpha1.AddressBlockList{})

	s.becomes(node, fixture.NotReady)
	s.force(pod)
	s.read(pod)
	s.tells(pod, waits(pod, 10*time.Minute))
	s.overtaken()
	s.read(node)
	fixture.OutOfService(node)
	began := time.Now()
	s.wants(answer{}, s.client.Update(t.Context(), node))
	tainted := node.DeepCopy()
	free := blocks.until("free", func(f frame[*v1alpha1.AddressBlock]) bool { return entries(f.object) == "" })
	gone := pods.gone()

	s.inOrder(tainted, free.object, gone.object)
	within(t, "the address was free", prompt, free.at.Sub(began))
	within(t, "the pod was gone", prompt, gone.at.Sub(began))
	same(t, "the pod's story", []string{"Running, grace 0, held", "gone"}, podStory(pods))
	same(t, "the block's story", []string{entry(0, pod), ""}, blockStory(block, blocks))
	s.tells(pod, waits(pod, 10*time.Minute), told{
		Type: corev1.EventTypeNormal, Reason: "AddressReleased",
		Note: fmt.Sprintf(`released 10.104.0.0 (native, handle %s): node %q is not ready and has the taint node.kubernetes.io/out-of-service`, handle(pod), s.name),
	})
}

func TestScenario06NodeReplacedI1I6(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "replaced")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.106.0.0/24", "")))
	old := s.node(s.name)
	s.adopted(old)
	block := s.block()
	s.owns(old, block, 0)
	pod := s.tenant(s.name, block, 1)
	s.known(block)
	start := block.DeepCopy()
	blocks, nodes := record(s, block, &v1alpha1.AddressBlockList{}), record(s, old, &corev1.NodeList{})

	s.delete(old)
	nodes.gone()
	replacement := s.node(s.name)
	s.adopted(replacement)
	s.owns(replacement, block, 2)
	s.overtaken()

	if replacement.UID == old.UID {
		t.Fatal("the node was not replaced")
	}
	both := fmt.Sprintf("0 %s, %s", old.UID, entry(1, pod))
	want := []string{both, fmt.Sprintf("%s, 2 %s", both, replacement.UID)}
	blocks.until("caught up", func(f frame[*v1alpha1.AddressBlock]) bool { return entries(f.object) == want[1] })
	s.read(block)
	same(t, "the allocations in the end", want[1], entries(block))
	same(t, "the block's story", want, blockStory(start, blocks))

	// The old node's name is all that the new one has of it.
	s.delete(replacement)
	record(s, replacement, &corev1.NodeList{}).gone()
	s.read(block)
	same(t, "the allocations after the replacement's deletion", want[1], entries(block))
}

func TestScenario07NodeDeletedI3(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		state []func(*corev1.Node)
		about string
	}{
		"its kubelet is well": {about: "deleted"},
		"its kubelet is dead": {about: "deleted-dead", state: []func(*corev1.Node){fixture.NotReady}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := shared.scene(t, tt.about)
			s.create(
				fixture.Pool(s.name, fixture.Subnet("10.107.0.0/24", "")),
				fixture.Pool(s.name+"-idle", fixture.Subnet("10.107.0.0/24", "")),
			)
			node := s.node(s.name)
			s.adopted(node)
			kept, idle := s.block(), fixture.Block(s.name+"-idle", 0, s.name)
			s.create(idle)
			s.owns(node, kept, 0)
			s.becomes(node, tt.state...)
			s.read(node)
			s.read(idle)
			nodes, blocks := record(s, node, &corev1.NodeList{}), record(s, idle, &v1alpha1.AddressBlockList{})

			began := time.Now()
			s.delete(node)
			// A kubelet that finds its Node believes itself registered, and one that does not creates it.
			again := fixture.Node(s.name)
			eventually(t, func() error { return s.client.Create(t.Context(), again) })
			s.report(fixture.Node(s.name))
			within(t, "the node was gone", prompt, nodes.gone().at.Sub(began))
			blocks.gone()

			s.adopted(again)
			if again.UID == node.UID || again.DeletionTimestamp != nil {
				t.Errorf("the node that registered again has uid %s, before %s, and is deleted at %v", again.UID, node.UID, again.DeletionTimestamp)
			}
			s.read(kept)
			same(t, "what the node held", fmt.Sprintf("0 %s", node.UID), entries(kept))
			s.owns(again, kept, 1)
		})
	}
}
