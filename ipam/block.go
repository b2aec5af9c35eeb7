package ipam

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Block is a slice of a pool that one node owns.
type Block struct {
	Name string
	UID  string
	Pool string
	// Index counts the pool's blocks across all of its subnets.
	Index int64
	Node  string
	// Subnet is the addresses of the block.
	Subnet  Subnet
	Entries []Entry
	Cooling []Cooling
	// Terminating: the block is being deleted.
	Terminating bool
	// Revision changes with every write of the record.
	Revision string
}

// Entry is one address of a block, or a pair, that is handed out.
type Entry struct {
	// Offset counts from the block's first address.
	Offset int
	// Handle names the hand-out.
	Handle string
	Owner  Owner
}

// Cooling is an address that was given back and waits.
type Cooling struct {
	Offset int
	Until  time.Time
}

// BlockName returns the name of a pool's block. It doubles as the lock on its addresses: a name can exist only once.
func BlockName(pool string, index int64) string {
	return pool + "-" + strconv.FormatInt(index, 10)
}

// offsets is a set of offsets in one block.
type offsets [1 << MaxBlockSizeBits / 64]uint64

func (s *offsets) add(o int) {
	if 0 <= o && o < 64*len(s) {
		s[o/64] |= 1 << (o % 64)
	}
}

func (s *offsets) has(o int) bool {
	return 0 <= o && o < 64*len(s) && s[o/64]&(1<<(o%64)) != 0
}

// Free yields, in ascending order, the offsets that could be handed out at that time: neither allocated nor reserved
// nor cooling down.
func (b Block) Free(p Pool, now time.Time) func(yield func(offset int) bool) {
	return func(yield func(int) bool) {
		var taken offsets
		for _, e := range b.Entries {
			taken.add(e.Offset)
		}
		for _, c := range b.Cooling {
			if now.Before(c.Until) {
				taken.add(c.Offset)
			}
		}
		for o := range 1 << p.BlockSizeBits {
			if taken.has(o) || len(p.Reserved) > 0 && p.reserves(b.Subnet.At(uint64(o))) {
				continue
			}
			if !yield(o) {
				return
			}
		}
	}
}

// Unfilled tells whether at least one address could be handed out at that time. A block that is being deleted hands
// out nothing.
func (b Block) Unfilled(p Pool, now time.Time) bool {
	if b.Terminating {
		return false
	}
	for range b.Free(p, now) {
		return true
	}
	return false
}

// Empty tells whether nothing is allocated and nothing is cooling down.
func (b Block) Empty(now time.Time) bool {
	return len(b.Entries) == 0 && !slices.ContainsFunc(b.Cooling, func(c Cooling) bool { return now.Before(c.Until) })
}

// Cool returns the cooling entries that the block must have after it has become next: those that it had and that are
// not over, and every offset that next gives back. It does not look at next's own cooling entries: a client cannot
// shorten a wait. Offsets are unique and ascending; of two waits the longer one counts. Ends are whole seconds, rounded
// up.
func (b Block) Cool(next Block, cooldown time.Duration, now time.Time) []Cooling {
	held := make(map[int]bool, len(next.Entries))
	for _, e := range next.Entries {
		held[e.Offset] = true
	}
	ends := make(map[int]time.Time)
	wait := func(offset int, until time.Time) {
		if !held[offset] && until.After(ends[offset]) {
			ends[offset] = until
		}
	}
	if cooldown > 0 {
		until := now.Add(cooldown + time.Second - 1).Truncate(time.Second)
		for _, e := range b.Entries {
			wait(e.Offset, until)
		}
	}
	for _, c := range b.Cooling {
		if now.Before(c.Until) {
			wait(c.Offset, c.Until)
		}
	}
	var cooling []Cooling
	for _, o := range slices.Sorted(maps.Keys(ends)) {
		cooling = append(cooling, Cooling{o, ends[o]})
	}
	return cooling
}

// Check returns BlockMalformed problems: whether name, index and addresses are those that the pool gives the block.
func (b Block) Check(p Pool) []Problem {
	var problems []Problem
	problem := func(fault Fault, field, value, format string, args ...any) {
		problems = append(problems, Problem{BlockMalformed, fault, field, value, fmt.Sprintf(format, args...)})
	}
	want, ok := p.Block(b.Index)
	if !ok {
		problem(Wrong, "spec.index", strconv.FormatInt(b.Index, 10), "AddressPool %q has %d blocks: the last index is %d", p.Name, p.Blocks(), p.Blocks()-1)
		return problems
	}
	if name := BlockName(b.Pool, b.Index); b.Name != name {
		problem(Wrong, "metadata.name", b.Name, "must be %s, its pool and index", name)
	}
	agree := func(field string, has, want netip.Prefix) {
		switch {
		case has == want:
		case !has.IsValid():
			problem(Missing, field, "", "must be %s: it follows from pool and index", want)
		case !want.IsValid():
			problem(Wrong, field, has.String(), "must be left out: AddressPool %q has no such family", p.Name)
		default:
			problem(Wrong, field, has.String(), "must be %s, or left out: it follows from pool and index", want)
		}
	}
	agree("spec.ipv4", b.Subnet.IPv4, want.IPv4)
	agree("spec.ipv6", b.Subnet.IPv6, want.IPv6)
	return problems
}

// Added is an entry that a write brings in, with its place in the list.
type Added struct {
	Entry
	// Field is the path of the entry in the native API.
	Field string
}

// Adds returns the entries of next that b does not have, or has otherwise. Only they are judged: what was there
// before is nobody's fault now.
func (b Block) Adds(next Block) []Added {
	had := make(map[int]Entry, len(b.Entries))
	for _, e := range b.Entries {
		had[e.Offset] = e
	}
	var added []Added
	for i, e := range next.Entries {
		if old, ok := had[e.Offset]; !ok || old != e {
			added = append(added, Added{e, fmt.Sprintf("spec.allocations[%d]", i)})
		}
	}
	return added
}

// CheckAdded returns the problems of entries that a write adds to b, as far as block and pool tell: AllocationUnowned,
// and AllocationConflict for an offset that is out of range, reserved or cooling down.
func (b Block) CheckAdded(added []Added, p Pool, now time.Time) []Problem {
	var problems []Problem
	for _, e := range added {
		problems = append(problems, e.unowned(e.Field, b.Node)...)
		conflict := func(fault Fault, format string, args ...any) {
			problems = append(problems, Problem{
				AllocationConflict, fault, e.Field + ".offset", strconv.Itoa(e.Offset), fmt.Sprintf(format, args...),
			})
		}
		if e.Offset < 0 || e.Offset >= 1<<p.BlockSizeBits {
			conflict(Wrong, "must be 0 to %d: blocks of AddressPool %q have 2^%d addresses", 1<<p.BlockSizeBits-1, p.Name, p.BlockSizeBits)
			continue
		}
		if addrs := b.Subnet.At(uint64(e.Offset)); p.reserves(addrs) {
			conflict(Wrong, "%s is reserved by AddressPool %q: take another offset", joined(addrs), p.Name)
		}
		for _, c := range b.Cooling {
			if c.Offset == e.Offset && now.Before(c.Until) {
				conflict(Untimely, "%s was given back and may be taken again at %s: take another offset",
					joined(b.Subnet.At(uint64(e.Offset))), c.Until.UTC().Format(time.RFC3339))
			}
		}
	}
	return problems
}

func joined[T fmt.Stringer](items []T) string {
	texts := make([]string, len(items))
	for i, item := range items {
		texts[i] = item.String()
	}
	return strings.Join(texts, ", ")
}

// CheckHandle returns an AllocationConflict if the handle of an added entry is another owner's in one of the blocks,
// which are all of one network.
func (a Added) CheckHandle(blocks []Block) []Problem {
	if a.Handle == "" {
		return nil
	}
	for _, b := range blocks {
		for _, e := range b.Entries {
			if e.Handle == a.Handle && e.Owner != a.Owner {
				return []Problem{{
					AllocationConflict, Untimely, a.Field + ".handle", a.Handle,
					fmt.Sprintf("belongs to %s in AddressBlock %q: use a handle of its own for each hand-out", e.Owner, b.Name),
				}}
			}
		}
	}
	return nil
}
