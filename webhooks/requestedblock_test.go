package webhooks

import (
	"context"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/fixture"
)

// reply is what another program gets to see, and what is recorded of it.
type reply struct {
	Allowed  bool
	Code     int32
	Reason   metav1.StatusReason
	Message  string
	Warnings admission.Warnings
	Events   int
}

// passed is the reply to a write that is admitted.
func passed(recorded int, warnings ...string) reply {
	return reply{Allowed: true, Code: http.StatusOK, Warnings: warnings, Events: recorded}
}

// refused is the reply to a write that is not.
func refused(message string) reply {
	return reply{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: message}
}

func replied(r admission.Response, recorder *events.FakeRecorder) reply {
	return reply{r.Allowed, r.Result.Code, r.Result.Reason, r.Result.Message, r.Warnings, len(recorder.Events)}
}

func TestRequestedBlock(t *testing.T) {
	const (
		gone = `stale-block-request: BlockRequest "req-p-n1" is gone: a block for it could be left over, since node "n1" asks anew while it needs one`
		slow = `stale-block-request: BlockRequest "req-p-n1" is 6.5s old: a block for it could be left over, since node "n1" asks anew while it needs one`
		room = `second-unfilled-block: node "n1" has AddressBlock "p-0" already, and no pod names an address of it: one of the two could be left over`
	)
	live := &ipam.Request{UID: "r1", Created: noon().Add(-5 * time.Second)}
	first := []ipam.Allocation{{
		Owner: ipam.Owner{Kind: ipam.OwnerAgent, Name: "n1", Node: "n1"}, Places: []ipam.Place{{Pool: "p", Block: "p-0", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}},
	}}
	user := pod("web-0", "n1", "w0", fixture.Running("10.0.0.1"))
	warn := config.Backend{Mode: config.ModeWarn}
	with := func(rules map[string]config.Effect) config.Backend {
		return config.Backend{Mode: config.ModeEnforce, Rules: rules}
	}
	neither := map[string]config.Effect{"stale-block-request": config.EffectOff, "second-unfilled-block": config.EffectOff}
	tests := map[string]struct {
		settings config.Backend
		request  *ipam.Request
		held     []ipam.Allocation
		pods     []*corev1.Pod
		took     time.Duration
		// unread, unheard and unlisted: the object, the request and the node's blocks cannot be read.
		unread, unheard, unlisted bool
		dryRun                    bool
		want                      reply
	}{
		"a block that is waited for":                    {settings: enforce(), request: live, want: passed(0)},
		"a block that nobody waits for":                 {settings: enforce(), want: refused(gone)},
		"the answer's own time counts":                  {settings: enforce(), request: live, took: 1500 * time.Millisecond, want: refused(slow)},
		"a refusal in a dry run is the same":            {settings: enforce(), dryRun: true, want: refused(gone)},
		"a second block is warned about":                {settings: enforce(), request: live, held: first, want: passed(1, room)},
		"a dry run records nothing":                     {settings: enforce(), request: live, held: first, dryRun: true, want: passed(0, room)},
		"not if a pod uses the first":                   {settings: enforce(), request: live, held: first, pods: []*corev1.Pod{user}, want: passed(0)},
		"in Warn nothing is refused":                    {settings: warn, held: first, want: passed(2, room, gone)},
		"in Observe nobody looks":                       {settings: config.Backend{Mode: config.ModeObserve}, unread: true, unheard: true, unlisted: true, want: passed(0)},
		"nobody looks for what is off":                  {settings: with(neither), unheard: true, unlisted: true, want: passed(0)},
		"what cannot be read is admitted":               {settings: enforce(), unread: true, want: passed(0, "not judged: reading the AddressBlock: the API server is on fire")},
		"a request that cannot be read is waited for":   {settings: enforce(), unheard: true, want: passed(0, "not judged: the API server is on fire")},
		"blocks that cannot be listed change no answer": {settings: enforce(), unlisted: true, want: reply{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: gone, Warnings: admission.Warnings{"not judged: the API server is on fire"}}},
		"a refusal is recorded alone":                   {settings: enforce(), held: first, want: reply{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: gone, Warnings: admission.Warnings{room}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			total, err := NewAdmissionTotal(prometheus.NewRegistry())
			check(t, err)
			recorder := &events.FakeRecorder{Events: make(chan string, 10)}
			now := ipam.Moment{Wall: noon(), Steady: time.Hour}
			failing := func(fails bool) error {
				if fails {
					return broken()
				}
				return nil
			}
			w := RequestedBlock{
				Kind: "AddressBlock", Resource: "addressblocks", Effects: NewEffects("coil", tt.settings, total, recorder),
				Read: func(raw []byte) (ipam.Grant, error) {
					expect(t, "object", "the block", string(raw))
					return ipam.Grant{Pool: "p", Node: "n1", Request: "req-p-n1", RequestUID: "r1", Created: noon()}, failing(tt.unread)
				},
				Request: func(_ context.Context, name string) (*ipam.Request, error) {
					expect(t, "request", "req-p-n1", name)
					now.Steady += tt.took
					return tt.request, failing(tt.unheard)
				},
				Held: func(_ context.Context, agent ipam.Owner) ([]ipam.Allocation, error) {
					expect(t, "agent", ipam.Owner{Kind: ipam.OwnerAgent, Name: "n1", Node: "n1"}, agent)
					return tt.held, failing(tt.unlisted)
				},
				Pods: func(node string) []*cluster.Pod {
					expect(t, "node", "n1", node)
					var pods []*cluster.Pod
					for _, p := range tt.pods {
						pods = append(pods, cluster.Observe(p))
					}
					return pods
				},
				Clock: func() ipam.Moment { return now },
			}
			got := w.Handle(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
				Name: "p-1", DryRun: &tt.dryRun, Object: runtime.RawExtension{Raw: []byte("the block")},
			}})
			expect(t, "reply", tt.want, replied(got, recorder))
		})
	}
}
