package calico

import (
	"context"
	"hash/crc32"
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/ipam"
)

// hosts begins the affinity of a node's block.
const hosts = "host:"

// record is an IPAMBlock, read.
type record struct {
	*IPAMBlock
	// cidr is invalid if it cannot be read, or is larger than any block.
	cidr netip.Prefix
}

// entry is an address in a block that is handed out.
type entry struct {
	ordinal int
	addr    netip.Addr
	// handle is empty if the record has none.
	handle string
	owner  ipam.Owner
	// sequence is the block's sequence number when the address was handed out; zero if nobody wrote it down.
	sequence uint64
	named    bool
	guessed  bool
	// empty: the record has nothing but the fact that the address is taken.
	empty bool
}

// maxBits is the size of the largest block that is read: 2^maxBits addresses. Calico's largest is 2^12.
const maxBits = 16

func read(o *IPAMBlock) record {
	r := record{IPAMBlock: o}
	if cidr, err := netip.ParsePrefix(o.Spec.CIDR); err == nil && cidr == cidr.Masked() && !cidr.Addr().Is4In6() &&
		cidr.Addr().BitLen()-cidr.Bits() <= maxBits {
		r.cidr = cidr
	}
	return r
}

// node returns the node whose block it is; empty if it is no node's.
func (r record) node() string {
	node, ok := strings.CutPrefix(r.Spec.Affinity, hosts)
	if !ok {
		return ""
	}
	return node
}

// size returns how many addresses the block has; zero if its CIDR cannot be read.
func (r record) size() int {
	if !r.cidr.IsValid() {
		return 0
	}
	return 1 << (r.cidr.Addr().BitLen() - r.cidr.Bits())
}

// attribute returns what is recorded of an address that is taken; false if it is free, cooling down or cannot be read.
func (r record) attribute(ordinal int) (Attribute, bool) {
	if r.Spec.Deleted || ordinal < 0 || ordinal >= len(r.Spec.Allocations) || ordinal >= r.size() {
		return Attribute{}, false
	}
	i := r.Spec.Allocations[ordinal]
	if i == nil || *i < 0 || *i >= len(r.Spec.Attributes) || r.Spec.Attributes[*i].ReleasedAt != nil {
		return Attribute{}, false
	}
	return r.Spec.Attributes[*i], true
}

// entry returns who has an address; false if attribute does.
func (r record) entry(ordinal int) (entry, bool) {
	a, ok := r.attribute(ordinal)
	if !ok {
		return entry{}, false
	}
	e := entry{
		ordinal: ordinal, addr: r.addr(ordinal), handle: a.handle(),
		sequence: r.Spec.SequenceNumberForAllocation[strconv.Itoa(ordinal)], empty: a.empty(),
	}
	e.owner, e.named = a.owner()
	if node := r.node(); e.empty && node != "" {
		e.owner, e.guessed = ipam.Owner{Kind: ipam.OwnerNode, Name: node, Node: node}, true
	}
	return e, true
}

// addr returns the address with that ordinal, which must be less than size.
func (r record) addr(ordinal int) netip.Addr { return subnetOf(r.cidr).At(uint64(ordinal))[0] }

// entries yields the addresses that are handed out, in order.
func (r record) entries() iter.Seq[entry] {
	return func(yield func(entry) bool) {
		for o := range r.Spec.Allocations {
			if e, ok := r.entry(o); ok && !yield(e) {
				return
			}
		}
	}
}

// ownerKey and handleKey are what an entry is found by; empty if it cannot be.
func (e entry) ownerKey() string  { return key(e.owner) }
func (e entry) handleKey() string { return e.handle }

// buckets returns the buckets of what the entries are found by.
func (r record) buckets(of func(entry) string) []string {
	var found []string
	for e := range r.entries() {
		if k := of(e); k != "" {
			found = append(found, bucket(k))
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// bucket is what a key is indexed by. In an index by the keys themselves, each of a hundred thousand would cost as much
// memory as what is recorded under it; a bucket has them of a few blocks.
func bucket(key string) string {
	return strconv.FormatUint(uint64(crc32.ChecksumIEEE([]byte(key))%buckets), 16)
}

const buckets = 8192

// key names an owner by kind and name.
func key(o ipam.Owner) string { return string(o.Kind) + "/" + o.Namespace + "/" + o.Name }

// name returns the handle of the entry's hand-out.
func (r record) name(e entry) string {
	switch {
	case e.handle == "":
		return unowned + e.addr.String() + "/" + strconv.FormatUint(e.sequence, 10)
	case isWindows(e.handle):
		return e.handle + "/" + r.Name
	}
	return e.handle
}

// unowned begins the handles of entries that have none.
const unowned = "unowned/"

// lacks is what an entry lacks of which nobody says whose it is.
const lacks = "no handle and no attributes"

// handOuts returns the hand-outs in blocks. It must be given every block that has a part of them.
func (b *Backend) handOuts(ctx context.Context, live bool, blocks []record) ([]ipam.Allocation, error) {
	ps, err := b.pools(ctx, live)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(blocks, func(a, b record) int { return strings.Compare(a.Name, b.Name) })
	size := 0
	for _, r := range blocks {
		size += len(r.Spec.Allocations) - len(r.Spec.Unallocated)
	}
	found, at := make([]ipam.Allocation, 0, max(size, 0)), make(map[string]int, max(size, 0))
	for _, r := range blocks {
		pool := poolOf(ps, r.cidr)
		for e := range r.entries() {
			name := r.name(e)
			i, known := at[name]
			if !known {
				i = len(found)
				at[name] = i
				a := ipam.Allocation{Backend: Name, Handle: name, Owner: e.owner, Named: e.named, Guessed: e.guessed}
				if e.empty {
					a.Gap = lacks
				}
				found = append(found, a)
			}
			a := &found[i]
			a.Owner = common(a.Owner, e.owner)
			a.Named = a.Named && e.named
			a.Places = append(a.Places, ipam.Place{
				Pool: pool, Block: r.Name, Offset: e.ordinal, Addresses: []netip.Addr{e.addr}, Revision: strconv.FormatUint(e.sequence, 10),
			})
		}
	}
	return found, nil
}

func subnetOf(p netip.Prefix) ipam.Subnet {
	if p.Addr().Is4() {
		return ipam.Subnet{IPv4: p}
	}
	return ipam.Subnet{IPv6: p}
}

// Pods returns the pods that a block names, each once and in order. The object is an IPAMBlock of either group; another one
// names none.
func Pods(o client.Object) []types.NamespacedName {
	var r record
	switch o := o.(type) {
	case *IPAMBlock:
		r = read(o)
	case *IPAMBlockV3:
		r = read((*IPAMBlock)(o))
	default:
		return nil
	}
	var pods []types.NamespacedName
	for e := range r.entries() {
		if e.owner.Kind == ipam.OwnerPod {
			pods = append(pods, types.NamespacedName{Namespace: e.owner.Namespace, Name: e.owner.Name})
		}
	}
	slices.SortFunc(pods, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(pods)
}
