package envtest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/backends/coil"
	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/controlplane"
	coilfixture "github.com/oakum-dev/oakum/test/fixture/coil"
)

// withCoil starts an API server with Coil's kinds and all that config/ has for them, and no manager.
func withCoil(t *testing.T) *plane {
	t.Helper()
	p := own(t, func(dir string) (*controlplane.ControlPlane, error) {
		return controlplane.StartWith(dir, controlplane.Options{Components: []string{"coil"}})
	})
	root, err := controlplane.Root()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Apply(t.Context(), filepath.Join(root, "test", "fixture", "coil", "crd")); err != nil {
		t.Fatal(err)
	}
	if err := coil.AddToScheme(p.Client.Scheme()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		return errors.Join(
			p.Client.List(t.Context(), &coil.AddressPoolList{}),
			p.Client.List(t.Context(), &coil.AddressBlockList{}),
			p.Client.List(t.Context(), &coil.BlockRequestList{}))
	})
	return p
}

// ask creates a request of the node for a block of the pool.
func (s *scene) ask(pool, node string) *unstructured.Unstructured {
	s.t.Helper()
	r := coilfixture.Object(coilfixture.Request(pool, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, UID: "node-uid"}}))
	s.create(r)
	return r
}

// made is a block of the scene's pool for a node. Like pooled it has no finalizer: the API server warns about the name of
// Coil's, and would with every answer.
func (s *scene) made(index int32, node string, knobs ...func(*coilfixture.AddressBlock)) *unstructured.Unstructured {
	pool := coilfixture.Pool(s.name)
	pool.UID = "pool-uid"
	knobs = append(knobs, coilfixture.Covering(fmt.Sprintf("10.60.0.%d/32", index), ""))
	block := coilfixture.Object(coilfixture.Block(pool, index, node, knobs...))
	block.SetFinalizers(nil)
	return block
}

// pooled is a pool of one IPv4 subnet.
func pooled(name, subnet string) *unstructured.Unstructured {
	pool := coilfixture.Object(coilfixture.Pool(name, coilfixture.WithSubnet(subnet, "")))
	pool.SetFinalizers(nil)
	return pool
}

// coilWrites are what coild, the controller and its collector write beside the creation of a block, on a block and a
// request that are there.
func (s *scene) coilWrites(block, request *unstructured.Unstructured) error {
	s.patch(block, types.MergePatchType, `{"metadata":{"finalizers":["coil.cybozu.com"]}}`)
	defer s.warnings.take()
	bare := block.DeepCopy()
	bare.SetFinalizers(nil)
	answered := request.DeepCopy()
	s.read(answered)
	answered.Object["status"] = map[string]any{
		"addressBlockName": block.GetName(), "conditions": []any{map[string]any{"type": "Complete", "status": "True"}},
	}
	again := request.DeepCopy()
	again.SetUID("")
	again.SetResourceVersion("")
	ctx := s.t.Context()
	return errors.Join(
		s.client.Status().Update(ctx, answered),
		s.client.Delete(ctx, request),
		s.client.Create(ctx, again),
		s.client.Update(ctx, bare),
		s.client.Delete(ctx, block),
		s.client.Delete(ctx, again),
	)
}

func TestCoil(t *testing.T) {
	t.Parallel()
	p := withCoil(t)
	t.Run("without a manager every write of Coil passes", func(t *testing.T) { testCoilAlone(p.scene(t, "alone")) }) // I8
	t.Run("blocks of nodes that are gone are released", func(t *testing.T) { testCoilRelease(p.scene(t, "release")) })
	t.Run("coild is evicted", func(t *testing.T) { testCoilEviction(p.scene(t, "evict")) })
	p.start(t, "backends: {coil: {mode: Enforce}}\n")
	t.Run("with a manager", func(t *testing.T) { testCoilRules(p.scene(t, "coil")) })
}

func testCoilAlone(s *scene) {
	t := s.t
	pool := pooled(s.name, "10.60.0.0/24")
	overlapping := pooled(s.name+"-too", "10.60.0.0/16")
	s.create(pool, overlapping)
	stale, request := s.made(0, "n1", coilfixture.ForRequest("gone")), s.ask(s.name, "n1")
	s.create(stale)
	if err := s.coilWrites(stale, request); err != nil {
		t.Error(err)
	}
	s.patch(pool, types.MergePatchType, `{"spec":{"subnets":[{"ipv4":"10.60.0.0/24"},{"ipv4":"10.60.1.0/24"}]}}`)
	for _, o := range []client.Object{pool, overlapping} {
		s.wants(answer{}, s.client.Delete(t.Context(), o))
	}
}

func testCoilRules(s *scene) {
	t := s.t
	s.create(pooled(s.name, "10.60.0.0/24"))
	old := s.ask(s.name, "old")

	deny := func(webhook, message string) answer {
		return answer{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: `admission webhook "` + webhook + `.coil.oakum.dev" denied the request: ` + message}
	}
	stale := func(node, why string) answer {
		return deny("addressblocks", fmt.Sprintf(`stale-block-request: BlockRequest "req-NAME-%s" %s: a block for it could be left over, since node %q asks anew while it needs one`, node, why, node))
	}
	create := func(o client.Object) error { return s.client.Create(t.Context(), o) }

	t.Run("a block for a live request is created", func(t *testing.T) {
		s := s.in(t)
		s.wants(answer{}, create(s.made(0, "n1", coilfixture.ForRequest(s.ask(s.name, "n1").GetUID()))))
	})
	t.Run("and a second one with a warning, since nothing uses the first", func(t *testing.T) {
		s := s.in(t)
		again := func() error {
			if err := s.client.Delete(t.Context(), &coil.BlockRequest{ObjectMeta: metav1.ObjectMeta{Name: "req-" + s.name + "-n1"}}); err != nil {
				return err
			}
			return s.client.Create(t.Context(), s.made(1, "n1", coilfixture.ForRequest(s.ask(s.name, "n1").GetUID())), client.DryRunAll)
		}
		s.soon(answer{Warnings: []string{`second-unfilled-block: node "n1" has AddressBlock "NAME-0" already, and no pod names an address of it: one of the two could be left over`}}, again)
	})
	t.Run("a block for a request that is gone is not", func(t *testing.T) {
		s := s.in(t)
		s.wants(stale("n2", "is gone"), create(s.made(2, "n2", coilfixture.ForRequest("gone"))))
	})
	t.Run("nor one for a request that has a successor", func(t *testing.T) {
		s := s.in(t)
		next := s.ask(s.name, "n3")
		s.wants(stale("n3", "has a successor: it was uid first and is uid "+string(next.GetUID())), create(s.made(3, "n3", coilfixture.ForRequest("first"))))
	})
	t.Run("nor one for another node's request", func(t *testing.T) { // B34
		s := s.in(t)
		other, own := s.ask(s.name, "n4"), s.ask(s.name, "n5")
		s.wants(stale("n5", fmt.Sprintf("has a successor: it was uid %s and is uid %s", other.GetUID(), own.GetUID())), create(s.made(4, "n5", coilfixture.ForRequest(other.GetUID()))))
	})
	t.Run("nor one for a request that has its answer", func(t *testing.T) {
		s := s.in(t)
		request := s.ask(s.name, "n6")
		block := s.made(5, "n6", coilfixture.ForRequest(request.GetUID()))
		status := client.RawPatch(types.MergePatchType, []byte(`{"status":{"conditions":[{"type":"Complete","status":"True"}]}}`))
		if err := s.client.Status().Patch(t.Context(), request, status); err != nil {
			t.Fatal(err)
		}
		s.wants(stale("n6", "has its answer already"), create(block))
	})
	t.Run("nor one for a request that is more than six seconds old", func(t *testing.T) {
		s := s.in(t)
		block := s.made(6, "old", coilfixture.ForRequest(old.GetUID()))
		var got answer
		eventually(t, func() error {
			if got = s.answer(s.client.Create(t.Context(), block.DeepCopy(), client.DryRunAll)); got.Code == 0 {
				return errors.New("the block is admitted")
			}
			return nil
		})
		age := regexp.MustCompile(`is [\dm.]+s old`)
		got.Message = age.ReplaceAllString(got.Message, "is some seconds old")
		want := stale("old", "is some seconds old")
		want.Message = strings.ReplaceAll(want.Message, "NAME", s.name)
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("answer (-want +got):\n%s", diff)
		}
	})
	t.Run("a block without a request is none of Oakum's business", func(t *testing.T) {
		s := s.in(t)
		s.wants(answer{}, create(s.made(7, "n7", coilfixture.Reserved)))
	})
	t.Run("no other write of Coil meets a webhook", func(t *testing.T) {
		s := s.in(t)
		request := s.ask(s.name, "n8")
		block := s.made(8, "n8", coilfixture.ForRequest(request.GetUID()))
		s.create(block)
		before := s.asked()
		if err := s.coilWrites(block, request); err != nil {
			t.Error(err)
		}
		if diff := gocmp.Diff(before, s.asked()); diff != "" || len(before) == 0 {
			t.Errorf("questions to Coil's webhooks (-before +after):\n%s", diff)
		}
	})
	t.Run("pools", func(t *testing.T) {
		s := s.in(t)
		const overlap = `pool-overlap: spec.subnets[%d].ipv4: Invalid value: "%s": must not overlap Coil AddressPool "NAME" (10.60.0.0/24)`
		pool := pooled(s.name+"-too", "10.60.0.0/16")
		s.soon(deny("addresspools", fmt.Sprintf(overlap, 0, "10.60.0.0/16")), func() error { return s.client.Create(t.Context(), pool.DeepCopy(), client.DryRunAll) })
		pool = pooled(s.name+"-too", "10.61.0.0/16")
		s.wants(answer{}, create(pool))
		add := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"subnets":[{"ipv4":"10.61.0.0/16"},{"ipv4":"10.60.0.0/25"}]}}`))
		s.wants(deny("addresspools", fmt.Sprintf(overlap, 1, "10.60.0.0/25")), s.client.Patch(t.Context(), pool.DeepCopy(), add))

		before := s.asked()
		s.patch(pool, types.MergePatchType, `{"metadata":{"labels":{"a":"b"},"finalizers":["coil.cybozu.com"]}}`)
		s.warnings.take()
		s.wants(answer{}, s.client.Delete(t.Context(), pool))
		s.current(pool)
		s.patch(pool, types.MergePatchType, `{"spec":{"subnets":[{"ipv4":"10.61.0.0/16"},{"ipv4":"10.60.0.0/25"}]},"metadata":{"finalizers":null}}`)
		if diff := gocmp.Diff(before, s.asked()); diff != "" {
			t.Errorf("questions about labels and a pool that goes (-before +after):\n%s", diff)
		}
	})
}

// asked counts the questions that the API server has put to Coil's webhooks, by the lines of its metric.
func (s *scene) asked() []string {
	s.t.Helper()
	clients, err := kubernetes.NewForConfig(s.Admin)
	if err != nil {
		s.t.Fatal(err)
	}
	text, err := clients.RESTClient().Get().AbsPath("/metrics").DoRaw(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "apiserver_admission_webhook_request_total{") && strings.Contains(line, ".coil.oakum.dev") {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

func testCoilRelease(s *scene) { // B38
	t, p := s.t, s.plane
	s.node("n1")
	records := coil.New(p.Client, p.Client, p.Client, coil.Usual())
	block := s.made(0, "n1", coilfixture.ForRequest("r1"))
	block.SetFinalizers([]string{"example.org/guard", coilfixture.Finalizer})
	s.create(block)
	owner := ipam.Owner{Kind: ipam.OwnerAgent, Name: "n1", Node: "n1"}
	recorded, err := records.LiveAllocationsOf(t.Context(), owner)
	if err != nil || len(recorded) != 1 || recorded[0].Handle != string(block.GetUID()) {
		t.Fatalf("%v (%v) are recorded for the node", recorded, err)
	}
	if err := records.Release(t.Context(), recorded[0]); err == nil || !strings.Contains(err.Error(), `node "n1" exists`) {
		t.Errorf("releasing a block while its node exists: %v", err)
	}
	if err := p.Client.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := records.Release(t.Context(), recorded[0]); err != nil {
			t.Error(err)
		}
	}
	s.read(block)
	if left := block.GetFinalizers(); block.GetDeletionTimestamp() == nil || !slices.Equal(left, []string{"example.org/guard"}) {
		t.Errorf("the block has the finalizers %v", left)
	}
	s.patch(block, types.MergePatchType, `{"metadata":{"finalizers":null}}`)
	if err := records.Release(t.Context(), recorded[0]); err != nil {
		t.Errorf("releasing a block that is gone: %v", err)
	}
}

func testCoilEviction(s *scene) {
	t, p := s.t, s.plane
	later := coil.Usual()
	later.Now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	records := coil.New(p.Client, p.Client, p.Client, later)
	block := s.made(0, "n1", coilfixture.ForRequest("r1"))
	s.create(block)
	recorded, err := records.LiveAllocationsOf(t.Context(), ipam.Owner{Kind: ipam.OwnerAgent, Name: "n1", Node: "n1"})
	if err != nil || len(recorded) != 1 {
		t.Fatalf("%v (%v) are recorded", recorded, err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "coild-n1", Labels: later.Labels},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "coild", Image: "coild"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	s.create(pod)
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "coild"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: later.Labels}},
	}
	s.create(budget)
	budget.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation} // It allows none.
	if err := p.Client.Status().Update(t.Context(), budget); err != nil {
		t.Fatal(err)
	}
	restart := func(ctx context.Context) error {
		refusal, err := records.Restart(ctx, recorded[0])
		if refusal != "" {
			err = errors.Join(err, errors.New(refusal))
		}
		return err
	}
	if err := restart(t.Context()); !apierrors.IsTooManyRequests(err) {
		t.Errorf("against a budget: %v", err)
	}
	if err := p.Client.Delete(t.Context(), budget); err != nil {
		t.Fatal(err)
	}
	if err := restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.read(pod)
	if pod.DeletionTimestamp == nil {
		t.Error("coild is not being deleted")
	}
}
