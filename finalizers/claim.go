package finalizers

import (
	"context"
	"errors"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
)

// Claim deletes the claims on blocks that have served their purpose: the block is full, or gone, or never came.
type Claim struct {
	Blocks backends.Blocks
	Client client.Client
	Clock  cluster.Clock
	// Namespace is that of the Leases.
	Namespace string
}

// Reconcile implements reconcile.Reconciler.
func (r *Claim) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var lease coordinationv1.Lease
	switch err := r.Client.Get(ctx, req.NamespacedName, &lease); {
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, err
	}
	claim, now := ipam.ParseClaim(ptr.Deref(lease.Spec.HolderIdentity, "")), r.Clock().Wall
	var named *ipam.Block
	var pool ipam.Pool
	switch block, err := r.Blocks.Block(ctx, claim.Block); {
	case errors.Is(err, backends.ErrNotFound):
	case err != nil:
		return reconcile.Result{}, err
	default:
		named = &block
		if pool, err = r.Blocks.Pool(ctx, block.Pool); err != nil && !errors.Is(err, backends.ErrNotFound) {
			return reconcile.Result{}, err
		}
	}
	taken := lease.CreationTimestamp.Time
	if lease.Spec.AcquireTime != nil {
		taken = lease.Spec.AcquireTime.Time
	}
	// Nobody wants a block here, and no claim can name this one.
	nobody := ipam.Claim{Block: "/"}
	switch age := now.Sub(taken); claim.Answer(nobody, named, pool, age, now) {
	case ipam.ClaimPending:
		return reconcile.Result{RequeueAfter: max(ipam.ClaimAge-age, time.Second)}, nil
	case ipam.ClaimOver:
		err := r.Client.Delete(ctx, &lease, client.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			// Somebody took it over: it is about another block now.
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, err
	case ipam.ClaimBinds, ipam.ClaimOurs:
	}
	return reconcile.Result{}, nil
}
