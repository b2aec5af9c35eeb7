package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
)

// lens is how a cache shows what there is.
type lens int

const (
	fresh lens = iota
	frozen
	empty
)

// caches show pods, nodes and records: as they are, as they were, or not at all.
type caches struct {
	truth                *truth
	pods, nodes, records lens
	oldPods              []ipam.Pod
	oldNodes             []ipam.Node
	oldRecords           map[int]entry
	// missing tells since when a node that was looked for has not been there.
	missing map[string]time.Duration
	watch
}

func (c *caches) freeze(pods, nodes, records bool) bool {
	if pods && c.pods == fresh {
		c.oldPods, c.pods = c.seenPods(), frozen
		return true
	}
	if nodes && c.nodes == fresh {
		c.oldNodes, c.nodes = c.seenNodes(), frozen
		return true
	}
	if records && c.records == fresh {
		c.oldRecords, c.records = maps.Clone(c.truth.records), frozen
		return true
	}
	return false
}

// thaw lets the caches catch up.
func (c *caches) thaw() bool {
	was := c.pods != fresh || c.nodes != fresh || c.records != fresh
	c.pods, c.nodes, c.records = fresh, fresh, fresh
	c.notice()
	return was
}

// notice has the witness be told which nodes there are, if its watch works.
func (c *caches) notice() {
	if c.nodes != fresh {
		return
	}
	for i := range c.truth.nodes {
		c.node(i)
	}
	c.watched(c.liveNodes())
}

// node reads a node live.
func (c *caches) node(i int) *ipam.Node {
	name := c.truth.machines[i].name
	if n := c.truth.nodes[i]; n != nil {
		delete(c.missing, name)
		return n
	}
	if _, known := c.missing[name]; !known {
		c.missing[name] = c.truth.steady
		c.goes(name)
	}
	return nil
}

func (c *caches) goneFor() map[string]time.Duration {
	gone := maps.Clone(c.missing)
	for name, since := range gone {
		gone[name] = c.truth.steady - since
	}
	return gone
}

// seenPods are the pods in the cache. One of them, on a node of its own, is always there, so that an empty list is
// always a list that failed.
func (c *caches) seenPods() []ipam.Pod {
	switch c.pods {
	case frozen:
		return c.oldPods
	case empty:
		return nil
	case fresh:
	}
	pods := []ipam.Pod{{Namespace: "default", Name: "bystander", UID: "u0", Node: "aside", HostNetwork: true, Phase: "Running"}}
	for i := range podNames {
		if p := c.truth.exists(i); p != nil {
			pods = append(pods, p.Pod)
		}
	}
	return pods
}

func (c *caches) seenNodes() []ipam.Node {
	switch c.nodes {
	case frozen:
		return c.oldNodes
	case empty:
		return nil
	case fresh:
	}
	return c.liveNodes()
}

// liveNodes are the nodes that there are, and one beside them.
func (c *caches) liveNodes() []ipam.Node {
	nodes := []ipam.Node{{Name: "aside", UID: "n0", Ready: ipam.ConditionTrue}}
	for _, n := range c.truth.nodes {
		if n != nil {
			nodes = append(nodes, *n)
		}
	}
	return nodes
}

// witness answers from the caches and, about single objects, from the API: as *cluster.Witness does.
type witness struct {
	*model
}

// World implements Witness.
func (w witness) World(_ context.Context, recorded []ipam.Allocation, _ ...string) (ipam.World, cluster.Census, error) {
	if err := w.reach(witnessing); err != nil {
		return ipam.World{}, cluster.Census{}, err
	}
	o := ipam.Observation{Pods: w.blurred(w.caches.seenPods()), Nodes: w.caches.watched(slices.Clone(w.caches.seenNodes()))}
	census := cluster.Census{Pods: len(o.Pods), Nodes: len(o.Nodes)}
	recorded = slices.Clone(recorded)
	for _, p := range o.Pods {
		recorded = append(recorded, ipam.Allocation{Owner: ipam.Owner{Node: p.Node}})
	}
	w.named(&o, recorded)
	w.settles(&o)
	return w.world(o, recorded), census, nil
}

// LiveLook implements Witness.
func (w witness) LiveLook(_ context.Context, a ipam.Allocation) (ipam.World, error) {
	if err := w.reach(looking); err != nil {
		return ipam.World{}, err
	}
	var o ipam.Observation
	recorded := []ipam.Allocation{a}
	for i := range podNames {
		if p := w.truth.exists(i); p != nil && a.Owner.Kind == ipam.OwnerPod && p.Name == a.Owner.Name {
			o.Pods = append(o.Pods, p.Pod)
		}
	}
	for _, p := range w.caches.seenPods() {
		named := slices.ContainsFunc(p.Addresses, func(addr netip.Addr) bool { return slices.Contains(a.Addresses(), addr) })
		if named && !slices.ContainsFunc(o.Pods, func(q ipam.Pod) bool { return q.Name == p.Name }) {
			o.Pods = append(o.Pods, p)
		}
	}
	for _, p := range o.Pods {
		recorded = append(recorded, ipam.Allocation{Owner: ipam.Owner{Node: p.Node}})
	}
	o.Pods = w.blurred(o.Pods)
	if a.Owner.Kind == ipam.OwnerPod && a.Owner.Node == "" {
		o.Nodes = w.caches.liveNodes()
		if w.lagging {
			o.Nodes = slices.Clone(w.caches.seenNodes())
		}
		w.caches.watched(o.Nodes)
		w.settles(&o)
	}
	return w.world(o, recorded), nil
}

// settles completes an observation of every node.
func (w witness) settles(o *ipam.Observation) {
	o.NodesSettled = w.truth.steady-w.caches.settled >= sound().Quarantine.Duration
	o.NodeReturns = w.caches.changes
	if w.distort != nil {
		w.distort(o)
	}
}

// named adds the nodes that hand-outs name and that are not there yet.
func (w witness) named(o *ipam.Observation, recorded []ipam.Allocation) {
	for i, m := range w.truth.machines {
		if !slices.ContainsFunc(recorded, func(a ipam.Allocation) bool { return a.Owner.Node == m.name }) ||
			slices.ContainsFunc(o.Nodes, func(n ipam.Node) bool { return n.Name == m.name }) {
			continue
		}
		if n := w.caches.node(i); n != nil {
			o.Nodes = append(o.Nodes, *n)
		}
	}
}

// world completes an observation with the nodes that hand-outs name.
func (w witness) world(o ipam.Observation, recorded []ipam.Allocation) ipam.World {
	w.named(&o, recorded)
	o.PodsKnown, o.NodesKnown, o.NodeDeletionMeansFenced, o.NodesGoneFor = true, true, w.truth.fenced, w.caches.goneFor()
	return ipam.NewWorld(o)
}

func (w witness) blurred(pods []ipam.Pod) []ipam.Pod {
	pods = slices.Clone(pods)
	if w.blur != nil {
		for i := range pods {
			w.blur(&pods[i])
		}
	}
	return pods
}

// store is a backend in memory. Every place is a write of its own.
type store struct {
	*model
}

// Name implements backends.Backend.
func (store) Name() string { return "native" }

// Allocations implements backends.Backend.
func (s store) Allocations(context.Context) ([]ipam.Allocation, error) {
	if err := s.reach(listing); err != nil {
		return nil, err
	}
	recorded := s.truth.records
	if s.caches.records == frozen {
		recorded = s.caches.oldRecords
	}
	var found []ipam.Allocation
	for _, offset := range slices.Sorted(maps.Keys(recorded)) {
		e := recorded[offset]
		i := slices.IndexFunc(found, func(a ipam.Allocation) bool { return a.Handle == e.handle })
		if i < 0 {
			i = len(found)
			found = append(found, ipam.Allocation{Backend: "native", Handle: e.handle, Owner: e.owner, Namesake: s.hearsayOf(e.owner)})
		}
		found[i].Places = append(found[i].Places, ipam.Place{
			Pool: "east", Block: "east-0", Offset: offset, Addresses: []netip.Addr{address(offset)},
		})
	}
	return found, nil
}

// hearsayOf tells who bears an owner's name in the cache, if that is believed.
func (s store) hearsayOf(o ipam.Owner) *ipam.Namesake {
	if !s.hearsay || o.UID != "" {
		return nil
	}
	return ipam.NewWorld(ipam.Observation{Pods: s.caches.seenPods(), PodsKnown: true}).Namesake(o)
}

// AllocationsOf implements backends.Backend.
func (s store) AllocationsOf(ctx context.Context, owner ipam.Owner) ([]ipam.Allocation, error) {
	found, err := s.Allocations(ctx)
	return slices.DeleteFunc(found, func(a ipam.Allocation) bool {
		return a.Owner.Kind != owner.Kind || a.Owner.Name != owner.Name || a.Owner.UID != "" && a.Owner.UID != owner.UID
	}), err
}

// LiveAllocationsOf implements backends.Backend.
func (store) LiveAllocationsOf(context.Context, ipam.Owner) ([]ipam.Allocation, error) {
	return nil, errors.New("the audit has no use for this")
}

// Record implements backends.Backend.
func (store) Record(context.Context, ipam.Place) (backends.Object, error) {
	return backends.Object{APIVersion: "ipam.oakum.dev/v1alpha1", Kind: "AddressBlock", Name: "east-0", UID: "b1"}, nil
}

// Release implements backends.Backend.
func (s store) Release(_ context.Context, a ipam.Allocation) error {
	if err := s.reach(releasing); err != nil {
		return err
	}
	for _, p := range a.Places {
		if e, held := s.truth.records[p.Offset]; held && e.handle != a.Handle {
			return fmt.Errorf("offset %d: %w", p.Offset, backends.ErrStale)
		}
	}
	s.takeOut(a)
	return nil
}

// careless is a store whose Release does not compare.
type careless struct {
	store
}

// Release implements backends.Backend, badly.
func (c careless) Release(_ context.Context, a ipam.Allocation) error {
	if err := c.reach(releasing); err != nil {
		return err
	}
	c.takeOut(a)
	return nil
}

var (
	_ Witness          = witness{}
	_ backends.Backend = careless{}
)
