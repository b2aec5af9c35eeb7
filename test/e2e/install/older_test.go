//go:build e2e

package install

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/e2e/cluster"
	"github.com/oakum-dev/oakum/test/fixture"
)

// legacy is what only the older chart has.
const legacy = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata:
  name: oakum-legacy
webhooks:
- name: legacy.oakum.dev
  admissionReviewVersions: [v1]
  clientConfig: {service: {name: {{ include "oakum.name" . }}, namespace: {{ .Release.Namespace }}, path: /legacy}}
  failurePolicy: Ignore
  sideEffects: None
  rules:
  - {apiGroups: [ipam.oakum.dev], apiVersions: [v1alpha1], operations: [CREATE], resources: [legacies]}
`

// older makes a chart of an older shape, as long as no release is tagged that could be upgraded from: it lacks the hook, and a column
// of a LeakReport, and has a webhook more.
func (p *place) older() string {
	p.t.Helper()
	dir := filepath.Join(p.dir, "older", "oakum")
	p.must(os.MkdirAll(filepath.Dir(dir), 0o700))
	if out, err := p.run("cp", "--recursive", "--dereference", p.chart(), dir); err != nil {
		p.t.Fatalf("copying the chart: %v: %s", err, out)
	}
	p.must(os.Remove(filepath.Join(dir, "templates", "uninstall.yaml")))
	p.must(os.WriteFile(filepath.Join(dir, "templates", "legacy.yaml"), []byte(legacy), 0o600))
	p.edit(filepath.Join(dir, "Chart.yaml"), "\nversion: 0.1.0\n", "\nversion: 0.0.1\n")
	p.edit(filepath.Join(dir, "config", "crd", "ipam.oakum.dev_leakreports.yaml"), column, "")
	return dir
}

// column is that of a LeakReport which the older chart lacks.
const column = `    - jsonPath: .status.lastRun.unproven
      name: Unproven
      type: integer
`

func (p *place) edit(file, before, after string) {
	p.t.Helper()
	text, err := os.ReadFile(file)
	p.must(err)
	if !strings.Contains(string(text), before) {
		p.t.Fatalf("%s has no %q", file, before)
	}
	p.must(os.WriteFile(file, []byte(strings.Replace(string(text), before, after, 1)), 0o600))
}

func upgraded(p *place) {
	p.image()
	older := p.older()
	p.helm(append([]string{"install", release, older, "--create-namespace", "--wait", "--timeout", "2m"}, values(nil)...)...)
	p.eventually("the webhooks are called", func(ctx context.Context) error {
		return p.Client.Create(ctx, fixture.Pool("kept", fixture.Subnet("10.89.0.0/24", "")))
	})
	p.must(p.Client.Create(p.t.Context(), fixture.Block("kept", 0, cluster.Node, fixture.Reservations(0, 1))))
	before := p.records()
	shape := func(what string, old bool) {
		p.t.Helper()
		p.rolledOut()
		guards, err := p.guards(p.t.Context())
		p.must(err)
		kind, err := p.definition("leakreports").MarshalJSON()
		p.must(err)
		got := []bool{slices.Contains(guards, "ValidatingWebhookConfiguration oakum-legacy"), !strings.Contains(string(kind), `"name":"Unproven"`)}
		if diff := cmp.Diff([]bool{old, old}, got); diff != "" {
			p.t.Errorf("%s: whether the older webhook and the older kind are there (-want +got):\n%s", what, diff)
		}
		if diff := cmp.Diff(before, p.records()); diff != "" {
			p.t.Errorf("%s: records (-before +after):\n%s", what, diff)
		}
	}
	shape("the older chart", true)
	p.upgrade()
	shape("upgraded", false)
	p.helm("rollback", release, "1", "--wait", "--timeout", "2m")
	shape("rolled back", true)
	p.upgrade()
	shape("upgraded again", false)
	p.must(p.Client.Delete(p.t.Context(), fixture.Pool("kept")))
	free := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"allocations":[]}}`))
	p.must(p.Client.Patch(p.t.Context(), fixture.Block("kept", 0, cluster.Node), free))
	p.eventually("the pool has drained", func(ctx context.Context) error {
		err := p.Client.Get(ctx, client.ObjectKey{Name: "kept"}, &v1alpha1.AddressPool{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there (%w)", err)
	})
	p.t.Logf("%s", p.helm("uninstall", release, "--wait", "--timeout", "2m"))
	p.traceless()
	p.definition("addressblocks") // It has not gone with the release.
}

// definition is the CustomResourceDefinition of a kind of ours.
func (p *place) definition(plural string) *unstructured.Unstructured {
	p.t.Helper()
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	p.must(p.Client.Get(p.t.Context(), client.ObjectKey{Name: plural + "." + v1alpha1.Group}, crd))
	return crd
}
