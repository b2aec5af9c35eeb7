package whereabouts_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/backends/backendtest"
	"github.com/oakum-dev/oakum/backends/whereabouts"
	"github.com/oakum-dev/oakum/ipam"
)

const (
	sandbox1 = "03b760a78be7e65fbc5539d50e06a59f69f4c5fa30c8d5f4ac5732b76e014e58"
	sandbox2 = "9a1c60a78be7e65fbc5539d50e06a59f69f4c5fa30c8d5f4ac5732b76e014e58"
	uid1     = "6f0c9e0e-6dd3-4f5b-9d5c-0c3f1e2d3a4b"
	uid2     = "7f0c9e0e-6dd3-4f5b-9d5c-0c3f1e2d3a4b"
)

func TestBackendKeepsTheContract(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) backendtest.Fixture { return newStore(t) })
}

func pod(name string) ipam.Owner {
	return ipam.Owner{Kind: ipam.OwnerPod, Namespace: "default", Name: name}
}

func inSandbox1(o ipam.Owner) ipam.Owner {
	o.ContainerID = sandbox1
	return o
}

func withUID(o ipam.Owner, uid string) ipam.Owner {
	o.UID = uid
	return o
}

// at is a place in a pool.
func at(pool string, offset int, addr string) ipam.Place {
	return ipam.Place{Pool: pool, Block: pool, Offset: offset, Addresses: []netip.Addr{netip.MustParseAddr(addr)}}
}

// loose is a hand-out of a reservation without an entry. The store gives the first object that is planted uid-4.
func loose(uid, name string, owner ipam.Owner, pool string, offset int, addrs ...string) ipam.Allocation {
	p := ipam.Place{Pool: pool, Block: "reservation/" + name, Offset: offset}
	for _, a := range addrs {
		p.Addresses = append(p.Addresses, netip.MustParseAddr(a))
	}
	return ipam.Allocation{
		Backend: "whereabouts", Handle: "reservation/" + uid, Owner: owner, Places: []ipam.Place{p}, Gap: "no entry in any IPPool",
	}
}

func allocation(handle string, owner ipam.Owner, places ...ipam.Place) ipam.Allocation {
	return ipam.Allocation{Backend: "whereabouts", Handle: handle, Owner: owner, Places: places}
}

// sorted returns allocations by handle, without revisions.
func sorted(all []ipam.Allocation) []ipam.Allocation {
	for _, a := range all {
		for i := range a.Places {
			a.Places[i].Revision = ""
		}
	}
	slices.SortFunc(all, func(a, b ipam.Allocation) int { return cmp.Compare(a.Handle, b.Handle) })
	return all
}

func diff(want, got any) string {
	return gocmp.Diff(want, got, gocmp.Comparer(func(a, b netip.Addr) bool { return a == b }))
}

func poolOf(name, subnet string, entries ...string) string {
	text := fmt.Sprintf("{kind: IPPool, metadata: {name: %s}, spec: {range: %q, allocations: {", name, subnet)
	for _, e := range entries {
		text += e + ", "
	}
	return text + "}}}"
}

func entry(offset, id, ref string) string {
	return fmt.Sprintf("%q: {id: %q, podref: %q, ifname: eth0}", offset, id, ref)
}

func reserve(name, ref string) string {
	return fmt.Sprintf("{kind: OverlappingRangeIPReservation, metadata: {name: %q}, spec: {podref: %q, ifname: eth0}}", name, ref)
}

func network(name string) string {
	return fmt.Sprintf(`{kind: NetworkAttachmentDefinition, metadata: {name: nad-%s}, spec: {config: '{"ipam":{"type":"whereabouts","network_name":"%s"}}'}}`, name, name)
}

func slicesOf(name string, pairs ...string) string {
	text := fmt.Sprintf("{kind: NodeSlicePool, metadata: {name: %s}, spec: {range: 10.4.0.0/16, sliceSize: /28}, status: {allocations: [", name)
	for i := 0; i < len(pairs); i += 2 {
		text += fmt.Sprintf("{nodeName: %q, sliceRange: %q}, ", pairs[i], pairs[i+1])
	}
	return text + "]}}"
}

func TestAllocations(t *testing.T) {
	web := pod("web-0")
	tests := map[string]struct {
		stored []string
		want   []ipam.Allocation
	}{
		"entries with one container id are one hand-out, in whatever pools": {
			stored: []string{
				poolOf("10.2.0.0-24", "10.2.0.0/24", entry("7", sandbox1, "default/web-0"), entry("12", sandbox1, "default/web-0")),
				poolOf("net1-fd02---64", "fd02::/64", entry("7", sandbox1, "default/web-0")),
			},
			want: []ipam.Allocation{allocation(sandbox1, inSandbox1(web),
				at("10.2.0.0-24", 7, "10.2.0.7"), at("10.2.0.0-24", 12, "10.2.0.12"), at("net1-fd02---64", 7, "fd02::7"))},
		},
		"an id that has the form of a UID is the pod's": {
			stored: []string{poolOf("10.2.0.0-24", "10.2.0.0/24", entry("7", uid1, "default/web-0"))},
			want:   []ipam.Allocation{allocation(uid1, withUID(web, uid1), at("10.2.0.0-24", 7, "10.2.0.7"))},
		},
		"entries with one id but different podrefs are different hand-outs, with different handles": {
			stored: []string{poolOf("10.2.0.0-24", "10.2.0.0/24", entry("7", sandbox1, "default/web-0"), entry("8", sandbox1, "default/web-1"))},
			want: []ipam.Allocation{
				allocation(sandbox1+"/default/web-0", inSandbox1(web), at("10.2.0.0-24", 7, "10.2.0.7")),
				allocation(sandbox1+"/default/web-1", inSandbox1(pod("web-1")), at("10.2.0.0-24", 8, "10.2.0.8")),
			},
		},
		"an entry that does not tell whose it is is nobody's": {
			stored: []string{poolOf("10.2.0.0-24", "10.2.0.0/24", entry("7", "", "default/web-0"), entry("8", sandbox1, "web-0"), entry("9", "", ""))},
			want: []ipam.Allocation{
				allocation("10.2.0.0-24/7", ipam.Owner{}, at("10.2.0.0-24", 7, "10.2.0.7")),
				allocation("10.2.0.0-24/8", ipam.Owner{}, at("10.2.0.0-24", 8, "10.2.0.8")),
				allocation("10.2.0.0-24/9", ipam.Owner{}, at("10.2.0.0-24", 9, "10.2.0.9")),
			},
		},
		"what cannot be read is no hand-out": {stored: []string{
			poolOf("10.2.0.0-24", "10.2.0.0/24", entry("256", sandbox1, "default/web-0"), entry("-1", sandbox1, "default/web-0"), entry("x", sandbox1, "default/web-0")),
			poolOf("10.3.0.5-24", "10.3.0.5/24", entry("1", sandbox1, "default/web-0")),
			poolOf("empty", "", entry("1", sandbox1, "default/web-0")),
		}},
		"a reservation belongs to the entry of its pod, also of another interface": {
			stored: []string{
				poolOf("10.2.0.0-24", "10.2.0.0/24", entry("7", sandbox1, "default/web-0"), `"8": {id: `+sandbox1+`, podref: default/web-0, ifname: net7}`),
				reserve("10.2.0.7", "default/web-0"), reserve("10.2.0.8", "default/web-0"),
			},
			want: []ipam.Allocation{allocation(sandbox1, inSandbox1(web), at("10.2.0.0-24", 7, "10.2.0.7"), at("10.2.0.0-24", 8, "10.2.0.8"))},
		},
		"L10 reservations of every form belong to the entries of their pods": {
			stored: []string{
				poolOf("10.0.0.0-24", "10.0.0.0/24", entry("5", sandbox1, "default/web-0")), poolOf("fd00---64", "fd00::/64", entry("5", sandbox1, "default/web-0"), entry("0", sandbox1, "default/web-0")),
				poolOf("net1-10.0.0.0-24", "10.0.0.0/24", entry("5", sandbox1, "default/web-0")), poolOf("net1-fd00---64", "fd00::/64", entry("5", sandbox1, "default/web-0")),
				reserve("10.0.0.5", "default/web-0"), reserve("fd00--5", "default/web-0"), reserve("fd00--0", "default/web-0"),
				reserve("net1-10.0.0.5", "default/web-0"), reserve("net1-fd00--5", "default/web-0"),
			},
			want: []ipam.Allocation{allocation(sandbox1, inSandbox1(web),
				at("10.0.0.0-24", 5, "10.0.0.5"), at("fd00---64", 0, "fd00::"), at("fd00---64", 5, "fd00::5"),
				at("net1-10.0.0.0-24", 5, "10.0.0.5"), at("net1-fd00---64", 5, "fd00::5"))},
		},
		"L10 without entries they are hand-outs, each with its address": {
			stored: []string{
				network("net1"), poolOf("fd00---64", "fd00::/64"), poolOf("net1-10.0.0.0-24", "10.0.0.0/24"), poolOf("net1-fd00---64", "fd00::/64"),
				reserve("fd00--9", "default/web-0"), reserve("fd00--0", "default/web-0"), reserve("net1-10.0.0.5", "default/web-0"), reserve("net1-fd00--9", "default/web-0"),
			},
			want: []ipam.Allocation{
				loose("", "fd00--0", web, "", 0, "fd00::"), loose("", "fd00--9", web, "fd00---64", 9, "fd00::9"),
				loose("", "net1-10.0.0.5", web, "net1-10.0.0.0-24", 5, "10.0.0.5"), loose("", "net1-fd00--9", web, "net1-fd00---64", 9, "fd00::9"),
			},
		},
		"a reservation in a node's slice is in the network, and not in the node's": {
			stored: []string{
				slicesOf("net1", "worker-1", "10.4.0.0/28"),
				poolOf("net1-worker-1-10.4.0.0-28", "10.4.0.0/28", entry("5", sandbox1, "default/web-0")),
				reserve("net1-10.4.0.5", "default/web-0"), reserve("net1-10.4.0.6", "default/web-1"),
			},
			want: []ipam.Allocation{
				allocation(sandbox1, inSandbox1(web), at("net1-worker-1-10.4.0.0-28", 5, "10.4.0.5")),
				loose("", "net1-10.4.0.6", pod("web-1"), "net1-worker-1-10.4.0.0-28", 6, "10.4.0.6"),
			},
		},
		"a reservation whose name has two meanings has both addresses": {
			stored: []string{
				poolOf("fd00-a---64", "fd00:a::/64"), poolOf("fd00-a---32", "a::/32"), network("fd00"),
				reserve("fd00-a--5", "default/web-0"),
			},
			want: []ipam.Allocation{loose("", "fd00-a--5", web, "", 0, "fd00:a::5", "a::5")},
		},
		"a reservation whose address another pod's entry has says so": {
			stored: []string{
				poolOf("10.2.0.0-24", "10.2.0.0/24", entry("7", sandbox1, "default/web-1")), reserve("10.2.0.7", "default/web-0"),
			},
			want: []ipam.Allocation{
				allocation(sandbox1, inSandbox1(pod("web-1")), at("10.2.0.0-24", 7, "10.2.0.7")),
				func() ipam.Allocation {
					a := loose("", "10.2.0.7", web, "10.2.0.0-24", 7, "10.2.0.7")
					a.Gap = `the entry in IPPool "10.2.0.0-24" names pod default/web-1`
					return a
				}(),
			},
		},
		"an entry in another network leaves a reservation without one": {
			stored: []string{
				network("net1"), poolOf("10.2.0.0-24", "10.2.0.0/24"), poolOf("net1-10.2.0.0-24", "10.2.0.0/24", entry("7", sandbox1, "default/web-0")),
				reserve("10.2.0.7", "default/web-0"),
			},
			want: []ipam.Allocation{
				allocation(sandbox1, inSandbox1(web), at("net1-10.2.0.0-24", 7, "10.2.0.7")),
				loose("", "10.2.0.7", web, "10.2.0.0-24", 7, "10.2.0.7"),
			},
		},
		"a reservation that does not tell whose it is is nobody's": {
			stored: []string{reserve("10.0.0.1", "web-0")},
			want:   []ipam.Allocation{loose("", "10.0.0.1", ipam.Owner{}, "10.0.0.0-29", 1, "10.0.0.1")},
		},
		"a reservation of an address that no offset leads to is no hand-out": {
			stored: []string{poolOf("fd02---32", "fd02::/32", entry("7", sandbox1, "default/web-0")), reserve("fd02-0-0-1--9", "default/web-0"), reserve("fd02--8000-0-0-0", "default/web-0")},
			want:   []ipam.Allocation{allocation(sandbox1, inSandbox1(web), at("fd02---32", 7, "fd02::7"))},
		},
		"a reservation of no address that a pool has is no hand-out": {stored: []string{reserve("10.99.0.1", "default/web-0"), reserve("web-0", "default/web-0")}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, tt.stored...)
			for i := range tt.want {
				a := &tt.want[i]
				if a.Gap != "" { // Only the store knows the UID.
					name := a.Places[0].Block[len("reservation/"):]
					a.Handle = "reservation/" + s.Stored(t)["OverlappingRangeIPReservation/"+name]["metadata"].(map[string]any)["uid"].(string)
				}
			}
			got, err := s.backend.Allocations(t.Context())
			check(t, err)
			if diff := diff(sorted(tt.want), sorted(got)); diff != "" {
				t.Errorf("Allocations (-want +got):\n%s", diff)
			}
			for _, owner := range []ipam.Owner{web, pod("web-1")} {
				var want []ipam.Allocation
				for _, a := range tt.want {
					if a.Owner.Kind == owner.Kind && a.Owner.Name == owner.Name {
						want = append(want, a)
					}
				}
				for question, list := range map[string]func(context.Context, ipam.Owner) ([]ipam.Allocation, error){
					"AllocationsOf": s.backend.AllocationsOf, "LiveAllocationsOf": s.backend.LiveAllocationsOf,
				} {
					got, err := list(t.Context(), owner)
					check(t, err)
					if diff := diff(want, sorted(got)); diff != "" {
						t.Errorf("%s(%s) (-want +got):\n%s", question, owner, diff)
					}
				}
			}
		})
	}
}

func TestAllocationsOfTellsUIDsApart(t *testing.T) {
	s := newStore(t, poolOf("10.2.0.0-24", "10.2.0.0/24",
		entry("1", sandbox1, "default/web-0"), entry("2", uid1, "default/web-0"), entry("3", uid2, "default/web-0")))
	tests := map[string]struct {
		owner ipam.Owner
		want  []string
	}{
		"a name alone is all pods of that name":         {pod("web-0"), []string{sandbox1, uid1, uid2}},
		"a UID leaves out what tells another one":       {withUID(pod("web-0"), uid1), []string{sandbox1, uid1}},
		"a UID that no record tells leaves the nameful": {withUID(pod("web-0"), "another"), []string{sandbox1}},
		"a node has none":                               {ipam.Owner{Kind: ipam.OwnerNode, Namespace: "default", Name: "web-0"}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			all, err := s.backend.AllocationsOf(t.Context(), tt.owner)
			check(t, err)
			for _, a := range sorted(all) {
				got = append(got, a.Handle)
			}
			if diff := diff(tt.want, got); diff != "" {
				t.Errorf("handles (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRecordings(t *testing.T) {
	s := emptyStore(t)
	s.play(t, "testdata")
	got, err := s.backend.Allocations(t.Context())
	check(t, err)
	controller := ipam.Owner{Kind: ipam.OwnerPod, Namespace: "kube-system", Name: "whereabouts-controller-6d448d8946-4d6cr", ContainerID: sandbox1}
	want := []ipam.Allocation{
		allocation(sandbox1, controller, at("10.244.0.0-28", 1, "10.244.0.1")),
		loose("24cc41bd-2f9f-41aa-b5be-4e69186e9816", "10.244.0.3", pod("web-1"), "10.244.0.0-28", 3, "10.244.0.3"),
		loose("7130b804-2c50-4085-bcad-7246d2ce4459", "10.244.0.2", pod("web-0"), "10.244.0.0-28", 2, "10.244.0.2"),
	}
	if diff := diff(want, sorted(got)); diff != "" {
		t.Fatalf("Allocations (-want +got):\n%s", diff)
	}
	for _, a := range got {
		check(t, s.backend.Release(t.Context(), a))
	}
	left := s.Stored(t)
	if allocations := left["IPPool/10.244.0.0-28"]["spec"].(map[string]any)["allocations"]; len(left) != 1 || len(allocations.(map[string]any)) != 0 {
		t.Errorf("what is left is %v, want the empty pool", left)
	}
}

func TestPools(t *testing.T) {
	v4, v6 := netip.MustParsePrefix("10.4.0.0/28"), netip.MustParsePrefix("fd00::/64")
	tests := map[string]struct {
		stored []string
		want   []ipam.Pool
	}{
		"have their range and their network": {
			stored: []string{network("net7"), poolOf("net7-fd00---64", "fd00::/64"), poolOf("10.4.0.0-28", "10.4.0.0/28")},
			want: []ipam.Pool{
				{Kind: "IPPool", Name: "10.4.0.0-28", Subnets: []ipam.Subnet{{IPv4: v4}}},
				{Kind: "IPPool", Name: "net7-fd00---64", Network: "net7", Subnets: []ipam.Subnet{{IPv6: v6}}},
			},
		},
		"of a slice are in the network before the node": {
			stored: []string{slicesOf("net7", "worker-1", "10.4.0.0/28"), poolOf("net7-worker-1-10.4.0.0-28", "10.4.0.0/28"), poolOf("worker-1-10.4.0.0-28", "10.4.0.0/28")},
			want: []ipam.Pool{
				{Kind: "IPPool", Name: "net7-worker-1-10.4.0.0-28", Network: "net7", Subnets: []ipam.Subnet{{IPv4: v4}}},
				{Kind: "IPPool", Name: "worker-1-10.4.0.0-28", Subnets: []ipam.Subnet{{IPv4: v4}}},
			},
		},
		"whose range cannot be read have none": {
			stored: []string{poolOf("net7-10.4.0.5-28", "10.4.0.5/28")},
			want:   []ipam.Pool{{Kind: "IPPool", Name: "net7-10.4.0.5-28"}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := emptyStore(t)
			s.plant(t, tt.stored...)
			got, err := s.backend.Pools(t.Context())
			check(t, err)
			if diff := gocmp.Diff(tt.want, got, gocmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
				t.Errorf("Pools (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRead(t *testing.T) {
	s := newStore(t, network("net7"))
	tests := map[string]struct {
		raw  string
		want ipam.Pool
		err  string
	}{
		"the name and what is known tell the network": {
			raw: `{"metadata":{"name":"net7-10.4.0.0-28"},"spec":{"range":"10.4.0.0/28"}}`,
			want: ipam.Pool{
				Kind: "IPPool", Name: "net7-10.4.0.0-28", Network: "net7",
				Subnets: []ipam.Subnet{{IPv4: netip.MustParsePrefix("10.4.0.0/28")}},
			},
		},
		"a range that cannot be read has no subnet": {raw: `{"metadata":{"name":"x"},"spec":{"range":"x"}}`, want: ipam.Pool{Kind: "IPPool", Name: "x"}},
		"what is no object is an error":             {raw: `1`, err: "decoding the IPPool: json: cannot unmarshal number into Go value of type whereabouts.IPPool"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := s.backend.Read(t.Context(), []byte(tt.raw))
			if text := fmt.Sprint(err); err != nil && text != tt.err || err == nil && tt.err != "" {
				t.Errorf("the error is %v, want %s", err, tt.err)
			}
			if diff := gocmp.Diff(tt.want, got, gocmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
				t.Errorf("pool (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRecord(t *testing.T) {
	s := newStore(t, reserve("10.0.0.1", "default/web-0"))
	tests := map[string]struct {
		place ipam.Place
		want  backends.Object
		err   error
	}{
		"an entry is recorded in its pool": {
			place: ipam.Place{Pool: "10.0.0.0-29", Block: "10.0.0.0-29"},
			want:  backends.Object{APIVersion: "whereabouts.cni.cncf.io/v1alpha1", Kind: "IPPool", Namespace: "kube-system", Name: "10.0.0.0-29", UID: "uid-1"},
		},
		"a reservation is its own record": {
			place: ipam.Place{Pool: "10.0.0.0-29", Block: "reservation/10.0.0.1"},
			want:  backends.Object{APIVersion: "whereabouts.cni.cncf.io/v1alpha1", Kind: "OverlappingRangeIPReservation", Namespace: "kube-system", Name: "10.0.0.1", UID: "uid-4"},
		},
		"a pool that is gone is not found": {
			place: ipam.Place{Block: "gone"},
			want:  backends.Object{APIVersion: "whereabouts.cni.cncf.io/v1alpha1", Kind: "IPPool", Namespace: "kube-system", Name: "gone"},
			err:   backends.ErrNotFound,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := s.backend.Record(t.Context(), tt.place)
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
	p := &whereabouts.IPPool{Spec: whereabouts.IPPoolSpec{Allocations: map[string]whereabouts.Entry{
		"1": {PodRef: "default/web-1"}, "2": {PodRef: "default/web-0"}, "3": {PodRef: "default/web-1"}, "4": {PodRef: "web"}, "5": {},
	}}}
	want := []types.NamespacedName{{Namespace: "default", Name: "web-0"}, {Namespace: "default", Name: "web-1"}}
	if diff := diff(want, whereabouts.Pods(p)); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
}

// lacking is an API server without some kinds.
type lacking struct {
	client.Reader
	kinds []string
	asked map[string]int
}

func (r lacking) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	kind := fmt.Sprintf("%T", list)
	r.asked[kind]++
	if slices.Contains(r.kinds, kind) {
		return &meta.NoKindMatchError{GroupKind: schema.GroupKind{Kind: kind}}
	}
	return r.Reader.List(ctx, list, options...)
}

func TestKindsThatAreNotServed(t *testing.T) {
	const slicePools, definitions = "*whereabouts.NodeSlicePoolList", "*whereabouts.NetworkAttachmentDefinitionList"
	tests := map[string]struct {
		optional whereabouts.Optional
		// want is how often those kinds are asked for.
		want int
	}{
		"are not asked for": {},
		"have no objects":   {whereabouts.Optional{NodeSlicePools: served, NetworkAttachmentDefinitions: served}, 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			a := s.HandOut(t, backendtest.Who{}, backendtest.Spot{Record: 2})
			r := lacking{s.typed(func() client.WithWatch { return s.live }), []string{slicePools, definitions}, map[string]int{}}
			b := whereabouts.New(r, r, s.typed(func() client.WithWatch { return s.live }), namespace, tt.optional)
			got, err := b.Allocations(t.Context())
			check(t, err)
			if diff := diff([]ipam.Allocation{a}, sorted(got)); diff != "" {
				t.Errorf("Allocations (-want +got):\n%s", diff)
			}
			if asked := r.asked[slicePools] + r.asked[definitions]; asked != tt.want {
				t.Errorf("they were asked for %d times, want %d", asked, tt.want)
			}
		})
	}
}

// memory is a cache that gives out what it holds, as one does that need not copy.
type memory struct {
	client.Reader
	pools        []whereabouts.IPPool
	reservations []whereabouts.OverlappingRangeIPReservation
	slices       whereabouts.NodeSlicePool
}

func (m memory) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch list := list.(type) {
	case *whereabouts.IPPoolList:
		list.Items = m.pools
	case *whereabouts.OverlappingRangeIPReservationList:
		list.Items = m.reservations
	case *whereabouts.NodeSlicePoolList:
		list.Items = []whereabouts.NodeSlicePool{m.slices}
	}
	return nil
}

func TestB46AllOfManyHandOutsAreListedInSeconds(t *testing.T) {
	const nodes, each = 800, 250
	m := memory{}
	for node := range nodes {
		subnet := fmt.Sprintf("10.%d.%d.0/24", node/256, node%256)
		p := whereabouts.IPPool{}
		p.Name = fmt.Sprintf("net1-worker-%d-10.%d.%d.0-24", node, node/256, node%256)
		p.Spec.Range, p.Spec.Allocations = subnet, map[string]whereabouts.Entry{}
		for i := range each {
			ref := fmt.Sprintf("default/web-%d-%d", node, i)
			p.Spec.Allocations[strconv.Itoa(i)] = whereabouts.Entry{ID: fmt.Sprintf("%064x", node*each+i), PodRef: ref, IfName: "net1"}
			r := whereabouts.OverlappingRangeIPReservation{Spec: whereabouts.ReservationSpec{PodRef: ref, IfName: "net1"}}
			r.Name = fmt.Sprintf("net1-10.%d.%d.%d", node/256, node%256, i)
			m.reservations = append(m.reservations, r)
		}
		m.pools = append(m.pools, p)
		m.slices.Status.Allocations = append(m.slices.Status.Allocations, whereabouts.NodeSlice{NodeName: fmt.Sprintf("worker-%d", node), SliceRange: subnet})
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	all, err := whereabouts.New(m, m, nil, namespace, whereabouts.Optional{NodeSlicePools: served}).Allocations(t.Context())
	check(t, err)
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	perHandOut := (after.TotalAlloc - before.TotalAlloc) / (nodes * each)
	t.Logf("%d hand-outs in %s, %d bytes allocated for each", len(all), took, perHandOut)
	if len(all) != nodes*each { // No reservation is a hand-out of its own.
		t.Errorf("%d hand-outs, want %d", len(all), nodes*each)
	}
	if took > 20*time.Second || perHandOut > 4096 {
		t.Errorf("it took %s and %d bytes for each, want seconds and at most 4096", took, perHandOut)
	}
}
