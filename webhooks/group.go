package webhooks

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// Group judges the writes of one API group alone, for a program that has the same kinds in two. Writes of the other one are
// admitted: they copy what is there already, or clear it away.
type Group struct {
	Name string
	admission.Handler
}

// Handle implements admission.Handler.
func (w Group) Handle(ctx context.Context, req admission.Request) admission.Response {
	if req.Kind.Group != w.Name {
		return admission.Allowed("")
	}
	return w.Handler.Handle(ctx, req)
}
