package v1alpha1

import (
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/oakum-dev/oakum/ipam"
)

// Law returns the pool as the law reads it, and everything that is wrong with it by itself.
func (p *AddressPool) Law() (ipam.Pool, []ipam.Problem) {
	text := ipam.PoolText{
		Name:        p.Name,
		Network:     p.Spec.Network,
		Subnets:     make([]ipam.SubnetText, len(p.Spec.Subnets)),
		Reserved:    p.Spec.Reserved,
		Terminating: p.DeletionTimestamp != nil,
	}
	if p.Spec.BlockSizeBits != nil {
		text.BlockSizeBits = int(*p.Spec.BlockSizeBits)
	}
	if p.Spec.Cooldown != nil {
		text.Cooldown = p.Spec.Cooldown.Duration
	}
	for i, s := range p.Spec.Subnets {
		text.Subnets[i] = ipam.SubnetText{IPv4: s.IPv4, IPv6: s.IPv6}
	}
	return text.Parse()
}

// Law returns the block as the law reads it. Its entries are in the order of spec.allocations. A CIDR that cannot be
// read is absent.
func (b *AddressBlock) Law() ipam.Block {
	block := ipam.Block{
		Name:        b.Name,
		UID:         string(b.UID),
		Pool:        b.Spec.Pool,
		Index:       int64(b.Spec.Index),
		Node:        b.Spec.Node,
		Entries:     make([]ipam.Entry, len(b.Spec.Allocations)),
		Cooling:     make([]ipam.Cooling, len(b.Spec.Cooling)),
		Terminating: b.DeletionTimestamp != nil,
		Revision:    b.ResourceVersion,
	}
	if p, err := netip.ParsePrefix(b.Spec.IPv4); err == nil {
		block.Subnet.IPv4 = p
	}
	if p, err := netip.ParsePrefix(b.Spec.IPv6); err == nil {
		block.Subnet.IPv6 = p
	}
	for i, a := range b.Spec.Allocations {
		block.Entries[i] = ipam.Entry{Offset: int(a.Offset), Handle: a.Handle, Owner: a.Attributes.Owner()}
	}
	for i, c := range b.Spec.Cooling {
		block.Cooling[i] = ipam.Cooling{Offset: int(c.Offset), Until: c.Until.Time}
	}
	return block
}

// Owner returns the owner that the attributes name.
func (a Attributes) Owner() ipam.Owner {
	return ipam.Owner{
		Kind: ipam.OwnerKind(a.Type), Namespace: a.Namespace, Name: a.Name, UID: string(a.UID), Node: a.Node,
	}
}

// FromCooling returns the law's cooling entries as they are written.
func FromCooling(cooling []ipam.Cooling) []Cooling {
	written := make([]Cooling, len(cooling))
	for i, c := range cooling {
		written[i] = Cooling{Offset: int32(c.Offset), Until: metav1.NewTime(c.Until)}
	}
	return written
}
