package ipam

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPoolCheckShrink(t *testing.T) {
	web := Owner{Kind: OwnerPod, Namespace: "default", Name: "web-0", UID: "u1", Node: "n1"}
	db := Owner{Kind: OwnerPod, Namespace: "default", Name: "db-0", UID: "u2", Node: "n1"}
	block := Block{
		Name:    "east-1",
		Pool:    "east",
		Index:   1,
		Node:    "n1",
		Subnet:  subnet("10.0.0.32/27", "fd00::20/123"),
		Entries: []Entry{{Offset: 3, Handle: "h1", Owner: web}, {Offset: 9, Handle: "h2", Owner: db}},
	}
	old := PoolText{
		Name:          "east",
		Network:       "default",
		BlockSizeBits: 5,
		Subnets:       []SubnetText{{"10.0.0.0/24", "fd00::/120"}, {"10.0.1.0/24", "fd01::/120"}},
		Reserved:      []string{"10.0.0.0-10.0.0.9", "10.0.0.41"},
	}
	tests := map[string]struct {
		change func(*PoolText)
		want   []Problem
	}{
		"nothing changed": {
			change: func(*PoolText) {},
		},
		"a subnet may be appended": {
			change: func(p *PoolText) { p.Subnets = append(p.Subnets, SubnetText{"10.0.2.0/24", "fd02::/120"}) },
		},
		"a subnet must not be removed": {
			change: func(p *PoolText) { p.Subnets = p.Subnets[:1] },
			want: []Problem{shrink(Wrong, "spec.subnets[1]", "",
				"must stay 10.0.1.0/24,fd01::/120: subnets can be appended, not changed or removed")},
		},
		"a subnet must not be changed": {
			change: func(p *PoolText) { p.Subnets = []SubnetText{p.Subnets[0], {"10.0.1.0/25", "fd01::/121"}} },
			want: []Problem{shrink(Wrong, "spec.subnets[1]", "10.0.1.0/25,fd01::/121",
				"must stay 10.0.1.0/24,fd01::/120: subnets can be appended, not changed or removed")},
		},
		"a subnet must not lose a family": {
			change: func(p *PoolText) { p.Subnets = []SubnetText{{IPv4: "10.0.0.0/24"}, {IPv4: "10.0.1.0/24"}} },
			want: []Problem{
				shrink(Wrong, "spec.subnets[0]", "10.0.0.0/24", "must stay 10.0.0.0/24,fd00::/120: subnets can be appended, not changed or removed"),
				shrink(Wrong, "spec.subnets[1]", "10.0.1.0/24", "must stay 10.0.1.0/24,fd01::/120: subnets can be appended, not changed or removed"),
			},
		},
		"subnets must keep their order": {
			change: func(p *PoolText) { p.Subnets = []SubnetText{p.Subnets[1], p.Subnets[0]} },
			want: []Problem{
				shrink(Wrong, "spec.subnets[0]", "10.0.1.0/24,fd01::/120", "must stay 10.0.0.0/24,fd00::/120: subnets can be appended, not changed or removed"),
				shrink(Wrong, "spec.subnets[1]", "10.0.0.0/24,fd00::/120", "must stay 10.0.1.0/24,fd01::/120: subnets can be appended, not changed or removed"),
			},
		},
		"the size of blocks must not change": {
			change: func(p *PoolText) { p.BlockSizeBits = 4 },
			want:   []Problem{shrink(Wrong, "spec.blockSizeBits", "4", "must not change (was 5): blocks are counted by it")},
		},
		"the network must not change": {
			change: func(p *PoolText) { p.Network = "blue" },
			want:   []Problem{shrink(Wrong, "spec.network", "blue", `must not change (was "default")`)},
		},
		"a reservation of free addresses is in order": {
			change: func(p *PoolText) { p.Reserved = append(p.Reserved, "10.0.0.64/27") },
		},
		"a reservation may go": {
			change: func(p *PoolText) { p.Reserved = nil },
		},
		"an allocated address must not become reserved": {
			change: func(p *PoolText) { p.Reserved = append(p.Reserved, "10.0.0.35") },
			want: []Problem{shrink(Untimely, "spec.reserved[2]", "10.0.0.35",
				`10.0.0.35 in AddressBlock "east-1" is allocated to Pod default/web-0 (uid u1): give it back first`)},
		},
		"the other half of an allocated pair must not become reserved": {
			change: func(p *PoolText) { p.Reserved = []string{"fd00::23"} },
			want: []Problem{shrink(Untimely, "spec.reserved[0]", "fd00::23",
				`fd00::23 in AddressBlock "east-1" is allocated to Pod default/web-0 (uid u1): give it back first`)},
		},
		"a reservation that was there before takes nothing away": {
			change: func(p *PoolText) { p.Reserved = []string{"10.0.0.41"} },
		},
		"a reservation of the other half of a reserved pair takes nothing away": {
			change: func(p *PoolText) { p.Reserved = append(p.Reserved, "fd00::29") },
		},
		"a reservation that widens takes away only what it adds": {
			change: func(p *PoolText) { p.Reserved = []string{"10.0.0.32/27"} },
			want: []Problem{shrink(Untimely, "spec.reserved[0]", "10.0.0.32-10.0.0.63",
				`10.0.0.35 in AddressBlock "east-1" is allocated to Pod default/web-0 (uid u1): give it back first`)},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			next := old
			tt.change(&next)
			before, _ := old.Parse()
			after, _ := next.Parse()
			if diff := cmp.Diff(tt.want, after.CheckShrink(before, []Block{block})); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func shrink(fault Fault, field, value, text string) Problem {
	return Problem{PoolShrink, fault, field, value, text}
}
