package cluster

import (
	"context"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// StartCertManager applies cert-manager's definitions and starts its controllers as an admin, for Certificates of self-signed
// Issuers and of those with a CA, and cainjector. Without its webhook, what is written for it is checked by its schemas alone.
func (c *Cluster) StartCertManager(ctx context.Context) (*Process, error) {
	module, err := c.moduleDir(ctx, "certmanager", "github.com/cert-manager/cert-manager")
	if err != nil {
		return nil, err
	}
	if err := c.Apply(ctx, filepath.Join(module, "deploy", "crds")); err != nil {
		return nil, err
	}
	if err := Await(ctx, c.certificatesAreServed); err != nil {
		return nil, err
	}
	p := &Process{
		Log:   filepath.Join(c.dir, "certmanager.log"),
		path:  filepath.Join(c.root, "bin", "certmanager"),
		args:  []string{"-kubeconfig", c.Kubeconfig},
		ready: func(context.Context, time.Time) error { return nil },
	}
	return p, c.keep(ctx, p)
}

// certificatesAreServed tells why they are not, which for new definitions they are in a moment.
func (c *Cluster) certificatesAreServed(ctx context.Context) error {
	for _, kind := range []string{"CertificateList", "CertificateRequestList", "IssuerList"} {
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion("cert-manager.io/v1")
		list.SetKind(kind)
		if err := c.Client.List(ctx, list); err != nil {
			return err
		}
	}
	return nil
}
