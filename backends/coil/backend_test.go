package coil_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/backends/coil"
	"github.com/oakum-dev/oakum/ipam"
)

// The contract in backendtest is for hand-outs of single addresses: there one object holds several, and one hand-out may be
// spread over several objects. Here an object is a hand-out, so what follows plays the parts that have a meaning.

var _ backends.Backend = (*coil.Backend)(nil)

func agent(node string) ipam.Owner {
	return ipam.Owner{Kind: ipam.OwnerAgent, Name: node, Node: node}
}

// handOut is a block of pool p, whose revision does not matter.
func handOut(block string, owner ipam.Owner, addresses ...string) ipam.Allocation {
	place := ipam.Place{Pool: "p", Block: block}
	for _, a := range addresses {
		place.Addresses = append(place.Addresses, netip.MustParseAddr(a))
	}
	return ipam.Allocation{Backend: "coil", Handle: "uid-" + block, Owner: owner, Places: []ipam.Place{place}}
}

func pending(a ipam.Allocation) ipam.Allocation {
	a.Pending = true
	return a
}

// diff compares what a backend answers, but for revisions, which must be there.
func diff(t *testing.T, want, got []ipam.Allocation) string {
	t.Helper()
	for _, a := range got {
		for i := range a.Places {
			if a.Places[i].Revision == "" {
				t.Errorf("%s has no revision", a.Places[i].Block)
			}
			a.Places[i].Revision = ""
		}
	}
	return cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }))
}

func TestAllocations(t *testing.T) {
	tests := map[string]struct {
		stored []string
		want   []ipam.Allocation
	}{
		"nothing where there are no blocks": {stored: []string{request("for-n1", "n1", "")}},
		"a block is its node's coild's, with every address": {
			stored: []string{block("p-0", of("n1"), "ipv4: 10.0.0.4/30")},
			want:   []ipam.Allocation{handOut("p-0", agent("n1"), "10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.0.7")},
		},
		"a pair of CIDRs has pairs of addresses": {
			stored: []string{block("p-0", of("n1"), "ipv4: 10.0.0.4/31, ipv6: 'fd00::4/127'")},
			want:   []ipam.Allocation{handOut("p-0", agent("n1"), "10.0.0.4", "fd00::4", "10.0.0.5", "fd00::5")},
		},
		"a block of one address": {
			stored: []string{block("p-0", of("n1"), "ipv6: 'fd00::4/128'")},
			want:   []ipam.Allocation{handOut("p-0", agent("n1"), "fd00::4")},
		},
		"host bits count as little as they do for coild": {
			stored: []string{block("p-0", of("n1"), "ipv4: 10.0.0.5/31")},
			want:   []ipam.Allocation{handOut("p-0", agent("n1"), "10.0.0.4", "10.0.0.5")},
		},
		"a reserved block is nobody's, whatever its node": {
			stored: []string{block("p-0", of("n1")+", coil.cybozu.com/reserved: 'true'", "ipv4: 10.0.0.4/32")},
			want:   []ipam.Allocation{handOut("p-0", ipam.Owner{Kind: ipam.OwnerExternal, Name: "reserved"}, "10.0.0.4")},
		},
		"a block without a node does not tell whose it is": {
			stored: []string{block("p-0", "coil.cybozu.com/pool: p", "ipv4: 10.0.0.4/32")},
			want:   []ipam.Allocation{handOut("p-0", ipam.Owner{}, "10.0.0.4")},
		},
		"a request without an answer may have somebody who waits": {
			stored: []string{block("p-0", of("n1"), "ipv4: 10.0.0.4/32"), request("for-n1", "n1", "")},
			want:   []ipam.Allocation{pending(handOut("p-0", agent("n1"), "10.0.0.4"))},
		},
		"nobody waits for a request that has its answer": {
			stored: []string{block("p-0", of("n1"), "ipv4: 10.0.0.4/32"), request("for-n1", "n1", "conditions: [{type: Complete, status: 'True'}]")},
			want:   []ipam.Allocation{handOut("p-0", agent("n1"), "10.0.0.4")},
		},
		"nor for one that is another by now": {
			stored: []string{block("p-0", of("n1"), "ipv4: 10.0.0.4/32"), request("another", "n1", "")},
			want:   []ipam.Allocation{handOut("p-0", agent("n1"), "10.0.0.4")},
		},
		"blocks whose addresses cannot be listed are left out": {
			stored: []string{
				block("p-0", of("n1"), ""), block("p-1", of("n1"), "ipv4: 10.0.0/24"), block("p-2", of("n1"), "ipv4: 'fd00::/126'"),
				block("p-3", of("n1"), "ipv4: 10.0.0.4/31, ipv6: 'fd00::4/126'"), block("p-4", of("n1"), "ipv6: 'fd00::/111'"),
				block("p-5", of("n1"), "ipv4: 10.0.0.4/32"),
			},
			want: []ipam.Allocation{handOut("p-5", agent("n1"), "10.0.0.4")},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := newStore(t, tt.stored...).backend.Allocations(t.Context())
			check(t, err)
			if diff := diff(t, tt.want, got); diff != "" {
				t.Errorf("hand-outs (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("the largest block that is listed", func(t *testing.T) {
		got, err := newStore(t, block("p-0", of("n1"), "ipv6: 'fd00::/112'")).backend.Allocations(t.Context())
		check(t, err)
		addresses := got[0].Addresses()
		if last := netip.MustParseAddr("fd00::ffff"); len(addresses) != 1<<16 || addresses[1<<16-1] != last {
			t.Errorf("it has %d addresses, the last of which is %s", len(addresses), addresses[len(addresses)-1])
		}
	})
}

func TestAllocationsOf(t *testing.T) {
	s := newStore(t,
		block("p-0", of("n1"), "ipv4: 10.0.0.0/32"), block("p-1", of("n2"), "ipv4: 10.0.0.1/32"), block("p-2", of("n1"), "ipv4: 10.0.0.2/32"),
		request("for-n1", "n1", ""), request("for-n2", "n2", ""))
	s.freeze(t)
	s.plant(t, block("p-3", of("n1"), "ipv4: 10.0.0.3/32"))
	cached := []ipam.Allocation{pending(handOut("p-0", agent("n1"), "10.0.0.0")), pending(handOut("p-2", agent("n1"), "10.0.0.2"))}
	live := slices.Concat(cached, []ipam.Allocation{pending(handOut("p-3", agent("n1"), "10.0.0.3"))})
	other := []ipam.Allocation{pending(handOut("p-1", agent("n2"), "10.0.0.1"))}
	tests := map[string]struct {
		owner        ipam.Owner
		cached, live []ipam.Allocation
	}{
		"a node's coild": {agent("n1"), cached, live},
		"a node":         {ipam.Owner{Kind: ipam.OwnerNode, Name: "n1", UID: "n1-uid"}, cached, live},
		"another coild":  {agent("n2"), other, other},
		"another node":   {ipam.Owner{Kind: ipam.OwnerNode, Name: "n3"}, nil, nil},
		"no name":        {ipam.Owner{Kind: ipam.OwnerNode}, nil, nil},
		"a pod":          {ipam.Owner{Kind: ipam.OwnerPod, Namespace: "default", Name: "n1", Node: "n1"}, nil, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for how, list := range map[string]struct {
				of   func(context.Context, ipam.Owner) ([]ipam.Allocation, error)
				want []ipam.Allocation
			}{"AllocationsOf": {s.backend.AllocationsOf, tt.cached}, "LiveAllocationsOf": {s.backend.LiveAllocationsOf, tt.live}} {
				got, err := list.of(t.Context(), tt.owner)
				check(t, err)
				if diff := diff(t, list.want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", how, diff)
				}
			}
		})
	}
}

// What the real programs left, and what became of it.
func TestRecordingsAreJudged(t *testing.T) {
	s := newStore(t)
	s.play(t)
	recorded, err := s.backend.Allocations(t.Context())
	check(t, err)
	o := ipam.Observation{
		PodsKnown: true, NodesKnown: true, Nodes: []ipam.Node{{Name: "node1", Ready: ipam.ConditionTrue}},
	}
	data, err := os.ReadFile("testdata/pods.yaml")
	check(t, err)
	var pods corev1.PodList
	check(t, yaml.Unmarshal(data, &pods))
	for _, p := range pods.Items {
		seen := ipam.Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Node: p.Spec.NodeName, Phase: ipam.Phase(p.Status.Phase)}
		for _, ip := range p.Status.PodIPs {
			seen.Addresses = append(seen.Addresses, netip.MustParseAddr(ip.IP))
		}
		o.Pods = append(o.Pods, seen)
	}
	got := map[string]ipam.Verdict{}
	for _, a := range recorded {
		got[a.Places[0].Block] = ipam.Judge(a, ipam.NewWorld(o))
	}
	want := map[string]ipam.Verdict{
		"default-0": {
			Disposition: ipam.Keep, Reason: ipam.InUse, Evidence: "E11",
			Detail: "10.60.0.0 is in use by Pod default/web-0 (uid 36ddb707-72e2-4d24-8416-8cc390161858)",
		},
		"test-pool-0": {
			Disposition: ipam.Stranded, Reason: ipam.Unused, Evidence: "E10",
			Detail: `no pod has an address of it, and none on node "node1" waits for one`,
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
}

func TestPools(t *testing.T) {
	s := newStore(t,
		pool("b", "blockSizeBits: 0, subnets: [{ipv4: 10.1.0.7/24}, {ipv4: 10.2.0.0/24, ipv6: 'fd00::/120'}, {ipv4: 10.3.0.0}]"),
		pool("a", "blockSizeBits: 10, subnets: [{ipv4: 10.0.0.0/16, ipv6: 'fd01::/112'}]"))
	got, err := s.backend.Pools(t.Context())
	check(t, err)
	prefix := netip.MustParsePrefix
	want := []ipam.Pool{
		{Kind: "Coil AddressPool", Name: "a", BlockSizeBits: 10, Subnets: []ipam.Subnet{{IPv4: prefix("10.0.0.0/16"), IPv6: prefix("fd01::/112")}}},
		{Kind: "Coil AddressPool", Name: "b", Subnets: []ipam.Subnet{{IPv4: prefix("10.1.0.0/24")}, {}, {}}},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("pools (-want +got):\n%s", diff)
	}
	if blocks := got[0].Blocks(); blocks != 64 {
		t.Errorf("pool a has %d blocks, want 64", blocks)
	}
}

func TestRecord(t *testing.T) {
	s := newStore(t, block("p-0", of("n1"), "ipv4: 10.0.0.0/32"))
	got, err := s.backend.Record(t.Context(), ipam.Place{Block: "p-0"})
	check(t, err)
	want := backends.Object{APIVersion: "coil.cybozu.com/v2", Kind: "AddressBlock", Name: "p-0", UID: "uid-p-0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	if _, err := s.backend.Record(t.Context(), ipam.Place{Block: "p-1"}); !errors.Is(err, backends.ErrNotFound) {
		t.Errorf("the record of a block that is gone: %v", err)
	}
}

func TestRequest(t *testing.T) {
	s := newStore(t, request("r1", "n1", ""), request("r2", "n2", "conditions: [{type: Complete, status: 'True'}, {type: Failed, status: 'True'}]"))
	s.freeze(t)
	s.change(t, "BlockRequest", "req-p-n1", renew)
	for name, want := range map[string]*ipam.Request{
		"req-p-n1": {UID: "another", Created: noon()},
		"req-p-n2": {UID: "r2", Created: noon(), Answered: true},
		"req-p-n3": nil,
	} {
		got, err := s.backend.Request(t.Context(), name)
		check(t, err)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestReadBlock(t *testing.T) {
	// As a real API server sent it to a webhook.
	const sent = `{"apiVersion":"coil.cybozu.com/v2","index":0,"ipv4":"10.61.5.0/32","kind":"AddressBlock","metadata":{
		"creationTimestamp":"2026-11-30T13:42:14Z","finalizers":["coil.cybozu.com"],"generation":1,"labels":{
		"coil.cybozu.com/node":"node1","coil.cybozu.com/pool":"tp-5","coil.cybozu.com/request":"0b69aed5-3160-46ce-ba4e-51ca843184d2"},
		"managedFields":[],"name":"tp-5-0","uid":"f7e86515-56a8-4173-96ad-dd976e0fbdcb"}}`
	got, err := coil.ReadBlock([]byte(sent))
	check(t, err)
	want := ipam.Grant{
		Pool: "tp-5", Node: "node1", Request: "req-tp-5-node1", RequestUID: "0b69aed5-3160-46ce-ba4e-51ca843184d2",
		Created: time.Date(2026, 11, 30, 13, 42, 14, 0, time.UTC),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("grant (-want +got):\n%s", diff)
	}
	if got, err := coil.ReadBlock([]byte(`{"metadata":[]}`)); err == nil {
		t.Errorf("what is no block is read as %+v", got)
	}
}

func TestReadPool(t *testing.T) {
	content := map[string]any{
		"metadata": map[string]any{"name": "a"},
		"spec": map[string]any{"blockSizeBits": 9, "subnets": []map[string]any{
			{"ipv4": "10.0.0.0/16"}, {"ipv4": "10.0.4.0/22"}, {"ipv4": "nonsense"},
		}},
	}
	raw, err := json.Marshal(content)
	check(t, err)
	pool, problems, err := coil.ReadPool(raw)
	check(t, err)
	want := []ipam.Problem{{
		Rule: ipam.PoolOverlap, Fault: ipam.Wrong, Field: "spec.subnets[1].ipv4", Value: "10.0.4.0/22",
		Message: "must not overlap spec.subnets[0].ipv4 (10.0.0.0/16)",
	}}
	if diff := cmp.Diff(want, problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	if pool.Name != "a" || pool.Kind != "Coil AddressPool" || pool.BlockSizeBits != 9 || len(pool.Subnets) != 3 {
		t.Errorf("the pool is %+v", pool)
	}
	if got, _, err := coil.ReadPool([]byte(`{"spec":[]}`)); err == nil {
		t.Errorf("what is no pool is read as %+v", got)
	}
}

func TestProblems(t *testing.T) {
	s := newStore(t,
		pool("a", "blockSizeBits: 12, subnets: [{ipv4: 10.0.0.0/16}, {ipv4: 10.0.128.0/17}]"), pool("b", "blockSizeBits: 5, subnets: [{ipv4: 10.1/16}]"),
		block("p-0", of("n1"), "ipv4: 10.0.0.4/30"), block("p-1", of("n1"), "ipv4: 10.0.0.4/15"), block("p-2", "a: b", "ipv4: 10.0.0.4/30"),
		block("p-3", "coil.cybozu.com/pool: p, coil.cybozu.com/reserved: 'true'", "ipv4: 10.0.0.4/30"))
	got, err := s.backend.Problems(t.Context())
	check(t, err)
	record := func(kind, name string) backends.Object {
		return backends.Object{APIVersion: "coil.cybozu.com/v2", Kind: kind, Name: name, UID: "uid-" + name}
	}
	want := []backends.Problem{
		record("AddressPool", "a").Problem(ipam.PoolOverlap, "spec.subnets[1].ipv4", "must not overlap spec.subnets[0].ipv4 (10.0.0.0/16)"),
		record("AddressPool", "b").Problem(ipam.PoolMalformed, "spec.subnets[0].ipv4", "must be an IPv4 CIDR such as 10.100.0.0/16"),
		record("AddressBlock", "p-1").Problem(ipam.BlockMalformed, "", "10.0.0.0/15 has more than 2^16 addresses: it is neither judged nor released"),
		record("AddressBlock", "p-2").Problem(ipam.BlockMalformed, "metadata.labels[coil.cybozu.com/pool]", "is missing: coild does not find the block"),
		record("AddressBlock", "p-2").Problem(ipam.AllocationUnowned, "metadata.labels[coil.cybozu.com/node]", "is missing: the block is kept for ever; if nobody needs it, delete it by hand"),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

// What cannot be read is not told to be absent.
func TestFailuresArePassedOn(t *testing.T) {
	fire := errors.New("the API server is on fire")
	s := newStore(t, block("p-0", of("n1"), "ipv4: 10.0.0.0/32"), request("for-n1", "n1", ""))
	a := handOut("p-0", agent("n1"), "10.0.0.0")
	tests := map[string]struct {
		ask   func(context.Context) error
		reads int
	}{
		"Allocations":       {func(ctx context.Context) error { _, err := s.backend.Allocations(ctx); return err }, 2},
		"AllocationsOf":     {func(ctx context.Context) error { _, err := s.backend.AllocationsOf(ctx, a.Owner); return err }, 2},
		"LiveAllocationsOf": {func(ctx context.Context) error { _, err := s.backend.LiveAllocationsOf(ctx, a.Owner); return err }, 2},
		"Pools":             {func(ctx context.Context) error { _, err := s.backend.Pools(ctx); return err }, 1},
		"Problems":          {func(ctx context.Context) error { _, err := s.backend.Problems(ctx); return err }, 2},
		"Record":            {func(ctx context.Context) error { _, err := s.backend.Record(ctx, a.Places[0]); return err }, 1},
		"Request":           {func(ctx context.Context) error { _, err := s.backend.Request(ctx, "req-p-n1"); return err }, 1},
		"Release":           {func(ctx context.Context) error { return s.backend.Release(ctx, a) }, 2},
		"Restart":           {func(ctx context.Context) error { _, err := s.backend.Restart(ctx, a); return err }, 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for fails := range tt.reads {
				read := 0
				s.always = func(bool) error {
					if read++; read > fails {
						return fire
					}
					return nil
				}
				if err := tt.ask(t.Context()); !errors.Is(err, fire) {
					t.Errorf("when read %d fails the error is %v", fails+1, err)
				}
			}
			if len(s.writes) > 0 {
				t.Errorf("it wrote %v", s.writes)
			}
		})
	}
}

// foreign are finalizers and fields of somebody else.
func foreign(u *unstructured.Unstructured) {
	u.SetFinalizers([]string{"example.org/first", "coil.cybozu.com", "example.org/last"})
	u.SetAnnotations(map[string]string{"example.org/note": "ask first"})
	u.Object["unknown"] = map[string]any{"list": []any{int64(1), "two", nil}}
}
