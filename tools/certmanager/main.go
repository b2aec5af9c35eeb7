// Command certmanager is cert-manager as far as tests need it: its own controllers for Certificates of self-signed Issuers and of
// those with a CA, and its cainjector, in one process and with the rights of a kubeconfig. cert-manager's own programs are in
// modules that nobody can fetch; those of its packages that they are made of can be.
//
// Usage: certmanager -kubeconfig FILE
//
// Its definitions are manifests of the same module: after `go mod download`,
//
//	go list -m -f '{{.Dir}}/deploy/crds' github.com/cert-manager/cert-manager
//
// tells the folder.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/cainjector"
	"github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	requestsca "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	requestsselfsigned "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	"github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"         // registers this kind of Issuer
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned" // registers this kind of Issuer
	"github.com/cert-manager/cert-manager/pkg/util"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

func main() {
	flags := flag.NewFlagSet("certmanager", flag.ExitOnError) // In the common one controller-runtime has a -kubeconfig of its own.
	kubeconfig := flags.String("kubeconfig", "", "who it is, and where the API server is")
	_ = flags.Parse(os.Args[1:]) // It exits at an error.
	ctrl.SetLogger(klog.Background())
	if err := run(*kubeconfig); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run runs all controllers until a signal ends them.
func run(kubeconfig string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	controllers, err := issuance(ctx, kubeconfig)
	if err != nil {
		return err
	}
	injector, err := injection(ctx, kubeconfig)
	if err != nil {
		return err
	}
	for _, c := range controllers {
		group.Go(func() error { return c.Run(2, ctx) })
	}
	group.Go(func() error { return injector.Start(ctx) })
	return group.Wait()
}

// issuance returns the controllers that make Certificates of Issuers come true. What they watch is watched from here on.
func issuance(ctx context.Context, kubeconfig string) ([]controller.Interface, error) {
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig: kubeconfig,
		CertificateOptions: controller.CertificateOptions{ // cert-manager's defaults
			CertificateRequestMinimumBackoffDuration: time.Hour,
			CertificateRequestMaximumBackoffDuration: 32 * time.Hour,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("preparing controllers: %w", err)
	}
	var controllers []controller.Interface
	for _, name := range []string{
		issuers.ControllerName,
		trigger.ControllerName, keymanager.ControllerName, requestmanager.ControllerName, issuing.ControllerName,
		readiness.ControllerName, revisionmanager.ControllerName,
		approver.ControllerName, requestsselfsigned.CRControllerName, requestsca.CRControllerName,
	} {
		construct, ok := controller.Known()[name]
		if !ok {
			return nil, fmt.Errorf("making the controller %s: cert-manager does not know it", name)
		}
		c, err := construct(factory)
		if err != nil {
			return nil, fmt.Errorf("making the controller %s: %w", name, err)
		}
		controllers = append(controllers, c)
	}
	shared, err := factory.Build()
	if err != nil {
		return nil, fmt.Errorf("preparing informers: %w", err)
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	return controllers, nil
}

// injection returns cainjector.
func injection(ctx context.Context, kubeconfig string) (ctrl.Manager, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(
		clientgoscheme.AddToScheme(scheme), certmanagerv1.AddToScheme(scheme),
		apiextensionsv1.AddToScheme(scheme), apiregistrationv1.AddToScheme(scheme),
	); err != nil {
		return nil, fmt.Errorf("preparing cainjector: %w", err)
	}
	// What it writes is by this name, and it writes nothing without one.
	mgr, err := ctrl.NewManager(util.RestConfigWithUserAgent(config, "cainjector"), ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
		Client:  client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}}, // It watches nothing of them but metadata.
	})
	if err != nil {
		return nil, fmt.Errorf("preparing cainjector: %w", err)
	}
	err = cainjector.RegisterAllInjectors(ctx, mgr, cainjector.SetupOptions{
		EnableCertificatesDataSource: true,
		EnabledReconcilersFor: map[string]bool{
			cainjector.MutatingWebhookConfigurationName: true, cainjector.ValidatingWebhookConfigurationName: true,
			cainjector.CustomResourceDefinitionName: true, cainjector.APIServiceName: true,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("preparing cainjector: %w", err)
	}
	return mgr, nil
}
