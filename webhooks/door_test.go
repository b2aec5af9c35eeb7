package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/fixture"
)

// noon is when everything happens.
func noon() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) }

// known tells who knows an object.
type known struct {
	client.Object
	live, cached bool
}

// live is an object that no cache has seen yet, cached one that is gone, or is otherwise by now.
func live(o client.Object) known   { return known{o, true, false} }
func cached(o client.Object) known { return known{o, false, true} }
func both(o client.Object) known   { return known{o, true, true} }

// door is the native webhooks, before a cluster.
type door struct {
	hooks   map[string]*admission.Webhook
	blocks  AddressBlock
	api     client.WithWatch
	records *records
	events  *events.FakeRecorder
	metrics *prometheus.Registry
	now     time.Time
	// before has what happens right before the next call of that kind, such as "create Lease". An error is the answer.
	before map[string]func() error
	// writes are the writes that reached the API server, patches with what they say.
	writes []string
}

func enforce() config.Backend { return config.Backend{Mode: config.ModeEnforce, PodFinalizers: true} }

func newDoor(t testing.TB, settings config.Backend, objects ...known) *door {
	d := &door{
		hooks: map[string]*admission.Webhook{}, before: map[string]func() error{}, now: noon(),
		records: &records{pools: map[string]ipam.Pool{}, cached: map[string]ipam.Block{}, live: map[string]ipam.Block{}},
		events:  &events.FakeRecorder{Events: make(chan string, 100), Verbose: true},
		metrics: prometheus.NewRegistry(),
	}
	scheme := runtime.NewScheme()
	check(t, clientgoscheme.AddToScheme(scheme))
	check(t, v1alpha1.AddToScheme(scheme))
	builder := fake.NewClientBuilder().WithScheme(scheme).WithTypeConverters(managedfields.NewDeducedTypeConverter()).
		WithInterceptorFuncs(d.interceptors())
	pods, nodes := informer(&corev1.Pod{}), informer(&corev1.Node{})
	for _, o := range objects {
		switch object := o.Object.(type) {
		case *v1alpha1.AddressPool:
			d.records.pools[object.Name], _ = object.Law()
		case *v1alpha1.AddressBlock:
			if o.live {
				d.records.live[object.Name] = object.Law()
			}
			if o.cached {
				d.records.cached[object.Name] = object.Law()
			}
			continue
		}
		if o.live {
			builder.WithObjects(o.Object)
		}
	}
	d.api = builder.Build()
	witness, err := cluster.NewWitness(t.Context(), informers{pods: pods, nodes: nodes}, d.api, d.clock, cluster.Settings{})
	check(t, err)
	for _, o := range objects {
		switch object := o.Object.(type) {
		case *corev1.Pod:
			if o.cached {
				check(t, pods.GetIndexer().Add(cluster.Observe(object)))
			}
		case *corev1.Node:
			if o.cached {
				check(t, nodes.GetIndexer().Add(cluster.ObserveNode(object)))
			}
		}
	}
	total, err := NewAdmissionTotal(d.metrics)
	check(t, err)
	effects := NewEffects("native", settings, total, d.events)
	d.blocks = AddressBlock{
		Records: d.records, Witness: witness, Effects: effects, Clock: d.clock,
		Owners: Owners{Witness: witness, Client: d.api, ExcludedNamespaces: []string{"kube-system"}},
		Claims: Claims{Client: d.api, Live: d.api, Namespace: "oakum-system", Clock: d.clock},
	}
	Register(server{hooks: d.hooks}, scheme, AddressPool{Records: d.records, Witness: witness, Live: d.api, Effects: effects}, d.blocks, Pod{})
	return d
}

func (d *door) clock() ipam.Moment { return ipam.Moment{Wall: d.now} }

// server remembers what is registered.
type server struct {
	webhook.Server
	hooks map[string]*admission.Webhook
}

func (s server) Register(path string, hook http.Handler) { s.hooks[path] = hook.(*admission.Webhook) }

// informers is a cache of which a witness takes the informers alone.
type informers struct {
	cache.Cache
	pods, nodes toolscache.SharedIndexInformer
}

func (i informers) GetInformer(_ context.Context, object client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	if _, ok := object.(*corev1.Pod); ok {
		return i.pods, nil
	}
	return i.nodes, nil
}

func informer(object runtime.Object) toolscache.SharedIndexInformer {
	return toolscache.NewSharedIndexInformer(&toolscache.ListWatch{}, object, 0, toolscache.Indexers{})
}

// interceptors notes the writes and lets things happen before a call.
func (d *door) interceptors() interceptor.Funcs {
	called := func(verb string, object any) error {
		_, kind, _ := strings.Cut(fmt.Sprintf("%T", object), ".")
		call := verb + " " + kind
		if f := d.before[call]; f != nil {
			delete(d.before, call)
			if err := f(); err != nil {
				return err
			}
		}
		if verb != "get" && verb != "list" {
			d.writes = append(d.writes, call)
		}
		return nil
	}
	return interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, name client.ObjectKey, object client.Object, options ...client.GetOption) error {
			if err := called("get", object); err != nil {
				return err
			}
			return c.Get(ctx, name, object, options...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if err := called("list", list); err != nil {
				return err
			}
			return c.List(ctx, list, options...)
		},
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			if err := called("create", object); err != nil {
				return err
			}
			return c.Create(ctx, object, options...)
		},
		Update: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.UpdateOption) error {
			if err := called("update", object); err != nil {
				return err
			}
			return c.Update(ctx, object, options...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if err := called("patch", object); err != nil {
				return err
			}
			data, err := patch.Data(object)
			if err != nil {
				return err
			}
			d.writes[len(d.writes)-1] += " " + string(data)
			return c.Patch(ctx, object, patch, options...)
		},
	}
}

// records answers what the webhooks ask of backends.Blocks, from values.
type records struct {
	port
	pools        map[string]ipam.Pool
	cached, live map[string]ipam.Block
	// broken is the answer to everything, if it is not nil; to the method that is named, if one is.
	broken error
	method string
}

func (r *records) answer(method string) error {
	if r.method == "" || r.method == method {
		return r.broken
	}
	return nil
}

// port is backends.Blocks under a name that is not that of a method.
type port interface{ backends.Blocks }

func (r *records) Pool(_ context.Context, name string) (ipam.Pool, error) {
	return found(r.pools, name, r.answer("Pool"))
}

func (r *records) Block(_ context.Context, name string) (ipam.Block, error) {
	return found(r.cached, name, r.answer("Block"))
}

func (r *records) LiveBlock(_ context.Context, name string) (ipam.Block, error) {
	return found(r.live, name, r.answer("LiveBlock"))
}

// Blocks fails if it is asked for every block that there is: no single write is worth that.
func (r *records) Blocks(_ context.Context, q backends.Query) ([]ipam.Block, error) {
	if q == (backends.Query{}) {
		return nil, errors.New("asked for every block")
	}
	return selected(r.cached, q), r.answer("Blocks")
}

func (r *records) LiveBlocks(_ context.Context, q backends.Query) ([]ipam.Block, error) {
	return selected(r.live, q), r.answer("LiveBlocks")
}

func found[T any](stored map[string]T, name string, broken error) (T, error) {
	object, ok := stored[name]
	switch {
	case broken != nil:
		return *new(T), broken
	case !ok:
		return object, fmt.Errorf("%s: %w", name, backends.ErrNotFound)
	}
	return object, nil
}

func selected(stored map[string]ipam.Block, q backends.Query) []ipam.Block {
	var blocks []ipam.Block
	for _, name := range slices.Sorted(maps.Keys(stored)) {
		b := stored[name]
		if (q.Pool == "" || q.Pool == b.Pool) && (q.Node == "" || q.Node == b.Node) &&
			(q.Handle == "" || slices.ContainsFunc(b.Entries, func(e ipam.Entry) bool { return e.Handle == q.Handle })) {
			blocks = append(blocks, b)
		}
	}
	return blocks
}

// answer is what whoever writes gets to see.
type answer struct {
	Code    int32
	Message string
	// Causes are those of an Invalid: field, type, message.
	Causes   []string
	Warnings []string
	// Again: the client is asked to try again, since the answer may be another one soon.
	Again bool
}

// admitted is the answer to a write that breaks no rule.
func admitted(warnings ...string) answer { return answer{Code: http.StatusOK, Warnings: warnings} }

// forbidden and invalid are refusals of a block named p-0.
func forbidden(why string) answer {
	return answer{Code: http.StatusForbidden, Message: `addressblocks.ipam.oakum.dev "p-0" is forbidden: ` + why}
}

// again is a refusal that may be over soon.
func again(a answer) answer {
	a.Again = true
	return a
}

func invalid(why, cause string, causes ...string) answer {
	return answer{
		Code: http.StatusUnprocessableEntity, Message: `AddressBlock.ipam.oakum.dev "p-0" is invalid: ` + why, Causes: append([]string{cause}, causes...),
	}
}

func request(t testing.TB, verb admissionv1.Operation, old, object client.Object, dryRun bool) admission.Request {
	r := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{UID: "r1", Operation: verb, DryRun: &dryRun}}
	for into, o := range map[*runtime.RawExtension]client.Object{&r.OldObject: old, &r.Object: object} {
		if o == nil {
			continue
		}
		raw, err := json.Marshal(o)
		check(t, err)
		into.Raw, r.Name = raw, o.GetName()
	}
	return r
}

// judge asks a validating webhook.
func (d *door) judge(t testing.TB, path string, r admission.Request) answer {
	response := d.hooks[path].Handle(t.Context(), r)
	got := answer{Code: response.Result.Code, Message: response.Result.Message, Warnings: response.Warnings}
	if response.Allowed != (got.Code == http.StatusOK) {
		t.Errorf("allowed is %t, but the code %d", response.Allowed, got.Code)
	}
	if response.Result.Details != nil {
		got.Again = response.Result.Details.RetryAfterSeconds > 0
		for _, c := range response.Result.Details.Causes {
			got.Causes = append(got.Causes, fmt.Sprintf("%s, %s: %s", c.Field, c.Type, c.Message))
		}
	}
	return got
}

// mutate asks a mutating webhook, which must admit, and returns its patch.
func (d *door) mutate(t testing.TB, path string, r admission.Request) string {
	response := d.hooks[path].Handle(t.Context(), r)
	if !response.Allowed || response.Result.Code != http.StatusOK {
		t.Errorf("the answer is %+v", response.Result)
	}
	return string(response.Patch)
}

// heard returns the Events so far.
func (d *door) heard() []string {
	var heard []string
	for len(d.events.Events) > 0 {
		heard = append(heard, <-d.events.Events)
	}
	return heard
}

// counted returns the metric as it is scraped, without its comments.
func (d *door) counted(t testing.TB) []string {
	w := httptest.NewRecorder()
	promhttp.HandlerFor(d.metrics, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	lines := strings.Split(strings.TrimSpace(w.Body.String()), "\n")
	return slices.DeleteFunc(lines, func(line string) bool { return line == "" || strings.HasPrefix(line, "#") })
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func expect[T any](t testing.TB, what string, want, got T) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func pod(name, node string, uid types.UID, knobs ...func(*corev1.Pod)) *corev1.Pod {
	return fixture.Pod(name, node, append(knobs, fixture.UID(uid))...)
}

// node is n1, on which everything runs.
func node(uid types.UID) *corev1.Node {
	n := fixture.Node("n1")
	n.UID = uid
	return n
}

// block is a block of pool p as the API server sends it to validating webhooks.
func block(index int32, node string, uid types.UID, knobs ...func(*v1alpha1.AddressBlock)) *v1alpha1.AddressBlock {
	b := fixture.Block("p", index, node, knobs...)
	b.UID = uid
	if b.Spec.IPv4 == "" {
		b.Spec.IPv4 = fmt.Sprintf("10.0.0.%d/30", 4*index)
	}
	return b
}

func broken() error { return errors.New("the API server is on fire") }

// wrapped is the error as a backend returns it.
func wrapped(doing string) error { return fmt.Errorf("%s: %w", doing, broken()) }
