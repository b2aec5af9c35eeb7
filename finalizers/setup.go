// Package finalizers is the bolt: it holds Pods, Nodes, AddressPools and AddressBlocks back until their addresses are
// free, and never longer than it may.
package finalizers

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
)

// Reconcilers are the bolts. Each runs on the leader alone.
type Reconcilers struct {
	Pod   *Pod
	Node  *Node
	Pool  *AddressPool
	Block *AddressBlock
	Claim *Claim
}

const (
	// workers is how many pods are looked at side by side. Each spends its time waiting for the API server.
	workers = 16
	// retry is how long, at most, what failed is put off: deadlines are to be met.
	retry = 5 * time.Second
	// gather is how long changes of blocks are gathered before statuses are written and leftovers looked for.
	gather = time.Second
)

// Setup connects the reconcilers to what they watch.
func Setup(mgr ctrl.Manager, witness *cluster.Witness, r Reconcilers) error {
	pods, nodes := witness.Informers()
	blocks := func(h handler.TypedEventHandler[*v1alpha1.AddressBlock, reconcile.Request]) source.Source {
		return source.Kind(mgr.GetCache(), &v1alpha1.AddressBlock{}, h)
	}
	for name, c := range map[string]struct {
		reconciler reconcile.Reconciler
		workers    int
		sources    []source.Source
	}{
		"pod": {r.Pod, workers, []source.Source{
			&source.Informer{Informer: pods, Handler: &handler.EnqueueRequestForObject{}, Predicates: []predicate.Predicate{changed()}},
			&source.Informer{Informer: nodes, Handler: handler.EnqueueRequestsFromMapFunc(endingOn(witness)), Predicates: []predicate.Predicate{changed()}},
			blocks(handler.TypedEnqueueRequestsFromMapFunc(unheld(witness))),
		}},
		"node": {r.Node, 1, []source.Source{
			&source.Informer{Informer: nodes, Handler: &handler.EnqueueRequestForObject{}, Predicates: []predicate.Predicate{changed()}},
		}},
		"addressblock": {r.Block, 4, []source.Source{
			blocks(gathered(func(b *v1alpha1.AddressBlock) types.NamespacedName { return types.NamespacedName{Name: b.Name} })),
			source.Kind(mgr.GetCache(), &v1alpha1.AddressPool{}, handler.TypedEnqueueRequestsFromMapFunc(blocksOf(r.Pool.Blocks)),
				predicate.TypedGenerationChangedPredicate[*v1alpha1.AddressPool]{}),
		}},
		"addresspool": {r.Pool, 1, []source.Source{
			source.Kind(mgr.GetCache(), &v1alpha1.AddressPool{}, &handler.TypedEnqueueRequestForObject[*v1alpha1.AddressPool]{}),
			blocks(gathered(func(b *v1alpha1.AddressBlock) types.NamespacedName { return types.NamespacedName{Name: b.Spec.Pool} })),
		}},
		"claim": {r.Claim, 1, []source.Source{
			source.Kind(mgr.GetCache(), &coordinationv1.Lease{}, &handler.TypedEnqueueRequestForObject[*coordinationv1.Lease]{}),
			blocks(gathered(func(b *v1alpha1.AddressBlock) types.NamespacedName {
				return types.NamespacedName{Namespace: r.Claim.Namespace, Name: ipam.ClaimName(b.Spec.Pool, b.Spec.Node)}
			})),
		}},
	} {
		builder := ctrl.NewControllerManagedBy(mgr).Named(name).WithOptions(controller.Options{
			MaxConcurrentReconciles: c.workers, RateLimiter: retries(),
		})
		for _, s := range c.sources {
			builder = builder.WatchesRawSource(s)
		}
		if err := builder.Complete(c.reconciler); err != nil {
			return fmt.Errorf("setting up the %s controller: %w", name, err)
		}
	}
	return nil
}

// retries puts off what failed for twice as long each time.
func retries() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, retry)
}

// changed passes updates in which something changed that a reconciler looks at: most updates of a Pod or Node are
// about other things.
func changed() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		if e.ObjectOld.GetUID() != e.ObjectNew.GetUID() || !slices.Equal(e.ObjectOld.GetFinalizers(), e.ObjectNew.GetFinalizers()) {
			return true
		}
		switch now := e.ObjectNew.(type) {
		case *cluster.Pod:
			old, ok := e.ObjectOld.(*cluster.Pod)
			return !ok || !reflect.DeepEqual(old.Evidence(), now.Evidence())
		case *cluster.Node:
			old, ok := e.ObjectOld.(*cluster.Node)
			return !ok || !reflect.DeepEqual(old.Evidence(), now.Evidence())
		}
		return true
	}}
}

// endingOn maps a node to the pods on it that wait: what becomes of a node may prove their end.
func endingOn(witness *cluster.Witness) handler.MapFunc {
	return func(_ context.Context, node client.Object) []reconcile.Request {
		var requests []reconcile.Request
		for _, p := range witness.PodsOn(node.GetName()) {
			if slices.Contains(p.Finalizers, v1alpha1.AddressesFinalizer) && !p.Evidence().Alive() {
				requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(p)})
			}
		}
		return requests
	}
}

// unheld maps a block to the pods that have an address in it and no finalizer.
func unheld(witness *cluster.Witness) handler.TypedMapFunc[*v1alpha1.AddressBlock, reconcile.Request] {
	return func(_ context.Context, b *v1alpha1.AddressBlock) []reconcile.Request {
		var requests []reconcile.Request
		for _, a := range b.Spec.Allocations {
			if a.Attributes.Type != v1alpha1.OwnerPod {
				continue
			}
			name := types.NamespacedName{Namespace: a.Attributes.Namespace, Name: a.Attributes.Name}
			if p := witness.CachedPod(name); p != nil && p.UID == a.Attributes.UID && !slices.Contains(p.Finalizers, v1alpha1.AddressesFinalizer) {
				requests = append(requests, reconcile.Request{NamespacedName: name})
			}
		}
		return requests
	}
}

// blocksOf maps a pool to its blocks: its deletion lets empty ones go, and its reservations count in their statuses.
func blocksOf(records backends.Blocks) handler.TypedMapFunc[*v1alpha1.AddressPool, reconcile.Request] {
	return func(ctx context.Context, p *v1alpha1.AddressPool) []reconcile.Request {
		blocks, err := records.Blocks(ctx, backends.Query{Pool: p.Name})
		if err != nil {
			// The cache is not there yet; when it is, it tells of every block anyway.
			return nil
		}
		requests := make([]reconcile.Request, len(blocks))
		for i, b := range blocks {
			requests[i] = reconcile.Request{NamespacedName: types.NamespacedName{Name: b.Name}}
		}
		return requests
	}
}

// gathered enqueues what a block's change is about: at once if the block is being deleted or gone, else after a
// while, in which further changes cost nothing.
func gathered(about func(*v1alpha1.AddressBlock) types.NamespacedName) handler.TypedEventHandler[*v1alpha1.AddressBlock, reconcile.Request] {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	enqueue := func(b *v1alpha1.AddressBlock, q queue) {
		req := reconcile.Request{NamespacedName: about(b)}
		if b.DeletionTimestamp != nil {
			q.Add(req)
			return
		}
		q.AddAfter(req, gather)
	}
	return handler.TypedFuncs[*v1alpha1.AddressBlock, reconcile.Request]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*v1alpha1.AddressBlock], q queue) {
			enqueue(e.Object, q)
		},
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*v1alpha1.AddressBlock], q queue) {
			enqueue(e.ObjectNew, q)
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*v1alpha1.AddressBlock], q queue) {
			q.Add(reconcile.Request{NamespacedName: about(e.Object)})
		},
	}
}
