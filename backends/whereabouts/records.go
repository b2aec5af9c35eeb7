package whereabouts

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/backends/foreign"
	"github.com/oakum-dev/oakum/ipam"
)

// pool is an IPPool, read.
type pool struct {
	*IPPool
	// subnet is invalid if the range cannot be read.
	subnet netip.Prefix
	// networks are those that it can belong to, the likeliest first; none if the range cannot be read.
	networks []string
}

// spot is where an address is in a pool.
type spot struct {
	pool   pool
	offset int
	addr   netip.Addr
}

// network returns the network that the pool most likely belongs to.
func (p pool) network() string {
	if len(p.networks) == 0 {
		return ""
	}
	return p.networks[0]
}

// entry returns who has the spot.
func (s spot) entry() (Entry, bool) {
	e, ok := s.pool.Spec.Allocations[strconv.Itoa(s.offset)]
	return e, ok
}

// spot returns where an address is in the pool; false if it has no offset there.
func (p pool) spot(addr netip.Addr) (spot, bool) {
	if !p.subnet.Contains(addr) {
		return spot{}, false
	}
	first, at := p.subnet.Addr().As16(), addr.As16()
	offset := binary.BigEndian.Uint64(at[8:]) - binary.BigEndian.Uint64(first[8:])
	if [8]byte(first[:8]) != [8]byte(at[:8]) || int(offset) < 0 {
		return spot{}, false
	}
	return spot{p, int(offset), addr}, true
}

// ground is the part of a network that pools share.
type ground struct {
	network string
	subnet  netip.Prefix
}

// pools are IPPools by name, and by what they have addresses of.
type pools struct {
	vocabulary
	all  []pool
	on   map[ground][]pool
	bits []int
}

func (v vocabulary) pools(objects []*IPPool) pools {
	ps := pools{vocabulary: v, on: map[ground][]pool{}}
	slices.SortFunc(objects, func(a, b *IPPool) int { return strings.Compare(a.Name, b.Name) })
	for _, o := range objects {
		p := v.pool(o)
		ps.all = append(ps.all, p)
		if !p.subnet.IsValid() {
			continue
		}
		for _, network := range p.networks {
			g := ground{network, p.subnet}
			ps.on[g] = append(ps.on[g], p)
		}
		if bits := p.subnet.Bits(); !slices.Contains(ps.bits, bits) {
			ps.bits = append(ps.bits, bits)
		}
	}
	slices.Sort(ps.bits)
	return ps
}

func (v vocabulary) pool(object *IPPool) pool {
	p := pool{IPPool: object}
	if subnet, ok := parseRange(object.Spec.Range); ok {
		p.subnet, p.networks = subnet, v.networksOf(object.Name, subnet)
	}
	return p
}

// spots returns every spot that a reservation of this name can be for.
func (ps pools) spots(name string) []spot {
	var spots []spot
	for network, addr := range readings(name) {
		for _, bits := range ps.bits {
			subnet, err := addr.Prefix(bits)
			if err != nil {
				continue // longer than an address of that family
			}
			for _, p := range ps.on[ground{network, subnet}] {
				if s, ok := p.spot(addr); ok && !slices.ContainsFunc(spots, s.same) {
					spots = append(spots, s)
				}
			}
		}
	}
	return spots
}

func (s spot) same(o spot) bool { return s.pool.Name == o.pool.Name && s.addr == o.addr }

// handOuts returns the hand-outs that the pools' entries record, of one pod or, if ref is empty, of all.
func (ps pools) handOuts(ref string) []ipam.Allocation {
	type key struct{ id, ref string }
	var found []ipam.Allocation
	at, mixed := map[key]int{}, ps.mixed(ref)
	for _, p := range ps.all {
		var offsets []int
		for text, e := range p.Spec.Allocations {
			if ref != "" && e.PodRef != ref {
				continue
			}
			if n, _, ok := parseOffset(p.subnet, text); ok {
				offsets = append(offsets, n)
			}
		}
		slices.Sort(offsets)
		for _, n := range offsets {
			text := strconv.Itoa(n)
			e := p.Spec.Allocations[text]
			_, addrs, _ := parseOffset(p.subnet, text)
			a := ipam.Allocation{Backend: Name, Handle: e.ID, Owner: e.owner()}
			k := key{e.ID, e.PodRef}
			switch {
			case a.Owner == (ipam.Owner{}):
				a.Handle, k = p.Name+"/"+text, key{p.Name, text}
			case mixed[e.ID]:
				a.Handle += "/" + e.PodRef
			}
			i, known := at[k]
			if !known {
				i = len(found)
				at[k] = i
				found = append(found, a)
			}
			found[i].Places = append(found[i].Places, ipam.Place{
				Pool: p.Name, Block: p.Name, Offset: n, Addresses: addrs, Revision: p.ResourceVersion,
			})
		}
	}
	return found
}

// mixed returns the ids that stand beside different podrefs, of which one is ref if that is not empty: their hand-outs
// need other handles than the id.
func (ps pools) mixed(ref string) map[string]bool {
	refs, mixed := map[string]string{}, map[string]bool{}
	for _, p := range ps.all {
		for _, e := range p.Spec.Allocations {
			if ref == "" || e.PodRef == ref {
				refs[e.ID] = e.PodRef
			}
		}
	}
	for _, p := range ps.all {
		for _, e := range p.Spec.Allocations {
			if known, ok := refs[e.ID]; ok && known != e.PodRef {
				mixed[e.ID] = true
			}
		}
	}
	return mixed
}

// owner returns whom an entry is for; the zero Owner if it does not tell.
func (e Entry) owner() ipam.Owner {
	pod, ok := podOf(e.PodRef)
	if !ok || e.ID == "" {
		return ipam.Owner{}
	}
	o := ipam.Owner{Kind: ipam.OwnerPod, Namespace: pod.Namespace, Name: pod.Name}
	if isUID(e.ID) {
		o.UID = e.ID
	} else {
		o.ContainerID = e.ID
	}
	return o
}

// held tells whether a reservation for one of the spots belongs to an entry there. It belongs to one with the same podref,
// whatever the interface: whereabouts keeps a pod's reservation when the pod gets the address anew for another one.
func held(spots []spot, r *OverlappingRangeIPReservation) bool {
	return slices.ContainsFunc(spots, func(s spot) bool {
		e, ok := s.entry()
		return ok && e.PodRef == r.Spec.PodRef
	})
}

// loose returns a reservation that belongs to no entry as a hand-out of its own. The spots are those that it can be for:
// one at least.
func loose(r *OverlappingRangeIPReservation, spots []spot) ipam.Allocation {
	a := ipam.Allocation{Backend: Name, Handle: reserved + string(r.UID), Gap: "no entry in any IPPool"}
	if pod, ok := podOf(r.Spec.PodRef); ok {
		a.Owner = ipam.Owner{Kind: ipam.OwnerPod, Namespace: pod.Namespace, Name: pod.Name}
	}
	place := ipam.Place{Block: reserved + r.Name, Revision: r.ResourceVersion}
	if len(spots) == 1 {
		place.Pool, place.Offset = spots[0].pool.Name, spots[0].offset
	}
	for _, s := range spots {
		if e, taken := s.entry(); taken {
			a.Gap = fmt.Sprintf("the entry in IPPool %q names pod %s", s.pool.Name, e.PodRef)
		}
		if !slices.Contains(place.Addresses, s.addr) {
			place.Addresses = append(place.Addresses, s.addr)
		}
	}
	a.Places = []ipam.Place{place}
	return a
}

// readPools lists the IPPools that the options select.
func (b *Backend) readPools(ctx context.Context, live bool, options ...client.ListOption) (pools, error) {
	v, err := b.readVocabulary(ctx, live)
	if err != nil {
		return pools{}, err
	}
	pages, err := foreign.Lists[IPPoolList](ctx, b.source(), live, append(options, client.InNamespace(b.namespace))...)
	if err != nil {
		return pools{}, fmt.Errorf("listing IPPools: %w", err)
	}
	var objects []*IPPool
	for i := range pages {
		for j := range pages[i].Items {
			objects = append(objects, &pages[i].Items[j])
		}
	}
	return v.pools(objects), nil
}

// readReservations lists the reservations that the options select.
func (b *Backend) readReservations(ctx context.Context, live bool, options ...client.ListOption) ([]*OverlappingRangeIPReservation, error) {
	pages, err := foreign.Lists[OverlappingRangeIPReservationList](ctx, b.source(), live, append(options, client.InNamespace(b.namespace))...)
	if err != nil {
		return nil, fmt.Errorf("listing OverlappingRangeIPReservations: %w", err)
	}
	var objects []*OverlappingRangeIPReservation
	for i := range pages {
		for j := range pages[i].Items {
			objects = append(objects, &pages[i].Items[j])
		}
	}
	slices.SortFunc(objects, func(a, b *OverlappingRangeIPReservation) int { return strings.Compare(a.Name, b.Name) })
	return objects, nil
}

// readVocabulary lists what names are made of.
func (b *Backend) readVocabulary(ctx context.Context, live bool) (vocabulary, error) {
	v := vocabulary{networks: map[string]bool{}, nodes: map[string]bool{}}
	slices, err := b.readSlices(ctx, live)
	if err != nil {
		return v, err
	}
	for _, s := range slices {
		for _, slice := range s.Status.Allocations {
			v.nodes[slice.NodeName] = slice.NodeName != ""
		}
	}
	if served := b.optional.NetworkAttachmentDefinitions; served == nil || !served() {
		return v, nil
	}
	pages, err := foreign.Lists[NetworkAttachmentDefinitionList](ctx, b.source(), live)
	if err != nil && !foreign.Unserved(err) {
		return v, fmt.Errorf("listing NetworkAttachmentDefinitions: %w", err)
	}
	for _, list := range pages {
		for _, d := range list.Items {
			for _, network := range networkNames(d.Spec.Config) {
				v.networks[network] = true
			}
		}
	}
	return v, nil
}

// readSlices lists the NodeSlicePools; none where that kind is not served.
func (b *Backend) readSlices(ctx context.Context, live bool) ([]NodeSlicePool, error) {
	if served := b.optional.NodeSlicePools; served == nil || !served() {
		return nil, nil
	}
	pages, err := foreign.Lists[NodeSlicePoolList](ctx, b.source(), live, client.InNamespace(b.namespace))
	if err != nil && !foreign.Unserved(err) {
		return nil, fmt.Errorf("listing NodeSlicePools: %w", err)
	}
	var found []NodeSlicePool
	for _, list := range pages {
		found = append(found, list.Items...)
	}
	return found, nil
}

// networkNames returns the networks that a CNI configuration, or a list of them, has whereabouts give addresses of. One
// that cannot be read has none.
func networkNames(config string) []string {
	type plugin struct {
		IPAM struct {
			Type        string `json:"type"`
			NetworkName string `json:"network_name"`
		} `json:"ipam"`
	}
	var c struct {
		plugin
		Plugins []plugin `json:"plugins"`
	}
	if json.Unmarshal([]byte(config), &c) != nil {
		return nil
	}
	var names []string
	for _, p := range append(c.Plugins, c.plugin) {
		if p.IPAM.Type == "whereabouts" && p.IPAM.NetworkName != "" {
			names = append(names, p.IPAM.NetworkName)
		}
	}
	return names
}
