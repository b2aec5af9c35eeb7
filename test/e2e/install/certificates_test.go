//go:build e2e

package install

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/test/fixture"
)

// recovery is how long anything with certificates may take until writes are judged again.
const recovery = time.Minute

func TestCertificates(t *testing.T) {
	p := found(t)
	p.scene("somebody provides it", provided)
	p.scene("the manager makes it, in place of the one that was provided", selfSigned)
	p.scene("the Secret with the manager's authorities is deleted", secretDeleted)
	p.scene("the caBundle is emptied", bundleEmptied)
	p.scene("cert-manager makes it, in place of the manager", certManaged)
	p.scene("cert-manager's Secret is deleted", leafDeleted)
	p.scene("cert-manager renews authority and certificate", renewed)
	p.scene("the caBundle is emptied, and cert-manager fills it", bundleEmptied)
	p.scene("the manager makes it again", selfSigned)
	p.scene("somebody provides it in place of the manager", providedAgain)
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// certify returns a certificate in PEM, and its key: of this authority, or of its own where that is nil.
func (a *authority) certify(template *x509.Certificate) (cert, key []byte, _ *ecdsa.PrivateKey, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, nil, err
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().Add(24 * time.Hour)
	parent, signer := template, private
	if a != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &private.PublicKey, signer)
	if err != nil {
		return nil, nil, nil, err
	}
	raw, err := x509.MarshalECPrivateKey(private)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}), private, err
}

func (p *place) authority() *authority {
	p.t.Helper()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "provided"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	cert, _, key, err := (*authority)(nil).certify(template)
	p.must(err)
	block, _ := pem.Decode(cert)
	parsed, err := x509.ParseCertificate(block.Bytes)
	p.must(err)
	return &authority{parsed, key, cert}
}

func provided(p *place) {
	a := p.authority()
	cert, key, _, err := a.certify(&x509.Certificate{
		DNSNames: []string{release + "." + namespace + ".svc"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	p.must(err)
	restricted := map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}
	p.must(p.Client.Create(p.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: restricted}}))
	p.must(p.Client.Create(p.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "ours"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key, "ca.crt": a.pem},
	}))
	p.install(ours(a.pem)...)
	p.must(p.Client.Create(p.t.Context(), fixture.Pool("first", fixture.Network("shared"), fixture.Subnet("10.90.0.0/24", ""), fixture.BlockSize(5))))
	p.judged()
}

// ours are the values for the certificate that provided has made.
func ours(ca []byte) []string {
	return []string{"certificates.mode=provided", "certificates.provided.secretName=ours", "certificates.provided.caBundle=" + string(ca)}
}

// providedAgain: the caBundle is the manager's, which Helm overwrites if it is told to.
func providedAgain(p *place) {
	var secret corev1.Secret
	p.must(p.Client.Get(p.t.Context(), client.ObjectKey{Namespace: namespace, Name: "ours"}, &secret))
	p.upgrade(ours(secret.Data["ca.crt"])...)
	p.rolledOut()
	p.judged()
}

// judged waits until a write that only a webhook refuses is refused by it, and tells how long that took.
func (p *place) judged() {
	p.t.Helper()
	began := time.Now()
	p.eventually("a write is judged", func(ctx context.Context) error {
		err := p.Client.Create(ctx, fixture.Pool("second", fixture.Network("shared"), fixture.Subnet("10.90.0.0/25", ""), fixture.BlockSize(5)), client.DryRunAll)
		if apierrors.IsInvalid(err) {
			return nil
		}
		return fmt.Errorf("the answer is %w", errors.Join(err, errors.New("not that of the webhook")))
	})
	took := time.Since(began)
	p.t.Logf("judged after %.1f s", took.Seconds())
	if took > recovery {
		p.t.Errorf("writes were judged after %s, want %s at most", took, recovery)
	}
}

func selfSigned(p *place) {
	p.upgrade()
	p.rolledOut()
	p.judged()
}

func secretDeleted(p *place) {
	load := p.stream()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: release + "-webhook-ca"}}
	p.must(p.Client.Get(p.t.Context(), client.ObjectKeyFromObject(secret), secret))
	before := secret.Data["ca.crt"]
	began := time.Now()
	p.must(p.Client.Delete(p.t.Context(), secret))
	p.eventually("there is a Secret again", func(ctx context.Context) error {
		return p.Client.Get(ctx, client.ObjectKeyFromObject(secret), secret)
	})
	p.t.Logf("it is there again after %.1f s", time.Since(began).Seconds())
	if !bytes.Equal(before, secret.Data["ca.crt"]) {
		p.t.Error("the authorities are others than before, although the managers knew them")
	}
	p.judged()
	load.end(p)
}

func bundleEmptied(p *place) {
	c := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "oakum"}}
	p.must(p.Client.Get(p.t.Context(), client.ObjectKeyFromObject(c), c))
	var patch []byte
	for i := range c.Webhooks {
		patch = fmt.Appendf(patch, `,{"op":"remove","path":"/webhooks/%d/clientConfig/caBundle"}`, i)
	}
	patch[0] = '['
	p.must(p.Client.Patch(p.t.Context(), c, client.RawPatch(types.JSONPatchType, append(patch, ']'))))
	p.judged()
}

func certManaged(p *place) {
	_, err := p.StartCertManager(context.WithoutCancel(p.t.Context())) // It goes on after this scene.
	p.must(err)
	p.upgrade("certificates.mode=cert-manager")
	p.rolledOut()
	p.judged()
}

// leaf is the serial number of the certificate that is in the Secret.
func (p *place) leaf(ctx context.Context) (string, error) {
	var secret corev1.Secret
	if err := p.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: release + "-webhook"}, &secret); err != nil {
		return "", err
	}
	block, _ := pem.Decode(secret.Data[corev1.TLSCertKey])
	if block == nil {
		return "", errors.New("the Secret has no certificate")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", err
	}
	return cert.SerialNumber.String(), nil
}

// served waits until there is another certificate than before and every replica serves it.
func (p *place) served(before string) {
	p.t.Helper()
	began := time.Now()
	p.eventually("another certificate is served", func(ctx context.Context) error {
		now, err := p.leaf(ctx)
		if err != nil {
			return err
		}
		if now == before {
			return errors.New("it is the same")
		}
		replicas, err := p.replicas(ctx)
		if err != nil {
			return err
		}
		for _, r := range replicas {
			conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(ctx, "tcp", r.Status.PodIP+":9443")
			if err != nil {
				return err
			}
			serial := conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String()
			if err := conn.Close(); err != nil {
				return err
			}
			if serial != now {
				return fmt.Errorf("%s serves %s, want %s", r.Name, serial, now)
			}
		}
		return nil
	})
	p.t.Logf("another certificate is served after %.1f s", time.Since(began).Seconds())
}

func leafDeleted(p *place) {
	load := p.stream()
	before, err := p.leaf(p.t.Context())
	p.must(err)
	p.must(p.Client.Delete(p.t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: release + "-webhook"}}))
	p.served(before)
	p.judged()
	load.end(p)
}

// renew has cert-manager issue a certificate again, as cmctl renew does.
func (p *place) renew(name string) {
	p.t.Helper()
	c := &unstructured.Unstructured{}
	c.SetAPIVersion("cert-manager.io/v1")
	c.SetKind("Certificate")
	p.eventually(name+" is to be issued again", func(ctx context.Context) error {
		if err := p.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, c); err != nil {
			return err
		}
		conditions, _, err := unstructured.NestedSlice(c.Object, "status", "conditions")
		if err != nil {
			return err
		}
		conditions = append(conditions, map[string]any{
			"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "renewed by a test",
			"lastTransitionTime": time.Now().UTC().Format(time.RFC3339),
		})
		if err := unstructured.SetNestedSlice(c.Object, conditions, "status", "conditions"); err != nil {
			return err
		}
		return p.Client.Status().Update(ctx, c)
	})
	revision := func() int64 {
		n, _, err := unstructured.NestedInt64(c.Object, "status", "revision")
		p.must(err)
		return n
	}
	before := revision()
	p.eventually(name+" is issued again", func(ctx context.Context) error {
		if err := p.Client.Get(ctx, client.ObjectKeyFromObject(c), c); err != nil {
			return err
		}
		if now := revision(); now <= before {
			return fmt.Errorf("its revision is %d", now)
		}
		return nil
	})
}

func renewed(p *place) {
	load := p.stream()
	before, err := p.leaf(p.t.Context())
	p.must(err)
	p.renew(release + "-ca")
	p.renew(release + "-webhook")
	p.served(before)
	p.judged()
	load.end(p)
}
