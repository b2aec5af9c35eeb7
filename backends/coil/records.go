package coil

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/backends/foreign"
	"github.com/oakum-dev/oakum/ipam"
)

// maxBits is the largest block whose addresses are listed one by one: 2^16 of them.
const maxBits = 16

// ReadPool reads an AddressPool in JSON, with what overlaps within it.
func ReadPool(raw []byte) (ipam.Pool, []ipam.Problem, error) {
	var p AddressPool
	if err := json.Unmarshal(raw, &p); err != nil {
		return ipam.Pool{}, nil, err
	}
	pool, problems := law(p)
	return pool, slices.DeleteFunc(problems, func(p ipam.Problem) bool { return p.Rule != ipam.PoolOverlap }), nil
}

// ReadBlock reads an AddressBlock in JSON, that was made for a request.
func ReadBlock(raw []byte) (ipam.Grant, error) {
	var b AddressBlock
	if err := json.Unmarshal(raw, &b); err != nil {
		return ipam.Grant{}, err
	}
	pool, node := b.Labels[poolLabel], b.Labels[nodeLabel]
	return ipam.Grant{
		Pool: pool, Node: node, Request: "req-" + pool + "-" + node, RequestUID: b.Labels[requestLabel], Created: b.CreationTimestamp.Time,
	}, nil
}

// law reads a pool, and says what is wrong with it. Coil takes CIDRs with host bits and larger blocks than Oakum's own.
func law(object AddressPool) (ipam.Pool, []ipam.Problem) {
	text := ipam.PoolText{
		Name: object.Name, BlockSizeBits: min(object.Spec.BlockSizeBits, ipam.MaxBlockSizeBits), Terminating: object.DeletionTimestamp != nil,
	}
	for _, s := range object.Spec.Subnets {
		text.Subnets = append(text.Subnets, ipam.SubnetText{IPv4: masked(s.IPv4), IPv6: masked(s.IPv6)})
	}
	pool, problems := text.Parse()
	pool.Kind = "Coil AddressPool"
	pool.BlockSizeBits = max(pool.BlockSizeBits, object.Spec.BlockSizeBits)
	return pool, problems
}

// masked returns a CIDR without host bits; what cannot be read as it is.
func masked(cidr string) string {
	if p, err := netip.ParsePrefix(cidr); err == nil {
		return p.Masked().String()
	}
	return cidr
}

// handOut returns a block as a hand-out; false if its addresses cannot be listed.
func handOut(b AddressBlock) (ipam.Allocation, bool) {
	subnet, err := b.read()
	if err != nil {
		return ipam.Allocation{}, false
	}
	place := ipam.Place{Pool: b.Labels[poolLabel], Block: b.Name, Revision: b.ResourceVersion}
	for offset := range uint64(1) << subnet.HostBits() {
		place.Addresses = append(place.Addresses, subnet.At(offset)...)
	}
	return ipam.Allocation{Backend: Name, Handle: string(b.UID), Owner: b.owner(), Places: []ipam.Place{place}}, true
}

// owner returns whom the block is for; the zero Owner if it does not tell.
func (b AddressBlock) owner() ipam.Owner {
	node := b.Labels[nodeLabel]
	switch {
	case b.Labels[reservedLabel] == "true":
		return ipam.Owner{Kind: ipam.OwnerExternal, Name: "reserved"}
	case node == "":
		return ipam.Owner{}
	}
	return ipam.Owner{Kind: ipam.OwnerAgent, Name: node, Node: node}
}

// read returns the block's addresses.
func (b AddressBlock) read() (ipam.Subnet, error) {
	var s ipam.Subnet
	for _, f := range []struct {
		text string
		ipv4 bool
		into *netip.Prefix
	}{{b.IPv4, true, &s.IPv4}, {b.IPv6, false, &s.IPv6}} {
		if f.text == "" {
			continue
		}
		p, err := netip.ParsePrefix(f.text)
		if err != nil || p.Addr().Is4() != f.ipv4 || p.Addr().Is4In6() {
			return ipam.Subnet{}, fmt.Errorf("%q is no CIDR of its family", f.text)
		}
		*f.into = p.Masked()
	}
	switch {
	case s == ipam.Subnet{}:
		return s, errors.New("it has neither ipv4 nor ipv6")
	case s.IPv4.IsValid() && s.IPv6.IsValid() && 32-s.IPv4.Bits() != 128-s.IPv6.Bits():
		return s, fmt.Errorf("%s and %s differ in size", s.IPv4, s.IPv6)
	case s.HostBits() > maxBits:
		return s, fmt.Errorf("%s has more than 2^%d addresses", s, maxBits)
	}
	return s, nil
}

// answered tells whether nobody waits any more: the answer is there.
func (r BlockRequest) answered() bool { return len(r.Status.Conditions) > 0 }

// readPools lists the AddressPools in the cache, by name.
func (b *Backend) readPools(ctx context.Context) ([]AddressPool, error) {
	pages, err := foreign.Lists[AddressPoolList](ctx, b.source(), false)
	if err != nil {
		return nil, fmt.Errorf("listing AddressPools: %w", err)
	}
	var found []AddressPool
	for _, p := range pages {
		found = append(found, p.Items...)
	}
	slices.SortFunc(found, func(a, b AddressPool) int { return cmp.Compare(a.Name, b.Name) })
	return found, nil
}

// readBlocks lists the AddressBlocks that the options select, by name.
func (b *Backend) readBlocks(ctx context.Context, live bool, options ...client.ListOption) ([]AddressBlock, error) {
	pages, err := foreign.Lists[AddressBlockList](ctx, b.source(), live, options...)
	if err != nil {
		return nil, fmt.Errorf("listing AddressBlocks: %w", err)
	}
	var found []AddressBlock
	for _, p := range pages {
		found = append(found, p.Items...)
	}
	slices.SortFunc(found, func(a, b AddressBlock) int { return cmp.Compare(a.Name, b.Name) })
	return found, nil
}

// readWaiting lists the BlockRequests that the options select and that have no answer, by UID.
func (b *Backend) readWaiting(ctx context.Context, live bool, options ...client.ListOption) (map[string]bool, error) {
	pages, err := foreign.Lists[BlockRequestList](ctx, b.source(), live, options...)
	if err != nil {
		return nil, fmt.Errorf("listing BlockRequests: %w", err)
	}
	waiting := map[string]bool{}
	for _, p := range pages {
		for _, r := range p.Items {
			waiting[string(r.UID)] = !r.answered()
		}
	}
	return waiting, nil
}
