package calico_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/backends/calico"
	"github.com/oakum-dev/oakum/ipam"
)

const (
	sandbox  = "14d59290138382e3b774bb959044f920824637b5f441d8100b740c5c02bb3e9b"
	affinity = "host:worker-3"
	cidr     = "10.0.0.8/29"
)

func pod(name string) ipam.Owner {
	return ipam.Owner{Kind: ipam.OwnerPod, Namespace: "default", Name: name, Node: "worker-3"}
}

func in(sandbox string, o ipam.Owner) ipam.Owner {
	o.ContainerID = sandbox
	return o
}

func node(name string) ipam.Owner { return ipam.Owner{Kind: ipam.OwnerNode, Name: name, Node: name} }

// place is one in block 10-0-0-8-29.
func place(offset int, number int64) ipam.Place {
	return ipam.Place{
		Pool: "v4", Block: "10-0-0-8-29", Offset: offset,
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, 8 + byte(offset)})}, Revision: strconv.FormatInt(number, 10),
	}
}

func sorted(all []ipam.Allocation) []ipam.Allocation {
	slices.SortFunc(all, func(a, b ipam.Allocation) int { return strings.Compare(a.Handle, b.Handle) })
	return all
}

func TestHandOuts(t *testing.T) {
	const secondary = "secondary: {pod: web-0, namespace: default, node: worker-3}"
	one := func(handle string, o ipam.Owner) []ipam.Allocation {
		return []ipam.Allocation{{Backend: "calico", Handle: handle, Owner: o, Places: []ipam.Place{place(0, sequence)}}}
	}
	tunnel := func(handle, name string) []ipam.Allocation {
		all := one(handle, node(name))
		all[0].Named = true
		return all
	}
	nameless := "unowned/10.0.0.8/" + strconv.FormatInt(sequence, 10)
	tests := map[string]struct {
		attribute string
		affinity  string
		want      []ipam.Allocation
	}{
		"a pod and its sandbox": {
			attribute: "{handle_id: k8s-pod-network." + sandbox + ", " + secondary + "}",
			want:      one("k8s-pod-network."+sandbox, in(sandbox, pod("web-0"))),
		},
		"G28 what follows a carriage return is not part of the handle": {
			attribute: `{handle_id: "k8s-pod-network.` + sandbox + `\r\neth0", ` + secondary + "}",
			want:      one("k8s-pod-network."+sandbox, in(sandbox, pod("web-0"))),
		},
		"a pod of another network": {
			attribute: "{handle_id: my.net." + sandbox + ", " + secondary + "}",
			want:      one("my.net."+sandbox, in(sandbox, pod("web-0"))),
		},
		"a workload's handle with attributes tells no sandbox": {
			attribute: "{handle_id: default.web-0, " + secondary + "}",
			want:      one("default.web-0", pod("web-0")),
		},
		"a workload's handle without attributes is a pod's name": {
			attribute: "{handle_id: default.web-0.example}",
			want:      one("default.web-0.example", ipam.Owner{Kind: ipam.OwnerPod, Namespace: "default", Name: "web-0.example"}),
		},
		"a sandbox's handle without attributes tells no pod": {
			attribute: "{handle_id: k8s-pod-network." + sandbox + "}",
			want:      one("k8s-pod-network."+sandbox, ipam.Owner{}),
		},
		"what is no sandbox is not taken for one": {
			attribute: "{handle_id: k8s-pod-network.something, " + secondary + "}",
			want:      one("k8s-pod-network.something", pod("web-0")),
		},
		"a virtual machine": {
			attribute: "{handle_id: k8s-pod-network.vmi.default.vm1, secondary: {namespace: default, pod: virt-launcher-vm1-x, node: worker-3, vmi-name: vm1, vmi-uid: u1, vm-uid: u2}}",
			want:      one("k8s-pod-network.vmi.default.vm1", ipam.Owner{Kind: ipam.OwnerVirtualMachine, Namespace: "default", Name: "vm1", UID: "u2"}),
		},
		"a virtual machine without a VirtualMachine tells no UID that lasts": {
			attribute: "{handle_id: k8s-pod-network.vmi.default.vm1, secondary: {namespace: default, pod: virt-launcher-vm1-x, vmi-name: vm1, vmi-uid: u1}}",
			want:      one("k8s-pod-network.vmi.default.vm1", ipam.Owner{Kind: ipam.OwnerVirtualMachine, Namespace: "default", Name: "vm1"}),
		},
		"a virtual machine that migrates is told by its handle": {
			attribute: "{handle_id: net1.vmi.default.vm1.example, alternateOwnerAttrs: {pod: virt-launcher-vm1-y, namespace: default}}",
			want:      one("net1.vmi.default.vm1.example", ipam.Owner{Kind: ipam.OwnerVirtualMachine, Namespace: "default", Name: "vm1.example"}),
		},
		"one in a namespace called vmi": {
			attribute: "{handle_id: net1.vmi.vmi.vm1}",
			want:      one("net1.vmi.vmi.vm1", ipam.Owner{Kind: ipam.OwnerVirtualMachine, Namespace: "vmi", Name: "vm1"}),
		},
		"one whose handle is a hash, while it migrates, is not told": {
			attribute: "{handle_id: net1.vmi._0123456789abcdef}",
			want:      one("net1.vmi._0123456789abcdef", ipam.Owner{}),
		},
		"a pod whose name looks like a virtual machine's": {
			attribute: "{handle_id: default.vmi.a.b, secondary: {pod: vmi.a.b, namespace: default, node: worker-3}}",
			want:      one("default.vmi.a.b", pod("vmi.a.b")),
		},
		"an IPIP tunnel": {
			attribute: "{handle_id: ipip-tunnel-addr-worker-3, secondary: {node: worker-3, type: ipipTunnelAddress}}",
			want:      tunnel("ipip-tunnel-addr-worker-3", "worker-3"),
		},
		"a VXLAN tunnel": {
			attribute: "{handle_id: vxlan-tunnel-addr-worker-4.example, secondary: {node: worker-4.example, type: vxlanTunnelAddress}}",
			want:      tunnel("vxlan-tunnel-addr-worker-4.example", "worker-4.example"),
		},
		"a VXLAN tunnel over IPv6": {
			attribute: "{handle_id: vxlan-v6-tunnel-addr-worker-3, secondary: {node: worker-3, type: vxlanV6TunnelAddress}}",
			want:      tunnel("vxlan-v6-tunnel-addr-worker-3", "worker-3"),
		},
		"a Wireguard tunnel": {
			attribute: "{handle_id: wireguard-tunnel-addr-worker-3, secondary: {node: worker-3, type: wireguardTunnelAddress}}",
			want:      tunnel("wireguard-tunnel-addr-worker-3", "worker-3"),
		},
		"a Wireguard tunnel over IPv6": {
			attribute: "{handle_id: wireguard-v6-tunnel-addr-worker-3, secondary: {node: worker-3, type: wireguardV6TunnelAddress}}",
			want:      tunnel("wireguard-v6-tunnel-addr-worker-3", "worker-3"),
		},
		"a tunnel that the handle alone tells": {
			attribute: "{handle_id: ipip-tunnel-addr-worker-3}",
			want:      tunnel("ipip-tunnel-addr-worker-3", "worker-3"),
		},
		"a tunnel that the attributes alone tell": {
			attribute: "{secondary: {node: worker-3, type: ipipTunnelAddress}}",
			want:      tunnel(nameless, "worker-3"),
		},
		"a tunnel whose handle is another node's than the attributes'": {
			attribute: "{handle_id: ipip-tunnel-addr-worker-3, secondary: {node: worker-4, type: ipipTunnelAddress}}",
			want:      one("ipip-tunnel-addr-worker-3", ipam.Owner{}),
		},
		"a tunnel whose handle is of another kind than the attributes": {
			attribute: "{handle_id: ipip-tunnel-addr-worker-3, secondary: {node: worker-3, type: vxlanTunnelAddress}}",
			want:      one("ipip-tunnel-addr-worker-3", ipam.Owner{}),
		},
		"a load balancer's service": {
			attribute: "{handle_id: lb-qwertyuiop, secondary: {service: web, namespace: default, type: LoadBalancer}}", affinity: "virtual:load-balancer",
			want: one("lb-qwertyuiop", ipam.Owner{Kind: ipam.OwnerService, Namespace: "default", Name: "web"}),
		},
		"a load balancer's handle alone tells no service": {
			attribute: "{handle_id: lb-qwertyuiop}", affinity: "virtual:load-balancer",
			want: one("lb-qwertyuiop", ipam.Owner{}),
		},
		"G30 what Windows keeps for itself": {
			attribute: "{handle_id: windows-reserved-ipam-handle, secondary: {note: windows host rsvd}}",
			want:      one("windows-reserved-ipam-handle/10-0-0-8-29", ipam.Owner{Kind: ipam.OwnerExternal, Name: "Windows"}),
		},
		"an address that cools down is nobody's": {attribute: `{releasedAt: "2026-11-30T12:43:06Z"}`},
		"nor is it if more is told":              {attribute: `{handle_id: a.b, releasedAt: "2026-11-30T12:43:06Z"}`},
		"an address of which nobody says whose it is may be the node's": {
			attribute: "{}",
			want: []ipam.Allocation{{
				Backend: "calico", Handle: nameless, Owner: node("worker-3"), Places: []ipam.Place{place(0, sequence)},
				Guessed: true, Gap: "no handle and no attributes",
			}},
		},
		"in a block that is nobody's, nobody is guessed": {
			attribute: "{}", affinity: "none",
			want: []ipam.Allocation{{Backend: "calico", Handle: nameless, Places: []ipam.Place{place(0, sequence)}, Gap: "no handle and no attributes"}},
		},
		"nor in one for load balancers": {
			attribute: `{handle_id: ""}`, affinity: "virtual:load-balancer",
			want: []ipam.Allocation{{Backend: "calico", Handle: nameless, Places: []ipam.Place{place(0, sequence)}, Gap: "no handle and no attributes"}},
		},
		"attributes without a handle tell the owner": {
			attribute: "{" + secondary + "}",
			want:      one(nameless, pod("web-0")),
		},
		"attributes without a handle that tell none are no guess either": {
			attribute: "{secondary: {node: worker-3}}",
			want:      one(nameless, ipam.Owner{}),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for group, served := range groups() {
				of := tt.affinity
				switch of {
				case "":
					of = affinity
				case "none":
					of = ""
				}
				s := newStore(t, served, blockOf(cidr, of, 0, tt.attribute))
				got, err := s.backend.Allocations(t.Context())
				check(t, err)
				if diff := diff(tt.want, got); diff != "" {
					t.Errorf("Allocations in %s (-want +got):\n%s", group, diff)
				}
				for _, a := range tt.want {
					for kind, list := range map[string]func(context.Context, ipam.Owner) ([]ipam.Allocation, error){
						"AllocationsOf": s.backend.AllocationsOf, "LiveAllocationsOf": s.backend.LiveAllocationsOf,
					} {
						got, err := list(t.Context(), a.Owner)
						check(t, err)
						if diff := diff(tt.want, got); diff != "" {
							t.Errorf("%s(%s) in %s (-want +got):\n%s", kind, a.Owner, group, diff)
						}
					}
				}
			}
		})
	}
}

func TestHandOutsOfSeveralPlaces(t *testing.T) {
	const other = "10.0.0.16/29"
	elsewhere := func(offset int) ipam.Place {
		p := place(offset, sequence)
		p.Block, p.Addresses = "10-0-0-16-29", []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, 16 + byte(offset)})}
		return p
	}
	launcher := func(rest string) string {
		return "{handle_id: net1.vmi.default.vm1, secondary: {pod: virt-launcher, namespace: default" + rest + "}}"
	}
	tests := map[string]struct {
		objects []string
		want    ipam.Allocation
	}{
		"a handle in two blocks is one hand-out": {
			objects: []string{
				blockOf(cidr, affinity, 1, "{handle_id: a.bc, secondary: {pod: web-0, namespace: default, node: worker-3}}"),
				blockOf(other, affinity, 2, "{handle_id: a.bc, secondary: {pod: web-0, namespace: default, node: worker-3}}"),
			},
			want: ipam.Allocation{Owner: in("bc", pod("web-0")), Places: []ipam.Place{elsewhere(2), place(1, sequence)}},
		},
		"where blocks tell different nodes, none is told": {
			objects: []string{
				blockOf(cidr, affinity, 1, "{handle_id: a.bc, secondary: {pod: web-0, namespace: default, node: worker-3}}"),
				blockOf(other, affinity, 2, "{handle_id: a.bc, secondary: {pod: web-0, namespace: default, node: worker-4}}"),
			},
			want: ipam.Allocation{
				Owner:  ipam.Owner{Kind: ipam.OwnerPod, Namespace: "default", Name: "web-0", ContainerID: "bc"},
				Places: []ipam.Place{elsewhere(2), place(1, sequence)},
			},
		},
		"a virtual machine of which one place tells a UID has none that is sure": {
			objects: []string{
				blockOf(cidr, affinity, 1, launcher(", vmi-name: vm1, vm-uid: u2")),
				blockOf(other, affinity, 2, "{handle_id: net1.vmi.default.vm1}"),
			},
			want: ipam.Allocation{Owner: ipam.Owner{Kind: ipam.OwnerVirtualMachine, Namespace: "default", Name: "vm1"}, Places: []ipam.Place{elsewhere(2), place(1, sequence)}},
		},
		"a handle of two kinds of owner is nobody's": {
			objects: []string{
				blockOf(cidr, affinity, 1, "{handle_id: ipip-tunnel-addr-a, secondary: {node: a, type: ipipTunnelAddress}}"),
				blockOf(other, affinity, 2, "{handle_id: ipip-tunnel-addr-a, secondary: {pod: web-0, namespace: default}}"),
			},
			want: ipam.Allocation{Places: []ipam.Place{elsewhere(2), place(1, sequence)}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, calico.V1, tt.objects...)
			got, err := s.backend.Allocations(t.Context())
			check(t, err)
			tt.want.Backend = "calico"
			for _, a := range got {
				tt.want.Handle = a.Handle
			}
			if diff := diff([]ipam.Allocation{tt.want}, got); diff != "" {
				t.Errorf("Allocations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRecordsThatCannotBeRead(t *testing.T) {
	const gone = "{kind: IPAMBlock, metadata: {name: %s}, spec: {cidr: %q, affinity: 'host:worker-3', allocations: %s, unallocated: [], attributes: [%s], deleted: %t}}"
	const owned = "{handle_id: default.web-0}"
	tests := map[string]string{
		"a block that is marked as deleted":            fmt.Sprintf(gone, "10-0-0-8-29", cidr, "[0, null, null, null, null, null, null, null]", owned, true),
		"an index out of range":                        fmt.Sprintf(gone, "10-0-0-8-29", cidr, "[1, 7, -1, null, null, null, null, null]", owned, false),
		"a block whose CIDR has host bits":             fmt.Sprintf(gone, "x", "10.0.0.9/29", "[0]", owned, false),
		"a block without a CIDR":                       fmt.Sprintf(gone, "x", "", "[0]", owned, false),
		"a block that is larger than any block can be": fmt.Sprintf(gone, "x", "fd00::/64", "[0]", owned, false),
		"an address behind the block's last one":       fmt.Sprintf(gone, "x", "10.0.0.8/31", "[null, null, 0]", owned, false),
	}
	for name, object := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, calico.V1, object)
			got, err := s.backend.Allocations(t.Context())
			check(t, err)
			if len(got) > 0 {
				t.Errorf("Allocations found %v", got)
			}
		})
	}
}

func TestPools(t *testing.T) {
	v4, v6 := netip.MustParsePrefix("10.2.0.0/16"), netip.MustParsePrefix("fd02::/112")
	reserved := ipam.Range{First: netip.MustParseAddr("10.2.0.0"), Last: netip.MustParseAddr("10.2.0.15")}
	s := emptyStore(t, calico.V3)
	s.plant(t,
		pool("a", "10.2.0.0/16", 28), pool("b", "fd02::/112", 0), pool("c", "10.2.0.1/16", 26), pool("d", "10.3.0.0/26", 24),
		"{kind: IPReservation, metadata: {name: r}, spec: {reservedCIDRs: [10.2.0.5/28, nonsense, fd09::/64]}}",
	)
	want := []ipam.Pool{
		{Kind: "IPPool", Name: "a", BlockSizeBits: 4, Subnets: []ipam.Subnet{{IPv4: v4}}, Reserved: []ipam.Range{reserved}},
		{Kind: "IPPool", Name: "b", BlockSizeBits: 6, Subnets: []ipam.Subnet{{IPv6: v6}}},
		{Kind: "IPPool", Name: "c"},
		{Kind: "IPPool", Name: "d"},
	}
	got, err := s.backend.Pools(t.Context())
	check(t, err)
	if diff := diff(want, got); diff != "" {
		t.Errorf("Pools (-want +got):\n%s", diff)
	}
}

func TestRecord(t *testing.T) {
	tests := map[string]struct {
		block string
		want  backends.Object
		err   error
	}{
		"a block": {
			block: "10-0-0-0-29",
			want:  backends.Object{APIVersion: "crd.projectcalico.org/v1", Kind: "IPAMBlock", Name: "10-0-0-0-29", UID: "uid-1"},
		},
		"a block that is marked as deleted is not found": {
			block: "10-0-0-8-29",
			want:  backends.Object{APIVersion: "crd.projectcalico.org/v1", Kind: "IPAMBlock", Name: "10-0-0-8-29", UID: "uid-2"},
			err:   backends.ErrNotFound,
		},
		"nor is one that is gone": {
			block: "gone",
			want:  backends.Object{APIVersion: "crd.projectcalico.org/v1", Kind: "IPAMBlock", Name: "gone"},
			err:   backends.ErrNotFound,
		},
	}
	s := newStore(t, calico.V1, "{kind: IPAMBlock, metadata: {name: 10-0-0-8-29}, spec: {cidr: 10.0.0.8/29, deleted: true}}")
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := s.backend.Record(t.Context(), ipam.Place{Block: tt.block})
			if !errors.Is(err, tt.err) {
				t.Errorf("the error is %v, want %v", err, tt.err)
			}
			if diff := diff(tt.want, got); diff != "" {
				t.Errorf("record (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPods(t *testing.T) {
	spec := calico.IPAMBlockSpec{CIDR: cidr}
	for o, a := range []calico.Attribute{
		{HandleID: "a.bc", Secondary: map[string]string{"pod": "web-1", "namespace": "default"}},
		{HandleID: "a.cd", Secondary: map[string]string{"pod": "web-0", "namespace": "default"}},
		{HandleID: "a.de", Secondary: map[string]string{"pod": "web-1", "namespace": "default"}},
		{HandleID: "ipip-tunnel-addr-worker-3"},
		{},
	} {
		spec.Allocations, spec.Attributes = append(spec.Allocations, &o), append(spec.Attributes, a)
	}
	want := []types.NamespacedName{{Namespace: "default", Name: "web-0"}, {Namespace: "default", Name: "web-1"}}
	for name, block := range map[string]client.Object{"v1": &calico.IPAMBlock{Spec: spec}, "v3": &calico.IPAMBlockV3{Spec: spec}} {
		if diff := diff(want, calico.Pods(block)); diff != "" {
			t.Errorf("pods of a block of %s (-want +got):\n%s", name, diff)
		}
	}
	if pods := calico.Pods(&calico.IPPool{}); len(pods) > 0 {
		t.Errorf("a pool names %v", pods)
	}
}

// memory is a cache that gives out what it holds, as one does that need not copy.
type memory struct {
	client.Reader
	blocks []calico.IPAMBlock
	pools  []calico.IPPool
}

func (m memory) List(_ context.Context, l client.ObjectList, _ ...client.ListOption) error {
	switch l := l.(type) {
	case *calico.IPAMBlockList:
		l.Items = m.blocks
	case *calico.IPPoolList:
		l.Items = m.pools
	}
	return nil
}

func TestB46AllOfManyHandOutsAreListedAtOnce(t *testing.T) {
	const size = 64
	m := memory{pools: []calico.IPPool{{Spec: calico.IPPoolSpec{CIDR: "10.0.0.0/8"}}}}
	for n := range 1000 {
		b := calico.IPAMBlock{}
		b.Spec.CIDR = fmt.Sprintf("10.%d.%d.%d/26", n>>10, n>>2&255, n&3<<6)
		b.Name = nameOf(b.Spec.CIDR)
		b.Spec.Affinity, b.Spec.SequenceNumberForAllocation = fmt.Sprintf("host:worker-%d", n), map[string]uint64{}
		for o := range size {
			b.Spec.Allocations = append(b.Spec.Allocations, &o)
			b.Spec.Attributes = append(b.Spec.Attributes, calico.Attribute{
				HandleID:  fmt.Sprintf("k8s-pod-network.%064x", n*size+o),
				Secondary: map[string]string{"pod": fmt.Sprintf("web-%d-%d", n, o), "namespace": "default", "node": fmt.Sprintf("worker-%d", n)},
			})
			b.Spec.SequenceNumberForAllocation[strconv.Itoa(o)] = uint64(sequence) + uint64(o)
		}
		m.blocks = append(m.blocks, b)
	}
	backend := calico.New(m, m, nil, calico.V1, grace, time.Now)
	took := time.Hour
	for range 3 { // Others use the machine too.
		start := time.Now()
		all, err := backend.Allocations(t.Context())
		check(t, err)
		took = min(took, time.Since(start))
		if len(all) != 1000*size {
			t.Errorf("%d hand-outs, want %d", len(all), 1000*size)
		}
	}
	t.Logf("it took %s", took)
	if took > time.Second {
		t.Errorf("it took %s, want less than a second", took)
	}
}
