package cluster

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/fixture"
)

// difference compares what go-cmp does not know how to compare.
func difference(want, got any) string {
	return cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }))
}

func addrs(texts ...string) []netip.Addr {
	var result []netip.Addr
	for _, text := range texts {
		result = append(result, netip.MustParseAddr(text))
	}
	return result
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, key, value) }
}

func TestObserveAddresses(t *testing.T) {
	const (
		networks  = "k8s.v1.cni.cncf.io/networks"
		status    = "k8s.v1.cni.cncf.io/network-status"
		oldStatus = "k8s.v1.cni.cncf.io/networks-status"
	)
	tests := map[string]struct {
		pod     []func(*corev1.Pod)
		want    []netip.Addr
		unknown bool
	}{
		"a pod without a status has none": {},
		"podIP and podIPs name each address once": {
			pod:  []func(*corev1.Pod){fixture.Running("10.0.0.7", "fd00::7")},
			want: addrs("10.0.0.7", "fd00::7"),
		},
		"podIP counts although podIPs is missing": {
			pod:  []func(*corev1.Pod){func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.7" }},
			want: addrs("10.0.0.7"),
		},
		"an address that cannot be read may be any": {
			pod:     []func(*corev1.Pod){fixture.Running("10.0.0.7", "10.0.0.x")},
			want:    addrs("10.0.0.7"),
			unknown: true,
		},
		"an address has one form": {
			pod:  []func(*corev1.Pod){fixture.Running("::ffff:10.0.0.7", "10.0.0.7", "fe80::1%eth0", "fe80::1")},
			want: addrs("10.0.0.7", "fe80::1"),
		},
		"L01 what only Calico's annotation names counts": {
			pod:  []func(*corev1.Pod){fixture.Running("10.0.0.7"), annotated("cni.projectcalico.org/podIPs", "10.0.0.7/32,fd00::7/128")},
			want: addrs("10.0.0.7", "fd00::7"),
		},
		"Calico's single address counts": {
			pod:  []func(*corev1.Pod){annotated("cni.projectcalico.org/podIP", "10.0.0.7/32")},
			want: addrs("10.0.0.7"),
		},
		"L19 what a late DEL blanked is in the status still": {
			pod: []func(*corev1.Pod){
				fixture.Running("10.0.0.7"), annotated("cni.projectcalico.org/podIP", ""), annotated("cni.projectcalico.org/podIPs", ""),
			},
			want: addrs("10.0.0.7"),
		},
		"Calico's annotation may be unreadable": {
			pod:     []func(*corev1.Pod){fixture.Running("10.0.0.7"), annotated("cni.projectcalico.org/podIPs", "10.0.0.7/32;fd00::7")},
			want:    addrs("10.0.0.7"),
			unknown: true,
		},
		"L08 the default network's entry counts": {
			pod: []func(*corev1.Pod){
				annotated(status, `[{"name":"whereabouts","interface":"eth0","ips":["10.0.0.7"],"mac":"aa:bb","default":true,"dns":{}}]`),
			},
			want: addrs("10.0.0.7"),
		},
		"L09 the interface may have any name": {
			pod:  []func(*corev1.Pod){annotated(status, `[{"name":"default/fast","interface":"sriov0","ips":["10.0.0.7","fd00::7"]}]`)},
			want: addrs("10.0.0.7", "fd00::7"),
		},
		"every network of a pod that names some counts": {
			pod: []func(*corev1.Pod){
				fixture.Running("10.0.0.7"), annotated(networks, "storage, fast@sriov0"),
				annotated(status, `[{"ips":["10.0.0.7"],"default":true},{"ips":["10.1.0.7"]},{"ips":["10.2.0.7"]}]`),
			},
			want: addrs("10.0.0.7", "10.1.0.7", "10.2.0.7"),
		},
		"a network without addresses names none": {
			pod:  []func(*corev1.Pod){annotated(networks, "layer2"), annotated(status, `[{"name":"layer2","interface":"net1","mac":"aa:bb"}]`)},
			want: nil,
		},
		"the status has an older key": {
			pod:  []func(*corev1.Pod){annotated(networks, "storage"), annotated(oldStatus, `[{"ips":["10.1.0.7"]}]`)},
			want: addrs("10.1.0.7"),
		},
		"under both keys the union counts": {
			pod:  []func(*corev1.Pod){annotated(status, `[{"ips":["10.1.0.7"]}]`), annotated(oldStatus, `[{"ips":["10.2.0.7"]}]`)},
			want: addrs("10.1.0.7", "10.2.0.7"),
		},
		"an older key that cannot be read may name any": {
			pod:     []func(*corev1.Pod){annotated(status, `[{"ips":["10.1.0.7"]}]`), annotated(oldStatus, `[`)},
			want:    addrs("10.1.0.7"),
			unknown: true,
		},
		"a status that cannot be read may name any": {
			pod:     []func(*corev1.Pod){fixture.Running("10.0.0.7"), annotated(status, `[{"ips":["10.1.0.7"]`)},
			want:    addrs("10.0.0.7"),
			unknown: true,
		},
		"so may a status of another shape":           {pod: []func(*corev1.Pod){annotated(status, `{"ips":["10.1.0.7"]}`)}, unknown: true},
		"so may a status with an unreadable address": {pod: []func(*corev1.Pod){annotated(status, `[{"ips":["10.1.0.300"]}]`)}, unknown: true},
		"so may a blank status":                      {pod: []func(*corev1.Pod){annotated(status, "")}, unknown: true},
		"so may a null":                              {pod: []func(*corev1.Pod){annotated(status, "null")}, unknown: true},
		"so may an empty list: the default network is always on it": {
			pod: []func(*corev1.Pod){annotated(networks, "storage"), annotated(status, "[]")}, unknown: true,
		},
		"a pod that names networks and has no status may have any address": {
			pod:     []func(*corev1.Pod){fixture.Running("10.0.0.7"), annotated(networks, "storage")},
			want:    addrs("10.0.0.7"),
			unknown: true,
		},
		"so may a pod that names another default network": {
			pod:     []func(*corev1.Pod){fixture.Running("10.0.0.7"), annotated("v1.multus-cni.io/default-network", "kube-system/fast")},
			want:    addrs("10.0.0.7"),
			unknown: true,
		},
		"a blank list of networks names none": {
			pod:  []func(*corev1.Pod){fixture.Running("10.0.0.7"), annotated(networks, "")},
			want: addrs("10.0.0.7"),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := Observe(fixture.Pod("web-0", "n1", tt.pod...)).Evidence()
			if diff := difference(tt.want, got.Addresses); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
			if got.AddressesUnknown != tt.unknown {
				t.Errorf("addresses unknown: %t, want %t", got.AddressesUnknown, tt.unknown)
			}
		})
	}
}

// E2's rule about containers: every one that the pod was given has ended, as far as the kubelet says.
func TestObserveContainers(t *testing.T) {
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
	given := func(main, init, ephemeral int) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers = make([]corev1.Container, main)
			p.Spec.InitContainers = make([]corev1.Container, init)
			p.Spec.EphemeralContainers = make([]corev1.EphemeralContainer, ephemeral)
		}
	}
	said := func(list func(*corev1.PodStatus) *[]corev1.ContainerStatus, states ...corev1.ContainerState) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			for _, s := range states {
				*list(&p.Status) = append(*list(&p.Status), corev1.ContainerStatus{State: s})
			}
		}
	}
	main := func(s *corev1.PodStatus) *[]corev1.ContainerStatus { return &s.ContainerStatuses }
	init := func(s *corev1.PodStatus) *[]corev1.ContainerStatus { return &s.InitContainerStatuses }
	ephemeral := func(s *corev1.PodStatus) *[]corev1.ContainerStatus { return &s.EphemeralContainerStatuses }
	tests := map[string]struct {
		pod  []func(*corev1.Pod)
		want bool
	}{
		"all have ended":                      {[]func(*corev1.Pod){given(2, 0, 0), said(main, ended, ended)}, true},
		"init and ephemeral ones have too":    {[]func(*corev1.Pod){given(1, 1, 1), said(main, ended), said(init, ended), said(ephemeral, ended)}, true},
		"one runs":                            {[]func(*corev1.Pod){given(2, 0, 0), said(main, ended, running)}, false},
		"one never started":                   {[]func(*corev1.Pod){given(1, 0, 0), said(main, waiting)}, false},
		"nothing is said about one":           {[]func(*corev1.Pod){given(1, 0, 0), said(main, corev1.ContainerState{})}, false},
		"one has no status":                   {[]func(*corev1.Pod){given(2, 0, 0), said(main, ended)}, false},
		"none has a status":                   {[]func(*corev1.Pod){given(1, 0, 0)}, false},
		"there is neither container nor word": {[]func(*corev1.Pod){given(0, 0, 0)}, false},
		"a sidecar runs":                      {[]func(*corev1.Pod){given(1, 1, 0), said(main, ended), said(init, running)}, false},
		"an init container has no status":     {[]func(*corev1.Pod){given(1, 1, 0), said(main, ended)}, false},
		"an ephemeral one runs":               {[]func(*corev1.Pod){given(1, 0, 1), said(main, ended), said(ephemeral, running)}, false},
		"an ephemeral one has no status":      {[]func(*corev1.Pod){given(1, 0, 1), said(main, ended)}, false},
		"one runs that the pod was not given": {[]func(*corev1.Pod){given(1, 0, 0), said(main, ended), said(ephemeral, running)}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Observe(fixture.Pod("web-0", "n1", tt.pod...)).Evidence().ContainersTerminated; got != tt.want {
				t.Errorf("containers terminated: %t, want %t", got, tt.want)
			}
		})
	}
}

func TestObserve(t *testing.T) {
	born := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	disruption := func(status corev1.ConditionStatus, reason string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: status, Reason: reason})
		}
	}
	tests := map[string]struct {
		pod  []func(*corev1.Pod)
		want ipam.Pod
	}{
		"a pod that was never scheduled": {
			want: ipam.Pod{},
		},
		"a pod that runs": {
			pod: []func(*corev1.Pod){on("n1"), fixture.Running("10.0.0.7"), annotated("cni.projectcalico.org/containerID", "c1")},
			want: ipam.Pod{
				Node: "n1", Phase: "Running", Sandbox: ipam.ConditionTrue, ContainerID: "c1", Addresses: addrs("10.0.0.7"),
			},
		},
		"a pod that is being deleted": {
			pod:  []func(*corev1.Pod){on("n1"), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: born.Add(time.Hour)} }},
			want: ipam.Pod{Node: "n1", Deleted: born.Add(time.Hour)},
		},
		"a pod whose end the kubelet reported keeps its addresses in the object": {
			pod: []func(*corev1.Pod){on("n1"), fixture.Running("10.0.0.7"), fixture.Ended},
			want: ipam.Pod{
				Node: "n1", Phase: ipam.PhaseSucceeded, Sandbox: ipam.ConditionFalse, ContainersTerminated: true, Addresses: addrs("10.0.0.7"),
			},
		},
		"a phase that PodGC wrote": {
			pod:  []func(*corev1.Pod){on("n1"), fixture.Running("10.0.0.7"), fixture.CollectedByPodGC},
			want: ipam.Pod{Node: "n1", Phase: ipam.PhaseFailed, Sandbox: ipam.ConditionTrue, Disrupted: true, Addresses: addrs("10.0.0.7")},
		},
		"a preemption is reported by the kubelet": {
			pod:  []func(*corev1.Pod){on("n1"), disruption(corev1.ConditionTrue, "PreemptionByScheduler")},
			want: ipam.Pod{Node: "n1"},
		},
		"a condition that does not hold": {
			pod:  []func(*corev1.Pod){on("n1"), disruption(corev1.ConditionFalse, "DeletionByPodGC")},
			want: ipam.Pod{Node: "n1"},
		},
		"a pod in its node's network": {
			pod:  []func(*corev1.Pod){on("n1"), fixture.HostNetwork, fixture.Running("192.168.0.1")},
			want: ipam.Pod{Node: "n1", Phase: "Running", Sandbox: ipam.ConditionTrue, HostNetwork: true, Addresses: addrs("192.168.0.1")},
		},
		"a mirror pod": {
			pod:  []func(*corev1.Pod){on("n2"), annotated(corev1.MirrorPodAnnotationKey, "hash")},
			want: ipam.Pod{Node: "n2", Mirror: true},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := fixture.Pod("web-0", "", append(tt.pod, fixture.UID("u1"))...)
			p.CreationTimestamp = metav1.NewTime(born)
			tt.want.Namespace, tt.want.Name, tt.want.UID, tt.want.Created = "default", "web-0", "u1", born
			if diff := difference(tt.want, Observe(p).Evidence()); diff != "" {
				t.Errorf("evidence (-want +got):\n%s", diff)
			}
		})
	}
}

func on(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

func TestAPodInTheCacheIsNoMoreThanItsEvidence(t *testing.T) {
	now := metav1.NewTime(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC))
	p := fixture.Pod("web-0", "n1", fixture.UID("u1"), fixture.Running("10.0.0.7"), annotated("example.org/big", "annotation"))
	p.Labels = map[string]string{"app": "web"}
	p.ResourceVersion, p.Generation, p.GenerateName = "17", 3, "web-"
	p.CreationTimestamp, p.DeletionTimestamp = now, &now
	p.Finalizers = []string{"example.org/guard"}
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "StatefulSet", Name: "web"}}
	p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: &metav1.FieldsV1{}}}
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "SECRET", Value: "unguarded"}}
	p.Spec.Volumes = []corev1.Volume{{Name: "data"}}
	p.Spec.HostNetwork, p.Status.Message = true, "all is well"
	want := &Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-0", UID: types.UID("u1"), ResourceVersion: "17",
			CreationTimestamp: now, DeletionTimestamp: &now, Finalizers: []string{"example.org/guard"},
		},
		node: "n1", phase: corev1.PodRunning, sandbox: corev1.ConditionTrue, addresses: addrs("10.0.0.7"), flags: hostNetwork,
	}
	got := Observe(p)
	whole := cmp.Options{cmp.AllowUnexported(Pod{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })}
	if diff := cmp.Diff(want, got, whole); diff != "" {
		t.Errorf("what is kept (-want +got):\n%s", diff)
	}
	c := got.DeepCopyObject().(*Pod)
	if diff := cmp.Diff(got, c, whole); diff != "" {
		t.Errorf("copy (-original +copy):\n%s", diff)
	}
	c.addresses[0], c.Finalizers[0] = netip.Addr{}, ""
	if diff := cmp.Diff(want, got, whole); diff != "" {
		t.Errorf("what the copy changed (-want +got):\n%s", diff)
	}
	if kind := got.GetObjectKind().GroupVersionKind(); !kind.Empty() {
		t.Errorf("it claims to be %s", kind)
	}
}
