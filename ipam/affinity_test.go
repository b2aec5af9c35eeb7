package ipam

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAffinityCheckOverlap(t *testing.T) { // B35
	n1, n2, balancer := Holder{Name: "n1"}, Holder{Name: "n2"}, Holder{Name: "load-balancer", Virtual: true}
	overlaps := func(whose string) []Problem {
		return []Problem{{
			Rule: BlockOverlap, Fault: Wrong, Field: "spec.cidr", Value: "10.0.0.0/27",
			Message: "must not overlap block " + whose + ", or addresses would be given out twice: remove that block when nobody has an address of it",
		}}
	}
	taken := func(whose string) []Problem {
		return []Problem{{
			Rule: BlockOverlap, Fault: Untimely, Field: "spec.cidr", Value: "10.0.0.0/27",
			Message: `block "b" (10.0.0.0/27) belongs to ` + whose + `: claim another one`,
		}}
	}
	tests := map[string]struct {
		block     string
		holder    Holder
		confirmed bool
		want      []Problem
	}{
		"a larger block has the addresses":            {block: "10.0.0.0/26", holder: n2, confirmed: true, want: overlaps(`"b" (10.0.0.0/26) of node "n2"`)},
		"a smaller one has some":                      {block: "10.0.0.16/28", holder: n2, confirmed: true, want: overlaps(`"b" (10.0.0.16/28) of node "n2"`)},
		"so does one of the same node":                {block: "10.0.0.0/26", holder: n1, confirmed: true, want: overlaps(`"b" (10.0.0.0/26) of node "n1"`)},
		"and one that is not sure of its node":        {block: "10.0.0.0/26", holder: n2, want: overlaps(`"b" (10.0.0.0/26) of node "n2"`)},
		"and one that nobody has any more":            {block: "10.0.0.0/26", want: overlaps(`"b" (10.0.0.0/26) of nobody`)},
		"and one of the load balancers":               {block: "10.0.0.0/26", holder: balancer, confirmed: true, want: overlaps(`"b" (10.0.0.0/26) of load-balancer`)},
		"the very block is another node's":            {block: "10.0.0.0/27", holder: n2, confirmed: true, want: taken(`node "n2"`)},
		"the very block is the load balancers'":       {block: "10.0.0.0/27", holder: balancer, confirmed: true, want: taken("load-balancer")},
		"the very block is being given up":            {block: "10.0.0.0/27", holder: n2},
		"the very block is nobody's":                  {block: "10.0.0.0/27", confirmed: true},
		"the very block is the claimant's own":        {block: "10.0.0.0/27", holder: n1, confirmed: true},
		"a block beside it has none of the addresses": {block: "10.0.0.32/27", holder: n2, confirmed: true},
		"nor has one of the other family":             {block: "fd00::/122", holder: n2, confirmed: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := Affinity{Holder: n1, Block: netip.MustParsePrefix("10.0.0.0/27"), Pool: "p"}
			got := a.CheckOverlap(AffineBlock{Name: "b", Prefix: netip.MustParsePrefix(tt.block), Pool: "p", Holder: tt.holder, Confirmed: tt.confirmed})
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAffinityCheckRoom(t *testing.T) {
	node := Holder{Name: "n1"}
	block := func(name, prefix string, free int, change ...func(*AffineBlock)) AffineBlock {
		b := AffineBlock{Name: name, Prefix: netip.MustParsePrefix(prefix), Pool: "p", Holder: node, Confirmed: true, Free: free}
		for _, c := range change {
			c(&b)
		}
		return b
	}
	room := func(free, block string) []Problem {
		return []Problem{{
			Rule: SecondUnfilledBlock, Fault: Untimely,
			Message: `node "n1" has ` + free + ` free addresses in block ` + block + ` already: one block could be left over`,
		}}
	}
	first := block("b1", "10.0.1.0/29", 3)
	claim := Affinity{Holder: node, Block: netip.MustParsePrefix("10.0.0.0/29"), Pool: "p"}
	of := func(change func(*Affinity)) Affinity {
		c := claim
		change(&c)
		return c
	}
	tests := map[string]struct {
		claim   Affinity
		blocks  []AffineBlock
		named   string
		waiting int
		want    []Problem
	}{
		"the node's first block": {claim: claim, waiting: 1},
		"a second one":           {claim: claim, blocks: []AffineBlock{first}, waiting: 1, want: room("3", `"b1"`)},
		"a third one":            {claim: claim, blocks: []AffineBlock{first, block("b2", "10.0.2.0/29", 1)}, waiting: 4, want: room("4", `"b1", "b2"`)},
		"a second one, though no pod is seen that wants it":    {claim: claim, blocks: []AffineBlock{first}, want: room("3", `"b1"`)},
		"one beside a full one":                                {claim: claim, blocks: []AffineBlock{block("b1", "10.0.1.0/29", 0)}, waiting: 1},
		"one beside a block that waiting pods may have filled": {claim: claim, blocks: []AffineBlock{first}, waiting: 4},
		"one beside a block of another node":                   {claim: claim, blocks: []AffineBlock{block("b1", "10.0.1.0/29", 3, func(b *AffineBlock) { b.Holder.Name = "n2" })}, waiting: 1},
		"one beside a block of another pool":                   {claim: claim, blocks: []AffineBlock{block("b1", "10.0.1.0/29", 3, func(b *AffineBlock) { b.Pool = "q" })}, waiting: 1},
		"one beside a block that is not the node's for certain": {
			claim: claim, blocks: []AffineBlock{block("b1", "10.0.1.0/29", 3, func(b *AffineBlock) { b.Confirmed = false })}, waiting: 1,
		},
		"a block that is there already":                       {claim: claim, blocks: []AffineBlock{first, block("b0", "10.0.0.0/29", 8, func(b *AffineBlock) { b.Holder = Holder{} })}, waiting: 1},
		"a block of no pool, or of more than one":             {claim: of(func(a *Affinity) { a.Pool = "" }), blocks: []AffineBlock{block("b1", "10.0.1.0/29", 3, func(b *AffineBlock) { b.Pool = "" })}, waiting: 1},
		"a block for load balancers":                          {claim: of(func(a *Affinity) { a.Holder.Virtual = true }), blocks: []AffineBlock{block("b1", "10.0.1.0/29", 3, func(b *AffineBlock) { b.Holder.Virtual = true })}, waiting: 1},
		"a block for a pod that asks for an address of it":    {claim: claim, blocks: []AffineBlock{first}, named: "10.0.0.5/32", waiting: 1},
		"a block of the prefix that Kubernetes gave the node": {claim: claim, blocks: []AffineBlock{first}, named: "10.0.0.0/24", waiting: 1},
		"an address elsewhere explains nothing":               {claim: claim, blocks: []AffineBlock{first}, named: "10.0.0.8/32", waiting: 1, want: room("3", `"b1"`)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var named []netip.Prefix
			if tt.named != "" {
				named = append(named, netip.MustParsePrefix(tt.named))
			}
			if diff := cmp.Diff(tt.want, tt.claim.CheckRoom(tt.claim.Spare(tt.blocks), named, tt.waiting)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}
