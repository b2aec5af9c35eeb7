package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends/native"
	"github.com/oakum-dev/oakum/ipam"
)

// The block that is never written: its pool does not exist.
const (
	checkPool = "oakum-self-check"
	checkName = checkPool + "-0"
)

const (
	// checkInterval lies between two checks; recheck does after the first one that found something, and shortInterval after
	// the others.
	checkInterval = 10 * time.Minute
	recheck       = 15 * time.Second
	shortInterval = time.Minute
)

// selfCheck finds out whether the manager has its rights, and whether the API server asks its webhooks. What it finds is logged,
// counted and reported; readiness does not depend on it, since a manager that lacks something still does the rest.
type selfCheck struct {
	client client.Client
	// rights are those that are needed.
	rights []Right
	// effect is what must become of the write that is tried; EffectOff: none is tried.
	effect config.Effect
	// warnings keeps those that came with answers.
	warnings *warnings
	log      logr.Logger
	passed   *prometheus.GaugeVec

	mu    sync.Mutex
	found *metav1.Condition
}

func newSelfCheck(kube *rest.Config, settings *config.Configuration, log logr.Logger, registry prometheus.Registerer) (*selfCheck, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	heard := &warnings{}
	kube = rest.CopyConfig(kube)
	kube.WarningHandler, kube.WarningHandlerWithContext = heard, nil
	c, err := client.New(kube, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("making the client of the self-check: %w", err)
	}
	passed := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "oakum_self_check", Help: "1 if the manager has its rights, and if the API server asks its webhooks; 0 if not.",
	}, []string{"check"})
	if err := registry.Register(passed); err != nil {
		return nil, fmt.Errorf("registering oakum_self_check: %w", err)
	}
	return &selfCheck{
		client: c, rights: Rights(settings), effect: ruleEffect(settings.Backends.Native), warnings: heard, log: log, passed: passed,
	}, nil
}

// ruleEffect is what becomes of a block whose pool does not exist.
func ruleEffect(b config.Backend) config.Effect {
	set, isSet := b.Rules[string(ipam.PoolDraining)]
	switch {
	case !judged(b), set == config.EffectOff:
		return config.EffectOff
	case !enforced(b):
		return config.EffectWarn
	case isSet:
		return set
	}
	return config.UsualEffect(native.Name, string(ipam.PoolDraining))
}

// warnings keeps what came with answers.
type warnings struct {
	mu   sync.Mutex
	kept []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept = append(w.kept, text)
}

// take returns the warnings since it was last called.
func (w *warnings) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	kept := w.kept
	w.kept = nil
	return kept
}

// run checks again and again until the context ends. What is found once may be over soon, as when the manager is not yet among
// the Service's endpoints; it counts when it is found twice.
func (s *selfCheck) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	doubts := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		f, wait := s.check(ctx), checkInterval
		switch {
		case ctx.Err() != nil:
			return nil
		case f.passed():
			doubts = 0
		case doubts == 0:
			doubts, wait = 1, recheck
		default:
			doubts, wait = 2, shortInterval
		}
		if doubts != 1 {
			s.tell(f)
		}
		timer.Reset(wait)
	}
}

// findings are what a check found. Nothing means that all is well.
type findings struct {
	// tried: a write was tried.
	tried bool
	// rights are those that are missing, or why that could not be found out.
	rights []string
	// webhook is what is wrong with the webhooks.
	webhook string
}

func (f findings) passed() bool { return len(f.rights) == 0 && f.webhook == "" }

func (s *selfCheck) check(ctx context.Context) (f findings) {
	f.rights = s.missing(ctx)
	if s.effect == config.EffectOff {
		return f
	}
	s.warnings.take()
	err := s.try(ctx)
	f.tried, f.webhook = true, deadness(s.effect, err, s.warnings.take())
	return f
}

// missing returns the rights that the API server says are missing.
func (s *selfCheck) missing(ctx context.Context) []string {
	var found []string
	for _, asked := range questions(s.rights) {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &asked}}
		if err := s.client.Create(ctx, review); err != nil {
			return append(found, fmt.Sprintf("asking for rights: %v", err))
		}
		if !review.Status.Allowed {
			found = append(found, sentence(asked))
		}
	}
	return found
}

// questions are the rights one by one, each once.
func questions(rights []Right) []authorizationv1.ResourceAttributes {
	var all []authorizationv1.ResourceAttributes
	for _, r := range rights {
		names := r.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					for _, name := range names {
						resource, subresource, _ := strings.Cut(resource, "/")
						q := authorizationv1.ResourceAttributes{
							Namespace: r.Namespace, Verb: verb, Group: group, Resource: resource, Subresource: subresource, Name: name,
						}
						if !slices.ContainsFunc(all, func(a authorizationv1.ResourceAttributes) bool { return sentence(a) == sentence(q) }) {
							all = append(all, q)
						}
					}
				}
			}
		}
	}
	return all
}

// sentence is a right in words, such as get secrets "oakum-webhook-ca" in namespace oakum-system.
func sentence(a authorizationv1.ResourceAttributes) string {
	text := a.Verb + " " + a.Resource
	if a.Group != "" {
		text += "." + a.Group
	}
	if a.Subresource != "" {
		text += "/" + a.Subresource
	}
	if a.Name != "" {
		text += fmt.Sprintf(" %q", a.Name)
	}
	if a.Namespace != "" {
		text += " in namespace " + a.Namespace
	}
	return text
}

// try is a dry run of a block that only our webhook refuses. It is an apply, because that names what it would create, so that the
// right to it can be a right to this name alone.
func (s *selfCheck) try(ctx context.Context) error {
	block := &v1alpha1.AddressBlock{ObjectMeta: metav1.ObjectMeta{Name: checkName}}
	text := fmt.Sprintf(`{"apiVersion":"%s/%s","kind":"AddressBlock","metadata":{"name":%q},"spec":{"pool":%q,"node":%q,"index":0,"ipv4":"192.0.2.0/32"}}`,
		v1alpha1.Group, v1alpha1.Version, checkName, checkPool, checkPool)
	return s.client.Patch(ctx, block, client.RawPatch(types.ApplyPatchType, []byte(text)), client.FieldOwner("oakum"), client.DryRunAll)
}

// deadness says why the answer to a write that must have that effect did not come from our webhook; nothing, if it did.
func deadness(effect config.Effect, err error, warned []string) string {
	const by = `admission webhook "create.addressblocks.ipam.oakum.dev" denied the request`
	ours := func(text string) bool {
		return strings.Contains(text, fmt.Sprintf("AddressPool %q does not exist", checkPool))
	}
	switch {
	case err != nil && strings.Contains(err.Error(), by):
		return ""
	case err != nil:
		return fmt.Sprintf("trying a write that the webhooks judge: %v", err)
	case effect == config.EffectWarn && slices.ContainsFunc(warned, ours):
		return ""
	}
	return "a block without a pool was admitted without a word: ValidatingWebhookConfiguration oakum is not there, or does not call this manager"
}

// tell logs, counts and keeps what was found, if it is news.
func (s *selfCheck) tell(f findings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passed.WithLabelValues("rights").Set(float(len(f.rights) == 0))
	if f.tried {
		s.passed.WithLabelValues("webhook").Set(float(f.webhook == ""))
	}
	c := f.condition()
	if s.found != nil && s.found.Message == c.Message {
		return
	}
	s.found = &c
	if f.passed() {
		s.log.Info("the self-check passed")
		return
	}
	s.log.Error(errors.New(c.Message), "the self-check failed", "reason", c.Reason)
}

func float(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// condition is what the LeakReport says of it.
func (f findings) condition() metav1.Condition {
	c := metav1.Condition{Type: string(v1alpha1.Guarded), Status: metav1.ConditionFalse}
	switch {
	case f.passed() && f.tried:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, string(v1alpha1.ReasonChecksPassed), "the manager has its rights, and its webhooks are asked"
	case f.passed():
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, string(v1alpha1.ReasonChecksPassed), "the manager has its rights"
	case f.webhook != "":
		c.Reason, c.Message = string(v1alpha1.ReasonWebhookDead), f.webhook
	default:
		c.Reason, c.Message = string(v1alpha1.ReasonRightsMissing), "missing: "+strings.Join(f.rights, ", ")
	}
	return c
}

// condition returns what was found last; nil, if nothing was yet.
func (s *selfCheck) condition() *metav1.Condition {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.found
}
