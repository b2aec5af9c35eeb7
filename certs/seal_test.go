package certs

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// stage is a store with a Seal that has sealed it.
type stage struct {
	*store
	t     *testing.T
	clock *clock
	seal  *Seal
	log   []string
}

func newStage(t *testing.T) *stage {
	s := &stage{store: newStore(), t: t, clock: &clock{now: noon()}}
	s.seal = s.another()
	return s
}

// another returns a replica that has just started.
func (s *stage) another() *Seal { return s.store.seal(s.clock, logTo(&s.log)) }

// verify says how an API server that trusts a bundle likes a certificate.
func verify(cert *tls.Certificate, bundle []byte, now time.Time) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	_, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "oakum.oakum-system.svc", CurrentTime: now})
	return err
}

// works checks that both registrations trust what a replica serves.
func (s *stage) works(replica *Seal) {
	s.t.Helper()
	cert, err := replica.Certificate()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, bundle := range s.trusted() {
		if err := verify(cert, bundle, s.clock.Moment().Wall); err != nil {
			s.t.Error(err)
		}
	}
}

// names returns the IDs of the CAs in the Secret, newest first.
func (s *stage) names() (ids []string) {
	s.t.Helper()
	found, problems := decode(s.secret.Data)
	if len(problems) > 0 {
		s.t.Fatal(problems)
	}
	for _, a := range newestFirst(found) {
		ids = append(ids, a.ID())
	}
	return ids
}

func TestTheFirstRoundSealsEverything(t *testing.T) {
	s := newStage(t)
	if _, err := s.seal.Certificate(); message(err) != "there is no certificate yet" {
		t.Errorf("before it, the certificate is %v", err)
	}
	s.seal.mustRound(t)
	s.works(s.seal)

	cert, err := s.seal.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	type leaf struct {
		Names      []string
		From, To   time.Time
		Encryption x509.PublicKeyAlgorithm
	}
	want := leaf{
		[]string{"oakum.oakum-system.svc", "oakum.oakum-system.svc.cluster.local", "localhost"},
		noon().Add(-time.Hour), noon().Add(7 * day), x509.ECDSA,
	}
	if diff := cmp.Diff(want, leaf{cert.Leaf.DNSNames, cert.Leaf.NotBefore, cert.Leaf.NotAfter, cert.Leaf.PublicKeyAlgorithm}); diff != "" {
		t.Errorf("certificate (-want +got):\n%s", diff)
	}
	id := s.names()[0]
	var keys []string
	for key := range s.secret.Data {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	if diff := cmp.Diff([]string{"ca-" + id + ".crt", "ca-" + id + ".key", "ca.crt"}, keys); diff != "" {
		t.Errorf("keys of the Secret's data (-want +got):\n%s", diff)
	}
	for i, config := range []*struct{ CABundle []byte }{
		{configs(s.mutating["oakum"])[1].CABundle}, {configs(s.validating["oakum-coil"])[0].CABundle},
	} {
		if config.CABundle != nil {
			t.Errorf("clientConfig %d does not call our Service, and got a caBundle", i)
		}
	}
	writes := s.writes
	s.seal.mustRound(t)
	if s.writes != writes {
		t.Errorf("a round without anything to do wrote %d times", s.writes-writes)
	}
}

// Whatever is broken, the next round mends it, and what is served is trusted again.
func TestWhatTheNextRoundMends(t *testing.T) {
	authority := func(data map[string][]byte, suffix string) string {
		for key := range data {
			if ours(key) && strings.HasSuffix(key, suffix) {
				return key
			}
		}
		return ""
	}
	tests := map[string]func(s *stage){
		"nothing":                      func(*stage) {},
		"a caBundle that was emptied":  func(s *stage) { s.trust(0, nil) },
		"a caBundle that is no PEM":    func(s *stage) { s.trust(1, []byte("certificate")) },
		"a Secret that was deleted":    func(s *stage) { s.deleteSecret() },
		"a Secret that was emptied":    func(s *stage) { s.tamper(func(data map[string][]byte) { clear(data) }) },
		"a certificate that is no PEM": func(s *stage) { s.tamper(func(data map[string][]byte) { data[authority(data, ".crt")] = []byte("x") }) },
		"a key that is gone":           func(s *stage) { s.tamper(func(data map[string][]byte) { delete(data, authority(data, ".key")) }) },
		"a certificate that is gone":   func(s *stage) { s.tamper(func(data map[string][]byte) { delete(data, authority(data, ".crt")) }) },
		"a bundle for people that was changed": func(s *stage) {
			s.tamper(func(data map[string][]byte) { data["ca.crt"] = nil })
		},
		"both at once": func(s *stage) { s.trust(0, nil); s.trust(1, nil); s.deleteSecret() },
		"a Secret that is deleted between reading and writing it": func(s *stage) {
			s.tamper(func(data map[string][]byte) { clear(data) })
			s.before["update Secret"] = s.deleteSecret
		},
	}
	for name, breaks := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.seal.mustRound(t)
			data := maps.Clone(s.secret.Data)
			cert, err := s.seal.Certificate()
			if err != nil {
				t.Fatal(err)
			}
			breaks(s)
			s.seal.mustRound(t)
			s.works(s.seal)
			if again, err := s.seal.Certificate(); err != nil || again != cert {
				t.Errorf("it serves another certificate, or none: %v", err)
			}
			if diff := cmp.Diff(data, s.secret.Data); diff != "" {
				t.Errorf("the Secret's data (-before +after):\n%s", diff)
			}
		})
	}
}

func TestWhatABrokenSecretSays(t *testing.T) {
	tests := map[string]struct {
		breaks func(data map[string][]byte, name string)
		want   string
	}{
		"no key":         {func(data map[string][]byte, name string) { delete(data, name+".key") }, "reading NAME.crt: tls: failed to find any PEM data in key input"},
		"no certificate": {func(data map[string][]byte, name string) { delete(data, name+".crt") }, "reading NAME.key: it has no certificate"},
		"no CA": {func(data map[string][]byte, name string) {
			a, err := read(data[name+".crt"], data[name+".key"])
			if err != nil {
				panic(err)
			}
			leaf, err := a.sign([]string{"localhost"}, noon())
			if err != nil {
				panic(err)
			}
			one, err := encode(nil, []Authority{{Cert: leaf.Leaf, Key: leaf.PrivateKey.(crypto.Signer)}})
			if err != nil {
				panic(err)
			}
			data[name+".crt"], data[name+".key"] = one["ca-"+fingerprint(leaf.Leaf)+".crt"], one["ca-"+fingerprint(leaf.Leaf)+".key"]
		}, "reading NAME.crt: it is no CA"},
	}
	for title, tt := range tests {
		t.Run(title, func(t *testing.T) {
			s := newStage(t)
			s.seal.mustRound(t)
			name := "ca-" + s.names()[0]
			tt.breaks(s.secret.Data, name)
			_, problems := decode(s.secret.Data)
			if got, want := message(errors.Join(problems...)), strings.ReplaceAll(tt.want, "NAME", name); got != want {
				t.Errorf("it says %q, want %q", got, want)
			}
		})
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestWhatElseIsInTheSecretStays(t *testing.T) {
	s := newStage(t)
	s.seal.mustRound(t)
	s.tamper(func(data map[string][]byte) { data["note"], data["ca.crt"] = []byte("mine"), nil })
	s.seal.mustRound(t)
	if got := string(s.secret.Data["note"]); got != "mine" {
		t.Errorf("the note became %q", got)
	}
}

func TestReplicasThatStartAtOnceAgree(t *testing.T) {
	s := newStage(t)
	other := s.another()
	s.before["create Secret"] = func() { other.mustRound(t) }
	s.seal.mustRound(t)
	s.works(s.seal)
	s.works(other)
	if ids := s.names(); len(ids) != 1 {
		t.Errorf("there are %d CAs", len(ids))
	}
}

func TestReplicasPutTheirCAsTogether(t *testing.T) {
	s := newStage(t)
	s.seal.mustRound(t)
	one := s.names()
	s.deleteSecret()
	s.trust(0, nil)
	s.trust(1, nil)
	other := s.another()
	other.mustRound(t)
	s.seal.mustRound(t)
	other.mustRound(t)
	s.works(s.seal)
	s.works(other)
	if ids := s.names(); len(ids) != 2 || !slices.Contains(ids, one[0]) {
		t.Errorf("the CAs are %q; there was %q before", ids, one)
	}
}

// A replica that has just started finds no CA, while another one serves a certificate that the API server trusts.
func TestWhoKnowsNothingWaitsForWhoDoes(t *testing.T) {
	const waiting = "waiting for another replica: the webhook configurations trust a CA that Secret oakum-system/oakum-webhook-ca lacks"
	for name, loses := range map[string]func(s *stage){
		"the Secret is gone":   func(s *stage) { s.deleteSecret() },
		"the Secret is broken": func(s *stage) { s.tamper(func(data map[string][]byte) { clear(data); data["ca-1.crt"] = []byte("x") }) },
	} {
		t.Run(name+", and comes back", func(t *testing.T) {
			s := newStage(t)
			s.seal.mustRound(t)
			loses(s)
			fresh := s.another()
			if got := message(fresh.Round(t.Context())); got != waiting {
				t.Errorf("its round says %q, want %q", got, waiting)
			}
			if _, err := fresh.Certificate(); message(err) != "there is no certificate yet: "+waiting {
				t.Errorf("it says %v", err)
			}
			s.clock.pass(10 * time.Second)
			s.seal.mustRound(t)
			fresh.mustRound(t)
			s.works(s.seal)
			s.works(fresh)
		})
		t.Run(name+" for good", func(t *testing.T) {
			s := newStage(t)
			s.seal.mustRound(t)
			loses(s)
			fresh := s.another()
			for range 8 {
				if got := message(fresh.Round(t.Context())); got != waiting {
					t.Errorf("its round says %q, want %q", got, waiting)
				}
			}
			fresh.mustRound(t)
			s.works(fresh)
		})
	}
}

func TestWhatFails(t *testing.T) {
	tests := map[string]struct {
		down, want string
	}{
		"reading the Secret":         {"get Secret", "reading Secret oakum-system/oakum-webhook-ca: the server is busy"},
		"writing the Secret":         {"create Secret", "writing Secret oakum-system/oakum-webhook-ca: the server is busy"},
		"reading the configurations": {"get Registration", "reading webhook configuration oakum: the server is busy"},
		"writing the configurations": {"patch Registration", "writing the caBundle of webhook configuration oakum: the server is busy\nwriting the caBundle of webhook configuration oakum-coil: the server is busy"},
	}
	for name, tt := range tests {
		t.Run(name+" at first", func(t *testing.T) {
			s := newStage(t)
			s.down[tt.down] = true
			if got := message(s.seal.Round(t.Context())); got != tt.want {
				t.Errorf("the round says %q, want %q", got, tt.want)
			}
			clear(s.down)
			s.seal.mustRound(t)
			s.works(s.seal)
		})
		t.Run(name+" later, for a month", func(t *testing.T) {
			s := newStage(t)
			s.seal.mustRound(t)
			s.deleteSecret()
			s.down[tt.down] = true
			for range 30 {
				s.clock.pass(day)
				_ = s.seal.Round(t.Context()) // What it says is in the rows above.
				s.works(s.seal)
			}
		})
	}
}

func TestTheCertificateIsReplacedInTime(t *testing.T) {
	s := newStage(t)
	s.seal.mustRound(t)
	served := func() *tls.Certificate {
		cert, err := s.seal.Certificate()
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	first := served()
	for _, step := range []struct {
		pass time.Duration
		want bool // whether it is the first one still
	}{{4 * day, true}, {16 * time.Hour, false}} {
		s.clock.pass(step.pass)
		if (served() == first) != step.want {
			t.Errorf("after %s more it is the first certificate: %t", step.pass, !step.want)
		}
	}
	t.Run("also by who was asleep for longer than it is valid", func(*testing.T) {
		s.clock.pass(30 * day)
		s.works(s.seal)
	})
	t.Run("also when the clock was set back", func(*testing.T) {
		s.clock.pass(-2 * day)
		s.works(s.seal)
	})
}

// TestNoHandshakeFails turns a year over while clients connect without a pause, each with the bundle of its moment.
func TestNoHandshakeFails(t *testing.T) {
	s := newStage(t)
	s.seal.Log = logr.Discard()
	s.seal.mustRound(t)
	server := &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.seal.Certificate() }}
	var (
		// still is held by who needs that no time passes.
		still      sync.RWMutex
		handshakes atomic.Int64
		done       = make(chan struct{})
		clients    sync.WaitGroup
	)
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				still.RLock()
				err := handshake(server, s.trusted()[0], s.clock.Moment().Wall)
				still.RUnlock()
				if err != nil {
					t.Error(err)
					return
				}
				handshakes.Add(1)
			}
		})
	}
	seen := map[string]bool{}
	for range 73 {
		// From time to time rounds follow each other as they really do.
		for range 3 {
			still.Lock()
			s.clock.pass(5 * time.Minute)
			still.Unlock()
			s.seal.mustRound(t)
		}
		still.Lock()
		s.clock.pass(5 * day)
		still.Unlock()
		cert, err := s.seal.Certificate()
		if err != nil {
			t.Fatal(err)
		}
		seen[string(cert.Leaf.AuthorityKeyId)] = true
	}
	close(done)
	clients.Wait()
	t.Logf("%d handshakes, %d CAs", handshakes.Load(), len(seen))
	if len(seen) != 2 || handshakes.Load() < 73 {
		t.Errorf("%d CAs have signed, want 2, and there were %d handshakes", len(seen), handshakes.Load())
	}
}

// handshake connects to a server through memory, as an API server would that trusts the bundle.
func handshake(server *tls.Config, bundle []byte, now time.Time) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	near, far := net.Pipe()
	defer near.Close() //nolint:errcheck // It is memory.
	go func() {
		defer far.Close()                       //nolint:errcheck // It is memory.
		_ = tls.Server(far, server).Handshake() // The client has the error.
	}()
	return tls.Client(near, &tls.Config{RootCAs: roots, ServerName: "oakum.oakum-system.svc", Time: func() time.Time { return now }}).Handshake()
}

func TestStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := newStage(t)
		s.down["get Secret"] = true
		s.seal.Clock = (&clock{now: noon()}).Moment
		done := make(chan error)
		ctx, stop := context.WithCancel(t.Context())
		go func() { done <- s.seal.Start(ctx) }()
		at := func(seconds float64) { <-time.After(time.Duration(seconds*float64(time.Second)) - time.Since(began)) }
		at(5)
		s.restore()
		at(6.5)
		s.works(s.seal)
		s.trust(0, nil)
		at(17)
		s.works(s.seal)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		const failure = `"msg"="keeping the webhook's certificates" "error"="reading Secret oakum-system/oakum-webhook-ca: the server is busy"`
		if diff := cmp.Diff([]string{failure}, s.log[:1]); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}

func TestMetrics(t *testing.T) {
	s := newStage(t)
	registry := prometheus.NewRegistry()
	if err := errors.Join(ObserveServed(registry, s.seal.Certificate), s.seal.Observe(registry)); err != nil {
		t.Fatal(err)
	}
	gather := func() map[string]float64 {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]float64{}
		for _, f := range families {
			found[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
		}
		return found
	}
	const leaf, ca = "oakum_webhook_certificate_expiry_timestamp_seconds", "oakum_webhook_ca_expiry_timestamp_seconds"
	if diff := cmp.Diff(map[string]float64{leaf: 0, ca: 0}, gather()); diff != "" {
		t.Errorf("before the first round (-want +got):\n%s", diff)
	}
	s.seal.mustRound(t)
	want := map[string]float64{leaf: float64(noon().Add(7 * day).Unix()), ca: float64(noon().Add(365 * day).Unix())}
	if diff := cmp.Diff(want, gather()); diff != "" {
		t.Errorf("after it (-want +got):\n%s", diff)
	}
}
