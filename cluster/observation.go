package cluster

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/ipam"
)

// page is how many objects are asked for at a time.
const page = 500

// Observation lists pods and nodes once, page by page, and looks for whatever else the hand-outs name. It is for those
// who look once and have no cache. What may not be read is named in missing, and is unknown. Progress is one line a kind.
func Observation(ctx context.Context, live client.Reader, recorded []ipam.Allocation, progress io.Writer) (o ipam.Observation, missing []string, err error) {
	pods, known, err := listed(ctx, live, func() *corev1.PodList { return &corev1.PodList{} }, func(list *corev1.PodList) {
		for i := range list.Items {
			o.Pods = append(o.Pods, Observe(&list.Items[i]).Evidence())
		}
	})
	if err != nil {
		return o, nil, fmt.Errorf("listing pods: %w", err)
	}
	if o.PodsKnown = known == nil; !o.PodsKnown {
		missing = append(missing, fmt.Sprintf("pods: %v", known))
	}
	nodes, known, err := listed(ctx, live, func() *corev1.NodeList { return &corev1.NodeList{} }, func(list *corev1.NodeList) {
		for i := range list.Items {
			o.Nodes = append(o.Nodes, ObserveNode(&list.Items[i]).Evidence())
		}
	})
	if err != nil {
		return o, nil, fmt.Errorf("listing nodes: %w", err)
	}
	if o.NodesKnown = known == nil; !o.NodesKnown {
		missing = append(missing, fmt.Sprintf("nodes: %v", known))
	}
	fmt.Fprintf(progress, "%d pods, %d nodes\n", pods, nodes)
	o.Others, err = (&Witness{live: live}).others(ctx, recorded)
	if apierrors.IsForbidden(err) {
		o.Others, err = nil, nil
		missing = append(missing, "services and virtual machines: may not be read")
	}
	return o, missing, err
}

// LookAgain returns the world as far as it concerns one hand-out of an observation: the last look before it is released.
// Its owner, whoever else names one of its addresses, and the nodes of all of them are read anew.
func LookAgain(ctx context.Context, live client.Reader, before ipam.Observation, a ipam.Allocation) (ipam.World, error) {
	clock := SystemClock()
	w := &Witness{live: live, clock: clock, register: newRegister(clock().Steady, 0)}
	o := ipam.Observation{PodsKnown: before.PodsKnown, NodesKnown: before.NodesKnown}
	names := map[types.NamespacedName]bool{}
	if a.Owner.Kind == ipam.OwnerPod {
		names[types.NamespacedName{Namespace: a.Owner.Namespace, Name: a.Owner.Name}] = true
	}
	for _, p := range before.Pods {
		if slices.ContainsFunc(a.Addresses(), func(addr netip.Addr) bool { return slices.Contains(p.Addresses, addr) }) {
			names[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}] = true
		}
	}
	nodes := map[string]bool{a.Owner.Node: true}
	for name := range names {
		p, err := w.LivePod(ctx, name)
		if err != nil {
			return ipam.World{}, err
		}
		if p != nil {
			o.Pods = append(o.Pods, p.Evidence())
			nodes[p.node] = true
		}
	}
	for _, n := range before.Nodes {
		if slices.ContainsFunc(a.Addresses(), func(addr netip.Addr) bool { return slices.Contains(n.Addresses, addr) }) {
			nodes[n.Name] = true
		}
	}
	delete(nodes, "")
	for name := range nodes {
		n, err := w.LiveNode(ctx, name)
		if err != nil {
			return ipam.World{}, err
		}
		if n != nil {
			o.Nodes = append(o.Nodes, n.Evidence())
		}
	}
	if a.Owner.Kind == ipam.OwnerPod && a.Owner.Node == "" {
		// It may have been on any node, and those were read a moment ago.
		o.Nodes = append(o.Nodes, slices.DeleteFunc(slices.Clone(before.Nodes), func(n ipam.Node) bool { return nodes[n.Name] })...)
	}
	var err error
	if o.Others, err = w.others(ctx, []ipam.Allocation{a}); err != nil {
		return ipam.World{}, err
	}
	return ipam.NewWorld(o), nil
}

// listed reads a list page by page. It returns how many objects there were, or why they may not be read. Every page is
// decoded into a list of its own: what an object leaves out would else stay as it was in the page before.
func listed[L client.ObjectList](ctx context.Context, live client.Reader, empty func() L, each func(L)) (n int, forbidden, err error) {
	for next := ""; ; {
		list := empty()
		err := live.List(ctx, list, client.Limit(page), client.Continue(next))
		switch {
		case apierrors.IsForbidden(err):
			return n, err, nil
		case err != nil:
			return n, nil, err
		}
		each(list)
		n += meta.LenList(list)
		if next = list.GetContinue(); next == "" {
			return n, nil, nil
		}
	}
}
