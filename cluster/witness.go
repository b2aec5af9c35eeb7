// Package cluster is the witness: it tells what Pods and Nodes say about themselves, from a cache that keeps only
// that, or live on request. It never writes.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/ipam"
)

// The indexes of pods: by each address that they name as their own, and by node.
const (
	byAddress = "address"
	byNode    = "node"
)

// Witness answers questions about Pods and Nodes.
type Witness struct {
	pods, nodes toolscache.SharedIndexInformer
	live        client.Reader
	clock       Clock
	settings    Settings
	register    register

	listing sync.Mutex
	// listed are the Nodes of the last live list, and listedAt when that was asked for.
	listed   []*Node
	listedAt time.Duration
}

// Settings are what somebody says about the cluster.
type Settings struct {
	// NodeDeletionMeansFenced: whoever deletes a Node has made sure that the machine is off.
	NodeDeletionMeansFenced bool
	// Quarantine is for how long a machine may run on without its Node.
	Quarantine time.Duration
}

// Slim returns the cache settings that reduce Pods and Nodes to what a Witness keeps. A cache with these settings
// cannot be read as corev1.Pod or corev1.Node: read those live.
func Slim() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&corev1.Pod{}: {Transform: func(o any) (any, error) {
			if p, ok := o.(*corev1.Pod); ok {
				return Observe(p), nil
			}
			return o, nil
		}},
		&corev1.Node{}: {Transform: func(o any) (any, error) {
			if n, ok := o.(*corev1.Node); ok {
				return ObserveNode(n), nil
			}
			return o, nil
		}},
	}
}

// NewWitness starts watching Pods and Nodes in a cache that was made with Slim. The live reader must bypass it.
func NewWitness(ctx context.Context, c cache.Cache, live client.Reader, clock Clock, settings Settings) (*Witness, error) {
	w := &Witness{live: live, clock: clock, settings: settings, register: newRegister(clock().Steady, settings.Quarantine)}
	for object, informer := range map[client.Object]*toolscache.SharedIndexInformer{&corev1.Pod{}: &w.pods, &corev1.Node{}: &w.nodes} {
		i, err := c.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, fmt.Errorf("watching %T: %w", object, err)
		}
		shared, ok := i.(toolscache.SharedIndexInformer)
		if !ok {
			return nil, fmt.Errorf("watching %T: the cache's informer has no index", object)
		}
		*informer = shared
	}
	err := errors.Join(
		w.pods.AddIndexers(toolscache.Indexers{byAddress: addressKeys, byNode: nodeKey}),
		w.nodes.AddIndexers(toolscache.Indexers{byAddress: addressKeys}),
	)
	if err != nil {
		return nil, fmt.Errorf("indexing pods and nodes: %w", err)
	}
	sees := func(o any) {
		if n, ok := o.(*Node); ok {
			w.register.sees(n, w.clock().Steady)
		}
	}
	_, err = w.nodes.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    sees,
		UpdateFunc: func(_, after any) { sees(after) },
		DeleteFunc: func(o any) {
			if t, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = t.Obj
			}
			if n, ok := o.(*Node); ok {
				w.register.leaves(n, w.clock().Steady)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watching nodes come and go: %w", err)
	}
	return w, nil
}

func addressKeys(o any) ([]string, error) {
	var addrs []netip.Addr
	switch o := o.(type) {
	case *Pod:
		addrs = o.addresses
	case *Node:
		addrs = o.addresses
	}
	keys := make([]string, len(addrs))
	for i, a := range addrs {
		keys[i] = a.String()
	}
	return keys, nil
}

func nodeKey(o any) ([]string, error) {
	if p, ok := o.(*Pod); ok && p.node != "" {
		return []string{p.node}, nil
	}
	return nil, nil
}

// Informers returns the informers of Pods and Nodes, to be told of changes. Their objects are *Pod and *Node.
func (w *Witness) Informers() (pods, nodes toolscache.SharedIndexInformer) { return w.pods, w.nodes }

// CachedPod returns a pod from the cache; nil if the cache does not have it.
func (w *Witness) CachedPod(name types.NamespacedName) *Pod {
	if o, ok, err := w.pods.GetIndexer().GetByKey(name.String()); err == nil && ok {
		return o.(*Pod)
	}
	return nil
}

// PodsOn returns the pods of a node, from the cache.
func (w *Witness) PodsOn(node string) []*Pod {
	// The only error is that there is no such index.
	found, _ := w.pods.GetIndexer().ByIndex(byNode, node)
	pods := make([]*Pod, len(found))
	for i, o := range found {
		pods[i] = o.(*Pod)
	}
	return pods
}

// Pod returns a pod from the cache, or live if the cache does not have it; nil if there is none.
func (w *Witness) Pod(ctx context.Context, name types.NamespacedName) (*Pod, error) {
	if p := w.CachedPod(name); p != nil {
		return p, nil
	}
	return w.LivePod(ctx, name)
}

// LivePod reads a pod without the cache; nil if there is none.
func (w *Witness) LivePod(ctx context.Context, name types.NamespacedName) (*Pod, error) {
	var p corev1.Pod
	switch err := w.live.Get(ctx, name, &p); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading pod %s: %w", name, err)
	}
	return Observe(&p), nil
}

// CachedNode returns a node from the cache; nil if the cache does not have it.
func (w *Witness) CachedNode(name string) *Node {
	if o, ok, err := w.nodes.GetIndexer().GetByKey(name); err == nil && ok {
		return o.(*Node)
	}
	return nil
}

// Node returns a node from the cache, or live if the cache does not have it; nil if there is none.
func (w *Witness) Node(ctx context.Context, name string) (*Node, error) {
	if n := w.CachedNode(name); n != nil {
		return n, nil
	}
	return w.LiveNode(ctx, name)
}

// LiveNode reads a node without the cache; nil if there is none.
func (w *Witness) LiveNode(ctx context.Context, name string) (*Node, error) {
	var n corev1.Node
	switch err := w.live.Get(ctx, types.NamespacedName{Name: name}, &n); {
	case apierrors.IsNotFound(err):
		w.register.note(name, false, w.clock().Steady)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading node %s: %w", name, err)
	}
	w.register.note(name, true, w.clock().Steady)
	return ObserveNode(&n), nil
}

// PodCIDRs returns what Kubernetes itself gave to nodes for their pods.
func (w *Witness) PodCIDRs() []ipam.Holding {
	var holdings []ipam.Holding
	for _, o := range w.nodes.GetIndexer().List() {
		n, ok := o.(*Node)
		if !ok {
			continue
		}
		for _, p := range n.podCIDRs {
			holdings = append(holdings, ipam.Holding{Holder: fmt.Sprintf("Node %q", n.Name), Prefix: p})
		}
	}
	return holdings
}

// Around returns the world as far as it concerns one pod that exists, and what is recorded for it: the pod as given,
// whatever other pods name one of the addresses, and the nodes of all of them.
func (w *Witness) Around(ctx context.Context, p *Pod, recorded []ipam.Allocation) (ipam.World, error) {
	return w.around(ctx, []*Pod{p}, recorded, w.Node, false)
}

// LiveAround answers as Around does, but reads the nodes without the cache.
func (w *Witness) LiveAround(ctx context.Context, p *Pod, recorded []ipam.Allocation) (ipam.World, error) {
	return w.around(ctx, []*Pod{p}, recorded, w.LiveNode, false)
}

// LiveLook returns the world as far as it concerns one hand-out: the last look before it is released. Its owner and the
// nodes are read without the cache. A record that does not tell its pod's node concerns every Node; one of a node's agent
// concerns all pods there, which are as the cache has them.
func (w *Witness) LiveLook(ctx context.Context, a ipam.Allocation) (ipam.World, error) {
	var pods []*Pod
	if a.Owner.Kind == ipam.OwnerPod {
		p, err := w.LivePod(ctx, types.NamespacedName{Namespace: a.Owner.Namespace, Name: a.Owner.Name})
		if err != nil {
			return ipam.World{}, err
		}
		if p != nil {
			pods = append(pods, p)
		}
	}
	if a.Owner.Kind == ipam.OwnerAgent {
		pods = append(pods, w.PodsOn(a.Owner.Node)...)
	}
	return w.around(ctx, pods, []ipam.Allocation{a}, w.LiveNode, a.Owner.Kind == ipam.OwnerPod && a.Owner.Node == "")
}

// around makes a world of some pods, whatever other pods name an address of the hand-outs, and the nodes and other
// owners of all of them; and of every other Node, if asked for.
func (w *Witness) around(ctx context.Context, pods []*Pod, recorded []ipam.Allocation, node func(context.Context, string) (*Node, error), everywhere bool) (ipam.World, error) {
	o := w.observation()
	seen := map[types.NamespacedName]bool{}
	nodes := map[string]bool{}
	add := func(p *Pod) {
		if name := client.ObjectKeyFromObject(p); !seen[name] {
			seen[name] = true
			o.Pods = append(o.Pods, p.Evidence())
			nodes[p.node] = true
		}
	}
	for _, p := range pods {
		add(p)
	}
	for _, a := range recorded {
		nodes[a.Owner.Node] = true
		for _, addr := range a.Addresses() {
			named, err := w.pods.GetIndexer().ByIndex(byAddress, addr.String())
			if err != nil {
				return ipam.World{}, fmt.Errorf("looking for pods with %s: %w", addr, err)
			}
			for _, p := range named {
				add(p.(*Pod))
			}
			tunnels, err := w.nodes.GetIndexer().ByIndex(byAddress, addr.String())
			if err != nil {
				return ipam.World{}, fmt.Errorf("looking for nodes with %s: %w", addr, err)
			}
			for _, n := range tunnels {
				nodes[n.(*Node).Name] = true
			}
		}
	}
	var err error
	if o.Others, err = w.others(ctx, recorded); err != nil {
		return ipam.World{}, err
	}
	delete(nodes, "")
	if everywhere {
		if o.Nodes, err = w.liveNodes(ctx); err != nil {
			return ipam.World{}, err
		}
		w.settle(&o)
		clear(nodes)
	}
	for name := range nodes {
		n, err := node(ctx, name)
		if err != nil {
			return ipam.World{}, err
		}
		if n != nil {
			o.Nodes = append(o.Nodes, n.Evidence())
		}
	}
	o.NodesGoneFor = w.register.goneFor(w.clock().Steady)
	return ipam.NewWorld(o), nil
}

// Gone returns a channel that tells of pods and nodes that were deleted. Who does not listen misses some.
func (w *Witness) Gone() (<-chan ipam.Owner, error) {
	gone := make(chan ipam.Owner, 1024)
	tell := toolscache.ResourceEventHandlerFuncs{DeleteFunc: func(o any) {
		if t, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
			o = t.Obj
		}
		var owner ipam.Owner
		switch o := o.(type) {
		case *Pod:
			owner = ipam.Owner{Kind: ipam.OwnerPod, Namespace: o.Namespace, Name: o.Name, UID: string(o.UID), Node: o.node}
		case *Node:
			owner = ipam.Owner{Kind: ipam.OwnerNode, Name: o.Name, UID: string(o.UID), Node: o.Name}
		}
		select {
		case gone <- owner:
		default:
		}
	}}
	for _, informer := range []toolscache.SharedIndexInformer{w.pods, w.nodes} {
		if _, err := informer.AddEventHandler(tell); err != nil {
			return nil, fmt.Errorf("watching pods and nodes go: %w", err)
		}
	}
	return gone, nil
}

// World returns all that the cache knows, with everything that hand-outs name beside Pods: the nodes that the cache
// does not have and owners of other kinds are looked for live; so are nodes of these names. The hand-outs must have been
// listed before.
func (w *Witness) World(ctx context.Context, recorded []ipam.Allocation, nodes ...string) (ipam.World, Census, error) {
	if !w.pods.HasSynced() || !w.nodes.HasSynced() {
		return ipam.World{}, Census{}, errors.New("reading pods and nodes: the cache is not synced yet")
	}
	o := w.observation()
	for _, p := range w.pods.GetIndexer().List() {
		o.Pods = append(o.Pods, p.(*Pod).Evidence())
	}
	known := map[string]bool{"": true}
	for _, object := range w.nodes.GetIndexer().List() {
		n, ok := object.(*Node)
		if !ok {
			continue
		}
		w.register.sees(n, w.clock().Steady)
		o.Nodes = append(o.Nodes, w.evidence(n))
		known[n.Name] = true
	}
	census := Census{Pods: len(o.Pods), Nodes: len(o.Nodes)}
	for _, a := range recorded {
		nodes = append(nodes, a.Owner.Node)
	}
	for _, p := range o.Pods { // The watch of Nodes may lag behind that of Pods.
		if !known[p.Node] {
			nodes = append(nodes, p.Node)
		}
	}
	for _, name := range nodes {
		if known[name] {
			continue
		}
		known[name] = true
		n, err := w.LiveNode(ctx, name)
		if err != nil {
			return ipam.World{}, Census{}, err
		}
		if n != nil {
			o.Nodes = append(o.Nodes, n.Evidence())
		}
	}
	w.settle(&o) // Now, since a node that was looked for may have gone.
	var err error
	if o.Others, err = w.others(ctx, recorded); err != nil {
		return ipam.World{}, Census{}, err
	}
	o.NodesGoneFor = w.register.goneFor(w.clock().Steady)
	return ipam.NewWorld(o), census, nil
}

// observation is one to which nothing was added yet.
func (w *Witness) observation() ipam.Observation {
	return ipam.Observation{PodsKnown: true, NodesKnown: true, NodeDeletionMeansFenced: w.settings.NodeDeletionMeansFenced}
}

// settle completes an observation to which every Node was added.
func (w *Witness) settle(o *ipam.Observation) {
	o.NodesSettled, o.NodeReturns = w.register.calm(w.clock().Steady)
}

// fresh is for how long a list of every Node counts as live: one run of the audit may ask for it a thousand times, and it
// takes a cluster longer than that to notice that a node is silent.
const fresh = 10 * time.Second

// liveNodes reads every Node without the cache.
func (w *Witness) liveNodes(ctx context.Context) ([]ipam.Node, error) {
	w.listing.Lock()
	defer w.listing.Unlock()
	if now := w.clock().Steady; w.listed == nil || now-w.listedAt >= fresh {
		var list corev1.NodeList
		if err := w.live.List(ctx, &list); err != nil {
			return nil, fmt.Errorf("listing nodes: %w", err)
		}
		w.listed, w.listedAt = make([]*Node, len(list.Items)), now
		for i := range list.Items {
			w.listed[i] = ObserveNode(&list.Items[i])
		}
		w.register.lists(w.listed, now)
	}
	evidence := make([]ipam.Node, len(w.listed))
	for i, n := range w.listed {
		evidence[i] = w.evidence(n)
	}
	return evidence, nil
}

func (w *Witness) evidence(n *Node) ipam.Node {
	e := n.Evidence()
	e.Joining = w.register.joins(n)
	return e
}

// Census counts what a World was made from.
type Census struct {
	Pods, Nodes int
}

// others looks, live, for the owners of hand-outs that are neither Pod nor Node.
func (w *Witness) others(ctx context.Context, recorded []ipam.Allocation) (map[ipam.OwnerKind]map[ipam.Name]ipam.Presence, error) {
	found := map[ipam.OwnerKind]map[ipam.Name]ipam.Presence{}
	looked := map[ipam.Owner]bool{}
	for _, a := range recorded {
		o := ipam.Owner{Kind: a.Owner.Kind, Namespace: a.Owner.Namespace, Name: a.Owner.Name}
		if o.Kind != ipam.OwnerService && o.Kind != ipam.OwnerVirtualMachine || looked[o] {
			continue
		}
		looked[o] = true
		p, err := w.Other(ctx, o)
		switch {
		case errors.Is(err, ErrNotServed):
			continue
		case err != nil:
			return nil, err
		case found[o.Kind] == nil:
			found[o.Kind] = map[ipam.Name]ipam.Presence{}
		}
		if p != nil {
			found[o.Kind][ipam.Name{Namespace: o.Namespace, Name: o.Name}] = *p
		}
	}
	return found, nil
}

// ErrNotServed says that the cluster has no objects of that kind, so that nothing can be told about one.
var ErrNotServed = errors.New("the cluster serves no such objects")

// Other looks, live, for an owner that is neither Pod nor Node. It returns nil if no object bears the name. The error is
// ErrNotServed if the cluster does not know the kind.
func (w *Witness) Other(ctx context.Context, o ipam.Owner) (*ipam.Presence, error) {
	var object metav1.PartialObjectMetadata
	switch o.Kind {
	case ipam.OwnerService:
		object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Service"))
	case ipam.OwnerVirtualMachine:
		object.SetGroupVersionKind(schema.GroupVersionKind{Group: "kubevirt.io", Version: "v1", Kind: "VirtualMachine"})
	default:
		return nil, fmt.Errorf("looking for %s: nobody here can tell about owners of that kind", o)
	}
	switch err := w.live.Get(ctx, types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, &object); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case meta.IsNoMatchError(err):
		return nil, fmt.Errorf("looking for %s: %w", o, ErrNotServed)
	case err != nil:
		return nil, fmt.Errorf("looking for %s: %w", o, err)
	}
	return &ipam.Presence{UID: string(object.UID), Terminating: object.DeletionTimestamp != nil}, nil
}
