package webhooks

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/ipam"
)

func TestSubnetPool(t *testing.T) { // B36
	const (
		wide   = `pool-overlap: spec.subnets[0].ipv4: Invalid value: "10.0.0.0/24": must not overlap Coil AddressPool "wide" (10.0.0.0/16)`
		second = `pool-overlap: spec.subnets[1].ipv4: Invalid value: "10.0.1.0/24": must not overlap Coil AddressPool "wide" (10.0.0.0/16)`
		itself = `pool-overlap: spec.subnets[1].ipv4: Invalid value: "10.0.0.0/24": must not overlap itself`
	)
	pool := func(name string, prefixes ...string) ipam.Pool {
		p := ipam.Pool{Kind: "Coil AddressPool", Name: name}
		for _, prefix := range prefixes {
			p.Subnets = append(p.Subnets, ipam.Subnet{IPv4: netip.MustParsePrefix(prefix)})
		}
		return p
	}
	warn := config.Backend{Mode: config.ModeEnforce, Rules: map[string]config.Effect{"pool-overlap": config.EffectWarn}}
	tests := map[string]struct {
		settings config.Backend
		// old and now are the pool's subnets before and after; there is no old pool if it has none.
		old, now []string
		// unread and unlisted: the object and the other pools cannot be read.
		unread, unlisted bool
		want             reply
	}{
		"subnets of its own":                                  {settings: enforce(), now: []string{"10.1.0.0/24"}, want: passed(0)},
		"an overlap with another pool":                        {settings: enforce(), now: []string{"10.0.0.0/24"}, want: refused(wide)},
		"an overlap within the pool":                          {settings: enforce(), now: []string{"10.1.0.0/24", "10.1.0.0/24"}, want: refused(strings.ReplaceAll(itself, "10.0.0.0", "10.1.0.0"))},
		"a subnet that is added and overlaps":                 {settings: enforce(), old: []string{"10.1.0.0/24"}, now: []string{"10.1.0.0/24", "10.0.1.0/24"}, want: refused(second)},
		"a subnet that is added beside an overlap":            {settings: enforce(), old: []string{"10.0.0.0/24"}, now: []string{"10.0.0.0/24", "10.1.0.0/24"}, want: passed(0)},
		"only what is added is told":                          {settings: enforce(), old: []string{"10.0.0.0/24"}, now: []string{"10.0.0.0/24", "10.0.1.0/24"}, want: refused(second)},
		"a warning where the settings want it":                {settings: warn, now: []string{"10.0.0.0/24"}, want: passed(1, wide)},
		"a warning in Warn":                                   {settings: config.Backend{Mode: config.ModeWarn}, now: []string{"10.0.0.0/24"}, want: passed(1, wide)},
		"in Observe nobody looks":                             {settings: config.Backend{Mode: config.ModeObserve}, unread: true, unlisted: true, want: passed(0)},
		"what cannot be read is admitted":                     {settings: enforce(), unread: true, want: passed(0, "not judged: reading the AddressPool: the API server is on fire")},
		"what cannot be read as it was before is, too":        {settings: enforce(), old: []string{"unreadable"}, now: []string{"10.0.0.0/24"}, want: passed(0, "not judged: reading the AddressPool: the API server is on fire")},
		"what cannot be compared with other pools is as well": {settings: enforce(), unlisted: true, want: passed(0, "not judged: the API server is on fire")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			total, err := NewAdmissionTotal(prometheus.NewRegistry())
			check(t, err)
			recorder := &events.FakeRecorder{Events: make(chan string, 10)}
			w := SubnetPool{
				Kind: "AddressPool", Resource: "addresspools", Effects: NewEffects("coil", tt.settings, total, recorder),
				Read: func(raw []byte) (ipam.Pool, []ipam.Problem, error) {
					if tt.unread || string(raw) == "unreadable" {
						return ipam.Pool{}, nil, broken()
					}
					p := pool("p", strings.Fields(string(raw))...)
					if s := p.Subnets; len(s) > 1 && s[0] == s[1] {
						return p, []ipam.Problem{{Rule: ipam.PoolOverlap, Fault: ipam.Wrong, Field: "spec.subnets[1].ipv4", Value: s[1].IPv4.String(), Message: "must not overlap itself"}}, nil
					}
					return p, nil, nil
				},
				Pools: func(context.Context) ([]ipam.Pool, error) {
					if tt.unlisted {
						return nil, broken()
					}
					return []ipam.Pool{pool("p", "10.0.0.0/8"), pool("wide", "10.0.0.0/16")}, nil
				},
			}
			got := w.Handle(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
				Name: "p", Object: runtime.RawExtension{Raw: []byte(strings.Join(tt.now, " "))}, OldObject: runtime.RawExtension{Raw: []byte(strings.Join(tt.old, " "))},
			}})
			expect(t, "reply", tt.want, replied(got, recorder))
		})
	}
}
