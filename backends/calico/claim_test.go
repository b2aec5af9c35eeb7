package calico_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/oakum-dev/oakum/backends/calico"
	"github.com/oakum-dev/oakum/ipam"
)

func TestAffineBlocks(t *testing.T) {
	s := newStore(t, calico.V1,
		blockOf(cidr, affinity, 1, "{handle_id: a.bc}", 2, `{releasedAt: "2026-11-30T12:43:06Z"}`), handleOf("a.bc", cidr, 1))
	got, err := s.backend.AffineBlocks(t.Context())
	check(t, err)
	block := ipam.AffineBlock{
		Name: "10-0-0-8-29", Prefix: netip.MustParsePrefix(cidr), Pool: "v4", Holder: ipam.Holder{Name: "worker-3"}, Free: 6,
	}
	got = slices.DeleteFunc(got, func(b ipam.AffineBlock) bool { return b.Name != block.Name }) // The store has more.
	if diff := diff([]ipam.AffineBlock{block}, got); diff != "" {
		t.Errorf("blocks (-want +got):\n%s", diff)
	}
	live, err := s.backend.AffineBlock(t.Context(), block.Name)
	check(t, err)
	if diff := diff(&block, live); diff != "" {
		t.Errorf("the block, live (-want +got):\n%s", diff)
	}
	if gone, err := s.backend.AffineBlock(t.Context(), "10-0-0-16-29"); gone != nil || err != nil {
		t.Errorf("a block that is not there: %v, %v", gone, err)
	}
	if known, err := s.backend.KnowsAffinity(t.Context(), "worker-3-10-0-0-8-29"); known || err != nil {
		t.Errorf("a claim that is not there: %t, %v", known, err)
	}
}

// A claim of no node and the block that it has led to name the same holder.
func TestAffineBlocksOfNoNode(t *testing.T) {
	s := newStore(t, calico.V1, blockOf("10.0.0.16/29", "virtual:load-balancer"), blockOf("10.0.0.24/29", ""))
	got, err := s.backend.AffineBlocks(t.Context())
	check(t, err)
	holders := map[string]ipam.Holder{}
	for _, b := range got {
		holders[b.Name] = b.Holder
	}
	all, err := s.backend.ReadAffinity(t.Context(), []byte(`{"spec":{"node":"load-balancer","cidr":"10.0.0.16/29","type":"virtual"}}`))
	check(t, err)
	if holders["10-0-0-16-29"] != all.Holder || all.Holder != (ipam.Holder{Name: "load-balancer", Virtual: true}) {
		t.Errorf("the block is of %+v, the claim %+v", holders["10-0-0-16-29"], all.Holder)
	}
	if nobody := holders["10-0-0-24-29"]; nobody != (ipam.Holder{}) {
		t.Errorf("a block without affinity is of %+v", nobody)
	}
}

func TestReadAffinity(t *testing.T) {
	s := newStore(t, calico.V1)
	tests := map[string]struct {
		raw  string
		want ipam.Affinity
		bad  bool
	}{
		"a node's": {
			raw:  `{"spec":{"node":"n1","cidr":"10.0.0.8/29","state":"pending","deleted":"false","type":"host"}}`,
			want: ipam.Affinity{Holder: ipam.Holder{Name: "n1"}, Block: netip.MustParsePrefix(cidr), Pool: "v4"},
		},
		"one of the other group": {
			raw:  `{"spec":{"node":"n1","cidr":"10.0.0.8/29","state":"pending","deleted":false}}`,
			want: ipam.Affinity{Holder: ipam.Holder{Name: "n1"}, Block: netip.MustParsePrefix(cidr), Pool: "v4"},
		},
		"that of all load balancers": {
			raw:  `{"spec":{"node":"load-balancer","cidr":"10.0.0.8/29","type":"virtual"}}`,
			want: ipam.Affinity{Holder: ipam.Holder{Name: "load-balancer", Virtual: true}, Block: netip.MustParsePrefix(cidr), Pool: "v4"},
		},
		"of a range that no pool has": {
			raw:  `{"spec":{"node":"n1","cidr":"192.0.2.0/29"}}`,
			want: ipam.Affinity{Holder: ipam.Holder{Name: "n1"}, Block: netip.MustParsePrefix("192.0.2.0/29")},
		},
		"without a range": {raw: `{"spec":{"node":"n1"}}`, bad: true},
		"no object":       {raw: `[]`, bad: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := s.backend.ReadAffinity(t.Context(), []byte(tt.raw))
			if diff := diff(tt.want, got); diff != "" || (err != nil) != tt.bad {
				t.Errorf("the error is %v; claim (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestReadPool(t *testing.T) {
	s := newStore(t, calico.V1)
	got, err := s.backend.ReadPool(t.Context(), []byte(`{"metadata":{"name":"p"},"spec":{"cidr":"10.9.0.0/16","blockSize":29}}`))
	check(t, err)
	want := ipam.Pool{Kind: "IPPool", Name: "p", BlockSizeBits: 3, Subnets: []ipam.Subnet{{IPv4: netip.MustParsePrefix("10.9.0.0/16")}}}
	if diff := diff(want, got); diff != "" {
		t.Errorf("pool (-want +got):\n%s", diff)
	}
	if _, err := s.backend.ReadPool(t.Context(), []byte(`{`)); err == nil {
		t.Error("half an object is read")
	}
}
