package webhooks

import (
	"errors"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
		if rule == ipam.PoolInUse {
			return config.EffectWarn
		}
		return config.EffectDeny
	case config.ModeWarn:
		if e.settings.Rules[string(rule)] == config.EffectOff {
			return config.EffectOff
		}
		return config.EffectWarn
	case config.ModeOff, config.ModeObserve:
	}
	return config.EffectOff
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
// are Invalid (422), with their fields as causes; right values at the wrong time are Forbidden (403). On a dry run
// nothing is recorded.
func (e Effects) answer(s subject, problems []ipam.Problem, dryRun bool) (admission.Warnings, error) {
	var warnings admission.Warnings
	var invalid field.ErrorList
	var untimely []string
	for _, p := range problems {
		effect := e.Of(p.Rule)
		if effect == config.EffectOff {
			continue
		}
		if !dryRun {
			e.total.WithLabelValues(e.backend, string(p.Rule), string(effect)).Inc()
		}
		switch {
		case effect == config.EffectWarn:
			warnings = append(warnings, string(p.Rule)+": "+message(p))
			if !dryRun {
				e.recorder.Eventf(s.reference(), nil, corev1.EventTypeWarning, string(v1alpha1.EventAdmissionWarning), "Admit", "%s: %s", p.Rule, message(p))
			}
		case p.Fault == ipam.Untimely:
			untimely = append(untimely, message(p))
		default:
			invalid = append(invalid, fieldError(p))
		}
	}
	switch group := s.GetObjectKind().GroupVersionKind().Group; {
	case len(invalid) > 0:
		return warnings, apierrors.NewInvalid(schema.GroupKind{Group: group, Kind: s.kind}, s.GetName(), invalid)
	case len(untimely) > 0:
		return warnings, apierrors.NewForbidden(schema.GroupResource{Group: group, Resource: s.resource}, s.GetName(), errors.New(strings.Join(untimely, "; ")))
	}
	return warnings, nil
}

// reference is what an Event is about. The object itself does not exist yet while it is being created.
func (s subject) reference() runtime.Object {
	return &corev1.ObjectReference{
		APIVersion: s.GetObjectKind().GroupVersionKind().GroupVersion().String(), Kind: s.kind, Name: s.GetName(), UID: s.GetUID(),
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
