package finalizers

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/ipam"
)

// RecordPool holds a pool of another program, whose objects hold their hand-outs themselves, until nothing is recorded in
// it.
type RecordPool struct {
	Client client.Client
	Voice  Voice
	// Kind is the pool's, and New returns an empty one.
	Kind schema.GroupVersionKind
	New  func() client.Object
	// Count returns how many addresses are recorded in a pool.
	Count func(client.Object) int
	// Wanted: pools are to be held. If not, the finalizers that are there come off.
	Wanted bool
}

// Reconcile implements reconcile.Reconciler. What is recorded may come from the cache: the patch that takes the finalizer
// off is refused if the pool has changed since.
func (r *RecordPool) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	pool := r.New()
	if err := r.Client.Get(ctx, req.NamespacedName, pool); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	held := slices.Contains(pool.GetFinalizers(), v1alpha1.PoolFinalizer)
	deleted := pool.GetDeletionTimestamp() != nil
	switch left := r.Count(pool); {
	case !held && r.Wanted && !deleted:
		return reconcile.Result{}, addFinalizer(ctx, r.Client, pool, v1alpha1.PoolFinalizer)
	case !held:
		return reconcile.Result{}, nil
	case !r.Wanted:
		return reconcile.Result{}, r.letGo(ctx, pool, Unwanted)
	case deleted && left == 0:
		return reconcile.Result{}, r.letGo(ctx, pool, Drained)
	case deleted:
		r.Voice.event(r.reference(pool), nil, corev1.EventTypeNormal, v1alpha1.EventPoolDraining, "Drain",
			"its deletion waits until the addresses that are recorded in it are given back: %d", left)
	}
	return reconcile.Result{}, nil
}

func (r *RecordPool) letGo(ctx context.Context, pool client.Object, reason ipam.Reason) error {
	if err := dropFinalizer(ctx, r.Client, pool, v1alpha1.PoolFinalizer); err != nil {
		return err
	}
	r.Voice.letGo(r.Kind.Kind, pool.GetDeletionTimestamp(), reason)
	return nil
}

func (r *RecordPool) reference(pool client.Object) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: r.Kind.GroupVersion().String(), Kind: r.Kind.Kind, Namespace: pool.GetNamespace(), Name: pool.GetName(), UID: pool.GetUID(),
	}
}
