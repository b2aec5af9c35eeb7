package cluster

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/oakum-dev/oakum/ipam"
)

// Node is a node as the cache holds it.
type Node struct {
	metav1.ObjectMeta
	ready        corev1.ConditionStatus
	readySince   metav1.Time
	outOfService bool
	addresses    []netip.Addr
	podCIDRs     []netip.Prefix
}

// GetObjectKind implements runtime.Object.
func (n *Node) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object.
func (n *Node) DeepCopyObject() runtime.Object {
	c := *n
	n.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	c.addresses, c.podCIDRs = slices.Clone(n.addresses), slices.Clone(n.podCIDRs)
	return &c
}

// Evidence returns what the law asks about a node.
func (n *Node) Evidence() ipam.Node {
	return ipam.Node{
		Name:         n.Name,
		UID:          string(n.UID),
		Created:      n.CreationTimestamp.Time,
		Terminating:  n.DeletionTimestamp != nil,
		Ready:        ipam.Condition(n.ready),
		ReadySince:   n.readySince.Time,
		OutOfService: n.outOfService,
		Addresses:    n.addresses,
	}
}

// PodCIDRs returns the prefixes that Kubernetes itself gave the node for its pods.
func (n *Node) PodCIDRs() []netip.Prefix { return n.podCIDRs }

// tunnelAddresses are the annotations in which Calico keeps a node's own addresses.
func tunnelAddresses() []string {
	return []string{
		"projectcalico.org/IPv4IPIPTunnelAddr",
		"projectcalico.org/IPv4VXLANTunnelAddr",
		"projectcalico.org/IPv6VXLANTunnelAddr",
		"projectcalico.org/IPv4WireguardInterfaceAddr",
		"projectcalico.org/IPv6WireguardInterfaceAddr",
	}
}

// ObserveNode reduces a node to what is kept of it.
func ObserveNode(n *corev1.Node) *Node {
	slim := &Node{ObjectMeta: slimMeta(n.ObjectMeta)}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			slim.ready, slim.readySince = c.Status, c.LastTransitionTime
		}
	}
	for _, t := range n.Spec.Taints {
		slim.outOfService = slim.outOfService || t.Key == corev1.TaintNodeOutOfService
	}
	for _, key := range tunnelAddresses() {
		if a, err := netip.ParseAddr(n.Annotations[key]); err == nil {
			slim.addresses = append(slim.addresses, a.Unmap().WithZone(""))
		}
	}
	for _, cidr := range n.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(cidr); err == nil {
			slim.podCIDRs = append(slim.podCIDRs, p)
		}
	}
	return slim
}
