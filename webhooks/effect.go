package webhooks

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/ipam"
)

// Effects turns problems into answers, as the mode and the rules' settings of one backend want it.
type Effects struct {
	backend  string
	settings config.Backend
	total    *prometheus.CounterVec
	recorder events.EventRecorder
}

// NewEffects returns the effects of one backend's settings. It counts in the metric that NewAdmissionTotal made.
func NewEffects(backend string, settings config.Backend, total *prometheus.CounterVec, recorder events.EventRecorder) Effects {
	return Effects{backend, settings, total, recorder}
}

// NewAdmissionTotal makes and registers the metric oakum_admission_total.
func NewAdmissionTotal(r prometheus.Registerer) (*prometheus.CounterVec, error) {
	total := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "oakum_admission_total",
		Help: "Breaches of admission rules, by backend, rule and what became of the write (Deny or Warn).",
	}, []string{"backend", "rule", "effect"})
	return total, r.Register(total)
}

// Of returns what becomes of a write that breaks the rule.
func (e Effects) Of(rule ipam.Rule) config.Effect {
	switch e.settings.Mode {
	case config.ModeEnforce:
		if effect, set := e.settings.Rules[string(rule)]; set {
			return effect
		}
		return config.UsualEffect(e.backend, string(rule))
	case config.ModeWarn:
		if e.settings.Rules[string(rule)] == config.EffectOff {
			return config.EffectOff
		}
		return config.EffectWarn
	case config.ModeOff, config.ModeObserve:
	}
	return config.EffectOff
}

// judges tells whether a breach of a rule has any effect.
func (e Effects) judges() bool {
	return e.settings.Mode == config.ModeEnforce || e.settings.Mode == config.ModeWarn
}

// denies tells whether the write is lost, so that dearer checks and side effects can be spared.
func (e Effects) denies(problems []ipam.Problem) bool {
	return slices.ContainsFunc(problems, func(p ipam.Problem) bool { return e.Of(p.Rule) == config.EffectDeny })
}

// Enforced tells whether objects are held until their addresses are free.
func (e Effects) Enforced() bool { return e.settings.Mode == config.ModeEnforce }

// HoldsPods tells whether pods are among those objects.
func (e Effects) HoldsPods() bool { return e.Enforced() && e.settings.PodFinalizers }

// subject is the object that a write is about.
type subject struct {
	client.Object
	kind, resource string
}

// answer refuses the write if a problem's rule says so, and else admits it with the warnings. Wrong and missing values
// are Invalid (422), with their fields as causes; right values at the wrong time are Forbidden (403). If nothing but the
// node's other block is in the way, the client is asked to look again soon: there is an address for it in there. On a
// dry run nothing is recorded, and of a write that is refused no warning is.
func (e Effects) answer(s subject, problems []ipam.Problem, dryRun bool) (admission.Warnings, error) {
	var warnings admission.Warnings
	var invalid field.ErrorList
	var untimely []string
	quiet, passing := dryRun || e.denies(problems), true
	for _, p := range problems {
		switch effect := e.Of(p.Rule); {
		case effect == config.EffectOff:
			continue
		case effect == config.EffectWarn:
			warnings = append(warnings, e.warn(s, p, quiet))
			continue
		case p.Fault == ipam.Untimely:
			untimely = append(untimely, message(p))
			passing = passing && p.Rule == ipam.SecondUnfilledBlock
		default:
			invalid = append(invalid, fieldError(p))
		}
		e.count(p.Rule, config.EffectDeny, dryRun)
	}
	switch group := s.GetObjectKind().GroupVersionKind().Group; {
	case len(invalid) > 0:
		return warnings, apierrors.NewInvalid(schema.GroupKind{Group: group, Kind: s.kind}, s.GetName(), invalid)
	case len(untimely) > 0:
		refusal := apierrors.NewForbidden(schema.GroupResource{Group: group, Resource: s.resource}, s.GetName(), errors.New(strings.Join(untimely, "; ")))
		if passing {
			refusal.ErrStatus.Details.RetryAfterSeconds = 1
		}
		return warnings, refusal
	}
	return warnings, nil
}

// foreign answers the write of another program's object. A refusal is always Forbidden (403): every other code means
// something else to one network plugin or another, and sends it into retries or onto a wrong branch.
func (e Effects) foreign(req admission.Request, kind, resource string, problems []ipam.Problem) admission.Response {
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: req.Namespace, Name: req.Name}}
	object.SetGroupVersionKind(schema.GroupVersionKind{Group: req.Kind.Group, Version: req.Kind.Version, Kind: kind})
	s, dryRun := subject{object, kind, resource}, req.DryRun != nil && *req.DryRun
	quiet := dryRun || e.denies(problems)
	var warnings admission.Warnings
	var refused []string
	for _, p := range problems {
		switch e.Of(p.Rule) {
		case config.EffectWarn:
			warnings = append(warnings, e.warn(s, p, quiet))
		case config.EffectDeny:
			refused = append(refused, string(p.Rule)+": "+message(p))
			e.count(p.Rule, config.EffectDeny, dryRun)
		case config.EffectOff:
		}
	}
	if len(refused) == 0 {
		return admission.Allowed("").WithWarnings(warnings...)
	}
	answer := admission.Denied(strings.Join(refused, "; ")).WithWarnings(warnings...)
	answer.Result.Code, answer.Result.Reason = http.StatusForbidden, metav1.StatusReasonForbidden
	return answer
}

// warn returns a warning as the client sees it, and records it unless it shall be quiet.
func (e Effects) warn(s subject, p ipam.Problem, quiet bool) string {
	warning := string(p.Rule) + ": " + message(p)
	e.count(p.Rule, config.EffectWarn, quiet)
	if !quiet {
		e.recorder.Eventf(s.reference(), nil, corev1.EventTypeWarning, string(v1alpha1.EventAdmissionWarning), "Admit", "%s", warning)
	}
	return warning
}

func (e Effects) count(rule ipam.Rule, effect config.Effect, quiet bool) {
	if !quiet {
		e.total.WithLabelValues(e.backend, string(rule), string(effect)).Inc()
	}
}

// unjudged answers a write about which something could not be found out. Where a breach would be refused, so is this:
// with 500, since nothing is known to be wrong and another try may go through.
func (e Effects) unjudged(err error) (admission.Warnings, error) {
	if e.settings.Mode == config.ModeEnforce {
		return nil, apierrors.NewInternalError(err)
	}
	return notJudged(err), nil
}

// notJudged warns about a write that is admitted although something could not be found out.
func notJudged(err error) admission.Warnings {
	return admission.Warnings{"not judged: " + err.Error()}
}

// reference is what an Event is about. The object itself does not exist yet while it is being created.
func (s subject) reference() runtime.Object {
	return &corev1.ObjectReference{
		APIVersion: s.GetObjectKind().GroupVersionKind().GroupVersion().String(), Kind: s.kind,
		Namespace: s.GetNamespace(), Name: s.GetName(), UID: s.GetUID(),
	}
}

// fieldError is a wrong or missing value as the API reports it.
func fieldError(p ipam.Problem) *field.Error {
	if p.Fault == ipam.Missing {
		return field.Required(field.NewPath(p.Field), p.Message)
	}
	return field.Invalid(field.NewPath(p.Field), p.Value, p.Message)
}

// message is a problem in one sentence, for answers that carry no causes.
func message(p ipam.Problem) string {
	switch {
	case p.Field == "":
		return p.Message
	case p.Fault == ipam.Untimely:
		return p.Field + ": " + p.Message
	}
	return fieldError(p).Error()
}
