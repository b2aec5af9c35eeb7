package ipam

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestBlockMalformed(t *testing.T) {
	problem := func(fault Fault, field, value, text string) []Problem {
		return []Problem{{BlockMalformed, fault, field, value, text}}
	}
	pair := Pool{Name: "east", BlockSizeBits: 5, Subnets: []Subnet{subnet("10.0.0.0/24", "fd00::/120"), subnet("10.9.0.0/24", "fd09::/120")}}
	single := Pool{Name: "east", BlockSizeBits: 5, Subnets: []Subnet{subnet("10.0.0.0/24", "")}}
	tests := map[string]struct {
		block Block
		pool  Pool
		want  []Problem
	}{
		"name, index and addresses agree": {
			block: Block{Name: "east-1", Pool: "east", Index: 1, Subnet: subnet("10.0.0.32/27", "fd00::20/123")},
			pool:  pair,
		},
		"the index counts across subnets": {
			block: Block{Name: "east-9", Pool: "east", Index: 9, Subnet: subnet("10.9.0.32/27", "fd09::20/123")},
			pool:  pair,
		},
		"the name of another index is refused": {
			block: Block{Name: "east-2", Pool: "east", Index: 1, Subnet: subnet("10.0.0.32/27", "fd00::20/123")},
			pool:  pair,
			want:  problem(Wrong, "metadata.name", "east-2", "must be east-1, its pool and index"),
		},
		"an index written in another way is another name": {
			block: Block{Name: "east-01", Pool: "east", Index: 1, Subnet: subnet("10.0.0.32/27", "fd00::20/123")},
			pool:  pair,
			want:  problem(Wrong, "metadata.name", "east-01", "must be east-1, its pool and index"),
		},
		"an index behind the last is refused": {
			block: Block{Name: "east-16", Pool: "east", Index: 16},
			pool:  pair,
			want:  problem(Wrong, "spec.index", "16", `AddressPool "east" has 16 blocks: the last index is 15`),
		},
		"an index below zero is refused": {
			block: Block{Name: "east--1", Pool: "east", Index: -1},
			pool:  pair,
			want:  problem(Wrong, "spec.index", "-1", `AddressPool "east" has 16 blocks: the last index is 15`),
		},
		"another block's addresses are refused in each family": {
			block: Block{Name: "east-1", Pool: "east", Index: 1, Subnet: subnet("10.0.0.64/27", "fd00::40/123")},
			pool:  pair,
			want: []Problem{
				{BlockMalformed, Wrong, "spec.ipv4", "10.0.0.64/27", "must be 10.0.0.32/27, or left out: it follows from pool and index"},
				{BlockMalformed, Wrong, "spec.ipv6", "fd00::40/123", "must be fd00::20/123, or left out: it follows from pool and index"},
			},
		},
		"a block of another size is refused": {
			block: Block{Name: "east-1", Pool: "east", Index: 1, Subnet: subnet("10.0.0.32/28", "fd00::20/123")},
			pool:  pair,
			want:  problem(Wrong, "spec.ipv4", "10.0.0.32/28", "must be 10.0.0.32/27, or left out: it follows from pool and index"),
		},
		"addresses that nobody filled in are missing": {
			block: Block{Name: "east-1", Pool: "east", Index: 1, Subnet: subnet("10.0.0.32/27", "")},
			pool:  pair,
			want:  problem(Missing, "spec.ipv6", "", "must be fd00::20/123: it follows from pool and index"),
		},
		"addresses of a family that the pool does not have are refused": {
			block: Block{Name: "east-1", Pool: "east", Index: 1, Subnet: subnet("10.0.0.32/27", "fd00::20/123")},
			pool:  single,
			want:  problem(Wrong, "spec.ipv6", "fd00::20/123", `must be left out: AddressPool "east" has no such family`),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, tt.block.Check(tt.pool)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAllocationConflict(t *testing.T) {
	purpose := Owner{Kind: OwnerExternal, Name: "border router"}
	conflict := func(fault Fault, field, value, text string) Problem {
		return Problem{AllocationConflict, fault, field, value, text}
	}
	tests := map[string]struct {
		has  []Entry
		want []Problem
	}{
		"a free offset is there to be had": {
			has: []Entry{{20, "h2", purpose}},
		},
		"the first and the last offset of the block are in range": {
			has: []Entry{{0, "h2", purpose}, {31, "h3", purpose}},
		},
		"an offset that has cooled is there to be had": {
			has: []Entry{{10, "h2", purpose}},
		},
		"an offset behind the last is refused": {
			has: []Entry{{32, "h2", purpose}},
			want: []Problem{conflict(Wrong, "spec.allocations[0].offset", "32",
				`must be 0 to 31: blocks of AddressPool "east" have 2^5 addresses`)},
		},
		"an offset below zero is refused": {
			has: []Entry{{-1, "h2", purpose}},
			want: []Problem{conflict(Wrong, "spec.allocations[0].offset", "-1",
				`must be 0 to 31: blocks of AddressPool "east" have 2^5 addresses`)},
		},
		"a reserved address is refused": {
			has: []Entry{{3, "h1", Owner{}}, {5, "h2", purpose}},
			want: []Problem{conflict(Wrong, "spec.allocations[1].offset", "5",
				`10.0.0.37, fd00::25 is reserved by AddressPool "east": take another offset`)},
		},
		"a pair of which the other address is reserved is refused": {
			has: []Entry{{6, "h2", purpose}},
			want: []Problem{conflict(Wrong, "spec.allocations[0].offset", "6",
				`10.0.0.38, fd00::26 is reserved by AddressPool "east": take another offset`)},
		},
		"an address that is cooling down is refused until it has cooled": {
			has: []Entry{{9, "h2", purpose}},
			want: []Problem{conflict(Untimely, "spec.allocations[0].offset", "9",
				"10.0.0.41, fd00::29 was given back and may be taken again at 2026-11-30T12:00:30Z: take another offset")},
		},
		"an entry that was there before is not judged": {
			has: []Entry{{3, "h1", Owner{}}},
		},
		"every fault of every added entry is told": {
			has: []Entry{{5, "", purpose}, {40, "h2", Owner{Kind: "Deployment", Name: "web"}}},
			want: []Problem{
				{AllocationUnowned, Missing, "spec.allocations[0].handle", "", "name this hand-out, so that exactly it can be given back"},
				conflict(Wrong, "spec.allocations[0].offset", "5", `10.0.0.37, fd00::25 is reserved by AddressPool "east": take another offset`),
				{AllocationUnowned, Wrong, "spec.allocations[1].attributes.type", "Deployment", "must be one of Pod, Node, VirtualMachine, Service and External"},
				conflict(Wrong, "spec.allocations[1].offset", "40", `must be 0 to 31: blocks of AddressPool "east" have 2^5 addresses`),
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := Pool{
				Name:          "east",
				BlockSizeBits: 5,
				Subnets:       []Subnet{subnet("10.0.0.0/24", "fd00::/120")},
				Reserved:      []Range{span("10.0.0.37", "10.0.0.37"), span("fd00::26", "fd00::26")},
			}
			b := Block{
				Name:    "east-1",
				Pool:    "east",
				Index:   1,
				Node:    "n1",
				Subnet:  subnet("10.0.0.32/27", "fd00::20/123"),
				Entries: []Entry{{3, "h1", Owner{}}},
				// Times are told in UTC, wherever they were taken.
				Cooling: []Cooling{{9, at("12:00:30").In(time.FixedZone("", 3600))}, {10, at("12:00:00")}},
			}
			got := b.CheckAdded(b.Adds(Block{Entries: tt.has}), p, at("12:00:00"))
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAddedCheckHandle(t *testing.T) {
	web := Owner{Kind: OwnerPod, Namespace: "default", Name: "web-0", UID: "u1", Node: "n1"}
	blocks := []Block{
		{Name: "east-1", Entries: []Entry{{3, "h1", web}, {4, "h2", Owner{Kind: OwnerExternal, Name: "border router"}}}},
		{Name: "west-7", Entries: []Entry{{3, "h3", Owner{Kind: OwnerPod, Namespace: "default", Name: "web-0", UID: "u0", Node: "n1"}}, {4, "h4", Owner{}}}},
	}
	foreign := func(handle, text string) []Problem {
		return []Problem{{AllocationConflict, Untimely, "spec.allocations[0].handle", handle, text}}
	}
	tests := map[string]struct {
		handle string
		want   []Problem
	}{
		"a handle that nobody has": {
			handle: "h9",
		},
		"a handle of the same owner's names one more of its addresses": {
			handle: "h1",
		},
		"another owner's handle is refused": {
			handle: "h2",
			want:   foreign("h2", `belongs to External border router in AddressBlock "east-1": use a handle of its own for each hand-out`),
		},
		"a namesake with another UID is another owner": {
			handle: "h3",
			want:   foreign("h3", `belongs to Pod default/web-0 (uid u0) in AddressBlock "west-7": use a handle of its own for each hand-out`),
		},
		"a handle of nobody knows whom is refused": {
			handle: "h4",
			want:   foreign("h4", `belongs to an unknown owner in AddressBlock "west-7": use a handle of its own for each hand-out`),
		},
		"no handle belongs to nobody": {
			handle: "",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := Added{Entry{Offset: 5, Handle: tt.handle, Owner: web}, "spec.allocations[0]"}
			if diff := cmp.Diff(tt.want, a.CheckHandle(blocks)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}
