package ipam

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPoolTextParse(t *testing.T) {
	tests := map[string]struct {
		text         PoolText
		want         Pool
		wantProblems []Problem
	}{
		"a pool with all that a pool can have": {
			text: PoolText{
				Name:          "default",
				Network:       "blue",
				BlockSizeBits: 5,
				Subnets:       []SubnetText{{"10.0.0.0/16", "fd00::/112"}, {"10.9.0.0/24", "fd09::/120"}},
				Reserved:      []string{"10.0.0.0-10.0.0.9", "fd00::/120", "10.9.0.1"},
				Cooldown:      30 * time.Second,
				Terminating:   true,
			},
			want: Pool{
				Name:          "default",
				Network:       "blue",
				BlockSizeBits: 5,
				Subnets:       []Subnet{subnet("10.0.0.0/16", "fd00::/112"), subnet("10.9.0.0/24", "fd09::/120")},
				Reserved:      []Range{span("10.0.0.0", "10.0.0.9"), span("fd00::", "fd00::ff"), span("10.9.0.1", "10.9.0.1")},
				Cooldown:      30 * time.Second,
				Terminating:   true,
			},
		},
		"a subnet that cannot be read keeps its place and holds no block": {
			text: PoolText{Subnets: []SubnetText{{IPv4: "10.0.0.0/24"}, {IPv4: "nonsense"}, {IPv4: "10.0.2.0/24"}}},
			want: Pool{Subnets: []Subnet{subnet("10.0.0.0/24", ""), {}, subnet("10.0.2.0/24", "")}},
			wantProblems: []Problem{
				malformed("spec.subnets[1].ipv4", "nonsense", "must be an IPv4 CIDR such as 10.100.0.0/16"),
			},
		},
		"a block that is too large counts as the largest": {
			text:         PoolText{BlockSizeBits: 9, Subnets: []SubnetText{{IPv4: "10.0.0.0/24"}}},
			want:         Pool{BlockSizeBits: 8, Subnets: []Subnet{subnet("10.0.0.0/24", "")}},
			wantProblems: []Problem{malformed("spec.blockSizeBits", "9", "must be 0 to 8")},
		},
		"a block that is too small counts as the smallest": {
			text:         PoolText{BlockSizeBits: -1, Subnets: []SubnetText{{IPv4: "10.0.0.0/24"}}},
			want:         Pool{Subnets: []Subnet{subnet("10.0.0.0/24", "")}},
			wantProblems: []Problem{malformed("spec.blockSizeBits", "-1", "must be 0 to 8")},
		},
		"a cooldown below zero counts as none": {
			text:         PoolText{Cooldown: -time.Second, Subnets: []SubnetText{{IPv4: "10.0.0.0/24"}}},
			want:         Pool{Subnets: []Subnet{subnet("10.0.0.0/24", "")}},
			wantProblems: []Problem{malformed("spec.cooldown", "-1s", "must not be negative")},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, problems := tt.text.Parse()
			if diff := cmp.Diff(tt.want, got, byValue()); diff != "" {
				t.Errorf("pool (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.wantProblems, problems); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPoolMalformed(t *testing.T) {
	tests := map[string]struct {
		bits     int
		subnets  []SubnetText
		reserved []string
		want     []Problem
	}{
		"a /32 and a /128 make a pool of one block of one pair": {
			subnets: []SubnetText{{"10.0.0.7/32", "fd00::7/128"}},
		},
		"64 subnets are in order": {
			bits:    8,
			subnets: manySubnets(),
		},
		"a subnet as large as a block is in order": {
			bits:    8,
			subnets: []SubnetText{{IPv4: "10.0.0.0/24"}},
		},
		"a pool needs a subnet": {
			want: []Problem{{PoolMalformed, Missing, "spec.subnets", "", "a pool needs at least one subnet"}},
		},
		"an empty entry is refused": {
			subnets: []SubnetText{{}},
			want:    []Problem{malformed("spec.subnets[0]", "", "must have ipv4, ipv6 or both")},
		},
		"text that is no CIDR is refused in each family": {
			subnets: []SubnetText{{"10.0.0.0", "fd00::/129"}},
			want: []Problem{
				malformed("spec.subnets[0].ipv4", "10.0.0.0", "must be an IPv4 CIDR such as 10.100.0.0/16"),
				malformed("spec.subnets[0].ipv6", "fd00::/129", "must be an IPv6 CIDR such as fd00:100::/112"),
			},
		},
		"families in each other's place are refused": {
			subnets: []SubnetText{{"fd00::/112", "10.0.0.0/16"}},
			want: []Problem{
				malformed("spec.subnets[0].ipv4", "fd00::/112", "must be an IPv4 CIDR such as 10.100.0.0/16"),
				malformed("spec.subnets[0].ipv6", "10.0.0.0/16", "must be an IPv6 CIDR such as fd00:100::/112"),
			},
		},
		"an IPv4 CIDR in IPv6 clothes is refused": {
			subnets: []SubnetText{{IPv6: "::ffff:10.0.0.0/112"}},
			want:    []Problem{malformed("spec.subnets[0].ipv6", "::ffff:10.0.0.0/112", "must be an IPv6 CIDR such as fd00:100::/112")},
		},
		"host bits are refused with the prefix that may have been meant": {
			subnets: []SubnetText{{"10.0.0.1/16", "fd00::1/112"}},
			want: []Problem{
				malformed("spec.subnets[0].ipv4", "10.0.0.1/16", "must have no host bits set: did you mean 10.0.0.0/16?"),
				malformed("spec.subnets[0].ipv6", "fd00::1/112", "must have no host bits set: did you mean fd00::/112?"),
			},
		},
		"a pair of unequal size is refused with the size that fits": {
			subnets: []SubnetText{{"10.0.0.0/16", "fd00::/64"}},
			want: []Problem{malformed("spec.subnets[0].ipv6", "fd00::/64",
				"must have as many host bits as 10.0.0.0/16, so that addresses come in pairs: use /112")},
		},
		"a subnet that is narrower than a block is refused": {
			bits:    5,
			subnets: []SubnetText{{"10.0.0.0/28", "fd00::/124"}},
			want: []Problem{malformed("spec.subnets[0]", "10.0.0.0/28,fd00::/124",
				"must not be narrower than a block of 2^5 addresses: widen the subnet or lower spec.blockSizeBits")},
		},
		"a subnet with a family less than the first is refused": {
			subnets: []SubnetText{{"10.0.0.0/24", "fd00::/120"}, {IPv4: "10.0.1.0/24"}},
			want:    []Problem{malformed("spec.subnets[1]", "10.0.1.0/24", "must have the same families as spec.subnets[0]")},
		},
		"a subnet with a family more than the first is refused": {
			subnets: []SubnetText{{IPv6: "fd00::/120"}, {"10.0.1.0/24", "fd01::/120"}},
			want:    []Problem{malformed("spec.subnets[1]", "10.0.1.0/24,fd01::/120", "must have the same families as spec.subnets[0]")},
		},
		"a reservation is an address, a CIDR or a range": {
			subnets:  []SubnetText{{"10.0.0.0/24", "fd00::/120"}},
			reserved: []string{"10.0.0.7", "10.0.0.32/27", "fd00::1-fd00::9"},
		},
		"a reservation that cannot be read is refused": {
			subnets:  []SubnetText{{IPv4: "10.0.0.0/24"}},
			reserved: []string{"10.0.0.1", "10.0.0.9-10.0.0.2"},
			want:     []Problem{malformed("spec.reserved[1]", "10.0.0.9-10.0.0.2", "must not end before it begins")},
		},
		"a reservation outside the pool is refused": {
			subnets:  []SubnetText{{IPv4: "10.0.0.0/24"}},
			reserved: []string{"10.0.1.1"},
			want:     []Problem{malformed("spec.reserved[0]", "10.0.1.1", "must lie in one of spec.subnets")},
		},
		"a reservation that reaches out of a subnet is refused": {
			subnets:  []SubnetText{{IPv4: "10.0.0.0/24"}, {IPv4: "10.0.1.0/24"}},
			reserved: []string{"10.0.0.250-10.0.1.5"},
			want:     []Problem{malformed("spec.reserved[0]", "10.0.0.250-10.0.1.5", "must lie in one of spec.subnets")},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, got := PoolText{Name: "default", BlockSizeBits: tt.bits, Subnets: tt.subnets, Reserved: tt.reserved}.Parse()
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPoolBlocks(t *testing.T) {
	tests := map[string]struct {
		bits         int
		subnets      []SubnetText
		wantBlocks   int64
		wantCapacity int64
	}{
		"a /24 is 256 blocks of one address":    {0, []SubnetText{{IPv4: "10.0.0.0/24"}}, 256, 256},
		"a /24 is 8 blocks of 32":               {5, []SubnetText{{IPv4: "10.0.0.0/24"}}, 8, 256},
		"a /24 is one block of 256":             {8, []SubnetText{{IPv4: "10.0.0.0/24"}}, 1, 256},
		"a /32 is one block of one address":     {0, []SubnetText{{IPv4: "10.0.0.7/32"}}, 1, 1},
		"a /128 is one block of one address":    {0, []SubnetText{{IPv6: "fd00::7/128"}}, 1, 1},
		"a pair counts once":                    {5, []SubnetText{{"10.0.0.0/24", "fd00::/120"}}, 8, 256},
		"subnets add up":                        {5, []SubnetText{{IPv4: "10.0.0.0/24"}, {IPv4: "10.0.2.0/23"}}, 24, 768},
		"64 subnets add up":                     {8, manySubnets(), 64, 1 << 14},
		"half of IPv4 is as many as there are":  {0, []SubnetText{{IPv4: "0.0.0.0/1"}}, 1 << 31, 1 << 31},
		"all of IPv4 is not more than that":     {0, []SubnetText{{IPv4: "0.0.0.0/0"}}, 1 << 31, 1 << 31},
		"an IPv6 /64 is not more than that":     {8, []SubnetText{{IPv6: "fd00::/64"}}, 1 << 31, 1 << 39},
		"all of IPv6 is not more than that":     {0, []SubnetText{{IPv6: "::/0"}}, 1 << 31, 1 << 31},
		"two IPv6 /64 are not more than that":   {8, []SubnetText{{IPv6: "fd00::/64"}, {IPv6: "fd01::/64"}}, 1 << 31, 1 << 39},
		"what could not be read does not count": {5, []SubnetText{{IPv4: "10.0.0.0/24"}, {IPv4: "?"}}, 8, 256},
		"no subnet is no block":                 {5, nil, 0, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p, _ := PoolText{BlockSizeBits: tt.bits, Subnets: tt.subnets}.Parse()
			if got := p.Blocks(); got != tt.wantBlocks {
				t.Errorf("blocks: got %d, want %d", got, tt.wantBlocks)
			}
			if got := p.Capacity(); got != tt.wantCapacity {
				t.Errorf("capacity: got %d, want %d", got, tt.wantCapacity)
			}
		})
	}
}

func TestPoolBlock(t *testing.T) {
	three := []SubnetText{{"10.0.0.0/24", "fd00::/120"}, {"10.9.0.0/25", "fd09::/121"}, {"10.5.0.0/24", "fd05::/120"}}
	tests := map[string]struct {
		bits    int
		subnets []SubnetText
		index   int64
		want    Subnet
		wantNo  bool
	}{
		"the first block":                      {5, three, 0, subnet("10.0.0.0/27", "fd00::/123"), false},
		"the second block":                     {5, three, 1, subnet("10.0.0.32/27", "fd00::20/123"), false},
		"the last block of the first subnet":   {5, three, 7, subnet("10.0.0.224/27", "fd00::e0/123"), false},
		"the first block of the second subnet": {5, three, 8, subnet("10.9.0.0/27", "fd09::/123"), false},
		"the last block of the second subnet":  {5, three, 11, subnet("10.9.0.96/27", "fd09::60/123"), false},
		"the first block of the third subnet":  {5, three, 12, subnet("10.5.0.0/27", "fd05::/123"), false},
		"the last block of all":                {5, three, 19, subnet("10.5.0.224/27", "fd05::e0/123"), false},
		"none behind the last":                 {5, three, 20, Subnet{}, true},
		"none before the first":                {5, three, -1, Subnet{}, true},
		"a block of one address":               {0, three, 255, subnet("10.0.0.255/32", "fd00::ff/128"), false},
		"a block as large as its subnet":       {7, three, 2, subnet("10.9.0.0/25", "fd09::/121"), false},
		"the last of 64 subnets":               {8, manySubnets(), 63, subnet("10.0.63.0/24", ""), false},
		"the last of 2^31 in IPv4":             {0, []SubnetText{{IPv4: "0.0.0.0/0"}}, 1<<31 - 1, subnet("127.255.255.255/32", ""), false},
		"none behind 2^31 in IPv4":             {0, []SubnetText{{IPv4: "0.0.0.0/0"}}, 1 << 31, Subnet{}, true},
		"the last of 2^31 in an IPv6 /64":      {8, []SubnetText{{IPv6: "fd00::/64"}}, 1<<31 - 1, subnet("", "fd00::7f:ffff:ff00/120"), false},
		"none behind 2^31 in an IPv6 /64":      {8, []SubnetText{{IPv6: "fd00::/64"}}, 1 << 31, Subnet{}, true},
		"the last of 2^31 in the second subnet": {
			0,
			[]SubnetText{{IPv6: "fd00::/98"}, {IPv6: "fd01::/64"}},
			1<<31 - 1,
			subnet("", "fd01::3fff:ffff/128"),
			false,
		},
		"a subnet that could not be read is passed over": {
			5,
			[]SubnetText{{IPv4: "10.0.0.0/27"}, {IPv4: "?"}, {IPv4: "10.2.0.0/27"}},
			1,
			subnet("10.2.0.0/27", ""),
			false,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p, _ := PoolText{BlockSizeBits: tt.bits, Subnets: tt.subnets}.Parse()
			got, ok := p.Block(tt.index)
			if diff := cmp.Diff(tt.want, got, byValue()); diff != "" || ok == tt.wantNo {
				t.Errorf("block %d (-want +got), there: %t\n%s", tt.index, ok, diff)
			}
		})
	}
}

// Every size of block cuts a subnet without a gap.
func TestPoolBlocksAreNeighbours(t *testing.T) {
	for bits := range MaxBlockSizeBits + 1 {
		t.Run(fmt.Sprintf("blocks of 2^%d", bits), func(t *testing.T) {
			p, _ := PoolText{BlockSizeBits: bits, Subnets: []SubnetText{{"10.0.0.0/22", "fd00::/118"}}}.Parse()
			var got []netip.Addr
			for i := range p.Blocks() {
				b, _ := p.Block(i)
				for o := range uint64(1) << bits {
					got = append(got, b.At(o)...)
				}
			}
			var want []netip.Addr
			for o := range uint64(1024) {
				want = append(want, p.Subnets[0].At(o)...)
			}
			if diff := cmp.Diff(want, got, byValue()); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
		})
	}
}

func malformed(field, value, text string) Problem {
	return Problem{PoolMalformed, Wrong, field, value, text}
}

// manySubnets returns as many neighbouring /24s as a pool may have.
func manySubnets() []SubnetText {
	texts := make([]SubnetText, 64)
	for i := range texts {
		texts[i].IPv4 = fmt.Sprintf("10.0.%d.0/24", i)
	}
	return texts
}
