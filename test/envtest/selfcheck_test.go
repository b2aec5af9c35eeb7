package envtest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/controlplane"
)

func TestSelfCheck(t *testing.T) {
	t.Parallel()
	p := own(t, controlplane.Start)
	p.poor = true
	wants := func(t *testing.T, want metav1.Condition) {
		t.Helper()
		eventually(t, func() error {
			report := &v1alpha1.LeakReport{ObjectMeta: metav1.ObjectMeta{Name: "native"}}
			if err := p.Client.Get(t.Context(), client.ObjectKeyFromObject(report), report); err != nil {
				return err
			}
			got := meta.FindStatusCondition(report.Status.Conditions, "Guarded")
			if diff := gocmp.Diff(&want, got, cmpopts.IgnoreFields(metav1.Condition{}, "LastTransitionTime")); diff != "" {
				return fmt.Errorf("condition (-want +got):\n%s", diff)
			}
			return nil
		})
	}
	start := func(t *testing.T) *controlplane.Manager { return p.start(t, settings+"audit: {interval: 1s}\n") }
	registration := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "oakum"}}

	t.Run("with every right and a webhook that is asked it passes", func(t *testing.T) {
		m := start(t)
		wants(t, metav1.Condition{Type: "Guarded", Status: "True", Reason: "ChecksPassed", Message: "the manager has its rights, and its webhooks are asked"})
		if err := m.Stop(); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("in Warn it goes by the warning", func(t *testing.T) {
		m := p.start(t, "backends: {native: {mode: Warn}}\naudit: {interval: 1s}\n")
		eventually(t, func() error { // The log is the same.
			log, err := os.ReadFile(m.Log)
			if n := strings.Count(string(log), "the self-check passed"); err == nil && n != 2 {
				return fmt.Errorf("the self-check passed %d times, want 2", n)
			}
			return err
		})
		if err := m.Stop(); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("without the registration it says so, and the manager is ready all the same", func(t *testing.T) {
		if err := p.Client.Get(t.Context(), client.ObjectKeyFromObject(registration), registration); err != nil {
			t.Fatal(err)
		}
		if err := p.Client.Delete(t.Context(), registration.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		m := start(t)
		wants(t, metav1.Condition{
			Type: "Guarded", Status: "False", Reason: "WebhookDead",
			Message: "a block without a pool was admitted without a word: ValidatingWebhookConfiguration oakum is not there, or does not call this manager",
		})
		if err := says(m, "/readyz", http.StatusOK, "ok")(); err != nil {
			t.Error(err)
		}
		if err := m.Stop(); err != nil {
			t.Fatal(err)
		}
		registration.ResourceVersion, registration.UID = "", ""
		if err := p.Client.Create(t.Context(), registration); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("without a right it names it", func(t *testing.T) {
		m := p.launch(t, settings+"audit: {interval: 1s}\n")
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "oakum"}}
		if err := p.Client.Get(t.Context(), client.ObjectKeyFromObject(role), role); err != nil {
			t.Fatal(err)
		}
		role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "services") })
		rules, err := json.Marshal(map[string]any{"rules": role.Rules})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Client.Patch(t.Context(), role, client.RawPatch(types.MergePatchType, rules)); err != nil {
			t.Fatal(err)
		}
		if err := m.AwaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		wants(t, metav1.Condition{Type: "Guarded", Status: "False", Reason: "RightsMissing", Message: "missing: get services"})
	})
}
