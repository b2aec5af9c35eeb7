package ipam

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPoolOverlapsItself(t *testing.T) {
	tests := map[string]struct {
		subnets []SubnetText
		want    []Problem
	}{
		"neighbours do not overlap": {
			subnets: []SubnetText{{"10.0.0.0/24", "fd00::/120"}, {"10.0.1.0/24", "fd00::100/120"}},
		},
		"the later subnet is the one that overlaps": {
			subnets: []SubnetText{{IPv4: "10.0.0.0/8"}, {IPv4: "10.1.0.0/16"}},
			want:    []Problem{overlap("spec.subnets[1].ipv4", "10.1.0.0/16", "must not overlap spec.subnets[0].ipv4 (10.0.0.0/8)")},
		},
		"the wider subnet may be the later one": {
			subnets: []SubnetText{{IPv6: "fd00::/120"}, {IPv6: "fd00::/64"}},
			want:    []Problem{overlap("spec.subnets[1].ipv6", "fd00::/64", "must not overlap spec.subnets[0].ipv6 (fd00::/120)")},
		},
		"an overlap in both families is two problems": {
			subnets: []SubnetText{{"10.0.0.0/24", "fd00::/120"}, {"10.0.0.0/24", "fd00::/120"}},
			want: []Problem{
				overlap("spec.subnets[1].ipv4", "10.0.0.0/24", "must not overlap spec.subnets[0].ipv4 (10.0.0.0/24)"),
				overlap("spec.subnets[1].ipv6", "fd00::/120", "must not overlap spec.subnets[0].ipv6 (fd00::/120)"),
			},
		},
		"an overlap with two others is two problems": {
			subnets: []SubnetText{{IPv4: "10.0.0.0/24"}, {IPv4: "10.0.1.0/24"}, {IPv4: "10.0.0.0/23"}},
			want: []Problem{
				overlap("spec.subnets[2].ipv4", "10.0.0.0/23", "must not overlap spec.subnets[0].ipv4 (10.0.0.0/24)"),
				overlap("spec.subnets[2].ipv4", "10.0.0.0/23", "must not overlap spec.subnets[1].ipv4 (10.0.1.0/24)"),
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, got := PoolText{Name: "default", Subnets: tt.subnets}.Parse()
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPoolCheckOverlap(t *testing.T) {
	other := func(name, network string, subnets ...Subnet) Pool {
		return Pool{Name: name, Network: network, Subnets: subnets}
	}
	tests := map[string]struct {
		others []Pool
		want   []Problem
	}{
		"a pool alone overlaps nobody": {},
		"a neighbour is in order": {
			others: []Pool{other("west", "default", subnet("10.1.0.0/16", "fd01::/112"))},
		},
		"B36 a pool of the same network is refused, and both are named": {
			others: []Pool{other("west", "default", subnet("10.0.128.0/17", ""))},
			want: []Problem{overlap("spec.subnets[0].ipv4", "10.0.0.0/16",
				`must not overlap AddressPool "west" of network "default" (10.0.128.0/17)`)},
		},
		"B36 a pool of another network may have the same addresses": {
			others: []Pool{other("west", "blue", subnet("10.0.0.0/16", "fd00::/112"))},
		},
		"each family and each pool that overlaps is a problem": {
			others: []Pool{
				other("west", "default", subnet("10.0.0.0/8", "fd00::/104")),
				other("north", "default", subnet("10.2.0.0/16", ""), subnet("10.0.3.0/24", "")),
			},
			want: []Problem{
				overlap("spec.subnets[0].ipv4", "10.0.0.0/16", `must not overlap AddressPool "west" of network "default" (10.0.0.0/8)`),
				overlap("spec.subnets[0].ipv6", "fd00::/112", `must not overlap AddressPool "west" of network "default" (fd00::/104)`),
				overlap("spec.subnets[0].ipv4", "10.0.0.0/16", `must not overlap AddressPool "north" of network "default" (10.0.3.0/24)`),
			},
		},
		"an update does not overlap what it replaces": {
			others: []Pool{other("east", "default", subnet("10.0.0.0/16", "fd00::/112"))},
		},
		"a subnet of another pool that cannot be read overlaps nothing": {
			others: []Pool{other("west", "default", Subnet{})},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := other("east", "default", subnet("10.0.0.0/16", "fd00::/112"))
			if diff := cmp.Diff(tt.want, p.CheckOverlap(tt.others)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPoolMeets(t *testing.T) {
	worker := Holding{`Node "worker-1"`, netip.MustParsePrefix("10.0.7.0/24")}
	services := Holding{`ServiceCIDR "kubernetes"`, netip.MustParsePrefix("fd00::/108")}
	tests := map[string]struct {
		holdings []Holding
		want     []Holding
	}{
		"what lies in the pool": {
			holdings: []Holding{worker},
			want:     []Holding{worker},
		},
		"what surrounds the pool": {
			holdings: []Holding{services},
			want:     []Holding{services},
		},
		"only what overlaps": {
			holdings: []Holding{{`Node "worker-2"`, netip.MustParsePrefix("10.1.7.0/24")}, worker, {`Node "worker-3"`, netip.Prefix{}}},
			want:     []Holding{worker},
		},
		"nothing if nothing is held": {},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := Pool{Subnets: []Subnet{{}, subnet("10.0.0.0/16", "fd00::/112")}}
			if diff := cmp.Diff(tt.want, p.Meets(tt.holdings), byValue()); diff != "" {
				t.Errorf("holdings (-want +got):\n%s", diff)
			}
		})
	}
}

func overlap(field, value, text string) Problem {
	return Problem{PoolOverlap, Wrong, field, value, text}
}
