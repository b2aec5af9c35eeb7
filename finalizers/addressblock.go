package finalizers

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
)

// AddressBlock holds a block until nothing in it is allocated or cooling down, deletes blocks that nobody needs, and
// keeps the status.
type AddressBlock struct {
	Blocks  backends.Blocks
	Witness *cluster.Witness
	Client  client.Client
	Clock   cluster.Clock
	Voice   Voice
	// Wanted: blocks are to be held, and reclaimed.
	Wanted bool
	// Grace is how long a block must have been empty before it is deleted.
	Grace time.Duration

	// reclaiming lets one block at a time be found dispensable, or two of a node could each count on the other.
	reclaiming sync.Mutex

	mu sync.Mutex
	// empty tells since when each block that is empty has been so, by name.
	empty map[string]emptiness
}

// emptiness is since when, in steady time, which object of a name has been empty.
type emptiness struct {
	uid   string
	since time.Duration
}

// Reconcile implements reconcile.Reconciler.
func (r *AddressBlock) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var object v1alpha1.AddressBlock
	switch err := r.Client.Get(ctx, req.NamespacedName, &object); {
	case apierrors.IsNotFound(err):
		r.forget(req.Name)
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, err
	}
	pool, err := r.Blocks.Pool(ctx, object.Spec.Pool)
	if err != nil && !errors.Is(err, backends.ErrNotFound) {
		return reconcile.Result{}, err
	}
	block, now := object.Law(), r.Clock()
	held := slices.Contains(object.Finalizers, v1alpha1.BlockFinalizer)
	switch {
	case held && !r.Wanted, held && block.Terminating && block.Empty(now.Wall):
		reason := Drained
		if !r.Wanted {
			reason = Unwanted
		}
		if err := dropFinalizer(ctx, r.Client, &object, v1alpha1.BlockFinalizer); err != nil {
			return reconcile.Result{}, err
		}
		r.Voice.letGo(blockKind, object.DeletionTimestamp, reason)
		return reconcile.Result{}, nil
	case !held && r.Wanted && !block.Terminating:
		return reconcile.Result{}, addFinalizer(ctx, r.Client, &object, v1alpha1.BlockFinalizer)
	}
	again, gone, err := r.reclaim(ctx, block, pool, now)
	if err != nil || gone {
		return reconcile.Result{}, err
	}
	if err := r.report(ctx, object, block, pool, now.Wall); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: sooner(again, untilCool(block, now.Wall))}, nil
}

// reclaim deletes the block if it has been empty for the grace and nobody needs it: its node has room elsewhere, or is
// gone, or the pool is being deleted, which needs no grace. It returns when to look again; 0 if an event will tell.
func (r *AddressBlock) reclaim(ctx context.Context, b ipam.Block, pool ipam.Pool, now ipam.Moment) (again time.Duration, gone bool, err error) {
	emptyFor, empty := r.emptyFor(b, now)
	if !empty || b.Terminating || !r.Wanted {
		return 0, false, nil
	}
	if left := r.Grace - emptyFor; left > 0 && !pool.Terminating {
		return left, false, nil
	}
	r.reclaiming.Lock()
	defer r.reclaiming.Unlock()
	needed, err := r.needed(ctx, b, pool, now.Wall)
	if err != nil {
		return 0, false, err
	}
	if needed {
		return r.Grace, false, nil
	}
	// If somebody took an address from it meanwhile, it is not the block that was judged, and stays.
	if err := r.Blocks.Reclaim(ctx, b); err != nil && !errors.Is(err, backends.ErrStale) {
		return 0, false, err
	}
	return 0, true, nil
}

// emptyFor tells for how long the block has been empty, as far as this process has seen.
func (r *AddressBlock) emptyFor(b ipam.Block, now ipam.Moment) (time.Duration, bool) {
	if b.Terminating || !b.Empty(now.Wall) {
		r.forget(b.Name)
		return 0, b.Empty(now.Wall)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.empty == nil {
		r.empty = map[string]emptiness{}
	}
	e := r.empty[b.Name]
	if e.uid != b.UID {
		e = emptiness{b.UID, now.Steady}
		r.empty[b.Name] = e
	}
	return now.Steady - e.since, true
}

func (r *AddressBlock) forget(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.empty, name)
}

// needed tells whether a node must keep the block: it is its only one of the pool with room.
func (r *AddressBlock) needed(ctx context.Context, b ipam.Block, pool ipam.Pool, now time.Time) (bool, error) {
	if pool.Terminating {
		return false, nil
	}
	node, err := r.Witness.Node(ctx, b.Node)
	if err != nil || node == nil {
		return false, err
	}
	others, err := r.Blocks.Blocks(ctx, backends.Query{Pool: b.Pool, Node: b.Node})
	if err != nil {
		return false, err
	}
	for _, o := range others {
		if o.Name == b.Name || !o.Unfilled(pool, now) {
			continue
		}
		// The cache may lag, and the node needs at least one of the two.
		switch live, err := r.Blocks.LiveBlock(ctx, o.Name); {
		case errors.Is(err, backends.ErrNotFound):
		case err != nil:
			return false, err
		case live.Node == b.Node && live.Unfilled(pool, now):
			return false, nil
		}
	}
	return true, nil
}

// report writes the status, if it has changed.
func (r *AddressBlock) report(ctx context.Context, object v1alpha1.AddressBlock, b ipam.Block, pool ipam.Pool, now time.Time) error {
	status := v1alpha1.AddressBlockStatus{ObservedGeneration: object.Generation, Allocated: int32(len(b.Entries))}
	for range b.Free(pool, now) {
		status.Free++
	}
	if status == object.Status {
		return nil
	}
	before := object.DeepCopy()
	object.Status = status
	return client.IgnoreNotFound(r.Client.Status().Patch(ctx, &object, client.MergeFrom(before)))
}

// untilCool returns when the next address of the block has cooled down; 0 if none is cooling.
func untilCool(b ipam.Block, now time.Time) time.Duration {
	var next time.Duration
	for _, c := range b.Cooling {
		if left := c.Until.Sub(now); left > 0 {
			next = sooner(next, left)
		}
	}
	return next
}

// sooner returns the shorter of two waits, of which 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
