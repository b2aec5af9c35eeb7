package finalizers

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

// Pods that have an address already are held one after the other.
func TestPodsAreBackfilledAtAPace(t *testing.T) {
	s := newStage(t, pool(), fixture.Node("n1"), fixture.Pod("web-0", "n1", fixture.UID("u1"), running), fixture.Pod("web-1", "n1", fixture.UID("u2"), running),
		block("default", 0, "n1", entry(1, "h1", "web-0", "u1"), entry(2, "h2", "web-1", "u2")))
	s.settings = append(s.settings, func(r *Reconcilers) { r.Pod.Backfill = rate.NewLimiter(2, 1) })
	s.start()
	var got []outcome
	for _, name := range []string{"default/web-0", "default/web-1", "default/web-1"} {
		got = append(got, s.outcome(&corev1.Pod{}, name))
		s.pass(got[len(got)-1].Again)
	}
	want := []outcome{
		{Calls: []string{puttingOn}, Held: "u1", Recorded: "h1 h2"},
		{Again: 500 * time.Millisecond, Held: "u1", Recorded: "h1 h2"},
		{Calls: []string{`PATCH pods default/web-1 {"metadata":{"uid":"u2","finalizers":["ipam.oakum.dev/addresses"]}}`}, Held: "u1 u2", Recorded: "h1 h2"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("looks (-want +got):\n%s", diff)
	}
}

// endedPod returns a stage on which pod web-0 of uid u1 has ended and its addresses are recorded.
func endedPod(t *testing.T, entries ...func(*v1alpha1.AddressBlock)) *stage {
	return play(t, pool(), fixture.Node("n1"), fixture.Pod("web-0", "n1", fixture.UID("u1"), running, held, deleted(0), fixture.Ended), block("default", 0, "n1", entries...))
}

func TestPodIsTriedAgain(t *testing.T) {
	broken := errors.New("the API server is on fire")
	first, second := fmt.Sprintf(released, "10.0.0.1", "h1"), fmt.Sprintf(released, "10.0.0.2", "h2")
	tests := map[string]struct {
		// fails is the first call of its kind that does; perhaps it is carried out all the same.
		fails      string
		carriedOut bool
		// lags: the process does not learn what it did itself.
		lags bool
		want []outcome
	}{
		"what could not be given back is, and what was given back is not told again": {
			fails: "PATCH addressblocks",
			want: []outcome{
				{
					Calls: []string{giving, giving2},
					Events: []string{
						`Warning AddressReleaseFailed (Release) on Pod default/web-0 (uid u1) and AddressBlock default-0 spec.allocations{h1}: releasing 10.0.0.1 (double, handle h1): releasing offset 1 of AddressBlock "default-0": the API server is on fire`,
						second,
					},
					Err:  `releasing offset 1 of AddressBlock "default-0": the API server is on fire`,
					Held: "u1", Recorded: "h1",
				},
				{Calls: []string{giving, takingOff}, Events: []string{first}},
			},
		},
		"the finalizer that could not be taken off is": {
			fails: "PATCH pods",
			want: []outcome{
				{
					Calls: []string{giving, giving, takingOff},
					Events: []string{
						first, second,
						"Warning FinalizerStuck (LetGo) on Pod default/web-0 (uid u1): taking finalizer ipam.oakum.dev/addresses off: the API server is on fire",
					},
					Err:  "the API server is on fire",
					Held: "u1",
				},
				{Calls: []string{takingOff}},
			},
		},
		"the finalizer that came off although the answer was lost needs no second try": {
			fails: "PATCH pods", carriedOut: true,
			want: []outcome{{Calls: []string{giving, giving, takingOff}, Events: []string{first, second}}, {}},
		},
		"so it is if the cache still shows what was given back, which is not told twice": {
			fails: "PATCH pods", lags: true,
			want: []outcome{
				{
					Calls: []string{giving, giving, takingOff},
					Events: []string{
						first, second,
						"Warning FinalizerStuck (LetGo) on Pod default/web-0 (uid u1): taking finalizer ipam.oakum.dev/addresses off: the API server is on fire",
					},
					Err:  "the API server is on fire",
					Held: "u1",
				},
				{Calls: []string{takingOff}},
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := endedPod(t, entry(1, "h1", "web-0", "u1"), entry(2, "h2", "web-0", "u1"))
			failed := false
			s.fault = func(c call) (error, bool) {
				if failed || c.verb+" "+c.resource != tt.fails {
					return nil, false
				}
				failed = true
				return broken, tt.carriedOut
			}
			got := []outcome{s.outcome(&corev1.Pod{}, "default/web-0")}
			if !tt.lags {
				s.catchUp()
			}
			got = append(got, s.outcome(&corev1.Pod{}, "default/web-0"))
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("looks (-want +got):\n%s", diff)
			}
		})
	}
}

// What a manager that ends could not finish, the next one does.
func TestAManagerThatEndsTellsOfNoTrouble(t *testing.T) {
	for name, call := range map[string]string{"while it releases": "PATCH addressblocks", "while it takes a finalizer off": "PATCH pods"} {
		t.Run(name, func(t *testing.T) {
			s := endedPod(t)
			if call == "PATCH addressblocks" {
				s = endedPod(t, entry(1, "h1", "web-0", "u1"))
			}
			s.fault = failing(map[string]error{call: context.Canceled})
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := s.Pod.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: "web-0"}})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("the error is %v", err)
			}
			if len(s.events) > 0 {
				t.Errorf("events: %v", s.events)
			}
		})
	}
}
