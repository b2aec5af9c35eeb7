package ipam

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestGrantCheckRequest(t *testing.T) { // B34
	noon := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	request := func(age time.Duration) *Request { return &Request{UID: "r1", Created: noon.Add(-age)} }
	stale := func(why string) []Problem {
		return []Problem{{
			Rule: StaleBlockRequest, Fault: Untimely,
			Message: `BlockRequest "req-p-n1" ` + why + `: a block for it could be left over, since node "n1" asks anew while it needs one`,
		}}
	}
	tests := map[string]struct {
		request *Request
		spent   time.Duration
		want    []Problem
	}{
		"a request of this second is waited for":          {request: request(0)},
		"so is one that is six seconds old":               {request: request(6 * time.Second)},
		"so is one that is six seconds old with the wait": {request: request(5 * time.Second), spent: time.Second},
		"not one that is a moment older":                  {request: request(5 * time.Second), spent: 1200 * time.Millisecond, want: stale("is 6.2s old")},
		"nor one that is seven seconds old":               {request: request(7 * time.Second), want: stale("is 7s old")},
		"nor one that is gone":                            {want: stale("is gone")},
		"nor one that has made place for another":         {request: &Request{UID: "r2", Created: noon}, want: stale("has a successor: it was uid r1 and is uid r2")},
		"nor one that has its answer":                     {request: &Request{UID: "r1", Created: noon, Answered: true}, want: stale("has its answer already")},
		"that a stamp is later by a second means nothing": {request: request(-time.Second)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := Grant{Pool: "p", Node: "n1", Request: "req-p-n1", RequestUID: "r1", Created: noon}
			if diff := cmp.Diff(tt.want, g.CheckRequest(tt.request, tt.spent)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestGrantCheckRoom(t *testing.T) {
	addrs := func(texts ...string) []netip.Addr {
		var addrs []netip.Addr
		for _, text := range texts {
			addrs = append(addrs, netip.MustParseAddr(text))
		}
		return addrs
	}
	held := func(block string, addresses ...string) Allocation {
		return Allocation{
			Owner:  Owner{Kind: OwnerAgent, Name: "n1", Node: "n1"},
			Places: []Place{{Pool: "p", Block: block, Addresses: addrs(addresses...)}},
		}
	}
	with := func(addresses ...string) Pod {
		return Pod{Node: "n1", Phase: "Running", Addresses: addrs(addresses...)}
	}
	waiting := Pod{Node: "n1", Phase: PhasePending}
	unread := with("10.9.0.9")
	unread.AddressesUnknown = true
	ended := with("10.0.0.0")
	ended.Phase, ended.ContainersTerminated, ended.Sandbox = PhaseSucceeded, true, ConditionFalse
	claimed := with("10.0.0.0")
	claimed.Phase = PhaseFailed
	elsewhere, reserved := held("q-0", "10.0.0.0"), held("p-0", "10.0.0.0")
	elsewhere.Places[0].Pool = "q"
	reserved.Owner = Owner{Kind: OwnerExternal, Name: "reserved"}
	single := []Allocation{held("p-0", "10.0.0.0")}
	pairs := []Allocation{held("p-0", "10.0.0.0", "fd00::", "10.0.0.1", "fd00::1")}
	room := []Problem{{
		Rule: SecondUnfilledBlock, Fault: Untimely,
		Message: `node "n1" has AddressBlock "p-0" already, and no pod names an address of it: one of the two could be left over`,
	}}
	tests := map[string]struct {
		held []Allocation
		pods []Pod
		want []Problem
	}{
		"the node's first block":                                        {pods: []Pod{waiting}},
		"a block that nobody uses":                                      {held: single, pods: []Pod{waiting, with("10.9.0.1")}, want: room},
		"two of them, of which one is told":                             {held: []Allocation{held("p-0", "10.0.0.0"), held("p-1", "10.0.0.1")}, pods: []Pod{waiting}, want: room},
		"a block that a pod uses":                                       {held: pairs, pods: []Pod{waiting, with("fd00::1")}},
		"a block of a pod whose end was only claimed":                   {held: single, pods: []Pod{waiting, claimed}},
		"a block of a pod that has ended":                               {held: single, pods: []Pod{waiting, ended}, want: room},
		"a reserved block, which is full":                               {held: []Allocation{reserved}, pods: []Pod{waiting}},
		"a block of another pool":                                       {held: []Allocation{elsewhere}, pods: []Pod{waiting}},
		"a block that another pod may have filled and not yet told":     {held: single, pods: []Pod{waiting, waiting}},
		"a block that a pod whose word is not understood may use":       {held: single, pods: []Pod{waiting, unread}},
		"a block too large to be filled by those that have not told":    {held: pairs, pods: []Pod{waiting, waiting}, want: room},
		"a block just large enough to be filled by them":                {held: pairs, pods: []Pod{waiting, waiting, waiting}},
		"pods on the host's network and mirror pods wait for nothing":   {held: single, pods: []Pod{waiting, {Node: "n1", HostNetwork: true}, {Node: "n1", Mirror: true}}, want: room},
		"a block nobody uses, though no pod is seen that wants another": {held: single, want: room},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := Grant{Pool: "p", Node: "n1", Request: "req-p-n1", RequestUID: "r1"}
			if diff := cmp.Diff(tt.want, g.CheckRoom(tt.held, tt.pods)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}
