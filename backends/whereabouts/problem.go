package whereabouts

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/ipam"
)

// Problems lists what is wrong in the records, from a cache that may lag: entries that do not say whose they are, what
// cannot be read, reservations that contradict an entry, and slices that lie in an IPPool of another node's.
func (b *Backend) Problems(ctx context.Context) ([]backends.Problem, error) {
	ps, err := b.readPools(ctx, false)
	if err != nil {
		return nil, err
	}
	reservations, err := b.readReservations(ctx, false)
	if err != nil {
		return nil, err
	}
	nodeSlices, err := b.readSlices(ctx, false)
	if err != nil {
		return nil, err
	}
	var problems []backends.Problem
	for _, p := range ps.all {
		problems = append(problems, b.wrongIn(p)...)
	}
	for _, r := range reservations {
		problems = append(problems, b.wrongWith(r, ps.spots(r.Name))...)
	}
	for _, s := range nodeSlices {
		problems = append(problems, b.wrongAbout(&s, ps)...)
	}
	return problems, nil
}

// wrongIn returns what is wrong in an IPPool.
func (b *Backend) wrongIn(p pool) []backends.Problem {
	record := b.object("IPPool", p.Name, string(p.UID))
	if !p.subnet.IsValid() {
		return []backends.Problem{record.Problem(ipam.PoolMalformed, "spec.range", fmt.Sprintf("%q is no CIDR without host bits: its %d entries are neither judged nor released", p.Spec.Range, len(p.Spec.Allocations)))}
	}
	var problems []backends.Problem
	for _, text := range slices.Sorted(maps.Keys(p.Spec.Allocations)) {
		e, field := p.Spec.Allocations[text], fmt.Sprintf("spec.allocations[%s]", text)
		_, named := podOf(e.PodRef)
		switch _, _, ok := parseOffset(p.subnet, text); {
		case !ok:
			problems = append(problems, record.Problem(ipam.AllocationConflict, field, fmt.Sprintf("is no offset in %s: the entry is neither judged nor released; if no pod needs it, remove it by hand", p.subnet)))
		case e.ID == "":
			problems = append(problems, record.Problem(ipam.AllocationUnowned, field+".id", "is empty: the entry is kept for ever; if no pod needs it, remove it by hand"))
		case !named:
			problems = append(problems, record.Problem(ipam.AllocationUnowned, field+".podref", fmt.Sprintf("%q is no namespace/name: the entry is kept for ever; if no pod needs it, remove it by hand", e.PodRef)))
		}
	}
	return problems
}

// wrongWith returns what is wrong with a reservation that can be for the spots.
func (b *Backend) wrongWith(r *OverlappingRangeIPReservation, spots []spot) []backends.Problem {
	record := b.object("OverlappingRangeIPReservation", r.Name, string(r.UID))
	if len(spots) == 0 {
		return []backends.Problem{record.Problem(ipam.AllocationConflict, "metadata.name", "is no address of any IPPool in a network that is known here: it cannot be judged, and is kept; if no pod needs it, delete it by hand")}
	}
	if held(spots, r) {
		return nil
	}
	var problems []backends.Problem
	if _, ok := podOf(r.Spec.PodRef); !ok {
		problems = append(problems, record.Problem(ipam.AllocationUnowned, "spec.podref", fmt.Sprintf("%q is no namespace/name: the reservation is kept for ever; if no pod needs it, delete it by hand", r.Spec.PodRef)))
	}
	for _, s := range spots {
		if e, taken := s.entry(); taken {
			problems = append(problems, record.Problem(ipam.AllocationConflict, "spec.podref", fmt.Sprintf("is %s, and the entry for %s in IPPool %q is of %s: two pods may have one address", r.Spec.PodRef, s.addr, s.pool.Name, e.PodRef)))
		}
	}
	return problems
}

// wrongAbout returns what is wrong about the slices of a NodeSlicePool: whereabouts cuts and gives them to nodes without
// regard to the entries that are there.
func (b *Backend) wrongAbout(s *NodeSlicePool, ps pools) []backends.Problem {
	record := b.object("NodeSlicePool", s.Name, string(s.UID))
	var problems []backends.Problem
	for i, slice := range s.Status.Allocations {
		subnet, ok := parseRange(slice.SliceRange)
		if !ok {
			problems = append(problems, record.Problem(ipam.PoolMalformed, fmt.Sprintf("status.allocations[%d].sliceRange", i), fmt.Sprintf("%q is no CIDR without host bits", slice.SliceRange)))
			continue
		}
		if slice.NodeName == "" {
			continue
		}
		own := slice.NodeName + "-" + rangeName(subnet)
		for _, p := range ps.all {
			if !p.subnet.Overlaps(subnet) || p.Name == own || p.Name == s.Name+"-"+own ||
				!slices.Contains(p.networks, "") && !slices.Contains(p.networks, s.Name) {
				continue
			}
			if entries := p.entriesIn(subnet); entries > 0 {
				problems = append(problems, b.object("IPPool", p.Name, string(p.UID)).Problem(ipam.PoolOverlap, "spec.allocations", fmt.Sprintf(
					"%d of its entries are in slice %s, which NodeSlicePool %q gives to node %q: that node may hand out their addresses again; move their pods", entries, subnet, s.Name, slice.NodeName)))
			}
		}
	}
	return problems
}

// entriesIn counts the pool's entries for addresses of a subnet.
func (p pool) entriesIn(subnet netip.Prefix) int {
	n := 0
	for text := range p.Spec.Allocations {
		if _, addrs, ok := parseOffset(p.subnet, text); ok && subnet.Contains(addrs[0]) {
			n++
		}
	}
	return n
}

func (b *Backend) object(kind, name, uid string) backends.Object {
	return backends.Object{APIVersion: GroupVersion.String(), Kind: kind, Namespace: b.namespace, Name: name, UID: uid}
}
