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
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/audit"
	"github.com/oakum-dev/oakum/backends/native"
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
// +kubebuilder:rbac:groups=ipam.oakum.dev,resources=leakreports,verbs=get;create
// +kubebuilder:rbac:groups=ipam.oakum.dev,resources=addresspools/status;addressblocks/status;leakreports/status,verbs=patch
// +kubebuilder:rbac:groups=ipam.oakum.dev,resources=addresses,verbs=release;release-unattended
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
			return fmt.Errorf("the webhook server's certificate is valid from %s to %s: renew it in %s",
				cert.NotBefore.Format(time.RFC3339), cert.NotAfter.Format(time.RFC3339), h.settings.Webhook.CertDir)
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
	if h.mgr.GetCache().WaitForCacheSync(ctx) {
		h.say("")
		h.log.Info("ready")
	}
	return nil
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

// wire makes the parts and connects them.
func (h *house) wire(ctx context.Context) error {
	if err := native.Index(ctx, h.mgr.GetFieldIndexer()); err != nil {
		return err
	}
	client, live := h.mgr.GetClient(), h.mgr.GetAPIReader()
	witness, err := cluster.NewWitness(ctx, h.mgr.GetCache(), live, h.clock, h.settings.Finalizers.NodeDeletionMeansFenced)
	if err != nil {
		return err
	}
	records := native.New(client, live, client)
	total, err := webhooks.NewAdmissionTotal(metrics.Registry)
	if err != nil {
		return fmt.Errorf("registering the admission metric: %w", err)
	}
	effects := webhooks.NewEffects(records.Name(), h.settings.Backends.Native, total, h.mgr.GetEventRecorder("oakum"))
	webhooks.Register(h.mgr.GetWebhookServer(), h.mgr.GetScheme(),
		webhooks.AddressPool{Records: records, Witness: witness, Live: live, Effects: effects},
		webhooks.AddressBlock{
			Records: records, Witness: witness, Effects: effects, Clock: h.clock,
			Owners: webhooks.Owners{Witness: witness, Client: client, ExcludedNamespaces: h.settings.Finalizers.Pods.ExcludedNamespaces},
			Claims: webhooks.Claims{Client: client, Live: live, Namespace: h.settings.Namespace, Clock: h.clock},
		})
	releases := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "oakum_releases_total", Help: "Hand-outs that Oakum gave back, by backend and reason.",
	}, []string{"backend", "reason"})
	releaseErrors := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "oakum_release_errors_total", Help: "Attempts to give a hand-out back that failed, by backend.",
	}, []string{"backend"})
	if err := errors.Join(metrics.Registry.Register(releases), metrics.Registry.Register(releaseErrors)); err != nil {
		return fmt.Errorf("registering the metrics of releases: %w", err)
	}
	if err := h.bolt(records, witness, releases, releaseErrors); err != nil {
		return err
	}
	return h.watch(records, witness, releases, releaseErrors)
}

// watch sets up the audit.
func (h *house) watch(records *native.Backend, witness *cluster.Witness, releases, releaseErrors *prometheus.CounterVec) error {
	if h.settings.Backends.Native.Mode == config.ModeOff {
		return nil
	}
	counts, err := audit.NewMetrics(metrics.Registry, releases, releaseErrors)
	if err != nil {
		return fmt.Errorf("registering the audit's metrics: %w", err)
	}
	gone, err := witness.Gone()
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("finding out the host's name: %w", err)
	}
	return h.mgr.Add(&audit.Auditor{
		Backend: records, Witness: witness, Clock: h.clock, Mode: h.settings.Backends.Native.Mode, Settings: h.settings.Audit,
		Client: h.mgr.GetClient(), Live: h.mgr.GetAPIReader(), Log: h.log.WithName("audit").WithValues("backend", records.Name()),
		Recorder: h.mgr.GetEventRecorder("oakum"), Metrics: counts, Identity: host, Gone: gone,
	})
}

// bolt sets up the reconcilers.
func (h *house) bolt(records *native.Backend, witness *cluster.Witness, releases, releaseErrors *prometheus.CounterVec) error {
	settings, client := h.settings, h.mgr.GetClient()
	voice, err := finalizers.NewVoice(records.Name(), h.log.WithName("finalizers").WithValues("backend", records.Name()),
		h.mgr.GetEventRecorder("oakum"), h.clock, metrics.Registry, releases, releaseErrors)
	if err != nil {
		return fmt.Errorf("registering the finalizers' metrics: %w", err)
	}
	enforced := settings.Backends.Native.Mode == config.ModeEnforce
	pods, nodes := settings.Finalizers.Pods, settings.Finalizers.Nodes
	return finalizers.Setup(h.mgr, witness, finalizers.Reconcilers{
		Pod: &finalizers.Pod{
			Records: records, Witness: witness, Client: client, Clock: h.clock, Voice: voice,
			Wanted: enforced && settings.Backends.Native.PodFinalizers, ExcludedNamespaces: pods.ExcludedNamespaces,
			Deadline: pods.Deadline.Duration, Backfill: rate.NewLimiter(rate.Limit(pods.BackfillPerSecond), 1),
		},
		Node: &finalizers.Node{
			Blocks: records, Witness: witness, Client: client, Clock: h.clock, Voice: voice,
			Wanted: enforced && slices.Contains(nodes.Backends, records.Name()), Deadline: nodes.Deadline.Duration,
		},
		Pool: &finalizers.AddressPool{Blocks: records, Client: client, Clock: h.clock, Voice: voice, Wanted: enforced},
		Block: &finalizers.AddressBlock{
			Blocks: records, Witness: witness, Client: client, Clock: h.clock, Voice: voice,
			Wanted: enforced, Grace: settings.Audit.GracePeriod.Duration,
		},
		Claim: &finalizers.Claim{Blocks: records, Client: client, Clock: h.clock, Namespace: settings.Namespace},
	})
}
