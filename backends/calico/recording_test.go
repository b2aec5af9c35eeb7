package calico_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/oakum-dev/oakum/backends/calico"
	"github.com/oakum-dev/oakum/ipam"
)

// recorded returns what the recorded cluster's pods and nodes say.
func recorded(t *testing.T) ipam.Observation {
	t.Helper()
	var pods corev1.PodList
	var nodes corev1.NodeList
	load(t, "pods.yaml", &pods)
	load(t, "nodes.yaml", &nodes)
	o := ipam.Observation{PodsKnown: true, NodesKnown: true}
	for _, p := range pods.Items {
		seen := ipam.Pod{
			Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Node: p.Spec.NodeName, Created: p.CreationTimestamp.Time, Phase: ipam.Phase(p.Status.Phase),
		}
		for _, ip := range p.Status.PodIPs {
			seen.Addresses = append(seen.Addresses, netip.MustParseAddr(ip.IP))
		}
		o.Pods = append(o.Pods, seen)
	}
	for _, n := range nodes.Items {
		seen := ipam.Node{Name: n.Name, UID: string(n.UID), Created: n.CreationTimestamp.Time}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady {
				seen.Ready, seen.ReadySince = ipam.Condition(c.Status), c.LastTransitionTime.Time
			}
		}
		o.Nodes = append(o.Nodes, seen)
	}
	return o
}

func load(t *testing.T, file string, into any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", file))
	check(t, err)
	check(t, yaml.Unmarshal(data, into))
}

func naming(node string, addrs ...string) func(*ipam.Observation) {
	return func(o *ipam.Observation) {
		for i := range o.Nodes {
			if o.Nodes[i].Name == node {
				for _, a := range addrs {
					o.Nodes[i].Addresses = append(o.Nodes[i].Addresses, netip.MustParseAddr(a))
				}
			}
		}
	}
}

func ready(nodes ...string) func(*ipam.Observation) {
	return func(o *ipam.Observation) {
		for i := range o.Nodes {
			if slices.Contains(nodes, o.Nodes[i].Name) {
				o.Nodes[i].Ready = ipam.ConditionTrue
			}
		}
	}
}

func settled(o *ipam.Observation) { o.NodesSettled = true }

// The records were written by Calico itself.
func TestRecordingsAreJudgedAsWhatTheyWere(t *testing.T) {
	const (
		web0, web1, web2 = "10.50.2.164,fd00:50::2a4", "10.50.2.165,fd00:50::2a5", "10.50.2.166,fd00:50::2a6"
		old, tunnel      = "10.50.2.167", "10.50.1.96"
		pair, machine    = "10.50.1.98,10.50.2.243", "10.50.1.99"
		windows          = "10.50.2.240-10.50.2.242,10.50.2.247"
	)
	asDumped := map[string]string{
		web0: "Keep InUse", web1: "Keep InUse", web2: "Keep InUse",
		old: "Keep OwnerUnknown", tunnel: "Orphan Unnamed", pair: "Keep NodeNotReady", machine: "Keep OwnerUnknown", windows: "Keep Reserved",
	}
	but := func(addresses, verdict string, more ...string) map[string]string {
		want := map[string]string{addresses: verdict}
		for a, v := range asDumped {
			if a != addresses {
				want[a] = v
			}
		}
		for i := 0; i < len(more); i += 2 {
			want[more[i]] = more[i+1]
		}
		return want
	}
	tests := map[string]struct {
		change []func(*ipam.Observation)
		want   map[string]string
	}{
		"as they were dumped": {want: asDumped},
		"one of two nodes of a handle that is ready proves nothing":            {change: []func(*ipam.Observation){ready("node2")}, want: asDumped},
		"what two ready nodes do not run is leaked, both addresses of it":      {change: []func(*ipam.Observation){ready("node2", "win1")}, want: but(pair, "Quarantine OwnerGone")},
		"and goes sooner if no node can have gone":                             {change: []func(*ipam.Observation){ready("node2", "win1"), settled}, want: but(pair, "Orphan OwnerGone")},
		"case 2: the node names the address of which nobody says whose it is":  {change: []func(*ipam.Observation){naming("node1", old)}, want: but(old, "Repair RecordIncomplete")},
		"case 4: the node names another one":                                   {change: []func(*ipam.Observation){naming("node1", "10.50.2.168")}, want: but(old, "Quarantine Unnamed")},
		"case 3: the node names its tunnel's address":                          {change: []func(*ipam.Observation){naming("node2", tunnel)}, want: but(tunnel, "Keep InUse")},
		"the tunnel's address of a node that is gone waits for the quarantine": {change: []func(*ipam.Observation){without("node2")}, want: but(tunnel, "Quarantine NodeGone")},
		"a virtual machine that exists has its address": {
			change: []func(*ipam.Observation){machines(map[ipam.Name]ipam.Presence{{Namespace: "default", Name: "vm1"}: {UID: "u2"}})},
			want:   but(machine, "Keep InUse"),
		},
		"one that is gone has none": {
			change: []func(*ipam.Observation){machines(map[ipam.Name]ipam.Presence{})},
			want:   but(machine, "Orphan OwnerGone"),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := emptyStore(t, calico.V1)
			s.play(t, "testdata")
			all, err := s.backend.Allocations(t.Context())
			check(t, err)
			o := recorded(t)
			for _, change := range tt.change {
				change(&o)
			}
			got := map[string]string{}
			for _, a := range all {
				v := ipam.Judge(a, ipam.NewWorld(o))
				got[a.AddressText()] = string(v.Disposition) + " " + string(v.Reason)
			}
			if diff := diff(tt.want, got); diff != "" {
				t.Errorf("verdicts (-want +got):\n%s", diff)
			}
		})
	}
}

func without(node string) func(*ipam.Observation) {
	return func(o *ipam.Observation) {
		o.Nodes = slices.DeleteFunc(o.Nodes, func(n ipam.Node) bool { return n.Name == node })
	}
}

func machines(there map[ipam.Name]ipam.Presence) func(*ipam.Observation) {
	return func(o *ipam.Observation) {
		o.Others = map[ipam.OwnerKind]map[ipam.Name]ipam.Presence{ipam.OwnerVirtualMachine: there}
	}
}

// What can be released of the recording is, and its records are whole afterwards.
func TestRecordingsStayWhole(t *testing.T) {
	s := emptyStore(t, calico.V1)
	s.play(t, "testdata")
	whole(t, s)
	all, err := s.backend.Allocations(t.Context())
	check(t, err)
	for _, a := range all {
		if a.Owner.Kind == ipam.OwnerExternal {
			continue
		}
		check(t, s.backend.Release(t.Context(), a))
		whole(t, s)
	}
	left, err := s.backend.Allocations(t.Context())
	check(t, err)
	if len(left) != 1 || left[0].Owner.Name != calico.Windows {
		t.Errorf("what is left: %v", left)
	}
	for name := range s.stored(t) {
		if strings.HasPrefix(name, "IPAMHandle/") {
			t.Errorf("%s is left", name)
		}
	}
}

func TestLivingPodsStay(t *testing.T) {
	attribute := func(node string) string {
		return "{handle_id: k8s-pod-network.bc, secondary: {pod: web-0, namespace: default, node: " + node + "}}"
	}
	tests := map[string]struct {
		objects []string
		pod     ipam.Pod
		nodes   []ipam.Node
		want    ipam.Verdict
	}{
		"L01 a pod whose status has one address of two": {
			objects: []string{blockOf(cidr, "host:n1", 1, attribute("n1")), blockOf("fd00::8/125", "host:n1", 2, attribute("n1"))},
			pod:     ipam.Pod{Node: "n1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("fd00::a")}},
			nodes:   []ipam.Node{{Name: "n1", Ready: ipam.ConditionTrue}},
			want:    ipam.Verdict{Disposition: ipam.Keep, Reason: ipam.InUse, Evidence: "E11", Detail: "Pod default/web-0 is alive"},
		},
		"L02 a pod that runs on another node than the record says": {
			objects: []string{blockOf(cidr, "host:n1", 1, attribute("n1"))},
			pod:     ipam.Pod{Node: "n2", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.9")}},
			nodes:   []ipam.Node{{Name: "n1", Ready: ipam.ConditionTrue}, {Name: "n2", Ready: ipam.ConditionTrue}},
			want:    ipam.Verdict{Disposition: ipam.Keep, Reason: ipam.InUse, Evidence: "E11", Detail: "Pod default/web-0 is alive", Drift: true},
		},
		"L03 a pod whose node has another name in Kubernetes": {
			objects: []string{blockOf(cidr, "host:worker-1", 1, attribute("worker-1"))},
			pod:     ipam.Pod{Node: "ip-10-0-0-1.ec2", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.9")}},
			nodes:   []ipam.Node{{Name: "ip-10-0-0-1.ec2", Ready: ipam.ConditionTrue}},
			want:    ipam.Verdict{Disposition: ipam.Keep, Reason: ipam.InUse, Evidence: "E11", Detail: "Pod default/web-0 is alive", Drift: true},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, calico.V1, tt.objects...)
			all, err := s.backend.Allocations(t.Context())
			check(t, err)
			tt.pod.Namespace, tt.pod.Name, tt.pod.UID, tt.pod.Phase = "default", "web-0", "u1", "Running"
			w := ipam.NewWorld(ipam.Observation{Pods: []ipam.Pod{tt.pod}, PodsKnown: true, Nodes: tt.nodes, NodesKnown: true})
			var got []ipam.Verdict
			for _, a := range all {
				got = append(got, ipam.Judge(a, w))
			}
			if diff := diff([]ipam.Verdict{tt.want}, got); diff != "" {
				t.Errorf("verdicts (-want +got):\n%s", diff)
			}
		})
	}
}

// L03: a name that no Node bears is in doubt while one of its pods lives, and then nothing under it goes.
func TestL03AnUnknownNodeKeepsEverything(t *testing.T) {
	s := newStore(t, calico.V1, blockOf(cidr, "host:worker-1",
		1, "{handle_id: k8s-pod-network.bc, secondary: {pod: web-0, namespace: default, node: worker-1}}",
		2, "{handle_id: k8s-pod-network.cd, secondary: {pod: gone, namespace: default, node: worker-1}}",
		3, "{}", 4, "{handle_id: ipip-tunnel-addr-worker-1, secondary: {node: worker-1, type: ipipTunnelAddress}}"))
	all, err := s.backend.Allocations(t.Context())
	check(t, err)
	w := ipam.NewWorld(ipam.Observation{
		Pods: []ipam.Pod{{
			Namespace: "default", Name: "web-0", UID: "u1", Phase: "Running", Node: "ip-10-0-0-1.ec2", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.9")},
		}},
		PodsKnown: true,
		Nodes:     []ipam.Node{{Name: "ip-10-0-0-1.ec2", Ready: ipam.ConditionTrue}}, NodesKnown: true,
	})
	var judged []ipam.Judgement
	for _, a := range all {
		judged = append(judged, ipam.Consider(a, w))
	}
	w = w.Doubting(w.Doubts(judged))
	for _, a := range all {
		if v := ipam.Judge(a, w); v.Disposition != ipam.Keep {
			t.Errorf("%s: %s %s", a.Handle, v.Disposition, v.Detail)
		}
	}
}
