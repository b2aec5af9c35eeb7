package cluster

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/oakum-dev/oakum/ipam"
)

// Pod is a pod as the cache holds it: its identity, its finalizers, and what it tells about its end and its addresses.
// A cluster's pods are by far the most that Oakum remembers, so nothing else of them is kept.
type Pod struct {
	metav1.ObjectMeta
	node      string
	phase     corev1.PodPhase
	sandbox   corev1.ConditionStatus
	container string
	addresses []netip.Addr
	flags     podFlags
}

type podFlags uint8

const (
	hostNetwork podFlags = 1 << iota
	mirror
	disrupted
	terminated
	unknownAddresses
)

// GetObjectKind implements runtime.Object.
func (p *Pod) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object.
func (p *Pod) DeepCopyObject() runtime.Object {
	c := *p
	p.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	c.addresses = slices.Clone(p.addresses)
	return &c
}

// Evidence returns what the law asks about a pod.
func (p *Pod) Evidence() ipam.Pod {
	e := ipam.Pod{
		Namespace:            p.Namespace,
		Name:                 p.Name,
		UID:                  string(p.UID),
		Node:                 p.node,
		Created:              p.CreationTimestamp.Time,
		Phase:                ipam.Phase(p.phase),
		HostNetwork:          p.flags&hostNetwork != 0,
		Mirror:               p.flags&mirror != 0,
		Disrupted:            p.flags&disrupted != 0,
		ContainersTerminated: p.flags&terminated != 0,
		Sandbox:              ipam.Condition(p.sandbox),
		ContainerID:          p.container,
		Addresses:            p.addresses,
		AddressesUnknown:     p.flags&unknownAddresses != 0,
	}
	if p.DeletionTimestamp != nil {
		e.Deleted = p.DeletionTimestamp.Time
	}
	return e
}

// Annotations in which network plugins tell a pod's addresses and sandbox.
const (
	calicoPodIP         = "cni.projectcalico.org/podIP"
	calicoPodIPs        = "cni.projectcalico.org/podIPs"
	calicoContainerID   = "cni.projectcalico.org/containerID"
	multusNetworks      = "k8s.v1.cni.cncf.io/networks"
	multusDefault       = "v1.multus-cni.io/default-network"
	multusStatus        = "k8s.v1.cni.cncf.io/network-status"
	multusStatusOldName = "k8s.v1.cni.cncf.io/networks-status"
)

// Observe reduces a pod to what is kept of it.
func Observe(p *corev1.Pod) *Pod {
	slim := &Pod{
		ObjectMeta: slimMeta(p.ObjectMeta),
		node:       p.Spec.NodeName,
		phase:      p.Status.Phase,
		container:  p.Annotations[calicoContainerID],
	}
	set := func(f podFlags, on bool) {
		if on {
			slim.flags |= f
		}
	}
	for _, c := range p.Status.Conditions {
		switch c.Type {
		case corev1.PodReadyToStartContainers:
			slim.sandbox = c.Status
		case corev1.DisruptionTarget:
			set(disrupted, c.Status == corev1.ConditionTrue && c.Reason == "DeletionByPodGC")
		}
	}
	set(hostNetwork, p.Spec.HostNetwork)
	set(mirror, p.Annotations[corev1.MirrorPodAnnotationKey] != "")
	set(terminated, containersTerminated(p))
	addrs, known := podAddresses(p)
	slim.addresses = slices.Clip(addrs)
	set(unknownAddresses, !known)
	return slim
}

func slimMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace:         m.Namespace,
		Name:              m.Name,
		UID:               m.UID,
		ResourceVersion:   m.ResourceVersion,
		CreationTimestamp: m.CreationTimestamp,
		DeletionTimestamp: m.DeletionTimestamp,
		Finalizers:        m.Finalizers,
	}
}

// containersTerminated tells whether the kubelet reported the end of every container that the pod was given. A
// container without a status is one that nobody can tell about.
func containersTerminated(p *corev1.Pod) bool {
	s, t := p.Spec, p.Status
	if len(t.ContainerStatuses) == 0 ||
		len(t.ContainerStatuses) < len(s.Containers) ||
		len(t.InitContainerStatuses) < len(s.InitContainers) ||
		len(t.EphemeralContainerStatuses) < len(s.EphemeralContainers) {
		return false
	}
	for _, statuses := range [][]corev1.ContainerStatus{t.ContainerStatuses, t.InitContainerStatuses, t.EphemeralContainerStatuses} {
		for _, c := range statuses {
			if c.State.Terminated == nil {
				return false
			}
		}
	}
	return true
}

// podAddresses returns the union of what every source names, and whether every source that should speak did.
func podAddresses(p *corev1.Pod) (addrs []netip.Addr, known bool) {
	known = true
	add := func(text string) {
		if text == "" {
			return
		}
		a, err := netip.ParseAddr(text)
		if err != nil {
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				known = false
				return
			}
			a = prefix.Addr()
		}
		if a = a.Unmap().WithZone(""); !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	add(p.Status.PodIP)
	for _, ip := range p.Status.PodIPs {
		add(ip.IP)
	}
	add(p.Annotations[calicoPodIP])
	for ip := range strings.SplitSeq(p.Annotations[calicoPodIPs], ",") {
		add(ip)
	}
	told := p.Annotations[multusNetworks] == "" && p.Annotations[multusDefault] == ""
	for _, key := range []string{multusStatus, multusStatusOldName} {
		status, ok := p.Annotations[key]
		if !ok {
			continue
		}
		told = true
		var networks []struct {
			IPs []string `json:"ips"`
		}
		// The default network is always on the list, so that an empty one tells nothing.
		if err := json.Unmarshal([]byte(status), &networks); err != nil || len(networks) == 0 {
			known = false
		}
		for _, n := range networks {
			for _, ip := range n.IPs {
				add(ip)
			}
		}
	}
	return addrs, known && told
}
