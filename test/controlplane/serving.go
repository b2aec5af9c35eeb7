package controlplane

import (
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

const (
	services = "10.0.0.0/24" // where Services get their ClusterIPs from
	self     = "10.0.0.1"    // the ClusterIP of the API server's own Service
	port     = "6443"
)

// serve lets the API server listen where pods reach it. Its certificate is good there and for its Service: those that envtest
// makes are not, and it leaves alone what is there before it.
func serve(apiserver *envtest.APIServer, address string) error {
	chain, key, err := cert.GenerateSelfSignedCertKey(address, []net.IP{net.ParseIP(self)}, []string{"kubernetes.default.svc"})
	if err != nil {
		return fmt.Errorf("making the API server's certificate: %w", err)
	}
	_, ca := pem.Decode(chain)
	signer := filepath.Join(apiserver.CertDir, signerKey)
	_, _, err = keyutil.LoadOrGenerateKeyFile(signer)
	if err := errors.Join(
		err,
		os.WriteFile(filepath.Join(apiserver.CertDir, "apiserver.crt"), chain, 0o600),
		os.WriteFile(filepath.Join(apiserver.CertDir, "apiserver.key"), key, 0o600),
	); err != nil {
		return fmt.Errorf("writing the API server's certificate: %w", err)
	}
	apiserver.SecureServing.CA = ca
	apiserver.SecureServing.Address, apiserver.SecureServing.Port = address, port
	apiserver.Configure().Set("service-cluster-ip-range", services).Set("service-account-key-file", signer)
	return nil
}
