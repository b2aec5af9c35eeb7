package certs

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// The keys of the Secret's data. Each CA has two, of its own name, and the bundle of them all is for people.
const (
	bundleKey  = "ca.crt"
	namePrefix = "ca-"
	certSuffix = ".crt"
	keySuffix  = ".key"
)

// decode reads the CAs in a Secret. What cannot be read is told, and the others still count.
func decode(data map[string][]byte) (found []Authority, problems []error) {
	for _, key := range slices.Sorted(maps.Keys(data)) {
		name, isKey := strings.CutSuffix(key, keySuffix)
		if isKey && ours(key) && data[name+certSuffix] == nil {
			problems = append(problems, fmt.Errorf("reading %s: it has no certificate", key))
		}
		name, isCert := strings.CutSuffix(key, certSuffix)
		if !isCert || !ours(key) {
			continue
		}
		a, err := read(data[key], data[name+keySuffix])
		if err != nil {
			problems = append(problems, fmt.Errorf("reading %s: %w", key, err))
			continue
		}
		found = append(found, a)
	}
	return found, problems
}

// ours tells whether a key of the Secret's data is that of a CA's certificate or key.
func ours(key string) bool {
	return strings.HasPrefix(key, namePrefix) && (strings.HasSuffix(key, certSuffix) || strings.HasSuffix(key, keySuffix))
}

func read(cert, key []byte) (Authority, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return Authority{}, err
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return Authority{}, errors.New("it is no CA")
	}
	return Authority{Cert: pair.Leaf, Key: signer}, nil
}

// encode returns the Secret's data with these CAs in it and no others. What it has beside them stays, as does the form in
// which a CA is written there already.
func encode(before map[string][]byte, keep []Authority) (map[string][]byte, error) {
	data := maps.Clone(before)
	if data == nil {
		data = map[string][]byte{}
	}
	maps.DeleteFunc(data, func(key string, _ []byte) bool { return ours(key) })
	for _, a := range keep {
		name := namePrefix + a.ID()
		if as, err := read(before[name+certSuffix], before[name+keySuffix]); err == nil && as.Cert.Equal(a.Cert) {
			data[name+certSuffix], data[name+keySuffix] = before[name+certSuffix], before[name+keySuffix]
			continue
		}
		key, err := keyutil.MarshalPrivateKeyToPEM(a.Key)
		if err != nil {
			return nil, fmt.Errorf("writing the key of a CA: %w", err)
		}
		data[name+certSuffix], data[name+keySuffix] = encodeCertificates(a), key
	}
	data[bundleKey] = encodeCertificates(keep...)
	return data, nil
}

// encodeCertificates returns the PEM of the CAs' certificates.
func encodeCertificates(all ...Authority) []byte {
	var text []byte
	for _, a := range all {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: a.Cert.Raw})...)
	}
	return text
}

// decodeCertificates reads a bundle; nothing, if it is no PEM.
func decodeCertificates(bundle []byte) []*x509.Certificate {
	found, err := certutil.ParseCertsPEM(bundle)
	if err != nil {
		return nil
	}
	return found
}

func sameData(a, b map[string][]byte) bool { return maps.EqualFunc(a, b, bytes.Equal) }
