package audit_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/audit"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
)

// desk is an audit at work, and all that it deals with.
type desk struct {
	*audit.Auditor
	t        *testing.T
	registry *prometheus.Registry
	now      ipam.Moment
	// recorded are the hand-outs, and stuck says which of them cannot be released, and why.
	recorded []ipam.Allocation
	stuck    map[string]error
	// seen is what the lists of owners show; live is what a live look shows, if that differs.
	seen ipam.Observation
	live *ipam.Observation
	// unlisted and unseen fail the lists, unlooked fails the live look.
	unlisted, unseen, unlooked error
	// calls are what was asked and done, events and lines what was told.
	calls, events, lines []string
	// mu guards calls where a test reads them while the audit goes on.
	mu sync.Mutex
}

// start is when every test begins.
func start() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) }

// sit returns an audit in Enforce of a cluster in which node n1 is ready, and pod witness lives on it. The functions
// change what the API server answers.
func sit(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) *desk {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	d := &desk{t: t, registry: prometheus.NewRegistry(), now: ipam.Moment{Wall: start()}, stuck: map[string]error{}}
	d.seen = ipam.Observation{
		PodsKnown: true, NodesKnown: true,
		Pods:  []ipam.Pod{{Namespace: "default", Name: "witness", UID: "uid-witness", Node: "n1", Phase: "Running"}},
		Nodes: []ipam.Node{{Name: "n1", UID: "uid-n1", Ready: ipam.ConditionTrue}},
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.LeakReport{}).
		WithObjects(objects...).WithInterceptorFuncs(funcs).Build()
	metrics, err := audit.NewMetrics(d.registry,
		counter(d.registry, "oakum_releases_total", "backend", "reason"), counter(d.registry, "oakum_release_errors_total", "backend"))
	if err != nil {
		t.Fatal(err)
	}
	d.Auditor = &audit.Auditor{
		Backend: records{d}, Witness: eyes{d}, Clock: func() ipam.Moment { return d.now }, Mode: config.ModeEnforce,
		Settings: config.Audit{
			Interval: metav1.Duration{Duration: 5 * time.Minute}, GracePeriod: metav1.Duration{Duration: 5 * time.Minute},
			Quarantine: metav1.Duration{Duration: 15 * time.Minute}, Pace: config.Pace{Fraction: 0.1, Minimum: 50},
		},
		Client: c, Live: c, Recorder: recorder{d}, Metrics: metrics, Identity: "oakum-0",
		Held: []schema.GroupVersionKind{
			corev1.SchemeGroupVersion.WithKind("PodList"), corev1.SchemeGroupVersion.WithKind("NodeList"),
			v1alpha1.SchemeGroupVersion.WithKind("AddressPoolList"), v1alpha1.SchemeGroupVersion.WithKind("AddressBlockList"),
		},
		Log: funcr.New(func(_, line string) { d.lines = append(d.lines, line) }, funcr.Options{}),
	}
	return d
}

func counter(r *prometheus.Registry, name string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name}, labels)
	r.MustRegister(c)
	return c
}

// restart puts a new process in the place of the old one.
func (d *desk) restart() {
	fresh := *d.Auditor
	d.Auditor = &audit.Auditor{
		Backend: fresh.Backend, Witness: fresh.Witness, Clock: fresh.Clock, Mode: fresh.Mode, Settings: fresh.Settings,
		Client: fresh.Client, Live: fresh.Live, Recorder: fresh.Recorder, Metrics: fresh.Metrics, Identity: fresh.Identity, Log: fresh.Log, Held: fresh.Held,
	}
}

// pass lets time go by.
func (d *desk) pass(took time.Duration) {
	d.now = ipam.Moment{Wall: d.now.Wall.Add(took), Steady: d.now.Steady + took}
}

// audits runs once and returns how long it wants to wait.
func (d *desk) audits() time.Duration {
	d.t.Helper()
	return d.Run(d.t.Context())
}

// twice runs, waits as long as any suspicion must last, and runs again.
func (d *desk) twice() {
	d.t.Helper()
	d.audits()
	d.pass(d.Settings.Quarantine.Duration)
	d.audits()
}

func (d *desk) note(call string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, call)
}

// did returns to what something was done since somebody asked.
func (d *desk) did(what string) (to []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.calls {
		if handle, is := strings.CutPrefix(c, what); is {
			to = append(to, handle)
		}
	}
	d.calls = nil
	return to
}

// left lists the handles that are still recorded.
func (d *desk) left() (handles []string) {
	for _, a := range d.recorded {
		handles = append(handles, a.Handle)
	}
	return handles
}

// report reads what the audit reported.
func (d *desk) report() v1alpha1.LeakReportStatus {
	d.t.Helper()
	var r v1alpha1.LeakReport
	if err := d.Client.Get(d.t.Context(), client.ObjectKey{Name: "native"}, &r); err != nil {
		d.t.Fatal(err)
	}
	return r.Status
}

// conditions tells the report's conditions in a line each.
func (d *desk) conditions() map[string]string {
	d.t.Helper()
	told := map[string]string{}
	for _, c := range d.report().Conditions {
		told[c.Type] = fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
	}
	return told
}

// lend records addresses in block b0 for a pod of that name on a node.
func (d *desk) lend(name, node string, offsets ...int) {
	a := ipam.Allocation{
		Backend: "native", Network: "default", Handle: name + "-eth0",
		Owner: ipam.Owner{Kind: ipam.OwnerPod, Namespace: "default", Name: name, UID: "uid-" + name, Node: node},
	}
	for _, o := range offsets {
		a.Places = append(a.Places, place("b0", o))
	}
	d.recorded = append(d.recorded, a)
}

// lendByName does as lend, and records neither the pod's UID nor its node.
func (d *desk) lendByName(name string, offsets ...int) {
	d.lend(name, "", offsets...)
	o := &d.recorded[len(d.recorded)-1].Owner
	o.UID, o.ContainerID = "", name+"-sandbox"
}

func place(block string, offset int) ipam.Place {
	return ipam.Place{Pool: "default", Block: block, Offset: offset, Addresses: []netip.Addr{addr(offset)}, Revision: "1"}
}

func addr(offset int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 0, byte(offset >> 8), byte(offset)})
}

// running is a pod that lives and has addresses.
func running(name, node string, offsets ...int) ipam.Pod {
	p := ipam.Pod{Namespace: "default", Name: name, UID: "uid-" + name, Node: node, Phase: "Running", Sandbox: ipam.ConditionTrue}
	for _, o := range offsets {
		p.Addresses = append(p.Addresses, addr(o))
	}
	return p
}

// ended is a pod of node n1 whose kubelet has reported its end.
func ended(name string) ipam.Pod {
	p := running(name, "n1")
	p.Phase, p.ContainersTerminated, p.Sandbox = ipam.PhaseSucceeded, true, ipam.ConditionFalse
	return p
}

// records is the backend.
type records struct{ *desk }

func (r records) Name() string { return "native" }

func (r records) Allocations(context.Context) ([]ipam.Allocation, error) {
	r.note("list hand-outs")
	return slices.Clone(r.recorded), r.unlisted
}

func (r records) AllocationsOf(_ context.Context, o ipam.Owner) ([]ipam.Allocation, error) {
	r.note("list hand-outs of " + o.Name)
	return slices.DeleteFunc(slices.Clone(r.recorded), func(a ipam.Allocation) bool {
		return a.Owner.Name != o.Name || a.Owner.UID != "" && a.Owner.UID != o.UID
	}), r.unlisted
}

func (r records) LiveAllocationsOf(context.Context, ipam.Owner) ([]ipam.Allocation, error) {
	return nil, fmt.Errorf("nobody asks for this: %w", backends.ErrNotFound)
}

func (r records) Release(_ context.Context, a ipam.Allocation) error {
	r.note("release " + a.Handle)
	if err := r.stuck[a.Handle]; err != nil {
		return err
	}
	r.recorded = slices.DeleteFunc(r.recorded, func(other ipam.Allocation) bool { return other.ID() == a.ID() })
	return nil
}

func (r records) Record(_ context.Context, p ipam.Place) (backends.Object, error) {
	return backends.Object{APIVersion: "ipam.oakum.dev/v1alpha1", Kind: "AddressBlock", Name: p.Block, UID: "uid-" + p.Block}, nil
}

// eyes are the witness.
type eyes struct{ *desk }

func (e eyes) World(context.Context, []ipam.Allocation, ...string) (ipam.World, cluster.Census, error) {
	e.note("list owners")
	return ipam.NewWorld(e.seen), cluster.Census{Pods: len(e.seen.Pods), Nodes: len(e.seen.Nodes)}, e.unseen
}

func (e eyes) LiveLook(_ context.Context, a ipam.Allocation) (ipam.World, error) {
	e.note("look at " + a.Handle)
	if e.live != nil {
		return ipam.NewWorld(*e.live), e.unlooked
	}
	return ipam.NewWorld(e.seen), e.unlooked
}

// recorder keeps Events as people read them.
type recorder struct{ *desk }

func (r recorder) Eventf(about, _ runtime.Object, kind, reason, _, note string, args ...any) {
	o := about.(*corev1.ObjectReference)
	name := strings.TrimPrefix(o.Namespace+"/"+o.Name, "/")
	r.events = append(r.events, fmt.Sprintf("%s %s on %s %s (%s): %s", kind, reason, o.Kind, name, o.UID, fmt.Sprintf(note, args...)))
}
