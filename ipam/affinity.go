package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Holder is who claims a block: a node, or something that is none, such as all load balancers.
type Holder struct {
	Name string
	// Virtual: it is no node.
	Virtual bool
}

// String names the holder for people.
func (h Holder) String() string {
	switch {
	case h == Holder{}:
		return "nobody"
	case h.Virtual:
		return h.Name
	}
	return fmt.Sprintf("node %q", h.Name)
}

// Affinity is a claim to a block, for backends whose nodes choose their blocks themselves.
type Affinity struct {
	Holder Holder
	// Block is the addresses that are claimed.
	Block netip.Prefix
	// Pool has those addresses; empty if no pool has them, or more than one.
	Pool string
}

// AffineBlock is a block that such a claim has led to.
type AffineBlock struct {
	// Name is the record's.
	Name   string
	Prefix netip.Prefix
	// Pool is as in Affinity.
	Pool string
	// Holder has the block; zero if nobody has it any more.
	Holder Holder
	// Confirmed: the holder's claim to it is complete, and is not being given up.
	Confirmed bool
	// Free is how many addresses could be given out of it now: neither taken, nor cooling down, nor reserved.
	Free int
}

// CheckOverlap returns a BlockOverlap problem if the block rules the claim out: if it shares some addresses with what is
// claimed, or is the same and another holder's for certain.
func (a Affinity) CheckOverlap(b AffineBlock) []Problem {
	p := Problem{Rule: BlockOverlap, Field: "spec.cidr", Value: a.Block.String()}
	switch {
	case !a.Block.Overlaps(b.Prefix):
		return nil
	case a.Block != b.Prefix:
		p.Fault = Wrong
		p.Message = fmt.Sprintf("must not overlap block %q (%s) of %s, or addresses would be given out twice: remove that block when nobody has an address of it", b.Name, b.Prefix, b.Holder)
	case b.Confirmed && b.Holder != (Holder{}) && b.Holder != a.Holder:
		p.Fault = Untimely
		p.Message = fmt.Sprintf("block %q (%s) belongs to %s: claim another one", b.Name, b.Prefix, b.Holder)
	default:
		return nil
	}
	return []Problem{p}
}

// Spare returns the blocks that make the claim look needless: others of the pool that are the same node's for certain and
// have room. None if the block is there already, or if no node claims.
func (a Affinity) Spare(blocks []AffineBlock) []AffineBlock {
	if a.Holder.Virtual || a.Holder.Name == "" || a.Pool == "" {
		return nil
	}
	var spare []AffineBlock
	for _, b := range blocks {
		if b.Prefix == a.Block {
			return nil
		}
		if b.Confirmed && b.Holder == a.Holder && b.Pool == a.Pool && b.Free > 0 {
			spare = append(spare, b)
		}
	}
	return spare
}

// CheckRoom returns a SecondUnfilledBlock problem for a claim although there are spare blocks. There is none if something
// on the node has addresses of what is claimed already, or is bound to get them: named are those, as prefixes. Nor if the
// pods that wait for an address, the one that the claim is for among them, may have taken all that is free.
func (a Affinity) CheckRoom(spare []AffineBlock, named []netip.Prefix, waiting int) []Problem {
	free, names := 0, make([]string, len(spare))
	for i, b := range spare {
		free += b.Free
		names[i] = strconv.Quote(b.Name)
	}
	if free < max(waiting, 1) || slices.ContainsFunc(named, a.Block.Overlaps) {
		return nil
	}
	return []Problem{{
		Rule: SecondUnfilledBlock, Fault: Untimely,
		Message: fmt.Sprintf("%s has %d free addresses in block %s already: one block could be left over", a.Holder, free, strings.Join(names, ", ")),
	}}
}
