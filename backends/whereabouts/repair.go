package whereabouts

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"gomodules.xyz/jsonpatch/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/ipam"
)

// Repair implements backends.Repairer. It adds the entry that a reservation lacks. Nothing in the API tells the sandbox,
// so the entry's id is the pod's UID, which Owner.UID must be: whereabouts finds the entry by the pod's name and
// interface when the pod gets an address anew, and Oakum when the pod is gone.
func (b *Backend) Repair(ctx context.Context, a ipam.Allocation) error {
	if len(a.Places) != 1 || a.Owner.Kind != ipam.OwnerPod {
		return fmt.Errorf("repairing %s: only a pod's reservation without an entry can be completed", a.Handle)
	}
	name, ok := reservationOf(a.Places[0])
	if !ok || !isUID(a.Owner.UID) {
		return fmt.Errorf("repairing %s: only a reservation without an entry can be completed, and the UID of its pod must be known, not %q", a.Handle, a.Owner.UID)
	}
	for attempt := 1; ; attempt++ {
		r := &OverlappingRangeIPReservation{}
		switch err := get(ctx, b.live, b.key(name), r); {
		case err != nil && !errors.Is(err, backends.ErrNotFound):
			return fmt.Errorf("reading OverlappingRangeIPReservation %q: %w", name, err)
		case err != nil, a.Handle != reserved+string(r.UID), r.Spec.PodRef != refOf(a.Owner):
			return fmt.Errorf("OverlappingRangeIPReservation %q is gone, or is another one now: %w", name, backends.ErrStale)
		}
		ps, err := b.readPools(ctx, true)
		if err != nil {
			return err
		}
		spots := ps.spots(name)
		if held(spots, r) {
			return nil
		}
		for _, s := range spots {
			if e, taken := s.entry(); taken {
				return fmt.Errorf("IPPool %q has %s for pod %s: %w", s.pool.Name, s.addr, e.PodRef, backends.ErrStale)
			}
		}
		if len(spots) != 1 {
			return fmt.Errorf("repairing %s: %d IPPools have a place for OverlappingRangeIPReservation %q, and it must be one: add the entry by hand", a.Handle, len(spots), name)
		}
		err = b.patch(ctx, spots[0].pool.Name, addition(spots[0], Entry{ID: a.Owner.UID, PodRef: r.Spec.PodRef, IfName: r.Spec.IfName}))
		if err != nil && (!apierrors.IsConflict(err) || attempt == attempts) {
			return fmt.Errorf("repairing %s of %s in IPPool %q: %w", a.Handle, a.Owner, spots[0].pool.Name, err)
		}
		if err == nil {
			return nil
		}
	}
}

// addition returns the patch that adds an entry to the pool as it was read. Nothing in a JSON patch tests that a path is
// absent, so it holds on to the pool's revision.
func addition(s spot, e Entry) []jsonpatch.Operation {
	patch := []jsonpatch.Operation{jsonpatch.NewOperation("replace", "/metadata/resourceVersion", s.pool.ResourceVersion)}
	if s.pool.Spec.Allocations == nil {
		patch = append(patch, jsonpatch.NewOperation("add", "/spec/allocations", struct{}{}))
	}
	return append(patch, jsonpatch.NewOperation("add", "/spec/allocations/"+strconv.Itoa(s.offset), e))
}
