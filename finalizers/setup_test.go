package finalizers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/fixture"
)

func TestSetupConnectsEveryReconciler(t *testing.T) {
	s := play(t)
	mgr, err := ctrl.NewManager(&rest.Config{Host: "http://127.0.0.1:1"}, ctrl.Options{
		Scheme: s.scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)}, // The names of controllers are taken for as long as the tests run.
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Setup(mgr, s.witness, s.Reconcilers); err != nil {
		t.Error(err)
	}
}

// What failed is tried again soon enough to meet a deadline, however often it failed.
func TestRetries(t *testing.T) {
	limiter := retries()
	var waits []time.Duration
	for range 30 {
		waits = append(waits, limiter.When(reconcile.Request{}))
	}
	if waits[0] != 5*time.Millisecond || waits[1] != 10*time.Millisecond || waits[29] != 5*time.Second {
		t.Errorf("waits are %s", waits)
	}
}

func TestChanged(t *testing.T) {
	pod := func(knobs ...func(*corev1.Pod)) client.Object {
		return cluster.Observe(fixture.Pod("web-0", "n1", knobs...))
	}
	node := func(knobs ...func(*corev1.Node)) client.Object {
		return cluster.ObserveNode(fixture.Node("n1", knobs...))
	}
	tests := map[string]struct {
		old, now client.Object
		want     bool
	}{
		"a pod of which nothing changed": {pod(running), pod(running), false},
		"a pod of which other things changed": {pod(running), pod(running, func(p *corev1.Pod) {
			p.ResourceVersion, p.Labels = "2", map[string]string{"a": "b"}
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady})
		}), false},
		"a pod that was replaced":              {pod(fixture.UID("u1")), pod(fixture.UID("u2")), true},
		"a pod that is held":                   {pod(), pod(held), true},
		"a pod that somebody else holds":       {pod(held), pod(held, func(p *corev1.Pod) { p.Finalizers = p.Finalizers[:1] }), true},
		"a pod that was deleted":               {pod(running), pod(running, deleted(0)), true},
		"a pod that was scheduled":             {pod(unscheduled), pod(), true},
		"a pod that names an address":          {pod(), pod(running), true},
		"a pod that has ended":                 {pod(running), pod(fixture.Ended), true},
		"a pod that PodGC has forged":          {pod(fixture.Ended), pod(fixture.Ended, fixture.CollectedByPodGC), true},
		"a node of which nothing changed":      {node(), node(), false},
		"a node of which other things changed": {node(), node(func(n *corev1.Node) { n.ResourceVersion, n.Spec.PodCIDRs = "2", []string{"10.1.0.0/24"} }), false},
		"a node that is held":                  {node(), node(heldNode), true},
		"a node that was deleted":              {node(heldNode), node(heldNode, goingNode(0)), true},
		"a node that is not ready":             {node(), node(fixture.NotReady), true},
		"a node that is out of service":        {node(), node(fixture.OutOfService), true},
		"anything else":                        {pool(), pool(), true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := changed().Update(event.UpdateEvent{ObjectOld: tt.old, ObjectNew: tt.now}); got != tt.want {
				t.Errorf("passes: %t, want %t", got, tt.want)
			}
			for verb, passes := range map[string]bool{
				"created": changed().Create(event.CreateEvent{Object: tt.now}), "deleted": changed().Delete(event.DeleteEvent{Object: tt.now}),
			} {
				if !passes {
					t.Errorf("does not pass when %s", verb)
				}
			}
		})
	}
}

func TestEndingOn(t *testing.T) {
	s := play(t, fixture.Node("n1"),
		fixture.Pod("ending", "n1", running, held, deleted(0)), fixture.Pod("ended", "n1", running, held, fixture.Ended),
		fixture.Pod("alive", "n1", running, held), fixture.Pod("not-held", "n1", running, func(p *corev1.Pod) { p.Finalizers = []string{"example.org/guard"} }, deleted(0)),
		fixture.Pod("elsewhere", "n2", running, held, deleted(0)))
	want := map[string]bool{"default/ending": true, "default/ended": true}
	if diff := cmp.Diff(want, names(endingOn(s.witness)(t.Context(), s.witness.CachedNode("n1")))); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
}

func TestUnheld(t *testing.T) {
	web, node := fixture.Pod("web-0", "n1", fixture.UID("u1"), running), fixture.Node("n1", func(n *corev1.Node) { n.UID = "u4" })
	s := play(t, web, node, fixture.Pod("held", "n1", fixture.UID("u2"), running, held), fixture.Pod("replaced", "n1", fixture.UID("u3"), running))
	b := block("default", 0, "n1",
		entry(0, "h1", "web-0", "u1"), entry(1, "h2", "held", "u2"), entry(2, "h3", "replaced", "u0"), entry(3, "h4", "unknown", "u5"),
		fixture.Entry(4, "h5", fixture.OfNode(node)), fixture.Entry(5, "h6", fixture.External("router")))
	want := map[string]bool{"default/web-0": true}
	if diff := cmp.Diff(want, names(unheld(s.witness)(t.Context(), b))); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
}

func TestBlocksOf(t *testing.T) {
	s := play(t, pool(), block("default", 0, "n1"), block("default", 3, "n2"), block("other", 1, "n1"))
	want := map[string]bool{"default-0": true, "default-3": true}
	if diff := cmp.Diff(want, names(blocksOf(s.Pool.Blocks)(t.Context(), pool()))); diff != "" {
		t.Errorf("blocks (-want +got):\n%s", diff)
	}
	if got := blocksOf(unreadable{})(t.Context(), pool()); got != nil {
		t.Errorf("of what cannot be read: %v", got)
	}
}

// unreadable are blocks that cannot be listed.
type unreadable struct{ *records }

func (unreadable) Blocks(context.Context, backends.Query) ([]ipam.Block, error) {
	return nil, errors.New("the cache is not there yet")
}

func names(requests []reconcile.Request) map[string]bool {
	found := map[string]bool{}
	for _, r := range requests {
		found[strings.TrimPrefix(r.String(), "/")] = true
	}
	return found
}

func TestGathered(t *testing.T) {
	alive, ending := block("default", 0, "n1"), block("default", 0, "n1", going)
	tests := map[string]struct {
		happens func(blockHandler, queue)
		want    string
	}{
		"a block that comes": {
			happens: func(h blockHandler, q queue) {
				h.Create(t.Context(), event.TypedCreateEvent[*v1alpha1.AddressBlock]{Object: alive}, q)
			},
			want: "default after 1s",
		},
		"a block that came while it was being deleted": {
			happens: func(h blockHandler, q queue) {
				h.Create(t.Context(), event.TypedCreateEvent[*v1alpha1.AddressBlock]{Object: ending}, q)
			},
			want: "default at once",
		},
		"a block that changes": {
			happens: func(h blockHandler, q queue) {
				h.Update(t.Context(), event.TypedUpdateEvent[*v1alpha1.AddressBlock]{ObjectOld: alive, ObjectNew: alive}, q)
			},
			want: "default after 1s",
		},
		"a block that is deleted": {
			happens: func(h blockHandler, q queue) {
				h.Update(t.Context(), event.TypedUpdateEvent[*v1alpha1.AddressBlock]{ObjectOld: alive, ObjectNew: ending}, q)
			},
			want: "default at once",
		},
		"a block that is gone": {
			happens: func(h blockHandler, q queue) {
				h.Delete(t.Context(), event.TypedDeleteEvent[*v1alpha1.AddressBlock]{Object: alive}, q)
			},
			want: "default at once",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			q := &requested{}
			tt.happens(gathered(func(b *v1alpha1.AddressBlock) types.NamespacedName { return types.NamespacedName{Name: b.Spec.Pool} }), q)
			if diff := cmp.Diff([]string{tt.want}, q.requests); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}

type (
	blockHandler = handler.TypedEventHandler[*v1alpha1.AddressBlock, reconcile.Request]
	queue        = workqueue.TypedRateLimitingInterface[reconcile.Request]
)

// requested is a queue that notes what is put into it.
type requested struct {
	queue
	requests []string
}

func (q *requested) Add(r reconcile.Request) { q.requests = append(q.requests, r.Name+" at once") }

func (q *requested) AddAfter(r reconcile.Request, d time.Duration) {
	q.requests = append(q.requests, fmt.Sprintf("%s after %s", r.Name, d))
}
