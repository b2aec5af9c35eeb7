// Package chart tests what helm makes of charts/oakum.
package chart

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/cli"
	"github.com/oakum-dev/oakum/test/controlplane"
)

// release is what the chart is rendered for.
type release struct {
	name, namespace string
	// set are arguments of --set, and values the lines of a file of values.
	set    []string
	values string
}

// enforced are the values under which everything is registered that the chart knows.
func enforced() []string {
	return []string{
		"config.backends.whereabouts.mode=Enforce", "config.backends.whereabouts.defaultNetwork=true",
		"config.backends.coil.mode=Enforce", "config.backends.calico.mode=Enforce", "certificates.mode=cert-manager",
	}
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := controlplane.Root()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// run runs a tool that make builds, and returns what it printed.
func run(t *testing.T, stdin, tool string, args ...string) (stdout []byte, err error) {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), filepath.Join(root(t), "bin", tool), args...)
	cmd.Stdin, cmd.Stderr = strings.NewReader(stdin), &stderr
	if stdout, err = cmd.Output(); err != nil {
		err = fmt.Errorf("%s: %w: %s (make bin/%[1]s builds it)", tool, err, stderr.String())
	}
	return stdout, err
}

func (r release) template(t *testing.T) ([]byte, error) {
	t.Helper()
	args := []string{"template", r.name, filepath.Join(root(t), "charts", "oakum"), "--namespace", r.namespace}
	for _, set := range r.set {
		args = append(args, "--set", set)
	}
	return run(t, r.values, "helm", append(args, "--values", "-")...)
}

// objects are the manifests by kind and name.
type objects map[string]*unstructured.Unstructured

// render returns what the release installs.
func (r release) render(t *testing.T) objects {
	t.Helper()
	text, err := r.template(t)
	if err != nil {
		t.Fatal(err)
	}
	return read(t, text)
}

func read(t *testing.T, text []byte) objects {
	t.Helper()
	file := filepath.Join(t.TempDir(), "manifests.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := controlplane.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	found := objects{}
	for _, o := range all {
		key := o.GetKind() + " " + o.GetName()
		if found[key] != nil {
			t.Errorf("%s is there twice", key)
		}
		found[key] = o
	}
	return found
}

// into decodes the object of that kind and name.
func (o objects) into(t *testing.T, key string, typed any) {
	t.Helper()
	object := o[key]
	if object == nil {
		t.Fatalf("there is no %s", key)
	}
	data, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(data, typed); err != nil {
		t.Fatalf("%s: %v", key, err)
	}
}

// shared keeps what config/ has as well: guards, certificates, Oakum's kinds and the roles for people. The manager's own
// role, which has that name, follows the modes.
func (o objects) shared(manager string) map[string]any {
	found := map[string]any{}
	for key, object := range o {
		switch object.GroupVersionKind().Group {
		case admissionregistrationv1.GroupName, "cert-manager.io", "apiextensions.k8s.io":
		case "rbac.authorization.k8s.io":
			if object.GetKind() != "ClusterRole" || object.GetName() == manager {
				continue
			}
		default:
			continue
		}
		found[key] = object.Object
	}
	return found
}

// The chart and config/ install the same guards, whatever the release is called and wherever it is.
func TestGuardsAreThoseOfConfig(t *testing.T) {
	dir := t.TempDir()
	relative, err := filepath.Rel(dir, filepath.Join(root(t), "config"))
	if err != nil {
		t.Fatal(err)
	}
	kustomization := fmt.Sprintf("resources: [%s/default]\ncomponents: [%[1]s/pods, %[1]s/whereabouts, %[1]s/coil, %[1]s/calico]\n", relative)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o600); err != nil {
		t.Fatal(err)
	}
	built, err := run(t, "", "kustomize", "build", dir)
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		release
		name string
	}{
		"as it is usually called":                {release{name: "oakum", namespace: "oakum-system"}, "oakum"},
		"with another name in another place":     {release{name: "my-release", namespace: "ipam"}, "my-release-oakum"},
		"with a name that has Oakum's in it":     {release{name: "oakum-blue", namespace: "blue"}, "oakum-blue"},
		"with a name that the values give it":    {release{name: "x", namespace: "y", set: []string{"fullnameOverride=guard"}}, "guard"},
		"with several namespaces left alone":     {release{name: "oakum", namespace: "kube-system"}, "oakum"},
		"where its namespace is left alone, too": {release{name: "oakum", namespace: "default"}, "oakum"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			want := objects{}
			for _, o := range read(t, built) {
				adapt(o, tt.name, tt.namespace)
				want[o.GetKind()+" "+o.GetName()] = o
			}
			tt.set = append(tt.set, enforced()...)
			got := tt.render(t)
			for key, o := range got {
				if strings.HasSuffix(o.GetAnnotations()["helm.sh/hook"], "delete") {
					delete(got, key)
				}
				labels := o.GetLabels()
				for _, own := range []string{"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"} {
					if labels[own] == "" {
						t.Errorf("%s has no label %s", key, own)
					}
					delete(labels, own)
				}
				if o.SetLabels(labels); len(labels) == 0 {
					o.SetLabels(nil)
				}
				annotations := o.GetAnnotations()
				if o.GetKind() == "CustomResourceDefinition" && annotations["helm.sh/resource-policy"] != "keep" {
					t.Errorf("%s would go with the release, and all that it holds", key)
				}
				delete(annotations, "helm.sh/resource-policy")
				if o.SetAnnotations(annotations); len(annotations) == 0 {
					o.SetAnnotations(nil)
				}
			}
			if diff := cmp.Diff(want.shared("oakum"), got.shared(tt.name)); diff != "" {
				t.Errorf("guards (-config +chart):\n%s", diff)
			}
		})
	}
}

// adapt makes of a manifest in config/ what it is in a release whose things have that name.
func adapt(o *unstructured.Unstructured, name, namespace string) {
	rename := func(s string) string { return strings.Replace(s, "oakum", name, 1) }
	if o.GroupVersionKind().Group == "cert-manager.io" {
		o.SetName(rename(o.GetName()))
	}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for key, value := range v {
				text, _ := value.(string)
				switch key {
				case "namespace":
					if text == "oakum-system" {
						v[key] = namespace
					}
				case "secretName":
					v[key] = rename(text)
				case "issuerRef", "service":
					o := value.(map[string]any)
					o["name"] = rename(o["name"].(string))
				case "ca":
				case "cert-manager.io/inject-ca-from":
					v[key] = namespace + "/" + name + "-webhook"
				case "dnsNames":
					host := name + "." + namespace + ".svc"
					v[key] = []any{host, host + ".cluster.local"}
				case "values":
					list := value.([]any)
					for i := range list {
						if list[i] == "oakum-system" {
							list[i] = namespace
						}
					}
					v[key] = slices.Compact(list)
				}
				walk(v[key])
			}
		case []any:
			for _, value := range v {
				walk(value)
			}
		}
	}
	walk(o.Object)
}

// guards lists what may stand in the way of a write, with what becomes of it.
func (o objects) guards(t *testing.T) (found []string) {
	t.Helper()
	for key, object := range o {
		switch object.GetKind() {
		case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
			found = append(found, key)
		case "ValidatingAdmissionPolicyBinding":
			actions, _, err := unstructured.NestedStringSlice(object.Object, "spec", "validationActions")
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, fmt.Sprintf("%s %v", object.GetName(), actions))
		}
	}
	slices.Sort(found)
	return found
}

func TestNothingIsRegisteredForABackendThatIsNotGuarded(t *testing.T) {
	oakum := []string{"confinement.ipam.oakum.dev [Deny]", "finalizers.ipam.oakum.dev [Deny]"}
	native := []string{
		"MutatingWebhookConfiguration oakum", "ValidatingWebhookConfiguration oakum",
		"block-in-use.ipam.oakum.dev [Deny]", "node-writer.ipam.oakum.dev [Deny]",
	}
	tests := map[string]struct {
		values string
		want   []string
	}{
		"what is installed without any value guards Oakum's own kinds": {want: native},
		"Off, Observe and a backend that is not mentioned": {
			values: "config: {backends: {native: {mode: Observe}, coil: {mode: Off}, calico: {mode: \"Off\"}}}",
		},
		"Warn warns, and holds no pod": {
			values: "config: {backends: {native: {mode: Warn}, whereabouts: {mode: Warn, defaultNetwork: true}, coil: {mode: Warn}, calico: {mode: Warn}}}",
			want: []string{
				"MutatingWebhookConfiguration oakum", "ValidatingWebhookConfiguration oakum", "ValidatingWebhookConfiguration oakum-calico",
				"ValidatingWebhookConfiguration oakum-coil", "ValidatingWebhookConfiguration oakum-whereabouts",
				"allocation-unowned.calico.oakum.dev [Warn Audit]", "allocation-unowned.whereabouts.oakum.dev [Warn Audit]",
				"block-in-use.ipam.oakum.dev [Warn Audit]", "block-structure.calico.oakum.dev [Warn Audit]", "node-writer.ipam.oakum.dev [Warn Audit]",
			},
		},
		"Whereabouts holds the pods that name networks": {
			values: "config: {backends: {native: {mode: Off}, whereabouts: {mode: Enforce}}}",
			want: []string{
				"MutatingWebhookConfiguration oakum-whereabouts", "ValidatingWebhookConfiguration oakum-whereabouts",
				"allocation-unowned.whereabouts.oakum.dev [Warn Audit]",
			},
		},
		"Coil holds every pod": {
			values: "config: {backends: {native: {mode: Off}, coil: {mode: Enforce}}}",
			want:   []string{"MutatingWebhookConfiguration oakum-pods", "ValidatingWebhookConfiguration oakum-coil"},
		},
		"where the audit alone releases, no pod is held": {
			values: "config: {backends: {native: {mode: Off}, coil: {mode: Enforce, podFinalizers: false}}}",
			want:   []string{"ValidatingWebhookConfiguration oakum-coil"},
		},
		"rules that are policies have the effect that is set": {
			values: "config: {backends: {native: {mode: Off}, whereabouts: {mode: Enforce, podFinalizers: false, rules: {allocation-unowned: Off}},\n" +
				"  calico: {mode: Enforce, podFinalizers: false, rules: {allocation-unowned: Warn, block-structure: Off}}}}",
			want: []string{
				"ValidatingWebhookConfiguration oakum-calico", "ValidatingWebhookConfiguration oakum-whereabouts",
				"allocation-unowned.calico.oakum.dev [Warn Audit]",
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			want := slices.Sorted(slices.Values(append(slices.Clone(oakum), tt.want...)))
			if diff := cmp.Diff(want, release{name: "oakum", namespace: "oakum-system", values: tt.values}.render(t).guards(t)); diff != "" {
				t.Errorf("guards (-want +got):\n%s", diff)
			}
		})
	}
}

// Foreign writes pass while no manager answers, but for those that somebody wants to be strict about.
func TestOnlyWhatIsStrictFails(t *testing.T) {
	tests := map[string]struct {
		set  []string
		want []string
	}{
		"nothing is": {},
		"Coil is":    {set: []string{"strict.coil=true"}, want: []string{"oakum-coil/addressblocks.coil.oakum.dev", "oakum-coil/addresspools.coil.oakum.dev"}},
		"Calico is": {set: []string{"strict.calico=true"}, want: []string{
			"oakum-calico/delete.v1.ippools.calico.oakum.dev", "oakum-calico/v1.blockaffinities.calico.oakum.dev", "oakum-calico/v1.ippools.calico.oakum.dev",
			"oakum-calico/v3.blockaffinities.calico.oakum.dev", "oakum-calico/v3.ippools.calico.oakum.dev",
		}},
		"nothing is that only warns": {set: []string{"strict.calico=true", "config.backends.calico.mode=Warn"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			rendered := release{name: "oakum", namespace: "oakum-system", set: append(enforced(), tt.set...)}.render(t)
			var got []string
			for key, o := range rendered {
				if !strings.HasSuffix(o.GetKind(), "WebhookConfiguration") || o.GetName() == "oakum" {
					continue
				}
				var c admissionregistrationv1.ValidatingWebhookConfiguration // The mutating one has the same fields, and one more.
				o.Object["kind"] = "ValidatingWebhookConfiguration"
				rendered.into(t, key, &c)
				for _, w := range c.Webhooks {
					if *w.FailurePolicy == admissionregistrationv1.Fail {
						got = append(got, c.Name+"/"+w.Name)
					}
				}
			}
			slices.Sort(got)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("webhooks without which a write fails (-want +got):\n%s", diff)
			}
		})
	}
}

// settings returns what the manager reads.
func (r release) settings(t *testing.T, name string) *config.Configuration {
	t.Helper()
	data, _, err := unstructured.NestedString(r.render(t)["ConfigMap "+name].Object, "data", "config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	settings, err := config.Decode([]byte(data))
	if err != nil {
		t.Fatalf("%v:\n%s", err, data)
	}
	for _, rules := range []*config.Backend{
		&settings.Backends.Native, &settings.Backends.Whereabouts.Backend, &settings.Backends.Coil.Backend, &settings.Backends.Calico.Backend,
	} {
		if len(rules.Rules) == 0 {
			rules.Rules = nil
		}
	}
	return settings
}

func TestTheManagerReadsWhatTheValuesSay(t *testing.T) {
	want := config.Default()
	want.Webhook.SelfSigned = &config.SelfSigned{SecretName: "oakum-webhook-ca", ServiceName: "oakum"}
	if diff := cmp.Diff(want, release{name: "oakum", namespace: "oakum-system"}.settings(t, "oakum")); diff != "" {
		t.Errorf("without any value (-default of the program +chart):\n%s", diff)
	}

	r := release{
		name: "x", namespace: "ipam", set: []string{"certificates.mode=provided", "certificates.provided.secretName=s", "certificates.provided.caBundle=pem"},
		values: `
hostNetwork: true
ports: {webhook: 19443, metrics: 18443, health: 18081}
config:
  backends:
    native: {rules: {pool-overlap: Off, second-unfilled-block: Warn}}
    calico: {mode: Off}
  audit: {pace: {fraction: 0.25, minimum: 1000}}
`,
	}
	want = config.Default()
	want.Namespace = "ipam"
	want.Webhook.Port, want.Metrics.BindAddress, want.Health.BindAddress = 19443, ":18443", ":18081"
	want.Backends.Native.Rules = map[string]config.Effect{"pool-overlap": config.EffectOff, "second-unfilled-block": config.EffectWarn}
	want.Backends.Calico.Mode = config.ModeOff
	want.Audit.Pace = config.Pace{Fraction: 0.25, Minimum: 1000}
	if diff := cmp.Diff(want, r.settings(t, "x-oakum")); diff != "" {
		t.Errorf("with values (-want +got):\n%s", diff)
	}
}

// The manager's account may do what the program needs with these settings, and nothing else.
func TestRightsAreThoseThatTheModeNeeds(t *testing.T) {
	tests := map[string][]string{
		"without any value":                 nil,
		"with the certificates of another":  {"certificates.mode=cert-manager"},
		"in another release":                {"fullnameOverride=guard"},
		"without a leader":                  {"config.leaderElection.enabled=false"},
		"with the leader's Lease elsewhere": {"config.leaderElection.namespace=elsewhere"},
		"with a coild that is restarted":    {"config.backends.coil.mode=Enforce", "config.backends.coil.restartCoild=true"},
	}
	for _, mode := range []config.Mode{config.ModeOff, config.ModeObserve, config.ModeWarn, config.ModeEnforce} {
		var all []string
		for _, backend := range []string{"native", "whereabouts", "coil", "calico"} {
			set := fmt.Sprintf("config.backends.%s.mode=%s", backend, mode)
			tests[fmt.Sprintf("%s in %s", backend, mode)] = []string{set}
			all = append(all, set)
		}
		tests[fmt.Sprintf("everything in %s", mode)] = all
	}
	for name, set := range tests {
		t.Run(name, func(t *testing.T) {
			r := release{name: "oakum", namespace: "oakum-system", set: set}
			rendered, account := r.render(t), "oakum"
			if slices.Contains(set, "fullnameOverride=guard") {
				account = "guard"
			}
			var want, got []string
			for _, right := range cli.Rights(r.settings(t, account)) {
				want = append(want, sentences(right.Namespace, right.PolicyRule)...)
			}
			for key, o := range rendered {
				if !strings.HasSuffix(o.GetKind(), "RoleBinding") || !isFor(t, rendered, key, account) {
					continue
				}
				var role rbacv1.Role // A ClusterRole has the same fields.
				rendered[strings.Replace(key, "Binding", "", 1)].Object["kind"] = "Role"
				rendered.into(t, strings.Replace(key, "Binding", "", 1), &role)
				for _, rule := range role.Rules {
					got = append(got, sentences(o.GetNamespace(), rule)...)
				}
			}
			slices.Sort(want)
			slices.Sort(got)
			if diff := cmp.Diff(slices.Compact(want), slices.Compact(got)); diff != "" {
				t.Errorf("rights (-needed +given):\n%s", diff)
			}
		})
	}
}

// isFor tells whether that binding binds the account.
func isFor(t *testing.T, rendered objects, key, account string) bool {
	t.Helper()
	subjects, _, err := unstructured.NestedSlice(rendered[key].Object, "subjects")
	if err != nil || len(subjects) != 1 {
		t.Fatalf("%s has the subjects %v: %v", key, subjects, err)
	}
	return subjects[0].(map[string]any)["name"] == account
}

// sentences are what a rule allows, one by one.
func sentences(namespace string, rule rbacv1.PolicyRule) (all []string) {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{"*"}
	}
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				for _, name := range names {
					all = append(all, fmt.Sprintf("%s %s.%s %s in %q", verb, resource, group, name, namespace))
				}
			}
		}
	}
	return all
}

// schema is the part of values.schema.json that this test reads.
type schema struct {
	Properties           map[string]schema `json:"properties"`
	AdditionalProperties any               `json:"additionalProperties"`
}

func TestTheSchemaKnowsEverySetting(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(root(t), "charts", "oakum", "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var values schema
	if err := json.Unmarshal(data, &values); err != nil {
		t.Fatal(err)
	}
	filledIn := []string{"kind", "apiVersion", "namespace", "metrics", "health", "webhook"}
	compare(t, "config", values.Properties["config"], reflect.TypeFor[config.Configuration](), filledIn...)
}

// compare compares the properties of a schema with the fields of a struct, but for those that the chart fills in itself.
func compare(t *testing.T, path string, s schema, typ reflect.Type, filledIn ...string) {
	t.Helper()
	fields := map[string]reflect.Type{}
	flatten(typ, fields)
	for _, name := range filledIn {
		delete(fields, name)
	}
	for name, field := range fields {
		property, known := s.Properties[name]
		if !known {
			t.Errorf("values.schema.json does not know %s.%s", path, name)
		}
		if field.Kind() == reflect.Struct && field.NumField() > 0 && field.PkgPath() == typ.PkgPath() {
			compare(t, path+"."+name, property, field)
		}
	}
	for name := range s.Properties {
		if fields[name] == nil {
			t.Errorf("values.schema.json allows %s.%s, which is no setting", path, name)
		}
	}
	if s.AdditionalProperties != false {
		t.Errorf("values.schema.json allows anything in %s", path)
	}
}

func flatten(typ reflect.Type, fields map[string]reflect.Type) {
	for f := range typ.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if options == "inline" {
			flatten(f.Type, fields)
			continue
		}
		fields[name] = f.Type
	}
}

func TestWrongValuesAreRefused(t *testing.T) {
	tests := map[string]struct {
		values string
		want   string
	}{
		"one that nobody knows":                {"replicaCount: 3", "additional properties 'replicaCount' not allowed"},
		"a setting that nobody knows":          {"config: {audit: {intervall: 1m}}", "at '/config/audit': additional properties 'intervall' not allowed"},
		"a backend that nobody knows":          {"config: {backends: {cilium: {mode: Observe}}}", "at '/config/backends': additional properties 'cilium' not allowed"},
		"a mode that there is not":             {"config: {backends: {calico: {mode: Enforced}}}", "at '/config/backends/calico/mode': value must be one of 'Off', 'Observe', 'Warn', 'Enforce', false"},
		"the mode On, which YAML reads as yes": {"config: {backends: {calico: {mode: On}}}", "at '/config/backends/calico/mode': value must be one of"},
		"a duration without a unit":            {"config: {audit: {interval: 300}}", "at '/config/audit/interval': got number, want string"},
		"a certificate without its Secret":     {"certificates: {mode: provided}", "certificates.provided.secretName: must name the Secret with tls.crt and tls.key"},
		"a certificate without its CA":         {"certificates: {mode: provided, provided: {secretName: s}}", "certificates.provided.caBundle: must hold the CA that signed the certificate, in PEM"},
		"a NetworkPolicy that shuts the API server out": {
			"networkPolicy: {enabled: true}", "networkPolicy.apiServerCIDRs: must say from where the API server calls webhooks",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := release{name: "oakum", namespace: "oakum-system", values: tt.values}.template(t)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("helm says %v, want %q", err, tt.want)
			}
		})
	}
}

func TestTheSameValuesGiveTheSameBytes(t *testing.T) {
	r := release{name: "oakum", namespace: "oakum-system", set: append(enforced(), "metrics.rules.enabled=true", "metrics.dashboard.enabled=true", "metrics.serviceMonitor.enabled=true")}
	first, err := r.template(t)
	if err != nil {
		t.Fatal(err)
	}
	second, err := r.template(t)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(first), string(second)); diff != "" {
		t.Errorf("the second time (-first +second):\n%s", diff)
	}
}

func TestEveryValueIsDocumented(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(root(t), "charts", "oakum", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		rows++
		if strings.HasSuffix(strings.TrimSpace(line), "|  |") {
			t.Errorf("not documented: %s", line)
		}
	}
	if rows < 50 {
		t.Errorf("the README lists %d values", rows)
	}
}
