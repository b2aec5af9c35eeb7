package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/audit"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/backends/native"
	"github.com/oakum-dev/oakum/backends/whereabouts"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/finalizers"
	"github.com/oakum-dev/oakum/webhooks"
)

// The rights that the manager needs, from which config/rbac is generated.
//
// +kubebuilder:rbac:groups="",resources=pods;nodes,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=services,verbs=get
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=get
// +kubebuilder:rbac:groups=networking.k8s.io,resources=servicecidrs,verbs=list
// +kubebuilder:rbac:groups=ipam.oakum.dev,resources=addresspools,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=ipam.oakum.dev,resources=addressblocks,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=ipam.oakum.dev,resources=addressblocks,resourceNames=oakum-self-check-0,verbs=create
// +kubebuilder:rbac:groups=ipam.oakum.dev,resources=leakreports,verbs=get;create
// +kubebuilder:rbac:groups=ipam.oakum.dev,resources=addresspools/status;addressblocks/status;leakreports/status,verbs=patch
// +kubebuilder:rbac:groups=ipam.oakum.dev,resources=addresses,verbs=release;release-unattended
// +kubebuilder:rbac:groups=whereabouts.cni.cncf.io,resources=ippools,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=whereabouts.cni.cncf.io,resources=overlappingrangeipreservations,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups=whereabouts.cni.cncf.io,resources=nodeslicepools,verbs=get;list;watch
// +kubebuilder:rbac:groups=coil.cybozu.com,resources=addresspools;blockrequests,verbs=get;list;watch
// +kubebuilder:rbac:groups=coil.cybozu.com,resources=addressblocks,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups="",resources=pods/eviction,verbs=create
// +kubebuilder:rbac:groups=crd.projectcalico.org;projectcalico.org,resources=ipamblocks;blockaffinities,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=crd.projectcalico.org;projectcalico.org,resources=ipamhandles,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=crd.projectcalico.org;projectcalico.org,resources=ippools;ipreservations,verbs=get;list;watch
// +kubebuilder:rbac:groups=crd.projectcalico.org,resources=ipamconfigs,verbs=get
// +kubebuilder:rbac:groups=projectcalico.org,resources=ipamconfigurations,verbs=get
// +kubebuilder:rbac:groups=k8s.cni.cncf.io,resources=network-attachment-definitions,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups="",namespace=oakum-system,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=oakum-system,resources=leases,verbs=get;list;watch;create;update;delete

// house brings everything together once the cluster serves our own kinds.
type house struct {
	mgr      ctrl.Manager
	settings *config.Configuration
	clock    cluster.Clock
	log      logr.Logger
	// certificates are those of the webhook server.
	certificates certificates
	check        *selfCheck
	// notReady says what is missing; nil means that nothing is known yet, an empty string that nothing is missing.
	notReady atomic.Pointer[string]
}

// open adds the health checks and the wiring to the manager.
func (h *house) open() error {
	checks := []error{
		h.mgr.AddHealthzCheck("ping", func(*http.Request) error { return nil }),
		h.mgr.AddReadyzCheck("wiring", h.wired),
		h.mgr.AddReadyzCheck("webhook", h.serves),
		h.mgr.Add(everywhere(h.furnish)),
	}
	for _, err := range checks {
		if err != nil {
			return fmt.Errorf("preparing the manager: %w", err)
		}
	}
	return nil
}

// everywhere is a Runnable that does not wait to become the leader.
type everywhere func(context.Context) error

// Start implements manager.Runnable.
func (f everywhere) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (everywhere) NeedLeaderElection() bool { return false }

// wired is the readiness check of caches and wiring.
func (h *house) wired(*http.Request) error {
	switch why := h.notReady.Load(); {
	case why == nil:
		return fmt.Errorf("starting")
	case *why != "":
		return fmt.Errorf("%s", *why)
	}
	return nil
}

// serves is the readiness check of the webhook server: it answers, with a certificate that is valid now.
func (h *house) serves(r *http.Request) error {
	if _, err := h.certificates.current(); err != nil {
		return err
	}
	host := h.settings.Webhook.Host
	if host == "" {
		host = "localhost"
	}
	dialer := tls.Dialer{
		NetDialer: &net.Dialer{Timeout: 5 * time.Second},
		Config:    &tls.Config{InsecureSkipVerify: true},
	}
	conn, err := dialer.DialContext(r.Context(), "tcp", net.JoinHostPort(host, strconv.Itoa(h.settings.Webhook.Port)))
	if err != nil {
		return fmt.Errorf("reaching the webhook server: %w", err)
	}
	defer conn.Close() //nolint:errcheck // Nothing was written.
	now := h.clock().Wall
	for _, cert := range conn.(*tls.Conn).ConnectionState().PeerCertificates[:1] {
		if now.Before(cert.NotBefore) || now.After(cert.NotAfter) {
			return fmt.Errorf("the webhook server's certificate is valid from %s to %s: %s",
				cert.NotBefore.Format(time.RFC3339), cert.NotAfter.Format(time.RFC3339), h.certificates.remedy)
		}
	}
	return nil
}

// furnish waits for our own kinds, then wires up everything and waits for the caches.
func (h *house) furnish(ctx context.Context) error {
	if err := h.awaitKinds(ctx); err != nil {
		return nil //nolint:nilerr // The only error is that the context ended.
	}
	h.say("the caches are not synced yet")
	if err := h.wire(ctx); err != nil {
		return fmt.Errorf("wiring up: %w", err)
	}
	if !h.mgr.GetCache().WaitForCacheSync(ctx) {
		return nil
	}
	h.say("")
	h.log.Info("ready")
	return h.check.run(ctx)
}

func (h *house) say(why string) { h.notReady.Store(&why) }

// awaitKinds returns when the API server serves every kind of ours.
func (h *house) awaitKinds(ctx context.Context) error {
	last := ""
	return wait.PollUntilContextCancel(ctx, 2*time.Second, true, func(context.Context) (bool, error) {
		var missing []string
		for resource, kind := range map[string]string{"addresspools": "AddressPool", "addressblocks": "AddressBlock", "leakreports": "LeakReport"} {
			_, err := h.mgr.GetRESTMapper().RESTMapping(schema.GroupKind{Group: v1alpha1.Group, Kind: kind}, v1alpha1.Version)
			switch {
			case meta.IsNoMatchError(err):
				missing = append(missing, resource+"."+v1alpha1.Group)
			case err != nil:
				missing = append(missing, fmt.Sprintf("%s.%s (%v)", resource, v1alpha1.Group, err))
			}
		}
		if len(missing) == 0 {
			return true, nil
		}
		slices.Sort(missing)
		why := "missing CustomResourceDefinitions: " + strings.Join(missing, ", ") + ": apply config/crd"
		if why != last {
			h.log.Info("waiting", "reason", why)
			last = why
		}
		h.say(why)
		return false, nil
	})
}

// parts are what the backends share.
type parts struct {
	witness  *cluster.Witness
	recorder events.EventRecorder
	// records are those of which pods wait for the release: of backends that are enforced and hold pods.
	records *backends.Several
	voice   finalizers.Voice
	pods    finalizers.Pods
	// terminating is told of everything that may wait for a finalizer of ours.
	terminating *finalizers.Terminating
	admission   *prometheus.CounterVec
	audits      audit.Metrics
	identity    string
}

// wire makes the parts and connects them.
func (h *house) wire(ctx context.Context) error {
	if err := native.Index(ctx, h.mgr.GetFieldIndexer()); err != nil {
		return err
	}
	client, live := h.mgr.GetClient(), h.mgr.GetAPIReader()
	p, err := h.prepare(ctx)
	if err != nil {
		return err
	}
	records := native.New(client, live, client)
	effects := webhooks.NewEffects(records.Name(), h.settings.Backends.Native, p.admission, p.recorder)
	webhooks.Register(h.mgr.GetWebhookServer(), h.mgr.GetScheme(),
		webhooks.AddressPool{Records: records, Witness: p.witness, Live: live, Effects: effects},
		webhooks.AddressBlock{
			Records: records, Witness: p.witness, Effects: effects, Clock: h.clock,
			Owners: webhooks.Owners{Witness: p.witness, Client: client, ExcludedNamespaces: h.excluded()},
			Claims: webhooks.Claims{Client: client, Live: live, Namespace: h.settings.Namespace, Clock: h.clock},
		},
		webhooks.Pod{All: holdsAll(h.settings.Backends), Named: holds(h.settings.Backends.Whereabouts.Backend), ExcludedNamespaces: h.excluded()})
	if err := h.bolt(records, &p); err != nil {
		return err
	}
	if err := h.tell(ctx, p); err != nil {
		return err
	}
	if err := h.watch(records, h.settings.Backends.Native, false, p); err != nil {
		return err
	}
	return h.admit(ctx, p, append(h.calico(), h.whereabouts(), h.coil())...)
}

// prepare makes the parts, but for the controller of pods.
func (h *house) prepare(ctx context.Context) (p parts, err error) {
	p = parts{recorder: h.mgr.GetEventRecorder("oakum"), records: &backends.Several{}}
	p.witness, err = cluster.NewWitness(ctx, h.mgr.GetCache(), h.mgr.GetAPIReader(), h.clock, cluster.Settings{
		NodeDeletionMeansFenced: h.settings.Finalizers.NodeDeletionMeansFenced, Quarantine: h.settings.Audit.Quarantine.Duration,
	})
	if err != nil {
		return p, err
	}
	if p.identity, err = os.Hostname(); err != nil {
		return p, fmt.Errorf("finding out the host's name: %w", err)
	}
	releases := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "oakum_releases_total", Help: "Hand-outs that Oakum gave back, by backend and reason.",
	}, []string{"backend", "reason"})
	releaseErrors := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "oakum_release_errors_total", Help: "Attempts to give a hand-out back that failed, by backend.",
	}, []string{"backend"})
	registry := metrics.Registry
	failures := []error{registry.Register(releases), registry.Register(releaseErrors)}
	p.admission, err = webhooks.NewAdmissionTotal(registry)
	failures = append(failures, err)
	p.audits, err = audit.NewMetrics(registry, releases, releaseErrors)
	failures = append(failures, err)
	p.terminating, err = finalizers.NewTerminating(registry)
	failures = append(failures, err)
	p.voice, err = finalizers.NewVoice(h.log.WithName("finalizers"), p.recorder, h.clock, registry, releases, releaseErrors)
	if err := errors.Join(append(failures, err)...); err != nil {
		return p, fmt.Errorf("registering the metrics: %w", err)
	}
	return p, nil
}

// looks is how many live looks of one audit go on at a time: enough to keep a connection busy, and too few for anybody to
// wait behind them.
const looks = 8

// watch sets up the audit of one backend.
func (h *house) watch(records backends.Backend, settings config.Backend, restart bool, p parts) error {
	if settings.Mode == config.ModeOff {
		return nil
	}
	gone, err := p.witness.Gone()
	if err != nil {
		return err
	}
	var guarded func() *metav1.Condition
	if records.Name() == native.Name {
		guarded = h.check.condition
	}
	return h.mgr.Add(&audit.Auditor{
		Backend: records, Witness: p.witness, Clock: h.clock, Mode: settings.Mode, Settings: h.settings.Audit, Looks: looks,
		Client: h.mgr.GetClient(), Live: h.mgr.GetAPIReader(), Log: h.log.WithName("audit").WithValues("backend", records.Name()),
		Recorder: p.recorder, Metrics: p.audits, Identity: p.identity, Gone: gone, Held: h.heldFor(records.Name()), PodsHeld: h.holdsPods() && settings.Mode != config.ModeEnforce, Restart: restart, Guarded: guarded,
	})
}

// heldFor returns the kinds of which no object carries a finalizer of ours any more when the backend is not enforced.
func (h *house) heldFor(backend string) []schema.GroupVersionKind {
	var kinds []schema.GroupVersionKind
	if !h.holdsPods() {
		kinds = append(kinds, corev1.SchemeGroupVersion.WithKind("PodList"))
	}
	switch backend {
	case native.Name:
		kinds = append(kinds,
			corev1.SchemeGroupVersion.WithKind("NodeList"),
			v1alpha1.SchemeGroupVersion.WithKind("AddressPoolList"), v1alpha1.SchemeGroupVersion.WithKind("AddressBlockList"))
	case whereabouts.Name:
		kinds = append(kinds, whereabouts.GroupVersion.WithKind("IPPoolList"))
	}
	return kinds
}

// holds tells whether pods are held on behalf of a backend.
func holds(b config.Backend) bool { return b.Mode == config.ModeEnforce && b.PodFinalizers }

// holdsPods tells whether pods are held on behalf of any.
func (h *house) holdsPods() bool {
	b := h.settings.Backends
	return holds(b.Native) || holds(b.Whereabouts.Backend) || holds(b.Coil.Backend) || holds(b.Calico.Backend)
}

// holdsAll tells whether every pod with a network of its own is held on behalf of one of the backends.
func holdsAll(b config.Backends) bool {
	return holds(b.Whereabouts.Backend) && b.Whereabouts.DefaultNetwork || holds(b.Coil.Backend) || holds(b.Calico.Backend)
}

// excluded are the namespaces whose pods are never held. Our own pods would wait for themselves.
func (h *house) excluded() []string {
	return append(slices.Clone(h.settings.Finalizers.Pods.ExcludedNamespaces), h.settings.Namespace)
}

// bolt sets up the reconcilers.
func (h *house) bolt(records *native.Backend, p *parts) (err error) {
	settings, client := h.settings, h.mgr.GetClient()
	enforced := settings.Backends.Native.Mode == config.ModeEnforce
	if holds(settings.Backends.Native) {
		p.records.Add(records)
	}
	pods, nodes := settings.Finalizers.Pods, settings.Finalizers.Nodes
	p.pods, err = finalizers.Setup(h.mgr, p.witness, finalizers.Reconcilers{
		Pod: &finalizers.Pod{
			Records: p.records, Witness: p.witness, Client: client, Clock: h.clock, Voice: p.voice,
			Wanted: h.holdsPods(), ExcludedNamespaces: h.excluded(),
			Deadline: pods.Deadline.Duration, Backfill: rate.NewLimiter(rate.Limit(pods.BackfillPerSecond), 1),
		},
		Node: &finalizers.Node{
			Blocks: records, Witness: p.witness, Client: client, Clock: h.clock, Voice: p.voice,
			Wanted: enforced && slices.Contains(nodes.Backends, records.Name()), Deadline: nodes.Deadline.Duration,
		},
		Pool: &finalizers.AddressPool{Blocks: records, Client: client, Clock: h.clock, Voice: p.voice, Wanted: enforced},
		Block: &finalizers.AddressBlock{
			Blocks: records, Witness: p.witness, Client: client, Clock: h.clock, Voice: p.voice,
			Wanted: enforced, Grace: settings.Audit.GracePeriod.Duration,
		},
		Claim: &finalizers.Claim{Blocks: records, Client: client, Clock: h.clock, Namespace: settings.Namespace},
	})
	return err
}

// tell has the metrics tell of what waits for a finalizer of ours to come off.
func (h *house) tell(ctx context.Context, p parts) error {
	pods, nodes := p.witness.Informers()
	return errors.Join(
		p.terminating.Watch("Pod", pods, h.settings.Finalizers.Pods.Deadline.Duration),
		p.terminating.Watch("Node", nodes, h.settings.Finalizers.Nodes.Deadline.Duration),
		h.tellOf(ctx, p, "AddressPool", &v1alpha1.AddressPool{}),
		h.tellOf(ctx, p, "AddressBlock", &v1alpha1.AddressBlock{}),
	)
}

// tellOf does so with a kind whose objects wait for as long as it takes.
func (h *house) tellOf(ctx context.Context, p parts, kind string, empty ctrlclient.Object) error {
	informer, err := h.mgr.GetCache().GetInformer(ctx, empty, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watching %ss: %w", kind, err)
	}
	return p.terminating.Watch(kind, informer, 0)
}
