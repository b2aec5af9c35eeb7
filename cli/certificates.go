package cli

import (
	"crypto/tls"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/certs"
	"github.com/oakum-dev/oakum/cluster"
)

// certificates are those of the webhook server: from files, or of our own making.
type certificates struct {
	// current returns the one to serve now.
	current func() (*tls.Certificate, error)
	// keep has the manager keep it fresh, and tell when it expires.
	keep func(ctrl.Manager, prometheus.Registerer) error
	// remedy is what to do about one that is not valid.
	remedy string
}

// serve has a server show the certificate of the moment.
func (c certificates) serve(server *tls.Config) {
	server.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current() }
}

// newCertificates reads the files, unless the settings want none.
func newCertificates(settings *config.Configuration, clock cluster.Clock, log logr.Logger) (certificates, error) {
	if settings.Webhook.SelfSigned == nil {
		return fromFiles(settings.Webhook.CertDir)
	}
	return ownMade(settings, clock, log), nil
}

func fromFiles(dir string) (certificates, error) {
	files, err := certwatcher.New(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if err != nil {
		return certificates{}, fmt.Errorf("reading the webhook server's certificate: %w", err)
	}
	current := func() (*tls.Certificate, error) { return files.GetCertificate(nil) }
	return certificates{
		current: current, remedy: "renew it in " + dir,
		keep: func(mgr ctrl.Manager, registry prometheus.Registerer) error {
			return errors.Join(mgr.Add(files), certs.ObserveServed(registry, current))
		},
	}, nil
}

func ownMade(settings *config.Configuration, clock cluster.Clock, log logr.Logger) certificates {
	mutating, validating := registrations()
	seal := &certs.Seal{
		Namespace: settings.Namespace, Secret: settings.Webhook.SelfSigned.SecretName, Service: settings.Webhook.SelfSigned.ServiceName,
		Mutating: mutating, Validating: validating, Clock: clock, Log: log.WithName("certs"),
	}
	return certificates{
		current: seal.Certificate, remedy: "the log has the reason",
		keep: func(mgr ctrl.Manager, registry prometheus.Registerer) error {
			seal.Live, seal.Client = mgr.GetAPIReader(), mgr.GetClient()
			return errors.Join(mgr.Add(seal), certs.ObserveServed(registry, seal.Certificate), seal.Observe(registry))
		},
	}
}
