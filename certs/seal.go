package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
)

// The rights that a Seal needs, from which config/selfsigned is generated. A right to create cannot name what is created.
//
// +kubebuilder:rbac:groups="",namespace=oakum-system,resources=secrets,verbs=create
// +kubebuilder:rbac:groups="",namespace=oakum-system,resources=secrets,resourceNames=oakum-webhook-ca,verbs=get;update
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=oakum;oakum-pods;oakum-whereabouts,verbs=get;patch
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=oakum;oakum-calico;oakum-coil;oakum-whereabouts,verbs=get;patch

const (
	// interval lies between two rounds; after one that left something to do, retry.
	interval = 10 * time.Second
	retry    = 2 * time.Second
	// patience is how many rounds a replica waits for another one to write a CA back: with retry between them, for longer
	// than interval.
	patience = 8
	// tries is how often a round begins anew because somebody else wrote in between.
	tries = 5
)

// Seal keeps the CAs in a Secret, the API server's trust in them, and a certificate in memory. Every replica has one, and
// any of them does what is to be done: each write is a compare-and-swap.
type Seal struct {
	// Namespace is that of Secret and Service.
	Namespace string
	// Secret is the name of the Secret with the CAs, and Service that of the Service through which the API server calls.
	Secret, Service string
	// Mutating and Validating are the names of webhook configurations. Those that do not exist are passed over.
	Mutating, Validating []string
	// Live reads without a cache; Client writes.
	Live   client.Reader
	Client client.Client
	Clock  cluster.Clock
	Log    logr.Logger

	// held are the CAs that this replica knows; trust is about them.
	held  []Authority
	trust trust
	// waited is how many rounds this replica has waited for another one.
	waited int

	mu     sync.Mutex
	signer *Authority
	leaf   *tls.Certificate
	// leafOf is the ID of the CA that has signed leaf.
	leafOf string
	// problem is what the last round left undone.
	problem error
}

// Labels are those of a Secret that a Seal made.
func Labels() map[string]string {
	return map[string]string{"app.kubernetes.io/name": "oakum", "app.kubernetes.io/managed-by": "oakum"}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*Seal) NeedLeaderElection() bool { return false }

// Start goes round until the context ends. It implements manager.Runnable.
func (s *Seal) Start(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	last := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		wait, why := interval, ""
		if err := s.Round(ctx); err != nil && ctx.Err() == nil {
			wait, why = retry, err.Error()
			if why != last {
				s.Log.Error(err, "keeping the webhook's certificates")
			}
		}
		last = why
		timer.Reset(wait)
	}
}

// Round brings Secret, registrations and the certificate in memory together once.
func (s *Seal) Round(ctx context.Context) error {
	signer, err := s.round(ctx)
	for try := 1; try < tries && (apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)); try++ {
		signer, err = s.round(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if signer != nil {
		s.signer = signer
	}
	s.problem = err
	return err
}

// round returns the CA that signs from now on; nil if it stays as it is.
func (s *Seal) round(ctx context.Context) (*Authority, error) {
	// The registrations are read first. What replaces a bundle is then never older than what it replaces.
	registered, err := s.registered(ctx)
	if err != nil {
		err = errors.Join(err, s.store(ctx, nil))
	} else {
		err = s.store(ctx, bundles(registered))
	}
	if err != nil && s.waited > 0 {
		return nil, err
	}
	signer := Decide(s.held, s.trust, s.Clock()).Signer
	if err != nil {
		return signer, err
	}
	bundle := encodeCertificates(newestFirst(s.held)...)
	var errs []error
	for _, r := range registered {
		errs = append(errs, s.publish(ctx, r, bundle))
	}
	return signer, errors.Join(errs...)
}

// store brings Secret and memory together, whose CAs are then the same, and makes one where one is due. What the
// registrations trust is nil if it is not known.
func (s *Seal) store(ctx context.Context, trusted [][]*x509.Certificate) error {
	now := s.Clock()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Secret}}
	err := s.Live.Get(ctx, client.ObjectKeyFromObject(secret), secret)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading Secret %s/%s: %w", s.Namespace, s.Secret, err)
	}
	found, problems := decode(secret.Data)
	for _, problem := range problems {
		s.Log.Error(problem, "replacing what Secret has that cannot be used", "secret", s.Secret)
	}
	s.know(found, now)
	if len(s.held) == 0 && trusted == nil {
		return nil // Nobody knows whether another replica's is trusted.
	}
	if err := s.await(trusted, now); err != nil {
		return err
	}
	if trusted != nil {
		s.trust = s.trust.after(s.held, trusted, now.Steady)
	}
	d := Decide(s.held, s.trust, now)
	if d.Due {
		made, err := newAuthority(now.Wall)
		if err != nil {
			return err
		}
		d = Decide(append(slices.Clone(s.held), made), s.trust, now)
	}
	return s.keep(ctx, secret, d.Keep)
}

// know takes in what the Secret has, and forgets what has expired.
func (s *Seal) know(found []Authority, now ipam.Moment) {
	for _, a := range found {
		if !slices.ContainsFunc(s.held, func(b Authority) bool { return a.Cert.Equal(b.Cert) }) {
			s.held = append(s.held, a)
		}
	}
	s.held = Decide(s.held, s.trust, now).Keep
}

// await returns an error for as long as another replica may write back a CA that the registrations trust and that nobody
// else knows. To write anything before that would have the API server refuse the other's certificate.
func (s *Seal) await(trusted [][]*x509.Certificate, now ipam.Moment) error {
	unknown := func(c *x509.Certificate) bool {
		return now.Wall.Before(c.NotAfter) && !slices.ContainsFunc(s.held, func(a Authority) bool { return a.Cert.Equal(c) })
	}
	if !slices.ContainsFunc(slices.Concat(trusted...), unknown) {
		s.waited = 0
		return nil
	}
	if s.waited == patience {
		return nil
	}
	s.waited++
	return fmt.Errorf("waiting for another replica: the webhook configurations trust a CA that Secret %s/%s lacks", s.Namespace, s.Secret)
}

// keep writes the CAs to the Secret, if it has others, and then to memory.
func (s *Seal) keep(ctx context.Context, secret *corev1.Secret, all []Authority) error {
	data, err := encode(secret.Data, all)
	if err != nil {
		return err
	}
	if sameData(secret.Data, data) {
		return nil
	}
	secret.Data = data
	write := func() error { return s.Client.Update(ctx, secret) }
	if secret.ResourceVersion == "" {
		secret.Labels = Labels()
		write = func() error { return s.Client.Create(ctx, secret) }
	}
	if err := write(); err != nil {
		return fmt.Errorf("writing Secret %s/%s: %w", s.Namespace, s.Secret, err)
	}
	s.held = all
	for _, a := range all {
		s.Log.Info("wrote a CA", "secret", s.Secret, "ca", a.ID(), "expires", a.Cert.NotAfter)
	}
	return nil
}

// Certificate returns the certificate to serve now. It signs one where that is due.
func (s *Seal) Certificate() (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.signer == nil {
		return nil, s.unready()
	}
	now := s.Clock().Wall
	if s.leaf != nil && s.leafOf == s.signer.ID() && !used(s.leaf.Leaf, now) {
		return s.leaf, nil
	}
	leaf, err := s.signer.sign(s.names(), now)
	if err != nil {
		return nil, err
	}
	s.leaf, s.leafOf = leaf, s.signer.ID()
	s.Log.Info("serving another certificate", "ca", s.leafOf, "expires", leaf.Leaf.NotAfter)
	return leaf, nil
}

// unready says why there is no certificate.
func (s *Seal) unready() error {
	if s.problem == nil {
		return errors.New("there is no certificate yet")
	}
	return fmt.Errorf("there is no certificate yet: %w", s.problem)
}

// names are what clients may call the server. The last is for a look at oneself.
func (s *Seal) names() []string {
	service := s.Service + "." + s.Namespace + ".svc"
	return []string{service, service + ".cluster.local", "localhost"}
}

// authority returns the certificate of the CA that signs now.
func (s *Seal) authority() (*x509.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.signer == nil {
		return nil, s.unready()
	}
	return s.signer.Cert, nil
}
