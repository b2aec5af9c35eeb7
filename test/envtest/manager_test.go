package envtest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/fixture"
)

func TestManager(t *testing.T) {
	t.Parallel()
	p := own(t, controlplane.StartBare)
	p.poor = true
	root, err := controlplane.Root()
	if err != nil {
		t.Fatal(err)
	}
	install := func(t *testing.T, path string) {
		t.Helper()
		if err := p.Apply(t.Context(), filepath.Join(root, "config", path)); err != nil {
			t.Fatal(err)
		}
	}
	install(t, "manager/namespace.yaml")
	install(t, "rbac")
	manager := p.launch(t, settings)

	t.Run("without our kinds it says which are missing, and gets ready when they come", func(t *testing.T) {
		const missing = "missing CustomResourceDefinitions: addressblocks.ipam.oakum.dev, addresspools.ipam.oakum.dev, leakreports.ipam.oakum.dev: apply config/crd"
		eventually(t, says(manager, "/readyz/wiring", http.StatusInternalServerError, "internal server error: "+missing+"\n"))
		eventually(t, logs(manager, missing))
		install(t, "crd")
		eventually(t, says(manager, "/readyz", http.StatusOK, "ok"))
	})
	t.Run("with an expired certificate it is not ready until there is another one", func(t *testing.T) {
		good := map[string][]byte{}
		for _, name := range []string{"tls.crt", "tls.key"} {
			path := filepath.Join(p.CertDir(), name)
			if good[path], err = os.ReadFile(path); err != nil {
				t.Fatal(err)
			}
		}
		from := time.Now().Add(-2 * time.Hour).UTC().Truncate(time.Second)
		replace(t, certificate(t, p.CertDir(), from, from.Add(time.Hour)))
		eventually(t, says(manager, "/readyz/webhook", http.StatusInternalServerError, fmt.Sprintf(
			"internal server error: the webhook server's certificate is valid from %s to %s: renew it in %s\n",
			from.Format(time.RFC3339), from.Add(time.Hour).Format(time.RFC3339), p.CertDir())))
		replace(t, good)
		eventually(t, says(manager, "/readyz/webhook", http.StatusOK, "ok"))
	})
	t.Run("SIGTERM ends it in good order within 5 s, and the next one may lead at once", func(t *testing.T) {
		holder := func() string {
			lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.Namespace, Name: "oakum-leader"}}
			if err := p.Client.Get(t.Context(), client.ObjectKeyFromObject(lease), lease); err != nil {
				return ""
			}
			return ptr.Deref(lease.Spec.HolderIdentity, "")
		}
		eventually(t, func() error {
			if holder() == "" {
				return errors.New("nobody leads")
			}
			return nil
		})
		began := time.Now()
		if err := manager.Stop(); err != nil {
			t.Errorf("it ended with %v", err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it took %s", took)
		}
		if h := holder(); h != "" {
			t.Errorf("%s still has the Lease", h)
		}
	})
	t.Run("without its rights it says which are missing, and gets ready when it has them", func(t *testing.T) {
		err := p.Client.Delete(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "oakum"}})
		if err != nil {
			t.Fatal(err)
		}
		manager := p.launch(t, settings)
		for _, resource := range []string{
			`\"pods\" in API group \"\"`, `\"nodes\" in API group \"\"`,
			`\"addressblocks\" in API group \"ipam.oakum.dev\"`, `\"addresspools\" in API group \"ipam.oakum.dev\"`,
		} {
			eventually(t, logs(manager, `User \"`+controlplane.ServiceAccount+`\" cannot list resource `+resource+` at the cluster scope`))
		}
		eventually(t, says(manager, "/readyz/wiring", http.StatusInternalServerError, "internal server error: the caches are not synced yet\n"))
		install(t, "rbac/bindings.yaml")
		eventually(t, says(manager, "/readyz", http.StatusOK, "ok"))
	})
}

// says wants an answer from a health endpoint.
func says(m *controlplane.Manager, path string, code int, text string) func() error {
	return func() error {
		got, body, err := request(http.DefaultClient, fmt.Sprintf("http://127.0.0.1:%d%s", m.Health, path), "")
		if err == nil && (got != code || body != text) {
			return fmt.Errorf("%s: %d %q, want %d %q", path, got, body, code, text)
		}
		return err
	}
}

// logs wants a text in the manager's log.
func logs(m *controlplane.Manager, text string) func() error {
	return func() error {
		log, err := os.ReadFile(m.Log)
		if err == nil && !strings.Contains(string(log), text) {
			return fmt.Errorf("the log has no %q:\n%s", text, log)
		}
		return err
	}
}

func request(c *http.Client, url, token string) (code int, body string, err error) {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close() //nolint:errcheck // It was only read.
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// certificate returns the files of a certificate for that time, by their paths.
func certificate(t *testing.T, dir string, from, to time.Time) map[string][]byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: to, DNSNames: []string{"localhost"}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{
		filepath.Join(dir, "tls.crt"): pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		filepath.Join(dir, "tls.key"): pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}
}

// replace writes files.
func replace(t *testing.T, files map[string][]byte) {
	t.Helper()
	for path, data := range files {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "metrics")
	s.node(s.name)
	if err := s.client.Create(t.Context(), fixture.Block(s.name, 0, s.name)); err == nil {
		t.Fatal("a block without a pool was admitted")
	}
	reader := s.metricsReader()
	c := insecure(t)
	for name, tt := range map[string]struct {
		token string
		code  int
		text  string
	}{
		"nobody":               {"", http.StatusUnauthorized, "Unauthorized"},
		"anybody":              {s.token(s.name), http.StatusForbidden, "Authorization denied for user system:serviceaccount:default:" + s.name},
		"oakum-metrics-reader": {reader, http.StatusOK, `oakum_admission_total{backend="native",effect="Deny",rule="pool-draining"} `},
	} {
		t.Run(name, func(t *testing.T) {
			code, body, err := request(c, fmt.Sprintf("https://127.0.0.1:%d/metrics", s.manager.Metrics), tt.token)
			if err != nil {
				t.Fatal(err)
			}
			if code != tt.code || !strings.Contains(body, tt.text) {
				t.Errorf("got %d %s\nwant %d with %q", code, body, tt.code, tt.text)
			}
		})
	}
}

// token makes a ServiceAccount and returns its token.
func (s *scene) token(name string) string {
	s.t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	s.create(account)
	granted := &authenticationv1.TokenRequest{}
	if err := s.client.SubResource("token").Create(s.t.Context(), account, granted); err != nil {
		s.t.Fatal(err)
	}
	return granted.Status.Token
}

// metricsReader returns the token of one who may read metrics.
func (s *scene) metricsReader() string {
	s.t.Helper()
	token := s.token(s.name + "-reader")
	s.bind("system:serviceaccount:default:"+s.name+"-reader", "oakum-metrics-reader")
	return token
}

// insecure returns a client that trusts every server.
func insecure(t *testing.T) *http.Client {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}
