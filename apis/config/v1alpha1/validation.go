package v1alpha1

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Validate returns everything that is wrong with the settings, each with its field, its value and what to write
// instead; nothing for a configuration that can be used.
func (c *Configuration) Validate() field.ErrorList {
	errs := c.validateHeader()
	errs = append(errs, validateNamespace(c.Namespace, field.NewPath("namespace"))...)
	errs = append(errs, c.Backends.validate(field.NewPath("backends"))...)
	errs = append(errs, c.Finalizers.validate(c.Backends, field.NewPath("finalizers"))...)
	errs = append(errs, c.Audit.validate(field.NewPath("audit"))...)
	errs = append(errs, c.LeaderElection.validate(field.NewPath("leaderElection"))...)
	errs = append(errs, validateBindAddress(c.Metrics.BindAddress, field.NewPath("metrics", "bindAddress"))...)
	errs = append(errs, validateBindAddress(c.Health.BindAddress, field.NewPath("health", "bindAddress"))...)
	errs = append(errs, c.Webhook.validate(field.NewPath("webhook"))...)
	errs = append(errs, validateLoopback(c.Debug.PprofBindAddress, field.NewPath("debug", "pprofBindAddress"))...)
	return append(errs, validateOneOf(c.Log.Level, field.NewPath("log", "level"), LevelDebug, LevelInfo, LevelError)...)
}

// validateHeader tells whether this is a Configuration of this version at all.
func (c *Configuration) validateHeader() field.ErrorList {
	errs := validateOneOf(c.APIVersion, field.NewPath("apiVersion"), APIVersion)
	return append(errs, validateOneOf(c.Kind, field.NewPath("kind"), Kind)...)
}

func (b Backends) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, backend := range b.named() {
		path := path.Child(backend.name)
		errs = append(errs, validateOneOf(backend.Mode, path.Child("mode"), ModeOff, ModeObserve, ModeWarn, ModeEnforce)...)
		for _, name := range slices.Sorted(maps.Keys(backend.Rules)) {
			errs = append(errs, validateRule(name, backend.Rules[name], backend.known, path.Child("rules").Key(name))...)
		}
	}
	return append(errs, validateNamespace(b.Whereabouts.Namespace, path.Child("whereabouts", "namespace"))...)
}

func validateRule(name string, effect Effect, known []rule, path *field.Path) field.ErrorList {
	i := slices.IndexFunc(known, func(r rule) bool { return r.name == name })
	if i < 0 {
		var names []string
		for _, r := range known {
			names = append(names, r.name)
		}
		return field.ErrorList{field.NotSupported(path, name, names)}
	}
	if reason := known[i].neverDenied; reason != "" && effect == EffectDeny {
		return field.ErrorList{field.Invalid(path, effect, fmt.Sprintf("must be %s or %s: %s", EffectWarn, EffectOff, reason))}
	}
	return validateOneOf(effect, path, EffectDeny, EffectWarn, EffectOff)
}

func (f Finalizers) validate(backends Backends, path *field.Path) field.ErrorList {
	pods, nodes := path.Child("pods"), path.Child("nodes")
	errs := validateBetween(f.Pods.Deadline, time.Second, 24*time.Hour, pods.Child("deadline"))
	for i, namespace := range f.Pods.ExcludedNamespaces {
		errs = append(errs, validateNamespace(namespace, pods.Child("excludedNamespaces").Index(i))...)
	}
	if n := f.Pods.BackfillPerSecond; n < 1 || n > 1000 {
		errs = append(errs, field.Invalid(pods.Child("backfillPerSecond"), n, "must be 1 to 1000"))
	}
	var names []string
	for _, backend := range backends.named() {
		if backend.holdsNodes {
			names = append(names, backend.name)
		}
	}
	for i, name := range f.Nodes.Backends {
		errs = append(errs, validateOneOf(name, nodes.Child("backends").Index(i), names...)...)
	}
	return append(errs, validateBetween(f.Nodes.Deadline, time.Second, 5*time.Minute, nodes.Child("deadline"))...)
}

func (a Audit) validate(path *field.Path) field.ErrorList {
	errs := validatePositive(a.GracePeriod, path.Child("gracePeriod"))
	if a.Quarantine.Duration < a.GracePeriod.Duration {
		errs = append(errs, field.Invalid(path.Child("quarantine"), a.Quarantine,
			fmt.Sprintf("must be at least gracePeriod (%s): what is not proven waits no less than what is", a.GracePeriod.Duration)))
	}
	if a.Interval.Duration < time.Second {
		errs = append(errs, field.Invalid(path.Child("interval"), a.Interval, "must be at least 1s"))
	}
	pace := path.Child("pace")
	if f := a.Pace.Fraction; !(0 <= f && f <= 1) {
		errs = append(errs, field.Invalid(pace.Child("fraction"), f, "must be 0 to 1"))
	}
	if n := a.Pace.Minimum; n < 1 {
		errs = append(errs, field.Invalid(pace.Child("minimum"), n, "must be at least 1, or nothing is ever released"))
	}
	return errs
}

func (l LeaderElection) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if l.Namespace != "" {
		errs = append(errs, validateNamespace(l.Namespace, path.Child("namespace"))...)
	}
	switch lease := path.Child("leaseDuration"); {
	case l.LeaseDuration.Duration < time.Second:
		errs = append(errs, field.Invalid(lease, l.LeaseDuration, "must be at least 1s: a Lease counts whole seconds"))
	case l.LeaseDuration.Duration <= l.RenewDeadline.Duration:
		errs = append(errs, field.Invalid(lease, l.LeaseDuration,
			fmt.Sprintf("must be more than renewDeadline (%s), or there are two leaders at times", l.RenewDeadline.Duration)))
	}
	errs = append(errs, validatePositive(l.RetryPeriod, path.Child("retryPeriod"))...)
	// The factor is client-go's leaderelection.JitterFactor, by which the wait between two tries may be longer.
	if l.RenewDeadline.Duration/6 <= l.RetryPeriod.Duration/5 {
		errs = append(errs, field.Invalid(path.Child("renewDeadline"), l.RenewDeadline,
			fmt.Sprintf("must be more than 1.2 times retryPeriod (%s), or there is no second try", l.RetryPeriod.Duration)))
	}
	return errs
}

func (w Webhook) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !isHost(w.Host) {
		errs = append(errs, field.Invalid(path.Child("host"), w.Host, `must be an IP address, a DNS name, or "" for every interface`))
	}
	if w.Port < 1 || w.Port > 65535 {
		errs = append(errs, field.Invalid(path.Child("port"), w.Port, "must be 1 to 65535"))
	}
	if w.SelfSigned != nil {
		return append(errs, w.SelfSigned.validate(path.Child("selfSigned"))...)
	}
	if w.CertDir == "" {
		errs = append(errs, field.Required(path.Child("certDir"), "must be the folder of tls.crt and tls.key"))
	}
	return errs
}

func (s SelfSigned) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(validation.IsDNS1123Subdomain(s.SecretName)) > 0 {
		errs = append(errs, field.Invalid(path.Child("secretName"), s.SecretName,
			"must be the name of a Secret, such as oakum-webhook-ca: at most 253 lower case letters, digits, and inner hyphens and dots"))
	}
	if len(validation.IsDNS1035Label(s.ServiceName)) > 0 {
		errs = append(errs, field.Invalid(path.Child("serviceName"), s.ServiceName,
			"must be the name of a Service, such as oakum: at most 63 lower case letters, digits and inner hyphens, with a letter first"))
	}
	return errs
}

// validateOneOf refuses a value that is not among those listed; an empty one is missing.
func validateOneOf[T ~string](value T, path *field.Path, valid ...T) field.ErrorList {
	switch {
	case slices.Contains(valid, value):
		return nil
	case value == "":
		return field.ErrorList{field.Required(path, "must be "+oneOf(valid))}
	default:
		return field.ErrorList{field.NotSupported(path, value, valid)}
	}
}

func oneOf[T ~string](valid []T) string {
	quoted := make([]string, len(valid))
	for i, v := range valid {
		quoted[i] = strconv.Quote(string(v))
	}
	if len(quoted) == 1 {
		return quoted[0]
	}
	return "one of " + strings.Join(quoted, ", ")
}

func validateNamespace(name string, path *field.Path) field.ErrorList {
	if len(validation.IsDNS1123Label(name)) == 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, name,
		"must be the name of a namespace: at most 63 lower case letters, digits and inner hyphens")}
}

func validatePositive(d metav1.Duration, path *field.Path) field.ErrorList {
	if d.Duration > 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, d, "must be more than 0s")}
}

func validateBetween(d metav1.Duration, least, most time.Duration, path *field.Path) field.ErrorList {
	if least <= d.Duration && d.Duration <= most {
		return nil
	}
	return field.ErrorList{field.Invalid(path, d, fmt.Sprintf("must be %s to %s", least, most))}
}

// validateBindAddress admits what controller-runtime's servers take: host:port, or "0" for no server.
func validateBindAddress(address string, path *field.Path) field.ErrorList {
	if address == "0" {
		return nil
	}
	host, port, err := net.SplitHostPort(address)
	if err == nil && isHost(host) {
		if _, err = strconv.ParseUint(port, 10, 16); err == nil {
			return nil
		}
	}
	return field.ErrorList{field.Invalid(path, address, `must be host:port such as ":8443" or "127.0.0.1:8443", or "0" for no server`)}
}

// validateLoopback admits an address that only this pod's processes reach, or "0" for no server.
func validateLoopback(address string, path *field.Path) field.ErrorList {
	if address == "0" {
		return nil
	}
	if a, err := netip.ParseAddrPort(address); err == nil && a.Addr().IsLoopback() {
		return nil
	}
	return field.ErrorList{field.Invalid(path, address, `must be a loopback address such as "127.0.0.1:6060", which kubectl port-forward reaches, or "0" for no server`)}
}

func isHost(s string) bool {
	if s == "" || len(validation.IsDNS1123Subdomain(s)) == 0 {
		return true
	}
	_, err := netip.ParseAddr(s)
	return err == nil
}
