package finalizers

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
)

// stage is an API server, the time, and one process of ours after the other.
type stage struct {
	*store
	now ipam.Moment
	// settings change the reconcilers of each process before it starts.
	settings []func(*Reconcilers)
	// fenced is the setting nodeDeletionMeansFenced.
	fenced bool
	*process
	// fault decides about a call of the process, after it is noted and before it is carried out. It returns what is the
	// answer instead, if that is not nil, and whether the call is carried out all the same.
	fault func(call) (answer error, carriedOut bool)
	// mu lets one call through at a time.
	mu sync.Mutex
	// calls are the writes that the process sent, and events what it said.
	calls  []call
	events []string
	// died: the process answers to nothing any more.
	died bool
	// lags: the process is not told of anything for now.
	lags bool
}

// process is one life of Oakum's: what it has been told, and the reconcilers.
type process struct {
	informers map[schema.GroupVersionKind]*informer
	witness   *cluster.Witness
	metrics   *prometheus.Registry
	Reconcilers
}

// noon is when every stage begins.
func noon() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) }

// ago returns a time before the stage begins.
func ago(d time.Duration) *metav1.Time { return &metav1.Time{Time: noon().Add(-d)} }

// newStage returns a stage with the objects on it, on which nothing runs yet.
func newStage(t tester, objects ...client.Object) *stage {
	s := &stage{now: ipam.Moment{Wall: noon(), Steady: time.Hour}}
	s.store = newStore(t, s.clock)
	s.put(objects...)
	return s
}

// play returns a stage with the objects on it and a process.
func play(t tester, objects ...client.Object) *stage {
	s := newStage(t, objects...)
	s.start()
	return s
}

func (s *stage) clock() ipam.Moment { return s.now }

// pass lets time go by, on both clocks.
func (s *stage) pass(d time.Duration) {
	s.now.Wall, s.now.Steady = s.now.Wall.Add(d), s.now.Steady+d
}

// start begins a new process, which remembers nothing and has been told everything.
func (s *stage) start() {
	s.Helper()
	if s.process != nil {
		for _, i := range s.informers {
			i.feed.Stop()
		}
	}
	s.process = &process{informers: map[schema.GroupVersionKind]*informer{}, metrics: prometheus.NewRegistry()}
	caches := &informertest.FakeInformers{InformersByGVK: map[schema.GroupVersionKind]toolscache.SharedIndexInformer{}, Scheme: s.scheme}
	for _, of := range kinds() {
		feed, err := s.tracker.Watch(s.resource(of), "", metav1.ListOptions{})
		s.must(err)
		i := &informer{
			SharedIndexInformer: toolscache.NewSharedIndexInformer(&toolscache.ListWatch{}, of, 0, toolscache.Indexers{}),
			feed:                feed,
			observe:             func(o runtime.Object) client.Object { return observe(s.typed(o)) },
		}
		s.informers[s.kind(of)], caches.InformersByGVK[s.kind(of)] = i, i
	}
	live, manager := s.liveReader(), s.managerClient()
	var err error
	s.witness, err = cluster.NewWitness(s.Context(), caches, live, s.clock, cluster.Settings{NodeDeletionMeansFenced: s.fenced, Quarantine: 15 * time.Minute})
	s.must(err)
	voice, err := newVoice(s, logr.Discard(), s.metrics)
	s.must(err)
	double := &records{
		pools: s.informers[s.kind(&v1alpha1.AddressPool{})].GetIndexer(), blocks: s.informers[s.kind(&v1alpha1.AddressBlock{})].GetIndexer(),
		live: live, writer: manager,
	}
	several := &backends.Several{}
	several.Add(double)
	s.Reconcilers = Reconcilers{
		Pod: &Pod{
			Records: several, Witness: s.witness, Client: manager, Clock: s.clock, Voice: voice, Wanted: true,
			ExcludedNamespaces: []string{"kube-system"}, Deadline: 10 * time.Minute, Backfill: rate.NewLimiter(rate.Inf, 1),
		},
		Node:  &Node{Blocks: double, Witness: s.witness, Client: manager, Clock: s.clock, Voice: voice, Wanted: true, Deadline: 30 * time.Second},
		Pool:  &AddressPool{Blocks: double, Client: manager, Clock: s.clock, Voice: voice, Wanted: true},
		Block: &AddressBlock{Blocks: double, Witness: s.witness, Client: manager, Clock: s.clock, Voice: voice, Wanted: true, Grace: 5 * time.Minute},
		Claim: &Claim{Blocks: double, Client: manager, Clock: s.clock, Namespace: "oakum-system"},
	}
	for _, set := range s.settings {
		set(&s.Reconcilers)
	}
	s.catchUp()
}

// observe returns an object as the manager's cache keeps it.
func observe(o client.Object) client.Object {
	switch o := o.(type) {
	case *corev1.Pod:
		return cluster.Observe(o)
	case *corev1.Node:
		return cluster.ObserveNode(o)
	}
	return o
}

// catchUp tells the process of everything that has happened.
func (s *stage) catchUp() {
	for _, i := range s.informers {
		for i.next() {
		}
	}
}

// reconcile lets the process look at an object, named as "name" or "namespace/name", with what it knows.
func (s *stage) reconcile(of client.Object, name string) (reconcile.Result, error) {
	req := reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
	if namespace, name, found := strings.Cut(name, "/"); found {
		req.NamespacedName = types.NamespacedName{Namespace: namespace, Name: name}
	}
	return s.reconciler(of).Reconcile(s.Context(), req)
}

func (s *stage) reconciler(of client.Object) reconcile.Reconciler {
	switch of.(type) {
	case *corev1.Pod:
		return s.Pod
	case *corev1.Node:
		return s.Node
	case *v1alpha1.AddressPool:
		return s.Pool
	case *v1alpha1.AddressBlock:
		return s.Block
	case *coordinationv1.Lease:
		return s.Claim
	}
	s.Fatalf("nothing reconciles %T", of)
	return nil
}

// Eventf implements events.EventRecorder.
func (s *stage) Eventf(about, related runtime.Object, kind, reason, action, note string, args ...any) {
	ref := about.(*corev1.ObjectReference)
	of := ""
	if r, ok := related.(*corev1.ObjectReference); ok && r != nil {
		of = fmt.Sprintf(" and %s %s %s", r.Kind, r.Name, r.FieldPath)
	}
	s.events = append(s.events, fmt.Sprintf("%s %s (%s) on %s %s (uid %s)%s: %s", kind, reason, action,
		ref.Kind, strings.TrimPrefix(ref.Namespace+"/"+ref.Name, "/"), ref.UID, of, fmt.Sprintf(note, args...)))
}

// outcome is all that one look at an object does, and what it leaves.
type outcome struct {
	Calls, Events []string
	Again         time.Duration
	Err           string
	// Held are the UIDs of the pods that are held, and Recorded the handles that are recorded, with spaces between.
	Held, Recorded string
}

// outcome lets the process look at an object with what it knows, and tells what that did.
func (s *stage) outcome(of client.Object, name string) outcome {
	s.calls, s.events = nil, nil
	result, err := s.reconcile(of, name)
	o := outcome{Events: s.events, Again: result.RequeueAfter}
	for _, c := range s.calls {
		o.Calls = append(o.Calls, c.String())
	}
	if err != nil {
		o.Err = err.Error()
	}
	var held, recorded []string
	for _, p := range all(s.store, &corev1.Pod{}) {
		if slices.Contains(p.Finalizers, v1alpha1.AddressesFinalizer) {
			held = append(held, string(p.UID))
		}
	}
	for _, b := range all(s.store, &v1alpha1.AddressBlock{}) {
		for _, a := range b.Spec.Allocations {
			recorded = append(recorded, a.Handle)
		}
	}
	slices.Sort(held)
	slices.Sort(recorded)
	o.Held, o.Recorded = strings.Join(held, " "), strings.Join(recorded, " ")
	return o
}

// failing answers calls with errors: those whose verb and resource are a key, or whose verb, resource and name.
func failing(answers map[string]error) func(call) (error, bool) {
	return func(c call) (error, bool) {
		kind := c.verb + " " + c.resource
		return cmp.Or(answers[kind], answers[kind+" "+c.name]), false
	}
}
