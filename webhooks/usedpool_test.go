package webhooks

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/ipam"
)

func TestUsedPool(t *testing.T) {
	const used = `pool-in-use: 2 blocks with 3 allocations would be nobody's: disable the pool, move its pods, and delete it then`
	at := func(pool, block string) ipam.Place { return ipam.Place{Pool: pool, Block: block} }
	held := []ipam.Allocation{
		{Handle: "a", Places: []ipam.Place{at("p", "b1"), at("p6", "c1")}},
		{Handle: "b", Places: []ipam.Place{at("p", "b1"), at("p", "b2")}},
	}
	tests := map[string]struct {
		settings config.Backend
		pool     string
		held     []ipam.Allocation
		unlisted bool
		dryRun   bool
		want     reply
	}{
		"a pool of which somebody has addresses": {settings: enforce(), pool: "p", held: held, want: refused(used)},
		"so it is in a dry run":                  {settings: enforce(), pool: "p", held: held, dryRun: true, want: refused(used)},
		"one of the other family has its own":    {settings: enforce(), pool: "p6", held: held, want: refused(`pool-in-use: 1 block with 1 allocation would be nobody's: disable the pool, move its pods, and delete it then`)},
		"a pool of which nobody has any":         {settings: enforce(), pool: "q", held: held, want: passed(0)},
		"a pool that was never used":             {settings: enforce(), pool: "p", want: passed(0)},
		"in Warn it goes all the same":           {settings: config.Backend{Mode: config.ModeWarn}, pool: "p", held: held, want: passed(1, used)},
		"in Observe nobody looks":                {settings: config.Backend{Mode: config.ModeObserve}, pool: "p", unlisted: true, want: passed(0)},
		"what cannot be found out is admitted":   {settings: enforce(), pool: "p", unlisted: true, want: passed(0, "not judged: the API server is on fire")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			total, err := NewAdmissionTotal(prometheus.NewRegistry())
			check(t, err)
			recorder := &events.FakeRecorder{Events: make(chan string, 10)}
			w := UsedPool{
				Kind: "IPPool", Resource: "ippools", Effects: NewEffects("calico", tt.settings, total, recorder),
				Held: func(context.Context) ([]ipam.Allocation, error) {
					if tt.unlisted {
						return nil, broken()
					}
					return tt.held, nil
				},
			}
			got := w.Handle(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Name: tt.pool, DryRun: &tt.dryRun}})
			expect(t, "reply", tt.want, replied(got, recorder))
		})
	}
}
