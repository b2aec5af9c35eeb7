package calico_test

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/backends/backendtest"
	"github.com/oakum-dev/oakum/backends/calico"
	"github.com/oakum-dev/oakum/ipam"
)

// nodeWith is worker-3 with an annotation.
func nodeWith(annotation, value string) string {
	return fmt.Sprintf("{kind: Node, metadata: {name: worker-3, annotations: {%s: %q}}}", annotation, value)
}

// owners returns whose the addresses of block 10-0-0-8-29 are, as "address handle attributes".
func owners(t *testing.T, s *store) []string {
	t.Helper()
	spec := s.stored(t)["IPAMBlock/10-0-0-8-29"]["spec"].(map[string]any)
	var found []string
	for o, i := range spec["allocations"].([]any) {
		if i == nil {
			continue
		}
		a := spec["attributes"].([]any)[i.(int64)].(map[string]any)
		found = append(found, fmt.Sprintf("%d %v %v", o, a["handle_id"], a["secondary"]))
	}
	return found
}

const (
	ipipAddr  = "projectcalico.org/IPv4IPIPTunnelAddr"
	ipip      = "1 ipip-tunnel-addr-worker-3 map[node:worker-3 type:ipipTunnelAddress]"
	nobody    = "1 <nil> <nil>"
	unownedIP = "unowned/10.0.0.9/1796042409651816331"
)

func TestRepair(t *testing.T) {
	tests := map[string]struct {
		annotation, value string
		block             string
		others            []string
		// event happens between the sighting and the repair, meanwhile before the repair's write of that number.
		event     func(*testing.T, *store)
		at        int
		meanwhile func(*testing.T, *store)
		want      string
		stale     bool
		owners    []string
		// loose: a handle that counts too many is left to Mend.
		loose bool
	}{
		"an IPIP tunnel's address gets its handle": {annotation: ipipAddr, value: "10.0.0.9", owners: []string{ipip}},
		"a VXLAN tunnel's does": {
			annotation: "projectcalico.org/IPv4VXLANTunnelAddr", value: "10.0.0.9",
			owners: []string{"1 vxlan-tunnel-addr-worker-3 map[node:worker-3 type:vxlanTunnelAddress]"},
		},
		"a Wireguard interface's does": {
			annotation: "projectcalico.org/IPv4WireguardInterfaceAddr", value: "10.0.0.9",
			owners: []string{"1 wireguard-tunnel-addr-worker-3 map[node:worker-3 type:wireguardTunnelAddress]"},
		},
		"who shares the empty attribute keeps it": {
			annotation: ipipAddr, value: "10.0.0.9", block: blockOf(cidr, affinity, 1, "{}", 2, "{}"), owners: []string{ipip, "2 <nil> <nil>"},
		},
		"a handle that counts elsewhere counts here too": {
			annotation: ipipAddr, value: "10.0.0.9", owners: []string{ipip},
			others: []string{blockOf("10.0.0.16/29", affinity, 0, "{handle_id: ipip-tunnel-addr-worker-3}"), handleOf("ipip-tunnel-addr-worker-3", "10.0.0.16/29", 1)},
		},
		"a handle that was counted before a crash is not counted twice": {
			annotation: ipipAddr, value: "10.0.0.9", owners: []string{ipip}, others: []string{handleOf("ipip-tunnel-addr-worker-3", cidr, 1)},
		},
		"a handle that is marked as deleted is made anew": {
			annotation: ipipAddr, value: "10.0.0.9", owners: []string{ipip},
			others: []string{strings.Replace(handleOf("ipip-tunnel-addr-worker-3", cidr, 4), "deleted: false", "deleted: true", 1)},
		},
		"an address that the node does not name any more stays as it is": {
			annotation: ipipAddr, value: "10.0.0.10", stale: true, owners: []string{nobody},
			want: `10.0.0.9 is no tunnel's address that Node "worker-3" names: the record has changed`,
		},
		"an address that somebody has by now is left to it": {
			annotation: ipipAddr, value: "10.0.0.9", stale: true,
			event: func(t *testing.T, s *store) {
				s.plant(t, blockOf(cidr, affinity, 1, "{handle_id: a.bc}"), handleOf("a.bc", cidr, 1))
			},
			want:   "repairing " + unownedIP + ` of Node worker-3: 10.0.0.9 in IPAMBlock "10-0-0-8-29" is another hand-out now: the record has changed`,
			owners: []string{"1 a.bc <nil>"},
		},
		"somebody who takes it in the last moment has it, and the handle is not left": {
			annotation: ipipAddr, value: "10.0.0.9", stale: true, at: 2,
			meanwhile: func(t *testing.T, s *store) {
				s.plant(t, blockOf(cidr, affinity, 1, "{handle_id: a.bc}"), handleOf("a.bc", cidr, 1))
			},
			want:   "repairing " + unownedIP + ` of Node worker-3: 10.0.0.9 in IPAMBlock "10-0-0-8-29" is another hand-out now: the record has changed`,
			owners: []string{"1 a.bc <nil>"},
		},
		"a neighbour in the last moment does no harm": {
			annotation: ipipAddr, value: "10.0.0.9", at: 2, owners: []string{ipip, "2 a.bc <nil>"},
			meanwhile: func(t *testing.T, s *store) {
				s.plant(t, blockOf(cidr, affinity, 1, "{}", 2, "{handle_id: a.bc}"), handleOf("a.bc", cidr, 1))
			},
		},
		"somebody who makes the handle in the last moment does none": {
			annotation: ipipAddr, value: "10.0.0.9", at: 1, owners: []string{ipip},
			meanwhile: func(t *testing.T, s *store) { s.plant(t, handleOf("ipip-tunnel-addr-worker-3", cidr, 1)) },
		},
		"calico-node that does it by itself has done it": {
			annotation: ipipAddr, value: "10.0.0.9", owners: []string{ipip},
			event: func(t *testing.T, s *store) {
				s.plant(t, blockOf(cidr, affinity, 1, "{handle_id: ipip-tunnel-addr-worker-3, secondary: {node: worker-3, type: ipipTunnelAddress}}"), handleOf("ipip-tunnel-addr-worker-3", cidr, 1))
			},
		},
		"a block that is gone is no error of the node's": {
			annotation: ipipAddr, value: "10.0.0.9",
			event: func(t *testing.T, s *store) {
				s.plant(t, strings.Replace(blockOf(cidr, affinity, 1, "{}"), "deleted: false", "deleted: true", 1))
			},
			want: "repairing " + unownedIP + ` of Node worker-3: reading IPAMBlock "10-0-0-8-29": not found`, owners: []string{nobody}, loose: true,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			block := tt.block
			if block == "" {
				block = blockOf(cidr, affinity, 1, "{}")
			}
			s := newStore(t, calico.V3, append(tt.others, block)...)
			s.plant(t, nodeWith(tt.annotation, tt.value))
			a := find(t, s, unownedIP)
			if tt.event != nil {
				tt.event(t, s)
			}
			writes := 0
			s.always = func(c backendtest.Call) error {
				if c == backendtest.Write {
					if writes++; writes == tt.at {
						tt.meanwhile(t, s)
					}
				}
				return nil
			}
			text := ""
			err := s.backend.Repair(t.Context(), a)
			if err != nil {
				text = err.Error()
			}
			if text != tt.want || errors.Is(err, backends.ErrStale) != tt.stale {
				t.Errorf("the error is %v, want %s", err, tt.want)
			}
			if diff := diff(tt.owners, owners(t, s)); diff != "" {
				t.Errorf("owners (-want +got):\n%s", diff)
			}
			if tt.loose {
				return
			}
			whole(t, s)
			if err == nil {
				before := len(s.writes)
				check(t, s.backend.Repair(t.Context(), a))
				if len(s.writes) > before {
					t.Errorf("the second repair wrote %s", s.writes[before:])
				}
			}
		})
	}
}

func TestRepairRefuses(t *testing.T) {
	s := newStore(t, calico.V1, blockOf(cidr, "", 1, "{}", 2, "{handle_id: a.bc, secondary: {pod: web-0, namespace: default}}"))
	for handle, want := range map[string]string{
		unownedIP: "repairing " + unownedIP + ": only a node's address without handle and attributes can be completed",
		"a.bc":    "repairing a.bc: only a node's address without handle and attributes can be completed",
	} {
		if err := s.backend.Repair(t.Context(), find(t, s, handle)); err == nil || err.Error() != want {
			t.Errorf("the error is %v, want %s", err, want)
		}
	}
	if len(s.writes) > 0 {
		t.Errorf("it wrote %s", s.writes)
	}
}

func TestClaim(t *testing.T) {
	const two = "2 a.bc <nil>"
	tests := map[string]struct {
		block     string
		unnamed   bool
		addr      string
		at        int
		meanwhile func(*testing.T, *store)
		want      string
		is        error
		owners    []string
	}{
		"a free address is the node's from then on": {block: blockOf(cidr, affinity, 2, "{handle_id: a.bc}"), owners: []string{ipip, two}},
		"one in another node's block is, too":       {block: blockOf(cidr, "host:worker-9", 2, "{handle_id: a.bc}"), owners: []string{ipip, two}},
		"what it has already needs no more": {
			block:  blockOf(cidr, affinity, 1, "{handle_id: ipip-tunnel-addr-worker-3, secondary: {node: worker-3, type: ipipTunnelAddress}}", 2, "{handle_id: a.bc}"),
			owners: []string{ipip, two},
		},
		"a pod's address stays the pod's": {
			block: blockOf(cidr, affinity, 1, "{handle_id: default.web-0}", 2, "{handle_id: a.bc}"), is: backends.ErrStale,
			want:   "claiming 10.0.0.9 for node \"worker-3\": Pod default/web-0 has 10.0.0.9: the record has changed",
			owners: []string{"1 default.web-0 <nil>", two},
		},
		"an address that cools down is nobody's yet": {
			block: blockOf(cidr, affinity, 1, `{releasedAt: "2026-11-30T12:43:06Z"}`, 2, "{handle_id: a.bc}"), is: backends.ErrStale,
			want:   `claiming 10.0.0.9 for node "worker-3": 10.0.0.9 is not free in IPAMBlock "10-0-0-8-29": the record has changed`,
			owners: []string{nobody, two},
		},
		"somebody who takes it in the last moment has it": {
			block: blockOf(cidr, affinity, 2, "{handle_id: a.bc}"), at: 2, is: backends.ErrStale,
			meanwhile: func(t *testing.T, s *store) {
				s.plant(t, blockOf(cidr, affinity, 1, "{handle_id: default.web-0}", 2, "{handle_id: a.bc}"), handleOf("default.web-0", cidr, 1))
			},
			want:   "claiming 10.0.0.9 for node \"worker-3\": Pod default/web-0 has 10.0.0.9: the record has changed",
			owners: []string{"1 default.web-0 <nil>", two},
		},
		"an address that no block has is calico-node's to take": {
			block: blockOf(cidr, affinity, 2, "{handle_id: a.bc}"), addr: "10.0.0.200", is: backends.ErrNotFound,
			want: `claiming 10.0.0.200 for node "worker-3": finding its IPAMBlock: not found`, owners: []string{two},
		},
		"an address that the node does not name any more is none of its own": {
			block: blockOf(cidr, affinity, 2, "{handle_id: a.bc}"), unnamed: true, is: backends.ErrStale,
			want: `10.0.0.9 is no tunnel's address that Node "worker-3" names: the record has changed`, owners: []string{two},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, calico.V1, tt.block, handleOf("a.bc", cidr, 1))
			for _, id := range []string{"default.web-0", "ipip-tunnel-addr-worker-3"} {
				if strings.Contains(tt.block, id) {
					s.plant(t, handleOf(id, cidr, 1))
				}
			}
			writes := 0
			s.always = func(c backendtest.Call) error {
				if c == backendtest.Write {
					if writes++; writes == tt.at {
						tt.meanwhile(t, s)
					}
				}
				return nil
			}
			addr := cmp.Or(tt.addr, "10.0.0.9")
			if !tt.unnamed {
				s.plant(t, nodeWith(ipipAddr, addr))
			}
			text := ""
			err := s.backend.Repair(t.Context(), ipam.Allocation{
				Backend: "calico", Handle: "unrecorded/" + addr, Owner: node("worker-3"), Named: true,
				Places: []ipam.Place{{Addresses: []netip.Addr{netip.MustParseAddr(addr)}}},
			})
			if err != nil {
				text = err.Error()
			}
			if text != tt.want || tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("the error is %v, want %s", err, tt.want)
			}
			if diff := diff(tt.owners, owners(t, s)); diff != "" {
				t.Errorf("owners (-want +got):\n%s", diff)
			}
			whole(t, s)
		})
	}
}

// What was repaired is the node's, and is found under its name.
func TestWhatWasRepairedIsTheNodes(t *testing.T) {
	s := newStore(t, calico.V1, blockOf(cidr, affinity, 1, "{}"))
	s.plant(t, nodeWith(ipipAddr, "10.0.0.9"))
	check(t, s.backend.Repair(t.Context(), find(t, s, unownedIP)))
	got, err := s.backend.AllocationsOf(t.Context(), node("worker-3"))
	check(t, err)
	want := []ipam.Allocation{{
		Backend: "calico", Handle: "ipip-tunnel-addr-worker-3", Owner: node("worker-3"), Named: true, Places: []ipam.Place{place(1, sequence+1)},
	}}
	if diff := diff(want, got); diff != "" {
		t.Errorf("AllocationsOf (-want +got):\n%s", diff)
	}
}

func TestUnrecorded(t *testing.T) {
	s := newStore(t, calico.V1, blockOf(cidr, affinity, 1, "{handle_id: a.bc}", 2, `{releasedAt: "2026-11-30T12:43:06Z"}`), handleOf("a.bc", cidr, 1))
	named := map[netip.Addr]ipam.Owner{}
	for _, text := range []string{"10.0.0.9", "10.0.0.10", "10.0.0.11", "10.9.9.9", "fd99::1"} {
		named[netip.MustParseAddr(text)] = node("worker-3")
	}
	got, err := s.backend.Unrecorded(t.Context(), named)
	check(t, err)
	free := place(3, 0)
	free.Revision = ""
	want := []ipam.Allocation{{
		Backend: "calico", Handle: "unrecorded/10.0.0.11", Owner: node("worker-3"), Named: true,
		Gap: "nobody has it, so that a pod could be given it", Places: []ipam.Place{free},
	}}
	if diff := diff(want, got); diff != "" {
		t.Errorf("what nobody has although a node names it (-want +got):\n%s", diff)
	}
}
