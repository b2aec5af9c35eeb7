package cli

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
)

func TestDeadness(t *testing.T) {
	refusal := errors.New(`admission webhook "create.addressblocks.ipam.oakum.dev" denied the request: addressblocks.ipam.oakum.dev "oakum-self-check-0" is forbidden`)
	const (
		warning = `pool-draining: spec.pool: AddressPool "oakum-self-check" does not exist: create it first`
		silent  = "a block without a pool was admitted without a word: ValidatingWebhookConfiguration oakum is not there, or does not call this manager"
	)
	tests := map[string]struct {
		effect config.Effect
		err    error
		warned []string
		want   string
	}{
		"it was refused":                        {config.EffectDeny, refusal, nil, ""},
		"it was admitted":                       {config.EffectDeny, nil, nil, silent},
		"it was admitted with a warning":        {config.EffectWarn, nil, []string{"other", warning}, ""},
		"it was admitted with another warning":  {config.EffectWarn, nil, []string{"other"}, silent},
		"it was refused where a warning is due": {config.EffectWarn, refusal, nil, ""},
		"a warning where it must be refused":    {config.EffectDeny, nil, []string{warning}, silent},
		"the webhook could not be called": {
			config.EffectDeny, errors.New(`failed calling webhook "create.addressblocks.ipam.oakum.dev": x509: unknown authority`), nil,
			`trying a write that the webhooks judge: failed calling webhook "create.addressblocks.ipam.oakum.dev": x509: unknown authority`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := deadness(tt.effect, tt.err, tt.warned); got != tt.want {
				t.Errorf("it says %q, want %q", got, tt.want)
			}
		})
	}
}

func TestWhatBecomesOfTheWriteThatIsTried(t *testing.T) {
	tests := map[string]struct {
		settings config.Backend
		want     config.Effect
	}{
		"Enforce refuses":                {config.Backend{Mode: config.ModeEnforce}, config.EffectDeny},
		"Enforce with the rule loosened": {config.Backend{Mode: config.ModeEnforce, Rules: map[string]config.Effect{"pool-draining": config.EffectWarn}}, config.EffectWarn},
		"Enforce without the rule":       {config.Backend{Mode: config.ModeEnforce, Rules: map[string]config.Effect{"pool-draining": config.EffectOff}}, config.EffectOff},
		"Warn warns":                     {config.Backend{Mode: config.ModeWarn}, config.EffectWarn},
		"Warn without the rule":          {config.Backend{Mode: config.ModeWarn, Rules: map[string]config.Effect{"pool-draining": config.EffectOff}}, config.EffectOff},
		"Observe does nothing":           {config.Backend{Mode: config.ModeObserve}, config.EffectOff},
		"Off does nothing":               {config.Backend{Mode: config.ModeOff}, config.EffectOff},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := ruleEffect(tt.settings); got != tt.want {
				t.Errorf("it is %q, want %q", got, tt.want)
			}
		})
	}
}

// apiserver answers reviews and the write that is tried.
type apiserver struct {
	client.Client
	forbidden map[string]bool
	refuses   func() error
}

func (a *apiserver) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	review := o.(*authorizationv1.SelfSubjectAccessReview)
	review.Status.Allowed = !a.forbidden[sentence(*review.Spec.ResourceAttributes)]
	return nil
}

func (a *apiserver) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return a.refuses()
}

func TestSelfCheck(t *testing.T) {
	const (
		dead   = "a block without a pool was admitted without a word: ValidatingWebhookConfiguration oakum is not there, or does not call this manager"
		passed = "the manager has its rights, and its webhooks are asked"
	)
	refusal := errors.New(`admission webhook "create.addressblocks.ipam.oakum.dev" denied the request`)
	type state struct {
		Condition       metav1.Condition
		Rights, Webhook float64
	}
	tests := map[string]struct {
		forbidden map[string]bool
		// refuses tells, by how long the check has run, whether the write is refused.
		refuses func(time.Duration) bool
		want    []state // after 1 s, 20 s and 11 minutes
	}{
		"all is well": {
			refuses: func(time.Duration) bool { return true },
			want: []state{
				{metav1.Condition{Type: "Guarded", Status: "True", Reason: "ChecksPassed", Message: passed}, 1, 1},
				{metav1.Condition{Type: "Guarded", Status: "True", Reason: "ChecksPassed", Message: passed}, 1, 1},
				{metav1.Condition{Type: "Guarded", Status: "True", Reason: "ChecksPassed", Message: passed}, 1, 1},
			},
		},
		"the webhook is called a little later": {
			refuses: func(d time.Duration) bool { return d > 10*time.Second },
			want: []state{
				{},
				{metav1.Condition{Type: "Guarded", Status: "True", Reason: "ChecksPassed", Message: passed}, 1, 1},
				{metav1.Condition{Type: "Guarded", Status: "True", Reason: "ChecksPassed", Message: passed}, 1, 1},
			},
		},
		"the registration goes after a while": {
			refuses: func(d time.Duration) bool { return d < time.Minute },
			want: []state{
				{metav1.Condition{Type: "Guarded", Status: "True", Reason: "ChecksPassed", Message: passed}, 1, 1},
				{metav1.Condition{Type: "Guarded", Status: "True", Reason: "ChecksPassed", Message: passed}, 1, 1},
				{metav1.Condition{Type: "Guarded", Status: "False", Reason: "WebhookDead", Message: dead}, 1, 0},
			},
		},
		"a right is missing": {
			forbidden: map[string]bool{`get secrets "ca" in namespace oakum-system`: true, "patch pods": true},
			refuses:   func(time.Duration) bool { return true },
			want: []state{
				{},
				{metav1.Condition{Type: "Guarded", Status: "False", Reason: "RightsMissing", Message: `missing: patch pods, get secrets "ca" in namespace oakum-system`}, 0, 1},
				{metav1.Condition{Type: "Guarded", Status: "False", Reason: "RightsMissing", Message: `missing: patch pods, get secrets "ca" in namespace oakum-system`}, 0, 1},
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				registry := prometheus.NewRegistry()
				gauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "oakum_self_check"}, []string{"check"})
				registry.MustRegister(gauge)
				var log []string
				s := &selfCheck{
					client: &apiserver{forbidden: tt.forbidden, refuses: func() error {
						if tt.refuses(time.Since(began)) {
							return refusal
						}
						return nil
					}},
					rights: []Right{right("", "pods", "get,patch"), right("", "secrets", "get").named("ca").in("oakum-system")},
					effect: config.EffectDeny, warnings: &warnings{}, passed: gauge,
					log: funcr.New(func(_, args string) { log = append(log, args) }, funcr.Options{}),
				}
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- s.run(ctx) }()
				var got []state
				for _, at := range []time.Duration{time.Second, 20 * time.Second, 11 * time.Minute} {
					<-time.After(at - time.Since(began))
					got = append(got, state{})
					if c := s.condition(); c != nil {
						got[len(got)-1] = state{*c, valueOf(t, registry, "rights"), valueOf(t, registry, "webhook")}
					}
				}
				stop()
				if err := <-done; err != nil {
					t.Error(err)
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("states (-want +got):\n%s", diff)
				}
				if news := len(changes(got)); len(log) != news {
					t.Errorf("%d lines were logged about %d pieces of news: %q", len(log), news, log)
				}
			})
		})
	}
}

// changes are the values without those that follow their equal.
func changes[T comparable](all []T) (found []T) {
	var last T
	for _, v := range all {
		if v != last {
			found = append(found, v)
		}
		last = v
	}
	return found
}

func valueOf(t *testing.T, registry *prometheus.Registry, check string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range families[0].GetMetric() {
		if m.GetLabel()[0].GetValue() == check {
			return m.GetGauge().GetValue()
		}
	}
	t.Fatal(fmt.Errorf("there is no gauge for %s", check))
	return 0
}
