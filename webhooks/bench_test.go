package webhooks

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

// BenchmarkHandler asks the webhooks of blocks about one entry more, or less, in a block of 64, and an empty webhook of
// controller-runtime about the same body, in turn.
func BenchmarkHandler(b *testing.B) {
	full := func(entries int32) *v1alpha1.AddressBlock {
		b := block(0, "n1", "b0", subnet("10.0.0.0/25"), fixture.Reservations(0, entries-1))
		b.ResourceVersion, b.Finalizers = "4711", []string{v1alpha1.BlockFinalizer}
		return b
	}
	for _, side := range []struct {
		name, path string
		old, next  *v1alpha1.AddressBlock
	}{
		{"take", ValidateBlockPath, full(64), full(65)},
		{"give", MutateBlockPath, full(65), full(64)},
	} {
		b.Run(side.name, func(b *testing.B) {
			d := newDoor(b, enforce(), both(node("n1-uid")), both(fixture.Pool("p", fixture.Subnet("10.0.0.0/24", ""), fixture.BlockSize(7), fixture.Cooldown(time.Minute))))
			d.hooks["/empty"] = &admission.Webhook{Handler: admission.HandlerFunc(func(context.Context, admission.Request) admission.Response {
				return admission.Allowed("")
			})}
			body := review(b, admissionv1.Update, side.old, side.next)
			if !d.serve(b, side.path, body).Allowed {
				b.Fatal("it is refused")
			}
			var took [3][]float64
			for b.Loop() {
				for i, path := range [3]string{side.path, "/empty", "/empty"} {
					w := httptest.NewRecorder()
					r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, path, bytes.NewReader(body))
					r.Header.Set("Content-Type", "application/json")
					began := time.Now()
					d.hooks[path].ServeHTTP(w, r)
					took[i] = append(took[i], float64(time.Since(began).Nanoseconds()))
				}
			}
			for i := range took {
				slices.Sort(took[i])
			}
			median := len(took[0]) / 2
			with, without, control := took[0][median], took[1][median], took[2][median]
			b.ReportMetric(0, "ns/op") // of all three together
			b.ReportMetric(with, "with-ns")
			b.ReportMetric(without, "without-ns")
			b.ReportMetric(with/without, "ratio")
			b.ReportMetric(control/without, "control")
		})
	}
}
