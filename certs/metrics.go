package certs

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ObserveServed registers the metric of when the certificate expires that is served now.
func ObserveServed(r prometheus.Registerer, served func() (*tls.Certificate, error)) error {
	return observe(r, "oakum_webhook_certificate_expiry_timestamp_seconds", "When the webhook server's certificate expires; 0 while there is none.",
		func() (*x509.Certificate, error) {
			cert, err := served()
			if err != nil {
				return nil, err
			}
			return cert.Leaf, nil
		})
}

// Observe registers the metric of when the CA expires that signs now.
func (s *Seal) Observe(r prometheus.Registerer) error {
	return observe(r, "oakum_webhook_ca_expiry_timestamp_seconds", "When the CA expires that has signed the webhook server's certificate; 0 while there is none.", s.authority)
}

func observe(r prometheus.Registerer, name, help string, current func() (*x509.Certificate, error)) error {
	gauge := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
		cert, err := current()
		if err != nil {
			return 0
		}
		return float64(cert.NotAfter.UnixMilli()) / float64(time.Second/time.Millisecond)
	})
	if err := r.Register(gauge); err != nil {
		return fmt.Errorf("registering %s: %w", name, err)
	}
	return nil
}
