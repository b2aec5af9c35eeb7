package whereabouts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/backends/foreign"
	"github.com/oakum-dev/oakum/ipam"
)

// attempts is how often a write is tried that was refused although what it is about had not changed.
const attempts = 5

// Release implements backends.Backend. Every IPPool is looked at before the first one is written. Reservations go after
// the entries, as they do when whereabouts gives an address back: one that is left behind is a hand-out that the next
// list shows.
func (b *Backend) Release(ctx context.Context, a ipam.Allocation) error {
	if a.Owner.Kind != ipam.OwnerPod {
		return fmt.Errorf("releasing %s: its record does not tell whose it is: remove that by hand", a.Handle)
	}
	if len(a.Places) > 0 {
		if name, ok := reservationOf(a.Places[0]); ok {
			return b.releaseReservation(ctx, a, name)
		}
	}
	held, err := b.holding(ctx, a)
	if err != nil {
		return err
	}
	var removed []spot
	for _, spots := range held {
		gone, err := b.remove(ctx, a, spots)
		if err != nil {
			return fmt.Errorf("releasing %s of %s in IPPool %q: %w", a.Handle, a.Owner, spots[0].pool.Name, err)
		}
		removed = append(removed, gone...)
	}
	return b.unreserve(ctx, removed)
}

// idOf returns the id of a hand-out's entries.
func idOf(a ipam.Allocation) string {
	if a.Owner.UID != "" {
		return a.Owner.UID
	}
	return a.Owner.ContainerID
}

func refOf(o ipam.Owner) string { return o.Namespace + "/" + o.Name }

// reservationOf returns the reservation that a place is recorded in; false if that is an IPPool.
func reservationOf(p ipam.Place) (name string, ok bool) { return strings.CutPrefix(p.Block, reserved) }

// holding reads, live, what the IPPools of a hand-out's places have of it, for each pool; ErrStale if one of them has
// another hand-out at one of the places.
func (b *Backend) holding(ctx context.Context, a ipam.Allocation) ([][]spot, error) {
	var names []string
	for _, p := range a.Places {
		if !slices.Contains(names, p.Block) {
			names = append(names, p.Block)
		}
	}
	var held [][]spot
	for _, name := range names {
		spots, err := b.holdingIn(ctx, a, name)
		if err != nil {
			return nil, err
		}
		if len(spots) > 0 {
			held = append(held, spots)
		}
	}
	return held, nil
}

// holdingIn does as holding for one pool.
func (b *Backend) holdingIn(ctx context.Context, a ipam.Allocation, name string) ([]spot, error) {
	object := &IPPool{}
	switch err := get(ctx, b.live, b.key(name), object); {
	case errors.Is(err, backends.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading IPPool %q: %w", name, err)
	}
	p := pool{IPPool: object}
	p.subnet, _ = parseRange(object.Spec.Range)
	var spots []spot
	for _, place := range a.Places {
		if place.Block != name {
			continue
		}
		text := strconv.Itoa(place.Offset)
		e, ok := object.Spec.Allocations[text]
		if !ok {
			continue
		}
		offset, addrs, ok := parseOffset(p.subnet, text)
		if !ok || e.ID != idOf(a) || e.PodRef != refOf(a.Owner) || !slices.Equal(addrs, place.Addresses) {
			return nil, fmt.Errorf("offset %s of IPPool %q is of pod %s now, sandbox %s: %w", text, name, e.PodRef, e.ID, backends.ErrStale)
		}
		spots = append(spots, spot{p, offset, addrs[0]})
	}
	return spots, nil
}

// removal returns the patch that takes a hand-out's entries out of one IPPool. It does not hold on to the pool's
// revision, which every neighbour changes: the entry itself is compared.
func removal(a ipam.Allocation, spots []spot) []jsonpatch.Operation {
	var patch []jsonpatch.Operation
	for _, s := range spots {
		path := "/spec/allocations/" + strconv.Itoa(s.offset)
		patch = append(patch,
			jsonpatch.NewOperation("test", path+"/id", idOf(a)),
			jsonpatch.NewOperation("test", path+"/podref", refOf(a.Owner)),
			jsonpatch.NewOperation("remove", path, nil))
	}
	return patch
}

// remove takes a hand-out's entries out of one IPPool, and returns those that it took.
func (b *Backend) remove(ctx context.Context, a ipam.Allocation, spots []spot) ([]spot, error) {
	name := spots[0].pool.Name
	for attempt := 1; ; attempt++ {
		written := b.patch(ctx, name, removal(a, spots))
		if written == nil {
			return spots, nil
		}
		// A write whose answer was lost may have been carried out, so look before saying that it failed.
		left, err := b.holdingIn(ctx, a, name)
		switch {
		case err != nil && !errors.Is(err, backends.ErrStale):
			return nil, errors.Join(written, err)
		case err != nil, len(left) == 0:
			return nil, err
		case !foreign.Refused(written), attempt == attempts:
			return nil, written
		}
		spots = left
	}
}

func (b *Backend) patch(ctx context.Context, name string, operations []jsonpatch.Operation) error {
	patch, err := json.Marshal(operations)
	if err != nil {
		return err
	}
	target := &IPPool{}
	target.Namespace, target.Name = b.namespace, name
	return b.writer.Patch(ctx, target, client.RawPatch(types.JSONPatchType, patch))
}

// unreserve deletes the reservations of entries that were removed: those with the podref and the interface of the entry.
func (b *Backend) unreserve(ctx context.Context, removed []spot) error {
	if len(removed) == 0 {
		return nil
	}
	ps, err := b.readPools(ctx, false)
	if err != nil {
		return err
	}
	for _, s := range removed {
		e, _ := s.entry()
		for _, network := range ps.pool(s.pool.IPPool).networks {
			name := reservationName(network, s.addr)
			ours := func(r *OverlappingRangeIPReservation) bool {
				return r.Spec.PodRef == e.PodRef && (r.Spec.IfName == "" || e.IfName == "" || r.Spec.IfName == e.IfName)
			}
			// The cache may not know the entry's own pool yet.
			err := b.deleteReservation(ctx, name, append(ps.spots(name), s), ours)
			if err != nil && !errors.Is(err, backends.ErrStale) {
				return err
			}
		}
	}
	return nil
}

// releaseReservation gives back a hand-out that is a reservation without an entry.
func (b *Backend) releaseReservation(ctx context.Context, a ipam.Allocation, name string) error {
	ps, err := b.readPools(ctx, false)
	if err != nil {
		return err
	}
	spots := ps.spots(name)
	if len(spots) == 0 {
		return fmt.Errorf("no IPPool has a place for OverlappingRangeIPReservation %q any more: %w", name, backends.ErrStale)
	}
	ours := func(r *OverlappingRangeIPReservation) bool {
		return a.Handle == reserved+string(r.UID) && r.Spec.PodRef == refOf(a.Owner)
	}
	return b.deleteReservation(ctx, name, spots, ours)
}

// deleteReservation deletes a reservation if it is ours and no IPPool has an entry at the spots that it can be for;
// ErrStale otherwise. Deleting one that is gone is no error.
func (b *Backend) deleteReservation(ctx context.Context, name string, spots []spot, ours func(*OverlappingRangeIPReservation) bool) error {
	for attempt := 1; ; attempt++ {
		r := &OverlappingRangeIPReservation{}
		switch err := get(ctx, b.live, b.key(name), r); {
		case errors.Is(err, backends.ErrNotFound):
			return nil
		case err != nil:
			return fmt.Errorf("reading OverlappingRangeIPReservation %q: %w", name, err)
		case !ours(r):
			return fmt.Errorf("OverlappingRangeIPReservation %q is of pod %s now: %w", name, r.Spec.PodRef, backends.ErrStale)
		}
		for _, s := range spots {
			if err := b.vacant(ctx, s); err != nil {
				return err
			}
		}
		err := b.writer.Delete(ctx, r, client.Preconditions{UID: &r.UID, ResourceVersion: &r.ResourceVersion})
		switch {
		case err == nil, apierrors.IsNotFound(err):
			return nil
		case !apierrors.IsConflict(err) || attempt == attempts:
			return fmt.Errorf("deleting OverlappingRangeIPReservation %q: %w", name, err)
		}
	}
}

// vacant looks, live, whether an IPPool has no entry at a spot; ErrStale if it has one.
func (b *Backend) vacant(ctx context.Context, s spot) error {
	object := &IPPool{}
	switch err := get(ctx, b.live, b.key(s.pool.Name), object); {
	case errors.Is(err, backends.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("reading IPPool %q: %w", s.pool.Name, err)
	}
	if e, taken := object.Spec.Allocations[strconv.Itoa(s.offset)]; taken {
		return fmt.Errorf("IPPool %q has %s for pod %s: %w", s.pool.Name, s.addr, e.PodRef, backends.ErrStale)
	}
	return nil
}
