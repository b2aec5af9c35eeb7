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
	"sigs.k8s.io/controller-runtime/pkg/cache"
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

// Setup connects the reconcilers to what they watch. It returns the controller of pods, which further records of theirs
// may be watched with.
func Setup(mgr ctrl.Manager, witness *cluster.Witness, r Reconcilers) (Pods, error) {
	pods, nodes := witness.Informers()
	blocks := func(h handler.TypedEventHandler[*v1alpha1.AddressBlock, reconcile.Request]) source.Source {
		return source.Kind(mgr.GetCache(), &v1alpha1.AddressBlock{}, h)
	}
	pod, err := setup(mgr, "pod", r.Pod, workers,
		&source.Informer{Informer: pods, Handler: &handler.EnqueueRequestForObject{}, Predicates: []predicate.Predicate{changed()}},
		&source.Informer{Informer: nodes, Handler: handler.EnqueueRequestsFromMapFunc(endingOn(witness)), Predicates: []predicate.Predicate{changed()}},
		blocks(handler.TypedEnqueueRequestsFromMapFunc(unheld(witness))),
	)
	if err != nil {
		return Pods{}, err
	}
	for name, c := range map[string]struct {
		reconciler reconcile.Reconciler
		workers    int
		sources    []source.Source
	}{
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
		if _, err := setup(mgr, name, c.reconciler, c.workers, c.sources...); err != nil {
			return Pods{}, err
		}
	}
	return Pods{pod, witness}, nil
}

func setup(mgr ctrl.Manager, name string, r reconcile.Reconciler, workers int, sources ...source.Source) (controller.Controller, error) {
	builder := ctrl.NewControllerManagedBy(mgr).Named(name).WithOptions(controller.Options{
		MaxConcurrentReconciles: workers, RateLimiter: retries(),
	})
	for _, s := range sources {
		builder = builder.WatchesRawSource(s)
	}
	c, err := builder.Build(r)
	if err != nil {
		return nil, fmt.Errorf("setting up the %s controller: %w", name, err)
	}
	return c, nil
}

// Pods is the controller of pods.
type Pods struct {
	controller controller.Controller
	witness    *cluster.Witness
}

// Watch makes the controller look at pods that are named in a record and are not held. The record's kind is that of the
// empty object, and named returns the names of pods in one.
func (p Pods) Watch(c cache.Cache, empty client.Object, named func(client.Object) []types.NamespacedName) error {
	err := p.controller.Watch(source.Kind(c, empty, handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		var requests []reconcile.Request
		for _, name := range named(o) {
			if pod := p.witness.CachedPod(name); pod != nil && !slices.Contains(pod.Finalizers, v1alpha1.AddressesFinalizer) {
				requests = append(requests, reconcile.Request{NamespacedName: name})
			}
		}
		return requests
	})))
	if err != nil {
		return fmt.Errorf("watching %T: %w", empty, err)
	}
	return nil
}

// SetupPool connects the reconciler of another program's pools to what it watches.
func SetupPool(mgr ctrl.Manager, name string, r *RecordPool) error {
	_, err := setup(mgr, name, r, 1, source.Kind(mgr.GetCache(), r.New(), &handler.TypedEnqueueRequestForObject[client.Object]{}))
	return err
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
