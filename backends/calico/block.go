package calico

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// block is what an IPAMBlock says, before or after a change.
type block struct {
	IPAMBlockSpec
	// kept are the indexes, in the stored object, of the attributes that were there. Those after them are new.
	kept []int
}

func blockOf(spec IPAMBlockSpec) block {
	b := block{IPAMBlockSpec: spec, kept: make([]int, len(spec.Attributes))}
	for i := range b.kept {
		b.kept[i] = i
	}
	return b
}

// clone returns a copy whose slices and maps may be changed. What attributes hold is shared.
func (b block) clone() block {
	b.Allocations = slices.Clone(b.Allocations)
	b.Unallocated = slices.Clone(b.Unallocated)
	b.Attributes = slices.Clone(b.Attributes)
	b.SequenceNumberForAllocation = maps.Clone(b.SequenceNumberForAllocation)
	b.kept = slices.Clone(b.kept)
	return b
}

// with returns the block after an address was given to somebody, whether it was free or somebody's.
func (b block) with(ordinal int, a Attribute) (block, error) {
	if ordinal < 0 || ordinal >= len(b.Allocations) {
		return block{}, fmt.Errorf("recording address %d of %s: the block has no such address", ordinal, b.CIDR)
	}
	after := b.clone()
	after.Attributes = append(after.Attributes, a)
	after.point(ordinal, len(b.Attributes))
	after.Unallocated = slices.DeleteFunc(after.Unallocated, func(o int) bool { return o == ordinal })
	return after.settled(len(b.Attributes), map[int]bool{ordinal: true})
}

// abandoned returns the block without its node.
func (b block) abandoned() block {
	b.Affinity, b.AffinityClaimTime = "", nil
	b.SequenceNumber++
	return b
}

// point lets an address have an attribute from now on.
func (b *block) point(ordinal, attribute int) {
	b.Allocations[ordinal] = &attribute
	if b.SequenceNumberForAllocation == nil {
		b.SequenceNumberForAllocation = map[string]uint64{}
	}
	b.SequenceNumberForAllocation[strconv.Itoa(ordinal)] = b.SequenceNumber
}

// settled drops the attributes that nothing points to any more, and counts the write. There were so many attributes
// before; addresses that were not touched and point behind those keep pointing to nothing.
func (b block) settled(before int, touched map[int]bool) (block, error) {
	valid := func(o int) bool {
		i := b.Allocations[o]
		return i != nil && *i >= 0 && (*i < before || touched[o])
	}
	used := make([]bool, len(b.Attributes))
	for o := range b.Allocations {
		if valid(o) {
			used[*b.Allocations[o]] = true
		}
	}
	moved := make([]*int, len(used))
	var attributes []Attribute
	var kept []int
	for i, a := range b.Attributes {
		if !used[i] {
			continue
		}
		to := len(attributes)
		moved[i] = &to
		attributes = append(attributes, a)
		if i < len(b.kept) {
			kept = append(kept, b.kept[i])
		}
	}
	for o, i := range b.Allocations {
		switch {
		case valid(o):
			b.Allocations[o] = moved[*i]
		case i != nil && *i >= 0 && *i < len(attributes):
			return block{}, fmt.Errorf("writing %s: address %d points to attribute %d, which does not exist and would be another's now: correct that by hand", b.CIDR, o, *i)
		}
	}
	b.Attributes, b.kept = attributes, kept
	b.SequenceNumber++
	return b, nil
}

// vacant tells whether nobody has an address of the block. What Windows keeps for itself does not count.
func (b block) vacant() bool {
	for _, i := range b.Allocations {
		if i != nil && (*i < 0 || *i >= len(b.Attributes) || !isWindows(b.Attributes[*i].handle())) {
			return false
		}
	}
	return true
}
