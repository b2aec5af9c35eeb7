package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends/calico"
	"github.com/oakum-dev/oakum/cluster"
)

func newManager(version string) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "manager --config FILE",
		Short: "Run the operator: webhooks on every replica, everything else on the leader",
		Long: `Run the operator: webhooks on every replica, everything else on the leader.

The cluster is the one that the process runs in, or the one that KUBECONFIG names. All settings
stand in the configuration file, which is read once, at start.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			settings, err := readConfiguration(file)
			if err != nil {
				return err
			}
			kube, err := ctrl.GetConfig()
			if err != nil {
				return fmt.Errorf("finding the cluster: %w: run in a pod or set KUBECONFIG", err)
			}
			log, err := newLogger(settings.Log.Level)
			if err != nil {
				return err
			}
			ctrl.SetLogger(log)
			klog.SetLogger(log)
			log.Info("starting", "version", version, "config", file)
			limitMemory(log)
			return RunManager(cmd.Context(), kube, settings, cluster.SystemClock(), log)
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "the configuration `file` (config.oakum.dev/v1alpha1)")
	return cmd
}

func readConfiguration(file string) (*config.Configuration, error) {
	if file == "" {
		return nil, errors.New("reading the configuration: --config must name its file")
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w: --config must name a readable file", err)
	}
	settings, err := config.Decode(data)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration %s: %w", file, err)
	}
	return settings, nil
}

func newLogger(level config.Level) (logr.Logger, error) {
	parsed, err := zapcore.ParseLevel(string(level))
	if err != nil {
		return logr.Logger{}, fmt.Errorf("setting the log level: %w", err)
	}
	production := zap.NewProductionConfig()
	production.Level = zap.NewAtomicLevelAt(parsed)
	production.EncoderConfig.TimeKey = "time"
	production.EncoderConfig.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	production.DisableStacktrace = true
	log, err := production.Build()
	if err != nil {
		return logr.Logger{}, fmt.Errorf("making the log: %w", err)
	}
	return zapr.NewLogger(log), nil
}

// leaderLease is the name of the Lease that the leader holds.
const leaderLease = "oakum-leader"

// RunManager runs the operator against a cluster until the context ends.
func RunManager(ctx context.Context, kube *rest.Config, settings *config.Configuration, clock cluster.Clock, log logr.Logger) error {
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	served, err := newCertificates(settings, clock, log)
	if err != nil {
		return err
	}
	server := &parting{Server: webhook.NewServer(webhook.Options{
		Host: settings.Webhook.Host, Port: settings.Webhook.Port, TLSOpts: []func(*tls.Config){served.serve},
	})}
	mgr, err := ctrl.NewManager(kube, options(settings, scheme, log, server))
	if err != nil {
		return fmt.Errorf("making the manager: %w", err)
	}
	if err := served.keep(mgr, metrics.Registry); err != nil {
		return err
	}
	check, err := newSelfCheck(kube, settings, log.WithName("self-check"), metrics.Registry)
	if err != nil {
		return err
	}
	h := &house{mgr: mgr, settings: settings, clock: clock, log: log, certificates: served, check: check}
	if err := h.open(); err != nil {
		return err
	}
	return mgr.Start(server.until(ctx, linger))
}

// slimmer returns what takes out of objects what the cache need not hold.
func slimmer() toolscache.TransformFunc {
	strip := cache.TransformStripManagedFields()
	return func(o any) (any, error) {
		calico.Slim(o)
		return strip(o)
	}
}

func options(settings *config.Configuration, scheme *runtime.Scheme, log logr.Logger, server webhook.Server) ctrl.Options {
	slim := cluster.Slim()
	slim[&coordinationv1.Lease{}] = cache.ByObject{
		Namespaces: map[string]cache.Config{settings.Namespace: {}},
		Label:      labels.SelectorFromSet(labels.Set{v1alpha1.ClaimLabel: "true"}),
	}
	measured := metricsserver.Options{
		BindAddress:   settings.Metrics.BindAddress,
		SecureServing: settings.Metrics.Secure,
		CertDir:       settings.Metrics.CertDir,
	}
	if settings.Metrics.Secure {
		measured.FilterProvider = filters.WithAuthenticationAndAuthorization
	}
	election := settings.LeaderElection
	namespace := election.Namespace
	if namespace == "" {
		namespace = settings.Namespace
	}
	return ctrl.Options{
		Scheme: scheme,
		Logger: log,
		Cache:  cache.Options{ByObject: slim, DefaultTransform: slimmer()},
		// The cache holds Pods and Nodes in a form of its own, so nobody may read them from it as what they are.
		Client: client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Pod{}, &corev1.Node{}}}},

		Metrics:                measured,
		HealthProbeBindAddress: settings.Health.BindAddress,
		PprofBindAddress:       settings.Debug.PprofBindAddress,
		WebhookServer:          server,

		LeaderElection:                election.Enabled,
		LeaderElectionID:              leaderLease,
		LeaderElectionNamespace:       namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &election.LeaseDuration.Duration,
		RenewDeadline:                 &election.RenewDeadline.Duration,
		RetryPeriod:                   &election.RetryPeriod.Duration,
	}
}
