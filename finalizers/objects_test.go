package finalizers

import (
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

func running(p *corev1.Pod) { fixture.Running("10.0.0.1")(p) }

func mirrored(p *corev1.Pod) {
	p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
}

func unscheduled(p *corev1.Pod) {
	p.Spec.NodeName = ""
	p.Status.Phase = corev1.PodPending
}

// silent makes a finished pod as virtual kubelets write it: with no word about its sandbox.
func silent(p *corev1.Pod) {
	fixture.Ended(p)
	p.Status.Conditions = nil
}

// deleted lets the pod's grace period have ended so long ago.
func deleted(since time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.DeletionTimestamp = ago(since)
		p.DeletionGracePeriodSeconds = new(int64(3))
	}
}

// held puts our finalizer on a pod, beside somebody else's.
func held(p *corev1.Pod) {
	p.Finalizers = []string{"example.org/guard", v1alpha1.AddressesFinalizer}
}

// block returns a block of four addresses with Oakum's finalizer. The first one of pool default has 10.0.0.0 to 10.0.0.3.
func block(pool string, index int32, node string, knobs ...func(*v1alpha1.AddressBlock)) *v1alpha1.AddressBlock {
	b := fixture.Block(pool, index, node)
	b.Finalizers = []string{v1alpha1.BlockFinalizer}
	b.Spec.IPv4 = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(4 * index)}), 30).String()
	for _, knob := range knobs {
		knob(b)
	}
	return b
}

// entry records an address for a pod, whether that exists or not.
func entry(offset int32, handle, pod string, uid types.UID) func(*v1alpha1.AddressBlock) {
	return func(b *v1alpha1.AddressBlock) {
		fixture.Entry(offset, handle, v1alpha1.Attributes{
			Type: v1alpha1.OwnerPod, Namespace: "default", Name: pod, UID: uid, Node: b.Spec.Node,
		})(b)
	}
}

// pool returns pool default with Oakum's finalizer.
func pool(knobs ...func(*v1alpha1.AddressPool)) *v1alpha1.AddressPool {
	p := fixture.Pool("default", fixture.Subnet("10.0.0.0/24", ""))
	p.Finalizers = []string{v1alpha1.PoolFinalizer}
	for _, knob := range knobs {
		knob(p)
	}
	return p
}

// cooling lets an offset of the block cool for so long from now; for 0s it has cooled down just now.
func cooling(offset int32, left time.Duration) func(*v1alpha1.AddressBlock) {
	return func(b *v1alpha1.AddressBlock) {
		b.Spec.Cooling = append(b.Spec.Cooling, v1alpha1.Cooling{Offset: offset, Until: *ago(-left)})
	}
}

// told lets the status of a block of four addresses say what is allocated.
func told(b *v1alpha1.AddressBlock) {
	n := int32(len(b.Spec.Allocations))
	b.Status = v1alpha1.AddressBlockStatus{ObservedGeneration: 1, Allocated: n, Free: 4 - n}
}
