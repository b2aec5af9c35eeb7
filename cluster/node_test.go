package cluster

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/fixture"
)

func TestObserveNode(t *testing.T) {
	born := metav1.NewTime(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC))
	tests := map[string]struct {
		node []func(*corev1.Node)
		want ipam.Node
	}{
		"a node that is ready": {
			want: ipam.Node{Ready: ipam.ConditionTrue},
		},
		"a node that is silent": {
			node: []func(*corev1.Node){fixture.NotReady},
			want: ipam.Node{Ready: ipam.ConditionUnknown},
		},
		"a node that says it is not ready": {
			node: []func(*corev1.Node){func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }},
			want: ipam.Node{Ready: ipam.ConditionFalse},
		},
		"a node that says nothing about it": {
			node: []func(*corev1.Node){func(n *corev1.Node) { n.Status.Conditions[0].Type = corev1.NodeDiskPressure }},
			want: ipam.Node{},
		},
		"a node that is off, says an administrator": {
			node: []func(*corev1.Node){fixture.NotReady, fixture.OutOfService},
			want: ipam.Node{Ready: ipam.ConditionUnknown, OutOfService: true},
		},
		"a node with another taint": {
			node: []func(*corev1.Node){func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute}}
			}},
			want: ipam.Node{Ready: ipam.ConditionTrue},
		},
		"a node that is being deleted": {
			node: []func(*corev1.Node){func(n *corev1.Node) { n.DeletionTimestamp = &born }},
			want: ipam.Node{Ready: ipam.ConditionTrue, Terminating: true},
		},
		"a node with every kind of tunnel": {
			node: []func(*corev1.Node){noted(map[string]string{
				"projectcalico.org/IPv4IPIPTunnelAddr": "10.0.0.1", "projectcalico.org/IPv4VXLANTunnelAddr": "10.0.0.2",
				"projectcalico.org/IPv6VXLANTunnelAddr": "fd00::2", "projectcalico.org/IPv4WireguardInterfaceAddr": "10.0.0.3",
				"projectcalico.org/IPv6WireguardInterfaceAddr": "fd00::3", "projectcalico.org/IPv4Address": "192.168.0.1/24",
			})},
			want: ipam.Node{Ready: ipam.ConditionTrue, Addresses: addrs("10.0.0.1", "10.0.0.2", "fd00::2", "10.0.0.3", "fd00::3")},
		},
		"a node whose tunnel's address was blanked": {
			node: []func(*corev1.Node){noted(map[string]string{"projectcalico.org/IPv4IPIPTunnelAddr": ""})},
			want: ipam.Node{Ready: ipam.ConditionTrue},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			n := fixture.Node("n1", tt.node...)
			n.UID, n.CreationTimestamp = "n1-uid", born
			tt.want.Name, tt.want.UID, tt.want.Created = "n1", "n1-uid", born.Time
			if diff := difference(tt.want, ObserveNode(n).Evidence()); diff != "" {
				t.Errorf("evidence (-want +got):\n%s", diff)
			}
		})
	}
}

func noted(annotations map[string]string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Annotations = annotations }
}

func TestANodeInTheCacheIsNoMoreThanItsEvidence(t *testing.T) {
	now := metav1.NewTime(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC))
	n := fixture.Node("n1", fixture.OutOfService, noted(map[string]string{"projectcalico.org/IPv4IPIPTunnelAddr": "10.0.0.1", "example.org/big": "annotation"}))
	n.UID, n.ResourceVersion, n.CreationTimestamp = "n1-uid", "17", now
	n.Labels = map[string]string{"zone": "a"}
	n.Finalizers = []string{"example.org/guard"}
	n.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: &metav1.FieldsV1{}}}
	n.Spec.PodCIDRs = []string{"10.244.1.0/24", "unreadable", "fd00:244:1::/64"}
	n.Status.Images = []corev1.ContainerImage{{Names: []string{"example.org/app:1"}}}
	prefixes := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:244:1::/64")}
	want := &Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "n1", UID: "n1-uid", ResourceVersion: "17", CreationTimestamp: now, Finalizers: []string{"example.org/guard"},
		},
		ready: corev1.ConditionTrue, outOfService: true, addresses: addrs("10.0.0.1"), podCIDRs: prefixes,
	}
	got := ObserveNode(n)
	whole := cmp.Options{
		cmp.AllowUnexported(Node{}),
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	}
	if diff := cmp.Diff(want, got, whole); diff != "" {
		t.Errorf("what is kept (-want +got):\n%s", diff)
	}
	c := got.DeepCopyObject().(*Node)
	if diff := cmp.Diff(got, c, whole); diff != "" {
		t.Errorf("copy (-original +copy):\n%s", diff)
	}
	c.addresses[0], c.podCIDRs[0], c.Finalizers[0] = netip.Addr{}, netip.Prefix{}, ""
	if diff := cmp.Diff(want, got, whole); diff != "" {
		t.Errorf("what the copy changed (-want +got):\n%s", diff)
	}
	if diff := difference(prefixes, got.PodCIDRs()); diff != "" {
		t.Errorf("pod CIDRs (-want +got):\n%s", diff)
	}
	if kind := got.GetObjectKind().GroupVersionKind(); !kind.Empty() {
		t.Errorf("it claims to be %s", kind)
	}
}
