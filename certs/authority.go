// Package certs is the seal: the manager makes the certificates of its webhook server itself, and has the API server trust
// them. Several CAs are trusted at a time, so that one follows another without a call that fails.
package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"fmt"
	"time"
)

const (
	// authorityLife and leafLife are how long certificates are valid. Each is replaced when two thirds of it are used.
	authorityLife = 365 * 24 * time.Hour
	leafLife      = 7 * 24 * time.Hour
	// skew is how far the clocks of API servers and replicas may lie apart: certificates are valid so much earlier, and
	// nothing is signed with a CA that has less than that left.
	skew = time.Hour
)

// Authority is a CA: a certificate that signs others, and its key.
type Authority struct {
	Cert *x509.Certificate
	Key  crypto.Signer
}

// newAuthority makes an Authority that is valid from now on.
func newAuthority(now time.Time) (Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Authority{}, fmt.Errorf("making the key of a CA: %w", err)
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "oakum-webhook-ca " + now.UTC().Format(time.RFC3339)},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(authorityLife),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return Authority{}, fmt.Errorf("making a CA: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return Authority{}, fmt.Errorf("making a CA: %w", err)
	}
	return Authority{Cert: cert, Key: key}, nil
}

// ID is a name that no other Authority has.
func (a Authority) ID() string { return fingerprint(a.Cert) }

func fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:8])
}

// signs tells whether the Authority may sign now.
func (a Authority) signs(now time.Time) bool {
	return !now.Before(a.Cert.NotBefore) && now.Add(skew).Before(a.Cert.NotAfter)
}

// lasts tells whether what the Authority signs now is valid for as long as it should be.
func (a Authority) lasts(now time.Time) bool { return now.Add(leafLife).Before(a.Cert.NotAfter) }

// used tells whether two thirds of a certificate's life are over, or it is not valid yet.
func used(cert *x509.Certificate, now time.Time) bool {
	life := cert.NotAfter.Sub(cert.NotBefore)
	return now.Before(cert.NotBefore) || now.Sub(cert.NotBefore) >= life/3*2
}

// sign makes a key and a certificate for a server with these names.
func (a Authority) sign(names []string, now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key of a certificate: %w", err)
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "oakum-webhook"},
		DNSNames:    names,
		NotBefore:   later(now.Add(-skew), a.Cert.NotBefore),
		NotAfter:    earlier(now.Add(leafLife), a.Cert.NotAfter),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.Cert, key.Public(), a.Key)
	if err != nil {
		return nil, fmt.Errorf("signing a certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("signing a certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
