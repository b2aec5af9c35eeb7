package calico

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/oakum-dev/oakum/backends/foreign"
	"github.com/oakum-dev/oakum/ipam"
)

// Pools lists the IPPools, from a cache that may lag. One whose CIDR cannot be read has no subnets. What IPReservations
// keep is reserved.
func (b *Backend) Pools(ctx context.Context) ([]ipam.Pool, error) {
	pools, err := b.pools(ctx, false)
	if err != nil {
		return nil, err
	}
	pages, err := foreign.Lists[IPReservationList](ctx, b.source(), false)
	if err != nil && !foreign.Unserved(err) {
		return nil, fmt.Errorf("listing IPReservations: %w", err)
	}
	for _, l := range pages {
		for _, r := range l.Items {
			for _, text := range r.Spec.ReservedCIDRs {
				reserve(pools, text)
			}
		}
	}
	return pools, nil
}

// reserve reserves addresses in each of the pools that has some of them.
func reserve(pools []ipam.Pool, text string) {
	cidr, err := netip.ParsePrefix(text)
	if err != nil {
		return
	}
	kept, err := ipam.ParseRange(cidr.Masked().String())
	if err != nil {
		return
	}
	for i := range pools {
		if overlaps(pools[i], cidr) {
			pools[i].Reserved = append(pools[i].Reserved, kept)
		}
	}
}

func overlaps(p ipam.Pool, cidr netip.Prefix) bool {
	return slices.ContainsFunc(p.Subnets, func(s ipam.Subnet) bool { return s.IPv4.Overlaps(cidr) || s.IPv6.Overlaps(cidr) })
}

// pools lists the IPPools by name.
func (b *Backend) pools(ctx context.Context, live bool) ([]ipam.Pool, error) {
	pages, err := foreign.Lists[IPPoolList](ctx, b.source(), live)
	if err != nil {
		return nil, fmt.Errorf("listing IPPools: %w", err)
	}
	var found []ipam.Pool
	for p := range pages {
		for i := range pages[p].Items {
			found = append(found, pages[p].Items[i].law())
		}
	}
	slices.SortFunc(found, func(a, b ipam.Pool) int { return strings.Compare(a.Name, b.Name) })
	return found, nil
}

func (p *IPPool) law() ipam.Pool {
	law := ipam.Pool{Kind: "IPPool", Name: p.Name, Terminating: p.DeletionTimestamp != nil}
	cidr, err := netip.ParsePrefix(p.Spec.CIDR)
	if err != nil || cidr != cidr.Masked() || cidr.Addr().Is4In6() {
		return law
	}
	usual := 26
	if cidr.Addr().Is6() {
		usual = 122
	}
	if size := cmp.Or(p.Spec.BlockSize, usual); size >= cidr.Bits() && size <= cidr.Addr().BitLen() {
		law.BlockSizeBits, law.Subnets = cidr.Addr().BitLen()-size, []ipam.Subnet{subnetOf(cidr)}
	}
	return law
}

// poolOf returns the name of the pool that has the addresses of a block; empty if none does.
func poolOf(pools []ipam.Pool, block netip.Prefix) string {
	i := slices.IndexFunc(pools, func(p ipam.Pool) bool { return overlaps(p, block) })
	if i < 0 {
		return ""
	}
	return pools[i].Name
}
