package finalizers

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/test/fixture"
)

// wire is an informer that tells what a test tells it.
type wire struct {
	cache.Informer
	handler toolscache.ResourceEventHandler
	err     error
}

func (w *wire) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	w.handler = h
	return nil, w.err
}

func TestTerminating(t *testing.T) {
	pod := func(name string, knobs ...func(*corev1.Pod)) client.Object {
		return cluster.Observe(fixture.Pod(name, "n1", knobs...))
	}
	guarded := func(p *corev1.Pod) { p.Finalizers = []string{"example.org/guard"} }
	going := func(p *v1alpha1.AddressPool) { p.DeletionTimestamp = ago(time.Hour) }
	type told = func(pods, pools toolscache.ResourceEventHandler)
	all := func(those ...client.Object) told {
		return func(pods, _ toolscache.ResourceEventHandler) {
			for _, o := range those {
				pods.OnAdd(o, true)
			}
		}
	}
	then := func(steps ...told) told {
		return func(pods, pools toolscache.ResourceEventHandler) {
			for _, step := range steps {
				step(pods, pools)
			}
		}
	}
	type waiting struct {
		count  float64
		oldest *metav1.Time
	}
	tests := map[string]struct {
		told        told
		pods, pools waiting
	}{
		"nobody waits": {told: all(pod("web-0", held))},
		"a pod that is going waits": {
			told: all(pod("web-0", held, deleted(time.Minute))),
			pods: waiting{1, ago(time.Minute)},
		},
		"a pod that waits for somebody else does not count": {told: all(pod("web-0", guarded, deleted(time.Minute)))},
		"the one that was deleted first is the oldest": {
			told: all(pod("web-0", held, deleted(time.Minute)), pod("web-1", held, deleted(time.Hour)), pod("web-2", held, deleted(-time.Minute))),
			pods: waiting{3, ago(time.Hour)},
		},
		"a pool is another kind": {
			told:  func(_, pools toolscache.ResourceEventHandler) { pools.OnAdd(pool(going), true) },
			pools: waiting{1, ago(time.Hour)},
		},
		"a pod that is deleted while somebody looks waits": {
			told: then(all(pod("web-0", held)), func(pods, _ toolscache.ResourceEventHandler) {
				pods.OnUpdate(pod("web-0", held), pod("web-0", held, deleted(0)))
			}),
			pods: waiting{1, ago(0)},
		},
		"one that was let go does not wait, though somebody else holds it": {
			told: then(all(pod("web-0", held, deleted(0))), func(pods, _ toolscache.ResourceEventHandler) {
				pods.OnUpdate(pod("web-0", held, deleted(0)), pod("web-0", guarded, deleted(0)))
			}),
		},
		"one that is gone does not wait": {
			told: then(all(pod("web-0", held, deleted(0))), func(pods, _ toolscache.ResourceEventHandler) {
				pods.OnDelete(pod("web-0", held, deleted(0)))
			}),
		},
		"nor does one that must have gone while the watch was cut": {
			told: then(all(pod("web-0", held, deleted(0))), func(pods, _ toolscache.ResourceEventHandler) {
				pods.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "default/web-0", Obj: pod("web-0", held)})
			}),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			terminating, err := NewTerminating(registry)
			if err != nil {
				t.Fatal(err)
			}
			pods, pools := &wire{}, &wire{}
			if err := errors.Join(terminating.Watch("Pod", pods, 10*time.Minute), terminating.Watch("AddressPool", pools, 0)); err != nil {
				t.Fatal(err)
			}
			tt.told(pods.handler, pools.handler)
			want := map[string]float64{`oakum_finalizer_deadline_seconds kind="Pod"`: 600}
			for kind, w := range map[string]waiting{"Pod": tt.pods, "AddressPool": tt.pools} {
				want[`oakum_terminating_objects kind="`+kind+`"`] = w.count
				if w.oldest != nil {
					want[`oakum_terminating_oldest_timestamp_seconds kind="`+kind+`"`] = float64(w.oldest.Unix())
				}
			}
			if diff := cmp.Diff(want, metrics(t, registry)); diff != "" {
				t.Errorf("metrics (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhoCannotBeToldSaysSo(t *testing.T) {
	registry := prometheus.NewRegistry()
	terminating, err := NewTerminating(registry)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewTerminating(registry); err == nil {
		t.Error("the metrics can be registered twice")
	}
	const want = "watching Pods that are being deleted: the informer was stopped"
	if err := terminating.Watch("Pod", &wire{err: errors.New("the informer was stopped")}, 0); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
