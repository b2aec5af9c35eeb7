package envtest

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/oakum-dev/oakum/test/controlplane"
)

// calicoGroups are those in which Calico keeps its records. A cluster has one, and both while it moves from one to the other.
func calicoGroups() []schema.GroupVersion {
	return []schema.GroupVersion{{Group: "crd.projectcalico.org", Version: "v1"}, {Group: "projectcalico.org", Version: "v3"}}
}

// withCalico starts an API server with Calico's kinds in some groups and all that config/ has for them, and no manager.
func withCalico(t *testing.T, groups ...schema.GroupVersion) *plane {
	t.Helper()
	p := own(t, func(dir string) (*controlplane.ControlPlane, error) {
		return controlplane.StartWith(dir, controlplane.Options{Components: []string{"calico"}})
	})
	root, err := controlplane.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range groups {
		if err := p.Apply(t.Context(), filepath.Join(root, "test", "fixture", "calico", "crd", group.Version+".yaml")); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error {
		var errs []error
		for _, group := range groups {
			for _, kind := range []string{"IPAMBlock", "IPAMHandle", "BlockAffinity", "IPPool"} {
				errs = append(errs, p.listed(t, group.WithKind(kind)))
			}
		}
		return errors.Join(errs...)
	})
	return p
}

// listed tells what is wrong while a kind is not served yet.
func (p *plane) listed(t *testing.T, kind schema.GroupVersionKind) error {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	return p.Client.List(t.Context(), list)
}

func TestCalico(t *testing.T) {
	t.Parallel()
	p := withCalico(t, calicoGroups()...)
	written := testCalicoRecordings(p.scene(t, "recorded"))
	for _, group := range calicoGroups() {
		t.Run("pools and claims in "+group.Group, func(t *testing.T) { testCalicoPools(p.scene(t, "alone"), group) })
	}

	// From here on every write that met a webhook would fail.
	p.failWithoutManager(t, calicoGroups()...)
	t.Run("what Calico has written can be written again", func(t *testing.T) {
		s := p.scene(t, "again")
		for _, o := range written {
			if kind := o.GetKind(); kind == "IPPool" || kind == "IPAMConfig" {
				continue
			}
			s.wants(answer{}, s.client.Update(t.Context(), o))
		}
	})
	for _, group := range calicoGroups() {
		t.Run("blocks and handles in "+group.Group, func(t *testing.T) { testCalicoBlocks(p.scene(t, "block"), group) })
	}
}

// With a manager just one group is there, as in a cluster that does not migrate.
func TestCalicoWithAManager(t *testing.T) {
	for _, group := range calicoGroups() {
		t.Run("in "+group.Group, func(t *testing.T) {
			t.Parallel()
			p := withCalico(t, group)
			p.failWithoutManager(t, group)
			p.start(t, "backends: {calico: {mode: Enforce}}\n")
			testCalicoRules(p.scene(t, "rules"), group)
		})
	}
}

// testCalicoRecordings creates all that Calico has written, in the state in which it was left, and returns it.
func testCalicoRecordings(s *scene) (written []*unstructured.Unstructured) {
	for _, o := range recorded(s.t, "calico") {
		if o.GroupVersionKind().GroupVersion() != calicoGroups()[0] {
			continue
		}
		o.SetResourceVersion("")
		o.SetUID("")
		o.SetManagedFields(nil)
		s.wants(answer{}, s.client.Create(s.t.Context(), o))
		written = append(written, o)
	}
	if len(written) == 0 {
		s.t.Fatal("nothing of Calico's is recorded")
	}
	return written
}

// Nothing that a manager would have to answer waits for one that is not there.
func testCalicoPools(s *scene, group schema.GroupVersion) {
	pool := s.calico(group, "IPPool", s.name, `{cidr: 10.99.0.0/16, blockSize: 26}`)
	for _, o := range []client.Object{pool, s.affinity(group, "n1", "10.99.0.0/26", "confirmed")} {
		s.wants(answer{}, s.client.Create(s.t.Context(), o))
		s.wants(answer{}, s.client.Delete(s.t.Context(), o))
	}
}

// affinity is a node's claim to a block. One group wants a string where the other wants a boolean.
func (s *scene) affinity(group schema.GroupVersion, node, cidr, state string) *unstructured.Unstructured {
	s.t.Helper()
	deleted := `"false"`
	if group.Version == "v3" {
		deleted = "false"
	}
	return s.calico(group, "BlockAffinity", node+"-"+blockName(cidr), fmt.Sprintf("{cidr: %s, node: %s, state: %s, type: host, deleted: %s}", cidr, node, state, deleted))
}

// blockName is what Calico calls the block with these addresses.
func blockName(cidr string) string { return strings.NewReplacer(".", "-", "/", "-").Replace(cidr) }

// failWithoutManager makes Calico's webhooks strict, and returns when a claim cannot be created any more.
func (p *plane) failWithoutManager(t *testing.T, groups ...schema.GroupVersion) {
	t.Helper()
	var configuration admissionregistrationv1.ValidatingWebhookConfiguration
	if err := p.Client.Get(t.Context(), client.ObjectKey{Name: "oakum-calico"}, &configuration); err != nil {
		t.Fatal(err)
	}
	for i := range configuration.Webhooks {
		configuration.Webhooks[i].FailurePolicy = new(admissionregistrationv1.Fail)
	}
	if err := p.Client.Update(t.Context(), &configuration); err != nil {
		t.Fatal(err)
	}
	s := p.scene(t, "strict")
	for _, group := range groups {
		claim := s.affinity(group, "n1", "10.99.0.0/26", "pending")
		eventually(t, func() error {
			if err := s.client.Create(t.Context(), claim.DeepCopy(), client.DryRunAll); !apierrors.IsInternalError(err) {
				return errors.New("a claim needs no manager")
			}
			return nil
		})
	}
}

// calico is an object of Calico's.
func (s *scene) calico(group schema.GroupVersion, kind, name, spec string) *unstructured.Unstructured {
	s.t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"spec": s.parse(spec)}}
	o.SetGroupVersionKind(group.WithKind(kind))
	o.SetName(name)
	return o
}

// parse reads YAML with numbers as the API has them.
func (s *scene) parse(text string) any {
	s.t.Helper()
	var o unstructured.Unstructured
	data, err := yaml.YAMLToJSON([]byte("{apiVersion: v1, kind: Any, value: " + text + "}"))
	if err == nil {
		err = o.UnmarshalJSON(data)
	}
	if err != nil {
		s.t.Fatalf("reading %s: %v", text, err)
	}
	return o.Object["value"]
}

func testCalicoBlocks(s *scene, group schema.GroupVersion) {
	const (
		web     = `{handle_id: k8s-pod-network.0a, secondary: {namespace: default, pod: web-0, node: n1}}`
		db      = `{handle_id: k8s-pod-network.0b, secondary: {namespace: default, pod: db-0, node: n1}}`
		tunnel  = `{handle_id: ipip-tunnel-addr-n1, secondary: {node: n1, type: ipipTunnelAddress}}`
		service = `{handle_id: lb-0c, secondary: {namespace: default, service: web, type: LoadBalancer}}`
		machine = `{handle_id: k8s-pod-network.vmi.default.vm1, secondary: {namespace: default, pod: virt-launcher-vm1-a, vmi-name: vm1}}`
		moving  = `{handle_id: k8s-pod-network.vmi.default.vm1, alternateOwnerAttrs: {namespace: default, pod: virt-launcher-vm1-b}}`
		idle    = `{handle_id: k8s-pod-network.vmi.default.vm1}`
		windows = `{handle_id: Windows-Reserved-IPAM-Handle}`
		cool    = `{releasedAt: "2026-11-30T12:00:00Z"}`
		returns = `{handle_id: "k8s-pod-network.0a\r\neth0", secondary: {namespace: default, pod: web-0, node: n1}}`
		unowned = "allocation-unowned: an address is taken without a handle or without attributes, so nobody could tell whose it is: give both when you assign it"
		index   = "block-structure: an entry of spec.allocations is no index of spec.attributes, and Calico's controllers would crash on it: add what it points to, or let it be null"
		control = "block-structure: a pod's handle has a control character in it, so that the pod's end would not find it: leave out what follows the container's ID"
	)
	spec := func(allocations string, attributes ...string) string {
		return `{cidr: 10.99.0.0/30, affinity: "host:n1", strictAffinity: false, unallocated: [], sequenceNumber: 1796042586181645114, allocations: [` + allocations + `], attributes: [` + strings.Join(attributes, ", ") + `]}`
	}
	tests := map[string]struct {
		before, after string
		// refused is the policy's message; empty if the write passes.
		refused string
	}{
		"a pod takes an address":                                  {before: spec("null, null"), after: spec("0, null", web)},
		"a second pod does":                                       {before: spec("0, null", web), after: spec("0, 1", web, db)},
		"a node takes its tunnel's":                               {before: spec("null, null"), after: spec("0, null", tunnel)},
		"a load balancer takes one":                               {before: spec("null, null"), after: spec("null, 0", service)},
		"a virtual machine takes one":                             {before: spec("null, null"), after: spec("0, null", machine)},
		"a virtual machine leaves its node":                       {before: spec("0, null", machine), after: spec("0, null", moving)},
		"a virtual machine is on no node for a while":             {before: spec("0, 1", machine, web), after: spec("1, 0", web, idle)},
		"a virtual machine on no node gets a neighbour":           {before: spec("0, null", idle), after: spec("0, 1", idle, web)},
		"Windows keeps addresses for itself":                      {before: spec("null, null"), after: spec("0, 0", windows)},
		"an address is given back":                                {before: spec("0, 1", web, db), after: spec("null, 0", db)},
		"an address is given back and cools down":                 {before: spec("0, 1", web, db), after: spec("1, 0", db, cool)}, // scenario 22
		"an address has cooled down, and a pod takes it":          {before: spec("0, null", cool), after: spec("0, null", web)},
		"a legacy entry stays while a pod takes an address":       {before: spec("0, null", "{}"), after: spec("0, 1", "{}", web)}, // scenario 21
		"a legacy entry stays while an address is given back":     {before: spec("0, 1", web, "{}"), after: spec("null, 0", "{}")},
		"a legacy entry stays while one cools down":               {before: spec("0, 1", web, "{}"), after: spec("0, 1", cool, "{}")},
		"a legacy entry and nothing that changes":                 {before: spec("0, null", "{}"), after: spec("0, null", "{}")},
		"a legacy entry is given back":                            {before: spec("0, null", "{}"), after: spec("null, null")},
		"a legacy entry is told whose it is":                      {before: spec("0, null", "{}"), after: spec("0, null", tunnel)},
		"a legacy handle stays":                                   {before: spec("0, null", returns), after: spec("0, 1", returns, db)},
		"a legacy index stays while a pod takes an address":       {before: spec("7, null"), after: spec("7, 0", web)},
		"a legacy index stays while an address is given back":     {before: spec("7, 0", web), after: spec("7, null")},
		"a legacy index is corrected":                             {before: spec("7, null"), after: spec("0, null", "{}")},
		"a block is marked as deleted, whatever is in it":         {before: spec("null, null"), after: strings.Replace(spec("0, 7", "{}"), "{cidr", "{deleted: true, cidr", 1)},
		"an address is given back, and another's entry gets lost": {before: spec("0, 1", web, db), after: spec("null, 1", db)},

		"nobody takes an address":                             {before: spec("null, null"), after: spec("0, null", "{}"), refused: unowned},
		"nobody takes one beside a pod":                       {before: spec("0, null", web), after: spec("0, 1", web, "{}"), refused: unowned},
		"a handle takes an address for nobody":                {before: spec("null, null"), after: spec("0, null", `{handle_id: k8s-pod-network.0a}`), refused: unowned},
		"a handle is empty":                                   {before: spec("null, null"), after: spec("0, null", `{handle_id: "", secondary: {pod: web-0}}`), refused: unowned},
		"attributes take an address without a handle":         {before: spec("null, null"), after: spec("0, null", `{secondary: {pod: web-0, namespace: default}}`), refused: unowned},
		"another address joins a legacy entry":                {before: spec("0, null", "{}"), after: spec("0, 0", "{}"), refused: unowned},
		"a legacy entry moves to another address":             {before: spec("0, null", "{}"), after: spec("null, 0", "{}"), refused: unowned},
		"a pod's entry loses everything":                      {before: spec("0, null", web), after: spec("0, null", "{}"), refused: unowned},
		"a virtual machine's handle goes to nobody's":         {before: spec("0, null", web), after: spec("0, null", idle), refused: unowned},
		"what cools down becomes nobody's":                    {before: spec("0, null", cool), after: spec("0, null", "{}"), refused: unowned},
		"a block that had no spec":                            {after: spec("0, null", "{}"), refused: unowned},
		"an entry points behind the attributes":               {before: spec("0, null", web), after: spec("0, 1", web), refused: index},
		"an entry points far behind them":                     {before: spec("0, null", web), after: spec("0, 9223372036854775807", web), refused: index},
		"an entry points before them":                         {before: spec("0, null", web), after: spec("0, -1", web), refused: index},
		"an entry loses what it pointed to":                   {before: spec("0, 1", web, db), after: spec("0, 1", web), refused: index},
		"a handle has a control character":                    {before: spec("null, null"), after: spec("0, null", returns), refused: control},
		"a handle with a control character joins another":     {before: spec("0, null", returns), after: spec("0, 1", returns, strings.ReplaceAll(returns, "0a", "0b")), refused: control},
		"a handle with a control character takes one's place": {before: spec("0, null", web), after: spec("0, null", strings.ReplaceAll(returns, "0a", "0b")), refused: control},
	}
	handle := s.calico(group, "IPAMHandle", s.name, `{handleID: k8s-pod-network.0a, block: {10.99.0.0/30: 1}}`)
	s.wants(answer{}, s.client.Create(s.t.Context(), handle))
	handle.Object["spec"] = s.parse(`{handleID: k8s-pod-network.0a, block: {10.99.0.0/30: 2}, deleted: true}`)
	s.wants(answer{}, s.client.Update(s.t.Context(), handle))
	s.wants(answer{}, s.client.Delete(s.t.Context(), handle))

	going := s.calico(group, "IPAMBlock", s.name, spec("null, null"))
	going.SetFinalizers([]string{"example.org/hold"})
	s.wants(answer{}, s.client.Create(s.t.Context(), going))
	s.wants(answer{}, s.client.Delete(s.t.Context(), going))
	s.read(going)
	going.Object["spec"] = s.parse(spec("0, 7", "{}"))
	s.wants(answer{}, s.client.Update(s.t.Context(), going))
	s.patch(going, types.MergePatchType, `{"metadata":{"finalizers":null}}`)

	n := 0
	for name, tt := range tests {
		n++
		id := s.name + "-" + strconv.Itoa(n)
		s.t.Run(name, func(t *testing.T) {
			s := s.in(t)
			block := s.calico(group, "IPAMBlock", id, tt.after)
			after := block.Object["spec"]
			if block.Object["spec"] = s.parse(tt.before); tt.before == "" {
				delete(block.Object, "spec")
			}
			s.wants(answer{}, s.client.Create(t.Context(), block)) // A creation brings old entries: it is never refused.
			block.Object["spec"] = runtime.DeepCopyJSONValue(after)
			var want answer
			if rule, _, found := strings.Cut(tt.refused, ":"); found {
				policy := rule + ".calico.oakum.dev"
				want = answer{
					Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
					Message: `ipamblocks.` + group.Group + ` "` + id + `" is forbidden: ValidatingAdmissionPolicy '` + policy + `' with binding '` + policy + `' denied request: ` + tt.refused,
				}
			}
			s.wants(want, s.client.Update(t.Context(), block))
			s.wants(answer{}, s.client.Delete(t.Context(), block))
		})
	}
}

func testCalicoRules(s *scene, group schema.GroupVersion) { // B35, B36
	t := s.t
	deny := func(webhook, message string) answer {
		return answer{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: `admission webhook "` + webhook + `.calico.oakum.dev" denied the request: ` + message}
	}
	claims, pools := group.Version+".blockaffinities", group.Version+".ippools"
	pool := s.calico(group, "IPPool", s.name, "{cidr: 10.98.0.0/16, blockSize: 30}")
	block := s.calico(group, "IPAMBlock", blockName("10.98.0.0/30"), `{cidr: 10.98.0.0/30, strictAffinity: false, allocations: [0, null, null, null],
		unallocated: [1, 2, 3], attributes: [{handle_id: k8s-pod-network.0a, secondary: {namespace: default, pod: web-0, node: n1}}]}`)
	n1, n2 := s.name+"-1", s.name+"-2"
	block.Object["spec"].(map[string]any)["affinity"] = "host:" + n1
	s.create(pool, s.calico(group, "IPReservation", s.name, "{reservedCIDRs: [10.98.0.3/32]}"))
	s.node(n1)
	s.node(n2)
	try := func(o client.Object) func() error {
		return func() error {
			return s.client.Create(t.Context(), o.DeepCopyObject().(client.Object), client.DryRunAll)
		}
	}
	s.wants(answer{}, s.client.Create(t.Context(), s.affinity(group, n1, "10.98.0.0/30", "confirmed")))
	s.create(block)

	t.Run("a second block is warned about", func(t *testing.T) {
		s := s.in(t)
		s.soon(answer{Warnings: []string{`second-unfilled-block: node "NAME-1" has 2 free addresses in block "10-98-0-0-30" already: one block could be left over`}},
			try(s.affinity(group, n1, "10.98.0.4/30", "pending")))
		s.wants(answer{}, try(s.affinity(group, n2, "10.98.0.4/30", "pending"))())
	})
	t.Run("not if a pod asks for an address of it", func(t *testing.T) {
		s := s.in(t)
		pod := s.pod(s.name, n1, func(p *corev1.Pod) {
			p.Annotations = map[string]string{"cni.projectcalico.org/ipAddrs": `["10.98.0.5"]`}
		})
		s.wants(answer{}, try(s.affinity(group, n1, "10.98.0.4/30", "pending"))())
		if err := s.client.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("another node's block is not claimed", func(t *testing.T) {
		s := s.in(t)
		s.wants(deny(claims, `block-overlap: spec.cidr: block "10-98-0-0-30" (10.98.0.0/30) belongs to node "NAME-1": claim another one`), try(s.affinity(group, n2, "10.98.0.0/30", "pending"))())
	})
	t.Run("nor is a part of a block, by any node", func(t *testing.T) {
		s := s.in(t)
		for _, node := range []string{n1, n2} {
			s.wants(deny(claims, `block-overlap: spec.cidr: Invalid value: "10.98.0.0/31": must not overlap block "10-98-0-0-30" (10.98.0.0/30) of node "NAME-1", or addresses would be given out twice: remove that block when nobody has an address of it`),
				try(s.affinity(group, node, "10.98.0.0/31", "pending"))())
		}
	})
	t.Run("of a claim that exists, storage says so", func(t *testing.T) {
		if err := try(s.affinity(group, n1, "10.98.0.0/30", "pending"))(); !apierrors.IsAlreadyExists(err) {
			t.Error(err)
		}
	})
	t.Run("pools do not overlap", func(t *testing.T) {
		s := s.in(t)
		s.wants(deny(pools, `pool-overlap: spec.cidr: Invalid value: "10.98.7.0/24": must not overlap IPPool "NAME" (10.98.0.0/16)`), try(s.calico(group, "IPPool", "q", "{cidr: 10.98.7.0/24}"))())
		s.wants(answer{}, try(s.calico(group, "IPPool", "q", "{cidr: 10.97.0.0/24}"))())
	})
	t.Run("a pool that is in use is deleted where Calico holds it", func(t *testing.T) {
		s := s.in(t)
		want := deny("delete.v1.ippools", "pool-in-use: 1 block with 1 allocation would be nobody's: disable the pool, move its pods, and delete it then")
		if group.Version == "v3" {
			want = answer{}
		}
		s.wants(want, s.client.Delete(t.Context(), pool.DeepCopy(), client.DryRunAll))
	})
	t.Run("a pool that is not in use is", func(t *testing.T) {
		s := s.in(t)
		s.wants(answer{}, s.client.Delete(t.Context(), block))
		s.soon(answer{}, func() error { return s.client.Delete(t.Context(), pool.DeepCopy(), client.DryRunAll) })
	})
}
