package envtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/oakum-dev/oakum/test/controlplane"
)

// guard is a policy or a webhook that CEL expressions belong to, compiled as the API server does.
type guard struct {
	name                  string
	rules                 []admissionregistrationv1.RuleWithOperations
	conditions            cel.ConditionEvaluator
	validations, messages cel.ConditionEvaluator
}

// matches tells whether the guard is asked about an operation on a resource.
func (g guard) matches(operation admission.Operation, resource schema.GroupVersionResource) bool {
	return slices.ContainsFunc(g.rules, func(r admissionregistrationv1.RuleWithOperations) bool {
		return slices.Contains(r.Operations, admissionregistrationv1.OperationType(operation)) && slices.Contains(r.APIGroups, resource.Group) && slices.Contains(r.Resources, resource.Resource)
	})
}

// evaluate does as the API server does with a write, and returns what fails, or costs too much.
func (g guard) evaluate(a *admission.VersionedAttributes) error {
	request := cel.CreateAdmissionRequest(a.Attributes, metav1.GroupVersionResource(a.GetResource()), metav1.GroupVersionKind(a.VersionedKind))
	conditions, _, err := g.conditions.ForInput(context.Background(), a, request, cel.OptionalVariableBindings{}, nil, celconfig.RuntimeCELCostBudgetMatchConditions)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(conditions, func(r cel.EvaluationResult) bool { return r.Error == nil && r.EvalResult.Value() == false }) {
		return nil // That outweighs a condition that fails.
	}
	validations, left, err := g.validations.ForInput(context.Background(), a, request, cel.OptionalVariableBindings{}, nil, celconfig.RuntimeCELCostBudget)
	if err != nil {
		return err
	}
	messages, _, err := g.messages.ForInput(context.Background(), a, request, cel.OptionalVariableBindings{}, nil, left)
	for _, r := range slices.Concat(conditions, validations, messages) {
		err = errors.Join(err, r.Error)
	}
	return err
}

// guards reads and compiles those with expressions in a folder of config/.
func guards(t *testing.T, folder string) (found []guard) {
	t.Helper()
	root, err := controlplane.Root()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root, "config", folder, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		objects, err := controlplane.Read(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			switch kind, name := o.GetKind(), o.GetName(); kind {
			case "ValidatingAdmissionPolicy":
				spec := one[admissionregistrationv1.ValidatingAdmissionPolicy](t, objects, kind, name).Spec
				g := compile(t, name, spec.Variables, spec.MatchConditions, spec.Validations)
				for _, r := range spec.MatchConstraints.ResourceRules {
					g.rules = append(g.rules, r.RuleWithOperations)
				}
				found = append(found, g)
			case "ValidatingWebhookConfiguration":
				for _, w := range one[admissionregistrationv1.ValidatingWebhookConfiguration](t, objects, kind, name).Webhooks {
					g := compile(t, w.Name, nil, w.MatchConditions, nil)
					if g.rules = w.Rules; len(w.MatchConditions) > 0 {
						found = append(found, g)
					}
				}
			case "MutatingWebhookConfiguration":
				for _, w := range one[admissionregistrationv1.MutatingWebhookConfiguration](t, objects, kind, name).Webhooks {
					g := compile(t, w.Name, nil, w.MatchConditions, nil)
					if g.rules = w.Rules; len(w.MatchConditions) > 0 {
						found = append(found, g)
					}
				}
			}
		}
	}
	return found
}

// compile compiles the expressions of a guard. The oldest Kubernetes that Oakum supports must understand them.
func compile(t *testing.T, name string, variables []admissionregistrationv1.Variable, conditions []admissionregistrationv1.MatchCondition, validations []admissionregistrationv1.Validation) guard {
	t.Helper()
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(version.MajorMinor(1, 34)))
	if err != nil {
		t.Fatal(err)
	}
	options := cel.OptionalVariableDeclarations{HasAuthorizer: true}
	for _, v := range variables {
		if r := compiler.CompileAndStoreVariable(&validating.Variable{Name: v.Name, Expression: v.Expression}, options, environment.NewExpressions); r.Error != nil {
			t.Fatalf("%s: variable %s: %v", name, v.Name, r.Error)
		}
	}
	var matches, validates, says []cel.ExpressionAccessor
	for _, c := range conditions {
		matches = append(matches, (*matchconditions.MatchCondition)(&c))
	}
	for _, v := range validations {
		validates = append(validates, &validating.ValidationCondition{Expression: v.Expression})
		if v.MessageExpression != "" {
			says = append(says, &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression})
		}
	}
	evaluator := func(expressions []cel.ExpressionAccessor) cel.ConditionEvaluator {
		e := compiler.CompileCondition(expressions, options, environment.NewExpressions)
		if err := errors.Join(e.CompilationErrors()...); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return e
	}
	return guard{name: name, conditions: evaluator(matches), validations: evaluator(validates), messages: evaluator(says)}
}

// An expression that fails is a rule that is not applied: what guards other programs' records ignores failures.
func TestNoExpressionFails(t *testing.T) {
	t.Parallel()
	root, err := controlplane.Root()
	if err != nil {
		t.Fatal(err)
	}
	schemas := map[string]validation.SchemaValidator{}
	define(t, schemas, filepath.Join(root, "test", "fixture", "*", "crd", "*.yaml"))
	define(t, schemas, filepath.Join(module(t, "whereabouts", "github.com/k8snetworkplumbingwg/whereabouts"), "doc", "crds", "whereabouts.*.yaml"))
	for folder, recordings := range map[string][]string{
		"calico": {"calico"}, "coil": {"coil"}, "whereabouts": {"whereabouts", "coil"}, "pods": {"calico", "coil"},
	} {
		t.Run(folder, func(t *testing.T) {
			guards, asked := guards(t, folder), map[string]int{}
			for _, recording := range recordings {
				for _, o := range recorded(t, recording) {
					for _, g := range guards {
						asked[g.name] += g.provoke(t, o, schemas[o.GroupVersionKind().GroupKind().String()])
					}
				}
			}
			for _, g := range guards {
				if asked[g.name] == 0 {
					t.Errorf("no recording is for %s", g.name)
				}
			}
		})
	}
}

// recorded returns what another program has written, by the name of its backend.
func recorded(t *testing.T, backend string) (objects []*unstructured.Unstructured) {
	t.Helper()
	root, err := controlplane.Root()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root, "backends", backend, "testdata", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("reading what %s has written: %d files (%v)", backend, len(files), err)
	}
	for _, file := range files {
		lists, err := controlplane.Read(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, list := range lists {
			err := list.EachListItem(func(o runtime.Object) error {
				objects = append(objects, o.(*unstructured.Unstructured))
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return objects
}

// module returns the folder of a module that a module of tools pins.
func module(t *testing.T, tool, path string) string {
	t.Helper()
	root, err := controlplane.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := exec.CommandContext(t.Context(), "go", "-C", filepath.Join(root, "tools", tool), "list", "-m", "-f", "{{.Dir}}", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(dir))
}

// define reads the schemas in files of definitions, by kind and group.
func define(t *testing.T, schemas map[string]validation.SchemaValidator, pattern string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("reading definitions: %d files %s (%v)", len(files), pattern, err)
	}
	for _, file := range files {
		objects, err := controlplane.Read(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			spec := one[apiextensionsv1.CustomResourceDefinition](t, objects, o.GetKind(), o.GetName()).Spec
			var schema apiextensions.JSONSchemaProps
			if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(spec.Versions[0].Schema.OpenAPIV3Schema, &schema, nil); err != nil {
				t.Fatal(err)
			}
			validator, _, err := validation.NewSchemaValidator(&schema)
			if err != nil {
				t.Fatal(err)
			}
			schemas[spec.Names.Kind+"."+spec.Group] = validator
		}
	}
}

// provoke lets the guard judge an object, and all that could be made of it by changing one value, as far as the schema lets
// that pass, if there is one. It returns how many writes those were.
func (g guard) provoke(t *testing.T, o *unstructured.Unstructured, schema validation.SchemaValidator) (asked int) {
	t.Helper()
	gvk := o.GroupVersionKind()
	resource, _ := meta.UnsafeGuessKindToResource(gvk)
	try := func(what string, operation admission.Operation, old, now runtime.Object) {
		t.Helper()
		if !g.matches(operation, resource) {
			return
		}
		asked++
		a := admission.NewAttributesRecord(now, old, gvk, o.GetNamespace(), o.GetName(), resource, "", operation, nil, false, &user.DefaultInfo{})
		if err := g.evaluate(&admission.VersionedAttributes{Attributes: a, VersionedObject: admission.NewLazyObject(now), VersionedOldObject: admission.NewLazyObject(old), VersionedKind: gvk}); err != nil {
			t.Errorf("%s: %s %s %s, %s: %v", g.name, operation, gvk.Kind, o.GetName(), what, err)
		}
	}
	whole := admissible(o.Object, schema)
	for what, changed := range mutations(o.Object) {
		m := admissible(changed, schema)
		if m == nil {
			continue
		}
		try(what, admission.Create, nil, m)
		try(what, admission.Update, whole, m)
		try(what+", before", admission.Update, m, whole)
		try(what+", before and after", admission.Update, m, m)
		try(what, admission.Delete, m, nil)
	}
	return asked
}

// admissible returns the object as admission gets it; nil if the API server would not take it that far.
func admissible(content map[string]any, schema validation.SchemaValidator) runtime.Object {
	if content["kind"] == "Pod" {
		pod := &corev1.Pod{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, pod); err != nil {
			return nil
		}
		return pod
	}
	var about metav1.ObjectMeta
	metadata, _ := content["metadata"].(map[string]any)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(metadata, &about); err != nil || len(validation.ValidateCustomResource(nil, content, schema)) > 0 {
		return nil
	}
	metadata, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&about)
	if err != nil {
		return nil
	}
	return &unstructured.Unstructured{Object: edited(content, []any{"metadata"}, metadata).(map[string]any)}
}

// mutations returns the object itself, and every one that differs from it in one value: one that is gone, null, of
// another type, empty, or a number that is out of all bounds. In one of them all lists and maps are large.
func mutations(object map[string]any) map[string]map[string]any {
	found := map[string]map[string]any{"as it is": object, "grown": grown(object)}
	var visit func(value any, path []any)
	visit = func(value any, path []any) {
		switch value := value.(type) {
		case map[string]any:
			for key, v := range value {
				visit(v, append(slices.Clone(path), key))
			}
		case []any:
			for i, v := range value {
				visit(v, append(slices.Clone(path), i))
			}
		}
		if len(path) < 2 {
			return // Nobody writes an object without a spec.
		}
		for what, other := range map[string]any{
			"gone": gone{}, "null": nil, "text": "text", "no text": "", "no list": []any{}, "no map": map[string]any{}, "a list": []any{"text"}, "a map": map[string]any{"key": "value"},
			"true": true, "zero": int64(0), "minus one": int64(-1), "huge": int64(math.MaxInt64), "tiny": int64(math.MinInt64), "a fraction": 0.5,
		} {
			found[fmt.Sprintf("%v is %s", path, what)] = edited(object, path, other).(map[string]any)
		}
	}
	visit(object, nil)
	return found
}

// gone stands for a value that is not there.
type gone struct{}

// edited returns the value with another one in it at the path.
func edited(value any, path []any, other any) any {
	if len(path) == 0 {
		return other
	}
	switch at := path[0].(type) {
	case string:
		m := maps.Clone(value.(map[string]any))
		if m[at] = edited(m[at], path[1:], other); m[at] == any(gone{}) {
			delete(m, at)
		}
		return m
	case int:
		l := slices.Clone(value.([]any))
		if l[at] = edited(l[at], path[1:], other); l[at] == any(gone{}) {
			l = slices.Delete(l, at, at+1)
		}
		return l
	}
	return value
}

// grown returns the object with the lists and maps of its spec as large as Calico's largest block.
func grown(object map[string]any) map[string]any {
	const size = 4096
	spec, ok := object["spec"].(map[string]any)
	if !ok {
		return object
	}
	spec = maps.Clone(spec)
	for key, value := range spec {
		switch value := value.(type) {
		case []any:
			for i := 0; len(value) > 0 && len(value) < size; i++ {
				value = append(value, value[i])
			}
			spec[key] = value
		case map[string]any:
			value = maps.Clone(value)
			for _, v := range value {
				for i := 0; len(value) < size; i++ {
					value["grown-"+strconv.Itoa(i)] = v
				}
				break
			}
			spec[key] = value
		}
	}
	return edited(object, []any{"spec"}, spec).(map[string]any)
}
