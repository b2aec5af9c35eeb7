//go:build e2e

package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/test/controlplane"
)

func TestCertManagerIssuesAndInjects(t *testing.T) {
	p := found(t)
	root, err := controlplane.Root()
	p.must(err)
	_, err = p.StartCertManager(t.Context())
	p.must(err)
	for _, path := range []string{"manager/namespace.yaml", "certmanager", "webhook/manifests.yaml"} {
		p.must(p.Apply(t.Context(), filepath.Join(root, "config", path)))
	}

	for _, object := range []string{"Issuer oakum-selfsigned", "Certificate oakum-ca", "Issuer oakum-ca", "Certificate oakum-webhook"} {
		p.eventually(object+" is ready", func(ctx context.Context) error { return p.certReady(ctx, object) })
	}
	var webhook, ca corev1.Secret
	p.must(errors.Join(
		p.Client.Get(t.Context(), client.ObjectKey{Namespace: controlplane.Namespace, Name: "oakum-ca"}, &ca),
		p.Client.Get(t.Context(), client.ObjectKey{Namespace: controlplane.Namespace, Name: "oakum-webhook"}, &webhook),
	))
	if !bytes.Equal(webhook.Data["ca.crt"], ca.Data[corev1.TLSCertKey]) {
		t.Error("the webhook's certificate is not of Oakum's own authority")
	}

	var configurations admissionregistrationv1.ValidatingWebhookConfigurationList
	p.must(p.Client.List(t.Context(), &configurations))
	if len(configurations.Items) != 1 {
		t.Fatalf("there are %d configurations of validating webhooks, want one", len(configurations.Items))
	}
	configuration := configurations.Items[0]
	metav1.SetMetaDataAnnotation(&configuration.ObjectMeta, "cert-manager.io/inject-ca-from", controlplane.Namespace+"/oakum-webhook")
	p.must(p.Client.Update(t.Context(), &configuration))
	p.eventually("the authority is injected", func(ctx context.Context) error {
		if err := p.Client.Get(ctx, client.ObjectKeyFromObject(&configuration), &configuration); err != nil {
			return err
		}
		for _, w := range configuration.Webhooks {
			if !bytes.Equal(w.ClientConfig.CABundle, ca.Data[corev1.TLSCertKey]) {
				return fmt.Errorf("the caBundle of %s has %d bytes", w.Name, len(w.ClientConfig.CABundle))
			}
		}
		return nil
	})
}

// certReady tells why one of cert-manager's objects, by kind and name, is not ready.
func (p *place) certReady(ctx context.Context, object string) error {
	kind, name, _ := strings.Cut(object, " ")
	o := &unstructured.Unstructured{}
	o.SetAPIVersion("cert-manager.io/v1")
	o.SetKind(kind)
	if err := p.Client.Get(ctx, client.ObjectKey{Namespace: controlplane.Namespace, Name: name}, o); err != nil {
		return err
	}
	conditions, _, err := unstructured.NestedSlice(o.Object, "status", "conditions")
	if err != nil {
		return err
	}
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Ready" && c["status"] == "True" {
			return nil
		}
	}
	return fmt.Errorf("its conditions are %v", conditions)
}
