package webhooks

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/oakum-dev/oakum/ipam"
)

// SubnetPool judges the creation and the change of another program's pool that has subnets where our own has them. Of a
// change it judges what that adds.
type SubnetPool struct {
	// Kind and Resource are the object's kind and its plural.
	Kind, Resource string
	// Read returns the pool in an object as it was sent, with what overlaps within it.
	Read func(raw []byte) (ipam.Pool, []ipam.Problem, error)
	// Pools lists the pools that there are.
	Pools   func(ctx context.Context) ([]ipam.Pool, error)
	Effects Effects
}

// Handle implements admission.Handler.
func (w SubnetPool) Handle(ctx context.Context, req admission.Request) admission.Response {
	if !w.Effects.judges() {
		return admission.Allowed("")
	}
	problems, err := w.judge(ctx, req)
	if err != nil {
		return admission.Allowed("").WithWarnings(notJudged(err)...)
	}
	return w.Effects.foreign(req, w.Kind, w.Resource, problems)
}

// judge returns the overlaps that the object has and the old one has not.
func (w SubnetPool) judge(ctx context.Context, req admission.Request) ([]ipam.Problem, error) {
	others, err := w.Pools(ctx)
	if err != nil {
		return nil, err
	}
	overlaps := func(raw []byte) ([]ipam.Problem, error) {
		pool, problems, err := w.Read(raw)
		if err != nil {
			return nil, fmt.Errorf("reading the %s: %w", w.Kind, err)
		}
		return append(problems, pool.CheckOverlap(others)...), nil
	}
	now, err := overlaps(req.Object.Raw)
	if err != nil || len(req.OldObject.Raw) == 0 {
		return now, err
	}
	before, err := overlaps(req.OldObject.Raw)
	return ipam.Ratchet(before, now), err
}
