package webhooks

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/ipam"
)

func TestRangePool(t *testing.T) {
	pool := func(name, network, prefix string) ipam.Pool {
		return ipam.Pool{Kind: "IPPool", Name: name, Network: network, Subnets: []ipam.Subnet{{IPv4: netip.MustParsePrefix(prefix)}}}
	}
	const overlap = `pool-overlap: spec.range: Invalid value: "10.0.0.0/24": must not overlap IPPool "wide" (10.0.0.0/16)`
	wide, elsewhere := pool("wide", "", "10.0.0.0/16"), pool("wide", "blue", "10.0.0.0/16")
	fire := errors.New("the API server is on fire")
	type answer struct {
		Allowed  bool
		Code     int32
		Reason   metav1.StatusReason
		Message  string
		Warnings admission.Warnings
		Events   int
	}
	admitted := answer{Allowed: true, Code: http.StatusOK}
	warned := func(warning string, events int) answer {
		return answer{Allowed: true, Code: http.StatusOK, Warnings: admission.Warnings{warning}, Events: events}
	}
	deny := config.Backend{Mode: config.ModeEnforce, Rules: map[string]config.Effect{"pool-overlap": config.EffectDeny}}
	off := config.Backend{Mode: config.ModeEnforce, Rules: map[string]config.Effect{"pool-overlap": config.EffectOff}}
	tests := map[string]struct {
		settings config.Backend
		others   []ipam.Pool
		unread   error
		unlisted error
		dryRun   bool
		want     answer
	}{
		"a range of its own":                        {settings: enforce(), others: []ipam.Pool{elsewhere, pool("p", "", "10.0.0.0/8")}, want: admitted},
		"an overlap is warned about":                {settings: enforce(), others: []ipam.Pool{wide}, want: warned(overlap, 1)},
		"so it is in Warn":                          {settings: config.Backend{Mode: config.ModeWarn}, others: []ipam.Pool{wide}, want: warned(overlap, 1)},
		"a dry run records nothing":                 {settings: enforce(), others: []ipam.Pool{wide}, dryRun: true, want: warned(overlap, 0)},
		"nobody looks in Observe":                   {settings: config.Backend{Mode: config.ModeObserve}, unread: fire, want: admitted},
		"nobody judges what is off":                 {settings: off, others: []ipam.Pool{wide}, want: admitted},
		"what cannot be read is admitted":           {settings: deny, unread: fire, want: warned("not judged: reading the IPPool: the API server is on fire", 0)},
		"what cannot be compared is admitted":       {settings: deny, unlisted: fire, want: warned("not judged: the API server is on fire", 0)},
		"a refusal is Forbidden, whatever is wrong": {settings: deny, others: []ipam.Pool{wide}, want: answer{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: overlap}},
		"a refusal in a dry run is the same":        {settings: deny, others: []ipam.Pool{wide}, dryRun: true, want: answer{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: overlap}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			total, err := NewAdmissionTotal(prometheus.NewRegistry())
			check(t, err)
			recorder := &events.FakeRecorder{Events: make(chan string, 10)}
			w := RangePool{
				Kind: "IPPool", Resource: "ippools", Field: "spec.range",
				Read:    func(context.Context, []byte) (ipam.Pool, error) { return pool("p", "", "10.0.0.0/24"), tt.unread },
				Pools:   func(context.Context) ([]ipam.Pool, error) { return tt.others, tt.unlisted },
				Effects: NewEffects("whereabouts", tt.settings, total, recorder),
			}
			got := w.Handle(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
				Name: "p", Namespace: "kube-system", DryRun: &tt.dryRun, Object: runtime.RawExtension{Raw: []byte(`{}`)},
			}})
			seen := answer{got.Allowed, got.Result.Code, got.Result.Reason, got.Result.Message, got.Warnings, len(recorder.Events)}
			if diff := cmp.Diff(tt.want, seen); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}
}
