package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// RequestLimit is how old a request may be when the block for it is created. Coil's agent waits for ten seconds. Both
// stamps are cut to whole seconds, and the API server gives a webhook two more to answer; then the agent must still be
// there to hear of the block.
const RequestLimit = 6 * time.Second

// Request is how a node's agent asks for a block. It waits for the answer, and does not take the request back when it
// gives up.
type Request struct {
	UID string
	// Created is the API server's stamp.
	Created time.Time
	// Answered: it has its answer, so nobody waits for another one.
	Answered bool
}

// Grant is a block that is being created for a request.
type Grant struct {
	Pool, Node string
	// Request is the name that all requests of this node for blocks of this pool have, one after the other.
	Request string
	// RequestUID is the one that the block is for.
	RequestUID string
	// Created is the API server's stamp.
	Created time.Time
}

// CheckRequest returns a StaleBlockRequest problem unless the agent surely still waits for the block. The request is the
// one that has the name now, nil if none has; it was read while the creation waited, which has taken as long as spent.
// Nobody's clock but the API server's matters.
func (g Grant) CheckRequest(r *Request, spent time.Duration) []Problem {
	var why string
	switch {
	case r == nil:
		why = "is gone"
	case r.UID != g.RequestUID:
		why = fmt.Sprintf("has a successor: it was uid %s and is uid %s", g.RequestUID, r.UID)
	case r.Answered:
		why = "has its answer already"
	default:
		age := g.Created.Sub(r.Created) + spent
		if age <= RequestLimit {
			return nil
		}
		why = fmt.Sprintf("is %s old", age.Round(100*time.Millisecond))
	}
	return []Problem{{
		Rule: StaleBlockRequest, Fault: Untimely,
		Message: fmt.Sprintf("BlockRequest %q %s: a block for it could be left over, since node %q asks anew while it needs one", g.Request, why, g.Node),
	}}
}

// CheckRoom returns a SecondUnfilledBlock problem if the node's agent holds a block of that pool already that surely has
// room: no pod of the node names an address of it, and it is larger than what those that name none may have of it, beside
// the one that the request is for.
func (g Grant) CheckRoom(held []Allocation, pods []Pod) []Problem {
	named, nameless := map[netip.Addr]bool{}, 0
	for _, p := range pods {
		if p.HostNetwork || p.Mirror || p.Ended() {
			continue
		}
		for _, addr := range p.Addresses {
			named[addr] = true
		}
		if len(p.Addresses) == 0 || p.AddressesUnknown {
			nameless++
		}
	}
	for _, a := range held {
		for _, place := range a.Places {
			inUse := slices.ContainsFunc(place.Addresses, func(addr netip.Addr) bool { return named[addr] })
			if a.Owner.Kind != OwnerAgent || place.Pool != g.Pool || inUse || place.size() < max(nameless, 1) {
				continue
			}
			return []Problem{{
				Rule: SecondUnfilledBlock, Fault: Untimely,
				Message: fmt.Sprintf("node %q has AddressBlock %q already, and no pod names an address of it: one of the two could be left over", g.Node, place.Block),
			}}
		}
	}
	return nil
}

// size is how many addresses, or pairs, are at the place.
func (p Place) size() int {
	ipv4 := 0
	for _, a := range p.Addresses {
		if a.Is4() {
			ipv4++
		}
	}
	return max(ipv4, len(p.Addresses)-ipv4)
}
