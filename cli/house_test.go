package cli

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/ipam"
)

func noon() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) }

// selfSigned returns a certificate that is valid from an hour before to an hour after.
func selfSigned(t *testing.T, middle time.Time) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: middle.Add(-time.Hour), NotAfter: middle.Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// at returns a house whose webhook server should be there, at noon.
func at(address net.Addr) *house {
	settings := config.Default()
	settings.Webhook.Host, settings.Webhook.Port = "127.0.0.1", address.(*net.TCPAddr).Port
	none := func() (*tls.Certificate, error) { return nil, nil }
	return &house{
		settings: settings, clock: func() ipam.Moment { return ipam.Moment{Wall: noon()} },
		certificates: certificates{current: none, remedy: "renew it in the folder"},
	}
}

func (h *house) servesNow(t *testing.T) string {
	return message(h.serves(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil)))
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestReadinessOfTheCertificate(t *testing.T) {
	const renew = "the webhook server's certificate is valid from %s to %s: renew it in the folder"
	tests := map[string]struct {
		// middle is the time around which the certificate is valid.
		middle time.Time
		want   string
	}{
		"is valid":         {noon(), ""},
		"is valid just so": {noon().Add(-time.Hour), ""},
		"has expired":      {noon().Add(-2 * time.Hour), fmt.Sprintf(renew, "2026-11-30T09:00:00Z", "2026-11-30T11:00:00Z")},
		"is not valid yet": {noon().Add(2 * time.Hour), fmt.Sprintf(renew, "2026-11-30T13:00:00Z", "2026-11-30T15:00:00Z")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(http.NotFoundHandler())
			server.TLS = &tls.Config{Certificates: []tls.Certificate{selfSigned(t, tt.middle)}}
			server.StartTLS()
			defer server.Close()
			if got := at(server.Listener.Addr()).servesNow(t); got != tt.want {
				t.Errorf("the check says %q, want %q", got, tt.want)
			}
		})
	}
}

func TestReadinessWithoutACertificate(t *testing.T) {
	h := at(&net.TCPAddr{})
	h.certificates.current = func() (*tls.Certificate, error) { return nil, errors.New("there is no certificate yet") }
	if got, want := h.servesNow(t), "there is no certificate yet"; got != want {
		t.Errorf("the check says %q, want %q", got, want)
	}
}

func TestReadinessOfTheServer(t *testing.T) {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	t.Run("that is not there", func(t *testing.T) {
		want := fmt.Sprintf("reaching the webhook server: dial tcp %s: connect: connection refused", address)
		if got := at(address).servesNow(t); got != want {
			t.Errorf("the check says %q, want %q", got, want)
		}
	})
	t.Run("that speaks no TLS", func(t *testing.T) {
		server := httptest.NewServer(http.NotFoundHandler())
		defer server.Close()
		const want = "reaching the webhook server: tls: first record does not look like a TLS handshake"
		if got := at(server.Listener.Addr()).servesNow(t); got != want {
			t.Errorf("the check says %q, want %q", got, want)
		}
	})
}

func TestReadinessOfTheWiring(t *testing.T) {
	h := &house{}
	for _, step := range []struct{ say, want string }{
		{"", "starting"},
		{"missing CustomResourceDefinitions", "missing CustomResourceDefinitions"},
		{"the caches are not synced yet", "the caches are not synced yet"},
	} {
		if step.say != "" {
			h.say(step.say)
		}
		if got := message(h.wired(nil)); got != step.want {
			t.Errorf("after %q the check says %q, want %q", step.say, got, step.want)
		}
	}
	h.say("")
	if err := h.wired(nil); err != nil {
		t.Errorf("when nothing is missing the check says %q", err)
	}
}

// manager has a mapper, and nothing else.
type manager struct {
	ctrl.Manager
	mapper
}

func (m manager) GetRESTMapper() meta.RESTMapper { return m.mapper }

// mapper says what is wrong with a kind.
type mapper struct {
	meta.RESTMapper
	wrong func(schema.GroupKind) error
}

func (m mapper) RESTMapping(kind schema.GroupKind, _ ...string) (*meta.RESTMapping, error) {
	return nil, m.wrong(kind)
}

func absent(kind schema.GroupKind) error { return &meta.NoKindMatchError{GroupKind: kind} }

func TestWaitingForOurKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		after := func(minutes float64) bool { return time.Since(began).Minutes() >= minutes }
		var log []string
		h := &house{
			mgr: manager{mapper: mapper{wrong: func(kind schema.GroupKind) error {
				switch {
				case after(3), after(1) && kind.Kind != "AddressBlock":
					return nil
				case after(2):
					return errors.New("the server is busy")
				}
				return absent(kind)
			}}},
			log: funcr.New(func(_, args string) { log = append(log, args) }, funcr.Options{}),
		}
		done := make(chan error)
		go func() { done <- h.awaitKinds(t.Context()) }()
		var want []string
		for _, missing := range []string{
			"addressblocks.ipam.oakum.dev, addresspools.ipam.oakum.dev, leakreports.ipam.oakum.dev",
			"addressblocks.ipam.oakum.dev",
			"addressblocks.ipam.oakum.dev (the server is busy)",
		} {
			<-time.After(59 * time.Second)
			reason := "missing CustomResourceDefinitions: " + missing + ": apply config/crd"
			if got := message(h.wired(nil)); got != reason {
				t.Errorf("the check says %q, want %q", got, reason)
			}
			want = append(want, fmt.Sprintf(`"level"=0 "msg"="waiting" "reason"=%q`, reason))
			<-time.After(time.Second)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if h.wired(nil) == nil {
			t.Error("the check passes although nothing is wired up yet")
		}
		if diff := cmp.Diff(want, log); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}

func TestWaitingForOurKindsEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		h := &house{mgr: manager{mapper: mapper{wrong: absent}}, log: logr.Discard()}
		if err := h.furnish(ctx); err != nil {
			t.Error(err)
		}
	})
}
