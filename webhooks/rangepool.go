package webhooks

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/oakum-dev/oakum/ipam"
)

// RangePool judges the creation of another program's pool, whose object names one range.
type RangePool struct {
	// Kind, Resource and Field are the object's kind, its plural, and the path of its range.
	Kind, Resource, Field string
	// Read returns the pool in an object as it was sent.
	Read func(ctx context.Context, raw []byte) (ipam.Pool, error)
	// Pools lists the pools that there are.
	Pools   func(ctx context.Context) ([]ipam.Pool, error)
	Effects Effects
}

// Handle implements admission.Handler.
func (w RangePool) Handle(ctx context.Context, req admission.Request) admission.Response {
	if !w.Effects.judges() {
		return admission.Allowed("")
	}
	pool, err := w.Read(ctx, req.Object.Raw)
	if err != nil {
		return admission.Allowed("").WithWarnings(notJudged(fmt.Errorf("reading the %s: %w", w.Kind, err))...)
	}
	others, err := w.Pools(ctx)
	if err != nil {
		return admission.Allowed("").WithWarnings(notJudged(err)...)
	}
	problems := pool.CheckOverlap(others)
	for i := range problems {
		problems[i].Field = w.Field
	}
	return w.Effects.foreign(req, w.Kind, w.Resource, problems)
}
