package webhooks

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
)

// Affinity judges the creation of another program's claim to a block. Whatever it cannot find out, it admits.
type Affinity struct {
	// Kind and Resource are the object's kind and its plural.
	Kind, Resource string
	// Read returns the claim in an object as it was sent.
	Read func(ctx context.Context, raw []byte) (ipam.Affinity, error)
	// Known tells whether there is a claim of that name, from a cache that may lag.
	Known func(ctx context.Context, name string) (bool, error)
	// Blocks lists the blocks that there are, from a cache that may lag, and Block reads one without a cache; nil if
	// there is none of that name.
	Blocks func(ctx context.Context) ([]ipam.AffineBlock, error)
	Block  func(ctx context.Context, name string) (*ipam.AffineBlock, error)
	// Live reads Nodes and Pods without a cache.
	Live client.Reader
	// Wish is the annotation in which a pod asks for addresses, as a list of strings in JSON.
	Wish    string
	Effects Effects
}

// Handle implements admission.Handler.
func (w Affinity) Handle(ctx context.Context, req admission.Request) admission.Response {
	if !w.Effects.judges() {
		return admission.Allowed("")
	}
	problems, err := w.judge(ctx, req)
	answer := w.Effects.foreign(req, w.Kind, w.Resource, problems)
	if err != nil {
		answer = answer.WithWarnings(notJudged(err)...)
	}
	return answer
}

// judge returns the problems of the claim, and an error for what could not be found out.
func (w Affinity) judge(ctx context.Context, req admission.Request) ([]ipam.Problem, error) {
	claim, err := w.Read(ctx, req.Object.Raw)
	if err != nil {
		return nil, fmt.Errorf("reading the %s: %w", w.Kind, err)
	}
	// Storage says that it exists already. Calico waits for that answer, and no other one would do.
	if known, err := w.Known(ctx, req.Name); known || err != nil {
		return nil, err
	}
	blocks, err := w.Blocks(ctx)
	if err != nil {
		return nil, err
	}
	problems, err := w.overlaps(ctx, claim, blocks)
	if err != nil || len(problems) > 0 {
		return problems, err
	}
	return w.room(ctx, claim, blocks)
}

// overlaps looks at the blocks that rule the claim out once more: a block may have gone, or changed hands.
func (w Affinity) overlaps(ctx context.Context, claim ipam.Affinity, blocks []ipam.AffineBlock) ([]ipam.Problem, error) {
	if w.Effects.Of(ipam.BlockOverlap) == config.EffectOff {
		return nil, nil
	}
	var problems []ipam.Problem
	for _, b := range blocks {
		if len(claim.CheckOverlap(b)) == 0 {
			continue
		}
		now, err := w.Block(ctx, b.Name)
		if err != nil {
			return nil, err
		}
		if now != nil {
			problems = append(problems, claim.CheckOverlap(*now)...)
		}
	}
	return problems, nil
}

// room looks whether the node has room already, and no reason to claim more.
func (w Affinity) room(ctx context.Context, claim ipam.Affinity, blocks []ipam.AffineBlock) ([]ipam.Problem, error) {
	spare := claim.Spare(blocks)
	if len(spare) == 0 || w.Effects.Of(ipam.SecondUnfilledBlock) == config.EffectOff {
		return nil, nil
	}
	var node corev1.Node
	switch err := w.Live.Get(ctx, client.ObjectKey{Name: claim.Holder.Name}, &node); {
	case apierrors.IsNotFound(err):
		return nil, nil // The other program may know the node by another name.
	case err != nil:
		return nil, fmt.Errorf("reading node %q: %w", claim.Holder.Name, err)
	}
	var pods corev1.PodList
	if err := w.Live.List(ctx, &pods, client.MatchingFields{"spec.nodeName": node.Name}); err != nil {
		return nil, fmt.Errorf("listing the pods on node %q: %w", node.Name, err)
	}
	// What Kubernetes gave the node for its pods, a migration from another plugin claims whole.
	observed := cluster.ObserveNode(&node)
	named, addrs, waiting := observed.PodCIDRs(), observed.Evidence().Addresses, 0
	for i := range pods.Items {
		pod := cluster.Observe(&pods.Items[i]).Evidence()
		if pod.HostNetwork || pod.Mirror || pod.Ended() {
			continue
		}
		wanted, err := wishes(pods.Items[i].Annotations[w.Wish])
		if err != nil {
			return nil, nil //nolint:nilerr // It may want any address.
		}
		addrs = append(append(addrs, pod.Addresses...), wanted...)
		if len(pod.Addresses) == 0 || pod.AddressesUnknown {
			waiting++
		}
	}
	for _, a := range addrs {
		named = append(named, netip.PrefixFrom(a, a.BitLen()))
	}
	return claim.CheckRoom(spare, named, waiting), nil
}

// wishes reads the addresses that a pod asks for.
func wishes(text string) ([]netip.Addr, error) {
	if text == "" {
		return nil, nil
	}
	var addrs []netip.Addr
	err := json.Unmarshal([]byte(text), &addrs)
	return addrs, err
}
