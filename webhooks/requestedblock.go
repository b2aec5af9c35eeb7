package webhooks

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
)

// RequestedBlock judges the creation of another program's block that a node's agent has asked for. Whatever it cannot find
// out, it admits.
type RequestedBlock struct {
	// Kind and Resource are the object's kind and its plural.
	Kind, Resource string
	// Read returns the block in an object as it was sent.
	Read func(raw []byte) (ipam.Grant, error)
	// Request reads a request by its name, without a cache; nil if there is none.
	Request func(ctx context.Context, name string) (*ipam.Request, error)
	// Held lists what a node's agent holds, and Pods the pods on a node, both from caches that may lag.
	Held func(ctx context.Context, agent ipam.Owner) ([]ipam.Allocation, error)
	Pods func(node string) []*cluster.Pod
	// Clock tells how long an answer takes.
	Clock   cluster.Clock
	Effects Effects
}

// Handle implements admission.Handler.
func (w RequestedBlock) Handle(ctx context.Context, req admission.Request) admission.Response {
	began := w.Clock().Steady
	if !w.Effects.judges() {
		return admission.Allowed("")
	}
	grant, err := w.Read(req.Object.Raw)
	if err != nil {
		return admission.Allowed("").WithWarnings(notJudged(fmt.Errorf("reading the %s: %w", w.Kind, err))...)
	}
	problems, failures := w.room(ctx, grant)
	if w.Effects.Of(ipam.StaleBlockRequest) != config.EffectOff {
		request, err := w.Request(ctx, grant.Request)
		if err != nil {
			failures = append(failures, notJudged(err)...)
		} else {
			problems = append(problems, grant.CheckRequest(request, w.Clock().Steady-began)...)
		}
	}
	return w.Effects.foreign(req, w.Kind, w.Resource, problems).WithWarnings(failures...)
}

// room looks whether the node has room already.
func (w RequestedBlock) room(ctx context.Context, g ipam.Grant) ([]ipam.Problem, admission.Warnings) {
	if w.Effects.Of(ipam.SecondUnfilledBlock) == config.EffectOff {
		return nil, nil
	}
	held, err := w.Held(ctx, ipam.Owner{Kind: ipam.OwnerAgent, Name: g.Node, Node: g.Node})
	if err != nil {
		return nil, notJudged(err)
	}
	var pods []ipam.Pod
	for _, p := range w.Pods(g.Node) {
		pods = append(pods, p.Evidence())
	}
	return g.CheckRoom(held, pods), nil
}
