package envtest

import (
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
	"io"
	"log"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	gocmp "github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/oakum-dev/oakum/certs"
	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/fixture"
)

// recovery is how long it may take until what somebody broke is mended.
const recovery = 30 * time.Second

// sealed is a control plane whose managers make their certificates themselves.
type sealed struct {
	*plane
	t        *testing.T
	replicas []*controlplane.Manager
}

func TestSelfSigned(t *testing.T) {
	t.Parallel()
	s := &sealed{t: t, plane: own(t, func(dir string) (*controlplane.ControlPlane, error) {
		return controlplane.StartWith(dir, controlplane.Options{SelfSigned: true})
	})}
	s.poor = true
	forbidden := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.Namespace, Name: "oakum-selfsigned"}}
	binding := forbidden.DeepCopy()
	if err := errors.Join(s.Client.Get(t.Context(), client.ObjectKeyFromObject(binding), binding), s.Client.Delete(t.Context(), forbidden)); err != nil {
		t.Fatal(err)
	}
	binding.ResourceVersion, binding.UID = "", ""
	one := s.launch(t, settings)
	other, err := s.LaunchAnother(s.binary, settings)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Kill)
	s.replicas = []*controlplane.Manager{one, other}

	t.Run("without the right to read the Secret it says so, and gets ready with it", func(t *testing.T) {
		const why = `internal server error: there is no certificate yet: reading Secret oakum-system/oakum-webhook-ca: secrets "oakum-webhook-ca" is forbidden: ` +
			`User "system:serviceaccount:oakum-system:oakum" cannot get resource "secrets" in API group "" in the namespace "oakum-system"` + "\n"
		eventually(t, says(one, "/readyz/webhook", http.StatusInternalServerError, why))
		if err := s.Client.Create(t.Context(), binding); err != nil {
			t.Fatal(err)
		}
		for _, m := range s.replicas {
			eventually(t, says(m, "/readyz", http.StatusOK, "ok"))
		}
	})
	t.Run("two replicas that start at once share one CA", func(t *testing.T) {
		s.mended(t)
		if n := len(s.secret(t).Data); n != 3 {
			t.Errorf("the Secret has %d keys", n)
		}
	})
	for name, breaks := range map[string]func(t *testing.T){
		"emptied caBundles are filled": func(t *testing.T) {
			for _, o := range s.registrations(t) {
				s.patch(t, o, types.JSONPatchType, `[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"},{"op":"replace","path":"/webhooks/1/clientConfig/caBundle","value":""}]`)
			}
		},
		"a deleted Secret is written back": func(t *testing.T) {
			if err := s.Client.Delete(t.Context(), s.secret(t)); err != nil {
				t.Fatal(err)
			}
		},
		"a damaged Secret is repaired": func(t *testing.T) {
			secret := s.secret(t)
			for key := range secret.Data {
				secret.Data[key] = []byte("damaged")
			}
			if err := s.Client.Update(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name+", with the CA that was there", func(t *testing.T) {
			before := s.secret(t).Data
			breaks(t)
			began := time.Now()
			s.mended(t)
			took := time.Since(began)
			t.Logf("it took %s", took.Round(100*time.Millisecond))
			if took > recovery {
				t.Errorf("it took %s", took)
			}
			if diff := gocmp.Diff(slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(s.secret(t).Data))); diff != "" {
				t.Errorf("keys of the Secret's data (-before +after):\n%s", diff)
			}
		})
	}
	t.Run("replicas that come after the Secret went make another CA", func(t *testing.T) {
		before := s.secret(t).Data
		for _, m := range s.replicas {
			if err := m.Stop(); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Client.Delete(t.Context(), s.secret(t)); err != nil {
			t.Fatal(err)
		}
		s.replicas = []*controlplane.Manager{s.start(t, settings)}
		s.mended(t)
		if after := s.secret(t).Data; string(after["ca.crt"]) == string(before["ca.crt"]) {
			t.Error("the CA is the same")
		}
	})
	t.Run("its rights are enough", func(t *testing.T) {
		for _, m := range s.replicas {
			log, err := os.ReadFile(m.Log)
			if err != nil {
				t.Fatal(err)
			}
			if _, after, _ := strings.Cut(string(log), `"msg":"wrote a CA"`); strings.Contains(after, "forbidden") {
				t.Errorf("the log has forbidden in it:\n%s", log)
			}
		}
	})
}

// TestACAIsReplacedUnderLoad has the API server call a webhook without a pause while an old CA gets its successor and that
// begins to sign. The clock by which a CA settles runs three hundred times as fast.
func TestACAIsReplacedUnderLoad(t *testing.T) {
	t.Parallel()
	p := own(t, func(dir string) (*controlplane.ControlPlane, error) {
		return controlplane.StartWith(dir, controlplane.Options{SelfSigned: true})
	})
	old := certificateAuthority(t, time.Now().AddDate(0, -9, 0), time.Now().AddDate(0, 3, 0))
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.Namespace, Name: "oakum-webhook-ca"}, Data: old}
	if err := p.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	oakum, err := client.New(p.Oakum(), client.Options{Scheme: p.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	seal := &certs.Seal{
		Namespace: controlplane.Namespace, Secret: secret.Name, Service: "oakum", Mutating: []string{"oakum"}, Validating: []string{"oakum"},
		Live: oakum, Client: oakum, Log: logr.Discard(),
		Clock: func() ipam.Moment { return ipam.Moment{Wall: time.Now(), Steady: 300 * time.Since(began)} },
	}
	round := func() {
		if err := seal.Round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	round()
	answerWebhooks(t, p.Webhook(), seal)
	s := &sealed{t: t, plane: p}
	write := func() error {
		err := p.Client.Create(t.Context(), fixture.Pool("sealed", fixture.Subnet("10.9.0.0/24", "")), client.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), "the seal holds") {
			return fmt.Errorf("the answer is %w", err)
		}
		return nil
	}
	eventually(t, write) // It takes the API server a moment to hear of the bundle.

	signer := func() string {
		cert, err := seal.Certificate()
		if err != nil {
			t.Fatal(err)
		}
		return string(cert.Leaf.AuthorityKeyId)
	}
	first := signer()
	var writes atomic.Int64
	done := make(chan struct{})
	var writers sync.WaitGroup
	for range 3 {
		writers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := write(); err != nil {
					t.Error(err)
					return
				}
				writes.Add(1)
			}
		})
	}
	eventually(t, func() error {
		round()
		if signer() == first {
			return errors.New("the old CA still signs")
		}
		return nil
	})
	before := writes.Load()
	eventually(t, func() error {
		if n := writes.Load(); n < before+100 {
			return fmt.Errorf("only %d writes since", n-before)
		}
		return nil
	})
	close(done)
	writers.Wait()
	t.Logf("%d writes", writes.Load())
	if n := len(s.secret(t).Data); n != 5 {
		t.Errorf("the Secret has %d keys, want those of two CAs", n)
	}
}

// certificateAuthority returns the data of a Secret with a CA for that time.
func certificateAuthority(t *testing.T, from, to time.Time) map[string][]byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "old"}, NotBefore: from, NotAfter: to, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{
		"ca-old.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		"ca-old.key": pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}),
	}
}

// answerWebhooks refuses every write with a word, behind certificates of a seal. No connection is used twice.
func answerWebhooks(t *testing.T, address string, seal *certs.Seal) {
	t.Helper()
	refuse := admission.HandlerFunc(func(context.Context, admission.Request) admission.Response { return admission.Denied("the seal holds") })
	handler := &admission.Webhook{Handler: refuse}
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler:           handler,
		ErrorLog:          log.New(io.Discard, "", 0), // Until the API server has heard of the bundle, it breaks connections off.
	}
	server.SetKeepAlivesEnabled(false)
	listener, err := tls.Listen("tcp", address, &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return seal.Certificate() }})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }() // The only answer is that it was closed.
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
}

// mended waits until every part fits: the Secret is whole, every registration trusts what is in it, each replica serves
// what that trusts, and the API server gets an answer from the one that it calls.
func (s *sealed) mended(t *testing.T) {
	t.Helper()
	eventually(t, func() error {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.Namespace, Name: "oakum-webhook-ca"}}
		if err := s.Client.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
			return err
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(secret.Data["ca.crt"]) {
			return errors.New("the Secret has no bundle")
		}
		for _, o := range s.registrations(t) {
			for _, c := range clientConfigs(o) {
				if string(c.CABundle) != string(secret.Data["ca.crt"]) {
					return fmt.Errorf("%T %s trusts %q", o, o.GetName(), c.CABundle)
				}
			}
		}
		for _, m := range s.replicas {
			conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", m.Webhook), &tls.Config{RootCAs: roots, ServerName: "oakum.oakum-system.svc"})
			if err != nil {
				return err
			}
			if err := conn.Close(); err != nil {
				return err
			}
		}
		return s.refuses(t)
	})
}

// refuses has the API server call a webhook through the Service, for a write that must be refused.
func (s *sealed) refuses(t *testing.T) error {
	t.Helper()
	err := s.Client.Create(t.Context(), fixture.Block("nowhere", 0, "nowhere"), client.DryRunAll)
	if err == nil || !strings.Contains(err.Error(), noNew) {
		return fmt.Errorf("the answer is %w", err)
	}
	return nil
}

func (s *sealed) secret(t *testing.T) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.Namespace, Name: "oakum-webhook-ca"}}
	if err := s.Client.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
		t.Fatal(err)
	}
	return secret
}

func (s *sealed) patch(t *testing.T, o client.Object, kind types.PatchType, text string) {
	t.Helper()
	if err := s.Client.Patch(t.Context(), o, client.RawPatch(kind, []byte(text))); err != nil {
		t.Fatal(err)
	}
}

func (s *sealed) registrations(t *testing.T) []client.Object {
	t.Helper()
	mutating, validating := &admissionregistrationv1.MutatingWebhookConfiguration{}, &admissionregistrationv1.ValidatingWebhookConfiguration{}
	key := client.ObjectKey{Name: "oakum"}
	if err := errors.Join(s.Client.Get(t.Context(), key, mutating), s.Client.Get(t.Context(), key, validating)); err != nil {
		t.Fatal(err)
	}
	return []client.Object{mutating, validating}
}

func clientConfigs(o client.Object) (all []admissionregistrationv1.WebhookClientConfig) {
	switch o := o.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		for _, w := range o.Webhooks {
			all = append(all, w.ClientConfig)
		}
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		for _, w := range o.Webhooks {
			all = append(all, w.ClientConfig)
		}
	}
	return all
}
