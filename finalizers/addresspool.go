package finalizers

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
)

// AddressPool holds a pool until its last block is gone, and keeps the status.
type AddressPool struct {
	Blocks backends.Blocks
	Client client.Client
	Clock  cluster.Clock
	Voice  Voice
	// Wanted: pools are to be held.
	Wanted bool
}

// settle is how long after the deletion a pool is not let go, even if no block is known: one may have been admitted by
// a replica that did not know of the deletion yet.
const settle = 10 * time.Second

// Reconcile implements reconcile.Reconciler.
func (r *AddressPool) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var object v1alpha1.AddressPool
	switch err := r.Client.Get(ctx, req.NamespacedName, &object); {
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, err
	}
	held := slices.Contains(object.Finalizers, v1alpha1.PoolFinalizer)
	switch {
	case held && !r.Wanted:
		return reconcile.Result{}, r.letGo(ctx, &object, Unwanted)
	case !held && r.Wanted && object.DeletionTimestamp == nil:
		return reconcile.Result{}, addFinalizer(ctx, r.Client, &object, v1alpha1.PoolFinalizer)
	}
	blocks, err := r.Blocks.Blocks(ctx, backends.Query{Pool: object.Name})
	if err != nil {
		return reconcile.Result{}, err
	}
	var again time.Duration
	if held && object.DeletionTimestamp != nil && len(blocks) == 0 {
		if again = object.DeletionTimestamp.Add(settle).Sub(r.Clock().Wall); again <= 0 {
			// The cache shows none. Only a live list proves it.
			if blocks, err = r.Blocks.LiveBlocks(ctx, backends.Query{Pool: object.Name}); err != nil {
				return reconcile.Result{}, err
			}
			if len(blocks) == 0 {
				return reconcile.Result{}, r.letGo(ctx, &object, Drained)
			}
			// A block that comes and goes while the cache looks away makes no event.
			again = settle
		}
	}
	changed, err := r.report(ctx, &object, blocks)
	if err != nil {
		return reconcile.Result{}, err
	}
	if draining := meta.FindStatusCondition(object.Status.Conditions, string(v1alpha1.Draining)); changed && object.DeletionTimestamp != nil {
		r.Voice.event(nativeReference(&object, poolKind), nil, corev1.EventTypeNormal, v1alpha1.EventPoolDraining, "Drain", "%s", draining.Message)
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

func (r *AddressPool) letGo(ctx context.Context, object *v1alpha1.AddressPool, reason ipam.Reason) error {
	if err := dropFinalizer(ctx, r.Client, object, v1alpha1.PoolFinalizer); err != nil {
		return err
	}
	r.Voice.letGo(poolKind, object.DeletionTimestamp, reason)
	return nil
}

// report writes the status, if it has changed, and tells whether what the pool waits for has.
func (r *AddressPool) report(ctx context.Context, object *v1alpha1.AddressPool, blocks []ipam.Block) (draining bool, err error) {
	before := object.DeepCopy()
	now := r.Clock().Wall
	pool, problems := object.Law()
	object.Status.ObservedGeneration = object.Generation
	object.Status.Blocks = int64(len(blocks))
	object.Status.Capacity = pool.Capacity()
	object.Status.Allocated = 0
	nodes := map[string]bool{}
	unfilled := false
	for _, b := range blocks {
		object.Status.Allocated += int64(len(b.Entries))
		nodes[b.Node] = true
		unfilled = unfilled || b.Unfilled(pool, now)
	}
	for _, c := range []metav1.Condition{
		ready(object, problems),
		exhausted(unfilled || int64(len(blocks)) < pool.Blocks()),
		drains(object, len(blocks), object.Status.Allocated, len(nodes)),
	} {
		c.ObservedGeneration, c.LastTransitionTime = object.Generation, metav1.NewTime(now)
		changed := meta.SetStatusCondition(&object.Status.Conditions, c)
		draining = draining || changed && c.Type == string(v1alpha1.Draining)
	}
	if equality.Semantic.DeepEqual(before.Status, object.Status) {
		return false, nil
	}
	return draining, client.IgnoreNotFound(r.Client.Status().Patch(ctx, object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})))
}

func condition(t v1alpha1.ConditionType, is bool, reason v1alpha1.ConditionReason, format string, args ...any) metav1.Condition {
	c := metav1.Condition{Type: string(t), Status: metav1.ConditionFalse, Reason: string(reason), Message: fmt.Sprintf(format, args...)}
	if is {
		c.Status = metav1.ConditionTrue
	}
	return c
}

func ready(object *v1alpha1.AddressPool, problems []ipam.Problem) metav1.Condition {
	switch {
	case object.DeletionTimestamp != nil:
		return condition(v1alpha1.Ready, false, v1alpha1.ReasonDraining, "the pool is being deleted and gives out no more blocks")
	case len(problems) > 0:
		return condition(v1alpha1.Ready, false, v1alpha1.ReasonMalformed, "%s: %s", problems[0].Field, problems[0].Message)
	}
	return condition(v1alpha1.Ready, true, v1alpha1.ReasonAvailable, "nodes can take blocks")
}

func exhausted(free bool) metav1.Condition {
	if free {
		return condition(v1alpha1.Exhausted, false, v1alpha1.ReasonAddressesFree, "addresses can be had")
	}
	return condition(v1alpha1.Exhausted, true, v1alpha1.ReasonNoFreeAddress, "every block is taken and none has a free address: append a subnet, or find out who holds the addresses")
}

func drains(object *v1alpha1.AddressPool, blocks int, allocated int64, nodes int) metav1.Condition {
	switch {
	case object.DeletionTimestamp == nil:
		return condition(v1alpha1.Draining, false, v1alpha1.ReasonNotDeleted, "the pool is not being deleted")
	case blocks == 0:
		return condition(v1alpha1.Draining, true, v1alpha1.ReasonSettling, "no block remains; a last look follows in %s at the latest", settle)
	}
	return condition(v1alpha1.Draining, true, v1alpha1.ReasonBlocksRemain, "%s in %s on %s remain",
		counted(allocated, "address", "addresses"), counted(int64(blocks), "block", "blocks"), counted(int64(nodes), "node", "nodes"))
}

func counted(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
