package webhooks

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/oakum-dev/oakum/ipam"
)

// UsedPool judges the deletion of another program's pool, of which those who have its addresses would hear nothing.
type UsedPool struct {
	// Kind and Resource are the object's kind and its plural.
	Kind, Resource string
	// Held lists what is handed out, from a cache that may lag, but for what would never be given back.
	Held    func(ctx context.Context) ([]ipam.Allocation, error)
	Effects Effects
}

// Handle implements admission.Handler.
func (w UsedPool) Handle(ctx context.Context, req admission.Request) admission.Response {
	if !w.Effects.judges() {
		return admission.Allowed("")
	}
	held, err := w.Held(ctx)
	if err != nil {
		return admission.Allowed("").WithWarnings(notJudged(err)...)
	}
	blocks, allocations := map[string]bool{}, 0
	for _, a := range held {
		for _, p := range a.Places {
			if p.Pool == req.Name {
				blocks[p.Block] = true
				allocations++
			}
		}
	}
	var problems []ipam.Problem
	if allocations > 0 {
		problems = append(problems, ipam.Problem{
			Rule: ipam.PoolInUse, Fault: ipam.Untimely,
			Message: fmt.Sprintf("%s with %s would be nobody's: disable the pool, move its pods, and delete it then", counted(len(blocks), "block"), counted(allocations, "allocation")),
		})
	}
	return w.Effects.foreign(req, w.Kind, w.Resource, problems)
}
