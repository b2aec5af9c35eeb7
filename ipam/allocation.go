package ipam

import (
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Allocation is one hand-out as a backend recorded it: a handle, whose it is, and every address under that handle.
// Its addresses are released together or not at all.
type Allocation struct {
	Backend string
	// Network is the routing domain that the addresses belong to; empty if the backend knows only one.
	Network string
	// Handle names the hand-out. It stays the same for as long as the hand-out lasts, whatever else changes in the
	// objects that hold it.
	Handle string
	Owner  Owner
	Places []Place
	// Pending: the request that this hand-out answers is still there.
	Pending bool
	// Named: the owner, a node, names its addresses itself. One that it does not name any more is not its own.
	Named bool
	// Guessed: nobody says whose it is. The owner is the node in whose block it lies.
	Guessed bool
	// Gap says what the record lacks, for people; empty if it is whole. A hand-out with a gap that is in use is repaired.
	Gap string
	// Seen is when the audit first saw this hand-out; zero if it has not.
	Seen time.Time
	// Namesake is the pod that bore the owner's name at a time when this hand-out was recorded already, read without a
	// cache; nil if nobody looked. A pod of that name with another UID was created later, so it is not the owner.
	Namesake *Namesake
}

// Namesake is a pod that bears a name.
type Namesake struct {
	// UID is empty if no pod bore the name.
	UID string
}

// Place is where an allocation's addresses are recorded.
type Place struct {
	Pool, Block string
	Offset      int
	// Addresses at that place: one, or a pair.
	Addresses []netip.Addr
	// Revision is the compare-and-swap token of the object that holds the record. It may change with every neighbour,
	// so it identifies nothing.
	Revision string
}

// ID identifies a hand-out: the same handle with another owner is another hand-out.
type ID struct {
	Backend, Network, Handle, OwnerUID, ContainerID string
}

// ID returns the identity of the hand-out.
func (a Allocation) ID() ID {
	return ID{a.Backend, a.Network, a.Handle, a.Owner.UID, a.Owner.ContainerID}
}

// Addresses returns all addresses of the hand-out, in the order of its places.
func (a Allocation) Addresses() []netip.Addr {
	addrs := make([]netip.Addr, 0, 2*len(a.Places))
	for _, p := range a.Places {
		addrs = append(addrs, p.Addresses...)
	}
	return addrs
}

// AddressText returns the addresses of the hand-out for people: in order, with commas between, and three or more in a row
// as a range.
func (a Allocation) AddressText() string {
	addrs := a.Addresses()
	slices.SortFunc(addrs, netip.Addr.Compare)
	addrs = slices.Compact(addrs)
	var texts []string
	for len(addrs) > 0 {
		n := 1
		for n < len(addrs) && addrs[n] == addrs[n-1].Next() {
			n++
		}
		if n < 3 {
			n = 1
			texts = append(texts, addrs[0].String())
		} else {
			texts = append(texts, addrs[0].String()+"-"+addrs[n-1].String())
		}
		addrs = addrs[n:]
	}
	return strings.Join(texts, ",")
}

// Size returns how many addresses, or pairs of them, are recorded at the place.
func (p Place) Size() int {
	families := map[bool]int{}
	for _, addr := range p.Addresses {
		families[addr.Is4()]++
	}
	return max(families[true], families[false])
}
