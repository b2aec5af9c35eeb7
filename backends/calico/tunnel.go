package calico

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/backends/foreign"
	"github.com/oakum-dev/oakum/ipam"
)

// Tunnel is a kind of tunnel for which a node has an address, as Calico calls it in an attribute.
type Tunnel string

// The kinds of tunnel.
const (
	IPIP        Tunnel = "ipipTunnelAddress"
	VXLAN       Tunnel = "vxlanTunnelAddress"
	VXLANV6     Tunnel = "vxlanV6TunnelAddress"
	Wireguard   Tunnel = "wireguardTunnelAddress"
	WireguardV6 Tunnel = "wireguardV6TunnelAddress"
)

// tunnel is where a kind of tunnel shows.
type tunnel struct {
	kind Tunnel
	// handle begins the handle of the address. The node's name is the rest.
	handle string
	// annotation of the Node names the address.
	annotation string
}

func tunnels() []tunnel {
	return []tunnel{
		{IPIP, "ipip-tunnel-addr-", "projectcalico.org/IPv4IPIPTunnelAddr"},
		{VXLAN, "vxlan-tunnel-addr-", "projectcalico.org/IPv4VXLANTunnelAddr"},
		{VXLANV6, "vxlan-v6-tunnel-addr-", "projectcalico.org/IPv6VXLANTunnelAddr"},
		{Wireguard, "wireguard-tunnel-addr-", "projectcalico.org/IPv4WireguardInterfaceAddr"},
		{WireguardV6, "wireguard-v6-tunnel-addr-", "projectcalico.org/IPv6WireguardInterfaceAddr"},
	}
}

func tunnelOf(is func(tunnel) bool) (tunnel, bool) {
	for _, t := range tunnels() {
		if is(t) {
			return t, true
		}
	}
	return tunnel{}, false
}

// attributeOf returns what is recorded of a node's address.
func (t tunnel) attributeOf(node string) Attribute {
	return Attribute{HandleID: t.handle + node, Secondary: map[string]string{attrNode: node, attrType: string(t.kind)}}
}

// unrecorded begins the handle of an address that a node names and nobody has.
const unrecorded = "unrecorded/"

// Unrecorded implements backends.Claimer: for addresses of the IPPools that are free in a block.
func (b *Backend) Unrecorded(ctx context.Context, named map[netip.Addr]ipam.Owner) ([]ipam.Allocation, error) {
	if len(named) == 0 {
		return nil, nil
	}
	blocks, err := b.blocks(ctx, false)
	if err != nil {
		return nil, err
	}
	pools, err := b.pools(ctx, false)
	if err != nil {
		return nil, err
	}
	var found []ipam.Allocation
	for _, addr := range slices.SortedFunc(maps.Keys(named), netip.Addr.Compare) {
		i := slices.IndexFunc(blocks, func(r record) bool { return !r.Spec.Deleted && r.cidr.Contains(addr) })
		if i < 0 || !blocks[i].untaken(blocks[i].ordinal(addr)) {
			continue
		}
		node := named[addr].Name
		found = append(found, ipam.Allocation{
			Backend: Name, Handle: unrecorded + addr.String(), Owner: ipam.Owner{Kind: ipam.OwnerNode, Name: node, Node: node},
			Named: true, Gap: "nobody has it, so that a pod could be given it",
			Places: []ipam.Place{{
				Pool: poolOf(pools, blocks[i].cidr), Block: blocks[i].Name, Offset: blocks[i].ordinal(addr), Addresses: []netip.Addr{addr},
			}},
		})
	}
	return found, nil
}

// untaken tells whether nobody has the ordinal's address, and it does not cool down either.
func (r record) untaken(ordinal int) bool {
	return ordinal < len(r.Spec.Allocations) && r.Spec.Allocations[ordinal] == nil
}

// Repair implements backends.Repairer. It gives an address of which nobody says whose it is the handle and the attributes
// of the tunnel for which the node names it, without giving the address back in between. One that is free it claims.
func (b *Backend) Repair(ctx context.Context, a ipam.Allocation) error {
	if strings.HasPrefix(a.Handle, unrecorded) && len(a.Places) == 1 && len(a.Places[0].Addresses) == 1 {
		addr := a.Places[0].Addresses[0]
		t, err := b.tunnelAt(ctx, a.Owner.Name, addr)
		if err != nil {
			return err
		}
		return b.claim(ctx, a.Owner.Name, t, addr)
	}
	if !a.Guessed || a.Owner.Kind != ipam.OwnerNode || len(a.Places) != 1 || len(a.Places[0].Addresses) != 1 {
		return fmt.Errorf("repairing %s: only a node's address without handle and attributes can be completed", a.Handle)
	}
	place := a.Places[0]
	t, err := b.tunnelAt(ctx, a.Owner.Name, place.Addresses[0])
	if err != nil {
		return err
	}
	ours := func(r record) (whole bool, err error) {
		e, taken := r.entry(place.Offset)
		switch {
		case taken && e.handle == t.handle+a.Owner.Name:
			return true, nil
		case !taken, !e.empty, r.name(e) != a.Handle:
			return false, fmt.Errorf("%s in IPAMBlock %q is another hand-out now: %w", place.Addresses[0], r.Name, backends.ErrStale)
		}
		return false, nil
	}
	if err := b.record(ctx, place.Block, place.Offset, t.attributeOf(a.Owner.Name), ours); err != nil {
		return fmt.Errorf("repairing %s of %s: %w", a.Handle, a.Owner, err)
	}
	return nil
}

// tunnelAt returns the tunnel for which a node names the address now; ErrStale if it names none.
func (b *Backend) tunnelAt(ctx context.Context, name string, addr netip.Addr) (tunnel, error) {
	node := &metav1.PartialObjectMetadata{}
	node.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Node"})
	node.Name = name
	if err := b.get(ctx, true, node); err != nil && !errors.Is(err, backends.ErrNotFound) {
		return tunnel{}, fmt.Errorf("reading Node %q: %w", name, err)
	}
	t, ok := tunnelOf(func(t tunnel) bool {
		named, err := netip.ParseAddr(node.Annotations[t.annotation])
		return err == nil && named == addr
	})
	if !ok {
		return tunnel{}, fmt.Errorf("%s is no tunnel's address that Node %q names: %w", addr, name, backends.ErrStale)
	}
	return t, nil
}

// claim records that a free address is the one of a node's tunnel. The answer is ErrStale, and nothing is changed, if
// somebody else has it or it cools down, and ErrNotFound if no block has it: then calico-node must take an address
// itself, which it does when it starts. Claiming what the node has under that tunnel's handle is no error.
func (b *Backend) claim(ctx context.Context, node string, t tunnel, addr netip.Addr) error {
	blocks, err := b.blocks(ctx, false)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(blocks, func(r record) bool { return !r.Spec.Deleted && r.cidr.Contains(addr) })
	if i < 0 {
		return fmt.Errorf("claiming %s for node %q: finding its IPAMBlock: %w", addr, node, backends.ErrNotFound)
	}
	ordinal := blocks[i].ordinal(addr)
	free := func(r record) (whole bool, err error) {
		e, taken := r.entry(ordinal)
		switch {
		case taken && e.handle == t.handle+node:
			return true, nil
		case taken:
			return false, fmt.Errorf("%s has %s: %w", e.owner, addr, backends.ErrStale)
		case !r.untaken(ordinal):
			return false, fmt.Errorf("%s is not free in IPAMBlock %q: %w", addr, r.Name, backends.ErrStale)
		}
		return false, nil
	}
	if err := b.record(ctx, blocks[i].Name, ordinal, t.attributeOf(node), free); err != nil {
		return fmt.Errorf("claiming %s for node %q: %w", addr, node, err)
	}
	return nil
}

// record writes down whose an address is, the handle first. It asks before each write of the block whether it may, and
// whether there is nothing to do.
func (b *Backend) record(ctx context.Context, name string, ordinal int, a Attribute, may func(record) (whole bool, err error)) error {
	var counted *IPAMHandle
	var in netip.Prefix
	for attempt := 1; ; attempt++ {
		r, err := b.block(ctx, name)
		whole := false
		if err == nil {
			whole, err = may(r)
		}
		if err != nil || whole {
			return errors.Join(err, b.subtract(ctx, counted, map[netip.Prefix]int{in: 1}, 0))
		}
		after, err := blockOf(r.Spec).with(ordinal, a)
		if err != nil {
			return err
		}
		if attempt == 1 {
			in = r.cidr
			if counted, err = b.count(ctx, a.HandleID, r); err != nil {
				return err
			}
		}
		switch err := b.patch(ctx, r.DeepCopy(), r.patch(after)); {
		case err == nil:
			return nil
		case !foreign.Refused(err), attempt == attempts:
			return err
		}
	}
}

// ordinal returns the place of an address in the block, which must contain it.
func (r record) ordinal(addr netip.Addr) int {
	at, first := addr.As16(), r.cidr.Addr().As16()
	n := 0
	for i := range at {
		n = n<<8 | int(at[i]) - int(first[i])
	}
	return n
}

// blockName returns the name of a block.
func blockName(cidr netip.Prefix) string {
	return strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(cidr.String())
}
