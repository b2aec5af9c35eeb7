package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"
)

const (
	// MaxBlockSizeBits is the largest block: 2^8 addresses.
	MaxBlockSizeBits = 8
	// MaxBlocks is how many blocks a pool can have: indexes are 0 to 2^31-1. What lies behind the last one is not used.
	MaxBlocks = 1 << 31
)

// Pool is the address ranges that blocks are carved from.
type Pool struct {
	// Kind of the object, for people; empty means AddressPool.
	Kind string
	Name string
	// Network is the routing domain: pools of one network must not overlap.
	Network string
	// BlockSizeBits is the size of a block: 2^BlockSizeBits addresses, or pairs.
	BlockSizeBits int
	// Subnets in the order in which blocks are counted. One that could not be read is zero and holds no block.
	Subnets []Subnet
	// Reserved addresses are never handed out.
	Reserved []Range
	// Cooldown is how long a released address waits before it may be handed out again.
	Cooldown time.Duration
	// Terminating: the pool is being deleted.
	Terminating bool
}

// Blocks returns how many blocks the pool has, at most MaxBlocks.
func (p Pool) Blocks() int64 {
	var n int64
	for _, s := range p.Subnets {
		n += p.blocksIn(s)
	}
	return min(n, MaxBlocks)
}

// Capacity returns how many addresses the pool has, reserved ones included. A pair counts once.
func (p Pool) Capacity() int64 {
	return p.Blocks() << p.BlockSizeBits
}

// Block returns the addresses of the block with that index; false if the pool has no such block.
func (p Pool) Block(index int64) (Subnet, bool) {
	if index < 0 || index >= MaxBlocks {
		return Subnet{}, false
	}
	for _, s := range p.Subnets {
		n := p.blocksIn(s)
		if index < n {
			return s.part(uint64(index), p.BlockSizeBits), true
		}
		index -= n
	}
	return Subnet{}, false
}

func (p Pool) blocksIn(s Subnet) int64 {
	if s == (Subnet{}) || s.HostBits() < p.BlockSizeBits {
		return 0
	}
	return int64(1) << min(s.HostBits()-p.BlockSizeBits, 31)
}

// reserves tells whether an address of the pool is reserved.
func (p Pool) reserves(addrs []netip.Addr) bool {
	return slices.ContainsFunc(p.Reserved, func(r Range) bool { return slices.ContainsFunc(addrs, r.Contains) })
}

// PoolText is a pool as it was written, before it is known to make sense.
type PoolText struct {
	Name, Network string
	BlockSizeBits int
	Subnets       []SubnetText
	Reserved      []string
	Cooldown      time.Duration
	Terminating   bool
}

// SubnetText is a subnet as it was written.
type SubnetText struct {
	IPv4, IPv6 string
}

// Parse reads the pool. It returns as much of it as can be read, together with everything that is wrong with the
// pool by itself: PoolMalformed, and PoolOverlap where it overlaps itself.
func (t PoolText) Parse() (Pool, []Problem) {
	p := Pool{
		Name:          t.Name,
		Network:       t.Network,
		BlockSizeBits: min(max(t.BlockSizeBits, 0), MaxBlockSizeBits),
		Subnets:       make([]Subnet, len(t.Subnets)),
		Cooldown:      max(t.Cooldown, 0),
		Terminating:   t.Terminating,
	}
	var problems []Problem
	wrong := func(field, value, format string, args ...any) {
		problems = append(problems, Problem{PoolMalformed, Wrong, field, value, fmt.Sprintf(format, args...)})
	}
	if p.BlockSizeBits != t.BlockSizeBits {
		wrong("spec.blockSizeBits", strconv.Itoa(t.BlockSizeBits), "must be 0 to %d", MaxBlockSizeBits)
	}
	if t.Cooldown < 0 {
		wrong("spec.cooldown", t.Cooldown.String(), "must not be negative")
	}
	if len(t.Subnets) == 0 {
		problems = append(problems, Problem{PoolMalformed, Missing, "spec.subnets", "", "a pool needs at least one subnet"})
	}
	for i, text := range t.Subnets {
		field := fmt.Sprintf("spec.subnets[%d]", i)
		before := len(problems)
		s := Subnet{
			IPv4: parseFamily(text.IPv4, 4, field+".ipv4", wrong),
			IPv6: parseFamily(text.IPv6, 6, field+".ipv6", wrong),
		}
		if len(problems) > before {
			continue
		}
		switch first := t.Subnets[0]; {
		case text == SubnetText{}:
			wrong(field, "", "must have ipv4, ipv6 or both")
		case s.IPv4.IsValid() && s.IPv6.IsValid() && 32-s.IPv4.Bits() != 128-s.IPv6.Bits():
			wrong(field+".ipv6", text.IPv6, "must have as many host bits as %s, so that addresses come in pairs: use /%d", s.IPv4, 96+s.IPv4.Bits())
		case s.HostBits() < p.BlockSizeBits:
			wrong(field, s.String(), "must not be narrower than a block of 2^%d addresses: widen the subnet or lower spec.blockSizeBits", p.BlockSizeBits)
		case (text.IPv4 == "") != (first.IPv4 == "") || (text.IPv6 == "") != (first.IPv6 == ""):
			wrong(field, s.String(), "must have the same families as spec.subnets[0]")
		default:
			p.Subnets[i] = s
		}
	}
	for i, text := range t.Reserved {
		field := fmt.Sprintf("spec.reserved[%d]", i)
		r, err := ParseRange(text)
		switch {
		case err != nil:
			wrong(field, text, "%v", err)
			continue
		case !slices.ContainsFunc(p.Subnets, func(s Subnet) bool { return r.within(s.IPv4) || r.within(s.IPv6) }):
			wrong(field, text, "must lie in one of spec.subnets")
		}
		p.Reserved = append(p.Reserved, r)
	}
	return p, append(problems, p.overlaps(p, func(i, j int) bool { return j < i }, func(field string) string { return field })...)
}

func parseFamily(text string, family int, field string, wrong func(field, value, format string, args ...any)) netip.Prefix {
	if text == "" {
		return netip.Prefix{}
	}
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil, p.Addr().Is4() != (family == 4), p.Addr().Is4In6():
		wrong(field, text, "must be an IPv%d CIDR such as %s", family, map[int]string{4: "10.100.0.0/16", 6: "fd00:100::/112"}[family])
		return netip.Prefix{}
	case p != p.Masked():
		wrong(field, text, "must have no host bits set: did you mean %s?", p.Masked())
		return netip.Prefix{}
	}
	return p
}

// CheckOverlap returns a PoolOverlap problem for each prefix of p that overlaps one of another pool of its network.
// A pool of the same name is p's older self and is passed over.
func (p Pool) CheckOverlap(others []Pool) []Problem {
	var problems []Problem
	for _, o := range others {
		if o.Name == p.Name || o.Network != p.Network {
			continue
		}
		problems = append(problems, p.overlaps(o, func(int, int) bool { return true },
			func(string) string {
				return o.text()
			})...)
	}
	return problems
}

// text names the pool for people.
func (p Pool) text() string {
	text := fmt.Sprintf("%s %q", cmp.Or(p.Kind, "AddressPool"), p.Name)
	if p.Network != "" {
		text += fmt.Sprintf(" of network %q", p.Network)
	}
	return text
}

// overlaps compares each prefix of p with each of o for which compare says so. Two subnets that overlap in both
// families are two problems.
func (p Pool) overlaps(o Pool, compare func(i, j int) bool, whose func(field string) string) []Problem {
	var problems []Problem
	for i, s := range p.Subnets {
		for j, t := range o.Subnets {
			if !compare(i, j) {
				continue
			}
			for _, f := range []struct {
				name string
				a, b netip.Prefix
			}{{"ipv4", s.IPv4, t.IPv4}, {"ipv6", s.IPv6, t.IPv6}} {
				if f.a.IsValid() && f.b.IsValid() && f.a.Overlaps(f.b) {
					problems = append(problems, Problem{
						PoolOverlap, Wrong, fmt.Sprintf("spec.subnets[%d].%s", i, f.name), f.a.String(),
						fmt.Sprintf("must not overlap %s (%s)", whose(fmt.Sprintf("spec.subnets[%d].%s", j, f.name)), f.b),
					})
				}
			}
		}
	}
	return problems
}

// Holding is a prefix that something other than a pool uses, such as a Node's podCIDR.
type Holding struct {
	// Holder names the object, such as Node "worker-1".
	Holder string
	Prefix netip.Prefix
}

// Meets returns the holdings that overlap the pool. They are worth a warning, not a refusal: somebody may well have
// meant it.
func (p Pool) Meets(holdings []Holding) []Holding {
	return slices.DeleteFunc(slices.Clone(holdings), func(h Holding) bool {
		return !slices.ContainsFunc(p.Subnets, func(s Subnet) bool {
			return s.IPv4.IsValid() && s.IPv4.Overlaps(h.Prefix) || s.IPv6.IsValid() && s.IPv6.Overlaps(h.Prefix)
		})
	})
}

// CheckShrink returns what an update of the pool takes away: subnets, the size of blocks, the network, and addresses
// that are handed out and become reserved.
func (p Pool) CheckShrink(old Pool, blocks []Block) []Problem {
	var problems []Problem
	shrink := func(fault Fault, field, value, format string, args ...any) {
		problems = append(problems, Problem{PoolShrink, fault, field, value, fmt.Sprintf(format, args...)})
	}
	if p.BlockSizeBits != old.BlockSizeBits {
		shrink(Wrong, "spec.blockSizeBits", strconv.Itoa(p.BlockSizeBits), "must not change (was %d): blocks are counted by it", old.BlockSizeBits)
	}
	if p.Network != old.Network {
		shrink(Wrong, "spec.network", p.Network, "must not change (was %q)", old.Network)
	}
	for i, s := range old.Subnets {
		var now Subnet
		if i < len(p.Subnets) {
			now = p.Subnets[i]
		}
		if now != s {
			shrink(Wrong, fmt.Sprintf("spec.subnets[%d]", i), now.String(), "must stay %s: subnets can be appended, not changed or removed", s)
		}
	}
	for i, r := range p.Reserved {
		if slices.Contains(old.Reserved, r) {
			continue
		}
		for _, b := range blocks {
			for _, e := range b.Entries {
				addrs := b.Subnet.At(uint64(e.Offset))
				if old.reserves(addrs) {
					continue
				}
				for _, a := range addrs {
					if r.Contains(a) {
						shrink(Untimely, fmt.Sprintf("spec.reserved[%d]", i), r.String(),
							"%s in AddressBlock %q is allocated to %s: give it back first", a, b.Name, e.Owner)
					}
				}
			}
		}
	}
	return problems
}
