//go:build e2e

package install

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/e2e/cluster"
	"github.com/oakum-dev/oakum/test/fixture"
)

// scene plays a part of a test in the cluster of all of them.
func (p *place) scene(what string, play func(*place)) {
	p.t.Run(what, func(t *testing.T) {
		q := *p
		q.t = t
		play(&q)
	})
}

func TestChart(t *testing.T) {
	p := found(t)
	p.scene("from an older chart and back", upgraded)
	p.scene("as it comes", defaults)
	p.scene("what Oakum's account and strangers may do", strangers)
	p.scene("addresses are free before their pods are gone", lives)
	p.scene("nobody takes a finalizer off by accident", stripped)
	p.scene("no admission fails while the replicas are replaced", rolls)
	p.scene("a leader that is killed has a successor", beheaded)
	p.scene("with every replica down writes pass as configured, and what waits goes afterwards", down)
	p.scene("all replicas are killed, and the node starts again", powerCut)
	p.scene("a backend is turned on and off with one value, and rolled back", turns)
	p.scene("in the node's network", hostNetwork)
	p.scene("with every replica down, what is strict fails and nothing else", strict)
	p.scene("it goes without a trace", uninstalled)
	p.scene("it comes again", again)
	p.scene("its namespace is deleted", namespaceDeleted)
}

func defaults(p *place) {
	began := time.Now()
	p.t.Logf("%s", p.install())
	p.t.Logf("installed in %.1f s", time.Since(began).Seconds())
	p.eventually("an overlap is refused", func(ctx context.Context) error {
		if err := p.Client.Create(ctx, fixture.Pool("first", fixture.Network("shared"), fixture.Subnet("10.90.0.0/24", ""))); client.IgnoreAlreadyExists(err) != nil {
			return err
		}
		return nil
	})
	p.t.Logf("the first write was answered after %.1f s", time.Since(began).Seconds())
	err := p.Client.Create(p.t.Context(), fixture.Pool("second", fixture.Network("shared"), fixture.Subnet("10.90.0.0/25", "")))
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "first") {
		p.t.Errorf("a pool that overlaps another one is answered with %v", err)
	}
	guards, err := p.guards(p.t.Context())
	p.must(err)
	want := []string{
		"MutatingWebhookConfiguration oakum", "ValidatingWebhookConfiguration oakum",
		"ValidatingAdmissionPolicy block-in-use.ipam.oakum.dev", "ValidatingAdmissionPolicy confinement.ipam.oakum.dev",
		"ValidatingAdmissionPolicy finalizers.ipam.oakum.dev", "ValidatingAdmissionPolicy node-writer.ipam.oakum.dev",
		"ValidatingAdmissionPolicyBinding block-in-use.ipam.oakum.dev", "ValidatingAdmissionPolicyBinding confinement.ipam.oakum.dev",
		"ValidatingAdmissionPolicyBinding finalizers.ipam.oakum.dev", "ValidatingAdmissionPolicyBinding node-writer.ipam.oakum.dev",
	}
	if diff := cmp.Diff(want, guards); diff != "" {
		p.t.Errorf("guards (-want +got):\n%s", diff)
	}
	p.must(p.Client.Delete(p.t.Context(), fixture.Pool("first")))
	p.upgrade(quick()...)
	p.rolledOut()
}

// strangers: the metrics want a token that may read them, and Oakum's account may not change what a pod runs.
func strangers(p *place) {
	pods, err := p.replicas(p.t.Context())
	p.must(err)
	url := "https://" + pods[0].Status.PodIP + ":8443/metrics"
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "scraper"}}
	p.must(p.Client.Create(p.t.Context(), account))
	var token authenticationv1.TokenRequest
	p.must(p.Client.SubResource("token").Create(p.t.Context(), account, &token))
	scrape := func(token string) int {
		p.t.Helper()
		req, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, url, nil)
		p.must(err)
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}).Do(req)
		p.must(err)
		p.must(resp.Body.Close())
		return resp.StatusCode
	}
	got := []int{scrape(""), scrape(token.Status.Token)}
	p.must(p.Client.Create(p.t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "scraper"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "oakum-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "scraper"}},
	}))
	p.eventually("the token may read metrics", func(context.Context) error {
		if code := scrape(token.Status.Token); code != http.StatusOK {
			return fmt.Errorf("the answer is %d", code)
		}
		return nil
	})
	if diff := cmp.Diff([]int{http.StatusUnauthorized, http.StatusForbidden}, got); diff != "" {
		p.t.Errorf("answers without a token and without a right to metrics (-want +got):\n%s", diff)
	}

	pod := cluster.Pod("default", "bystander")
	p.must(p.Client.Create(p.t.Context(), pod))
	as, err := client.New(p.As("system:serviceaccount:"+namespace+":"+release, nil, "system:serviceaccounts"), client.Options{})
	p.must(err)
	label := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`))
	p.must(as.Patch(p.t.Context(), pod, label))
	err = as.Patch(p.t.Context(), pod, client.RawPatch(types.StrategicMergePatchType, []byte(`{"spec":{"containers":[{"name":"payload","image":"evil"}]}}`)))
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "Oakum must not change the spec") {
		p.t.Errorf("changing a pod's image is answered with %v", err)
	}
	p.remove(pod)
}

func lives(p *place) {
	pods := p.inhabit("lives", "10.91.0.0/24", 5)
	held, err := p.held(p.t.Context())
	p.must(err)
	want := []string{"Pod lives-0", "Pod lives-1", "Pod lives-2", "Pod lives-3", "Pod lives-4", "Node node-1", "AddressPool lives", "AddressBlock lives-0"}
	if diff := cmp.Diff(want, held); diff != "" {
		p.t.Errorf("objects that are held (-want +got):\n%s", diff)
	}
	p.remove(pods...)
	p.freed("lives", pods...)
}

// stripped: not even an admin does, by whatever verb and subresource.
func stripped(p *place) {
	pods := p.inhabit("stripped", "10.87.0.0/24", 1)
	pod := pods[0]
	p.must(p.Client.Get(p.t.Context(), client.ObjectKeyFromObject(pod), pod))
	none := []byte(`{"metadata":{"finalizers":null}}`)
	listed := []byte(`{"metadata":{"$deleteFromPrimitiveList/finalizers":["` + v1alpha1.AddressesFinalizer + `"]}}`)
	bare := func() *corev1.Pod {
		without := pod.DeepCopy()
		without.Finalizers = nil
		return without
	}
	for what, write := range map[string]func() error{
		"a merge patch": func() error {
			return p.Client.Patch(p.t.Context(), bare(), client.RawPatch(types.MergePatchType, none))
		},
		"a strategic merge patch": func() error {
			return p.Client.Patch(p.t.Context(), bare(), client.RawPatch(types.StrategicMergePatchType, listed))
		},
		"an update":               func() error { return p.Client.Update(p.t.Context(), bare()) },
		"an update of the status": func() error { return p.Client.Status().Update(p.t.Context(), bare()) },
		"a patch of the status": func() error {
			return p.Client.Status().Patch(p.t.Context(), bare(), client.RawPatch(types.MergePatchType, none))
		},
		"a JSON patch of the whole list": func() error {
			return p.Client.Patch(p.t.Context(), bare(), client.RawPatch(types.JSONPatchType, []byte(`[{"op":"remove","path":"/metadata/finalizers"}]`)))
		},
	} {
		p.eventually(what+" is refused", func(context.Context) error {
			err := write()
			if apierrors.IsConflict(err) {
				return errors.Join(err, p.Client.Get(p.t.Context(), client.ObjectKeyFromObject(pod), pod))
			}
			if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "annotate the object first") {
				p.t.Errorf("%s that takes the finalizer off is answered with %v", what, err)
			}
			return nil
		})
	}
	p.remove(pod)
	p.freed("stripped", pod)
}

// stream writes 50 times a second until it is stopped: each write takes an address and gives one back, so it meets both
// webhooks.
type stream struct {
	stop    context.CancelFunc
	ended   sync.WaitGroup
	mu      sync.Mutex
	writes  int
	slowest time.Duration
	errs    []error
}

// stream starts the writes. They go to blocks of several pools in turn: of the writes of one object that come at once, each
// makes the API server begin the others anew.
func (p *place) stream() *stream {
	p.t.Helper()
	const blocks = 25
	for i := range blocks {
		name := fmt.Sprintf("load-%d", i)
		pool := fixture.Pool(name, fixture.Subnet("10.92.0.0/24", ""), fixture.BlockSize(5))
		block := fixture.Block(name, 0, cluster.Node)
		p.must(client.IgnoreAlreadyExists(p.Client.Create(p.t.Context(), pool)))
		p.must(client.IgnoreAlreadyExists(p.Client.Create(p.t.Context(), block)))
	}
	ctx, cancel := context.WithCancel(p.t.Context())
	s := &stream{stop: cancel}
	s.ended.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			s.ended.Go(func() { s.write(p, fmt.Sprintf("load-%d", i%blocks), i/blocks) })
		}
	})
	return s
}

func (s *stream) write(p *place, block string, i int) {
	began := time.Now()
	patch := fmt.Appendf(nil, `{"spec":{"allocations":[{"offset":%d,"handle":"h%[1]d","attributes":{"type":"External","name":"load"}}]}}`, i%32)
	err := p.Client.Patch(context.WithoutCancel(p.t.Context()), fixture.Block(block, 0, ""), client.RawPatch(types.MergePatchType, patch))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	s.slowest = max(s.slowest, time.Since(began))
	if err != nil {
		s.errs = append(s.errs, err)
	}
}

// end stops the writes and tells of them.
func (s *stream) end(p *place) {
	p.t.Helper()
	s.stop()
	s.ended.Wait()
	p.t.Logf("%d writes, %d failed, the slowest took %.2f s", s.writes, len(s.errs), s.slowest.Seconds())
	if len(s.errs) > 0 {
		p.t.Errorf("%d of %d writes failed; the first: %v", len(s.errs), s.writes, s.errs[0])
	}
}

func rolls(p *place) {
	before, err := p.replicas(p.t.Context())
	p.must(err)
	load := p.stream()
	restart := fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"restarted":%q}}}}}`, time.Now().Format(time.RFC3339Nano))
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: release}}
	began := time.Now()
	p.must(p.Client.Patch(p.t.Context(), d, client.RawPatch(types.MergePatchType, restart)))
	p.rolledOut()
	p.t.Logf("replaced in %.1f s", time.Since(began).Seconds())
	load.end(p)
	after, err := p.replicas(p.t.Context())
	p.must(err)
	for _, pod := range after {
		if slices.ContainsFunc(before, func(b corev1.Pod) bool { return b.UID == pod.UID }) {
			p.t.Errorf("%s was not replaced", pod.Name)
		}
	}
	if load.writes < 50 {
		p.t.Errorf("there were %d writes only", load.writes)
	}
}

func beheaded(p *place) {
	pods := p.inhabit("beheaded", "10.93.0.0/24", 5)
	leader := p.leader()
	p.must(p.KillContainers(namespace + "/" + leader))
	killed := time.Now()
	p.remove(pods...)
	p.freed("beheaded", pods...)
	took := time.Since(killed)
	p.t.Logf("released %.1f s after the leader was killed; now the leader is %s, it was %s", took.Seconds(), p.leader(), leader)
	// Lease and retry, and the second that the pods take to end.
	if limit := 15*time.Second + 2*time.Second + time.Second; took > limit {
		p.t.Errorf("the releases went on after %s, want %s at most", took, limit)
	}
	p.rolledOut()
}

func down(p *place) {
	const n = 30
	pods := p.inhabit("down", "10.94.0.0/26", n)
	block := fixture.Block("down", 0, cluster.Node)
	p.scale(0)
	p.remove(pods...)
	label := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`))
	p.must(p.Client.Patch(p.t.Context(), block, label))
	take := client.RawPatch(types.JSONPatchType, []byte(`[{"op":"add","path":"/spec/allocations/-","value":{"offset":31,"handle":"h","attributes":{"type":"External","name":"x"}}}]`))
	if err := p.Client.Patch(p.t.Context(), block, take); err == nil || !strings.Contains(err.Error(), `failed calling webhook "take.addressblocks.ipam.oakum.dev"`) {
		p.t.Errorf("taking an address while no manager runs is answered with %v", err)
	}
	bystander := cluster.Pod("default", "bystander")
	p.must(p.Client.Create(p.t.Context(), bystander))
	p.remove(bystander)
	p.eventually("the kubelet has ended them", func(context.Context) error {
		sandboxes, err := p.Sandboxes()
		running := 0
		for _, s := range sandboxes {
			if strings.HasPrefix(s.Pod, "default/down-") {
				running++
			}
		}
		if running > 0 {
			err = errors.Join(err, fmt.Errorf("%d run", running))
		}
		return err
	})
	held, err := p.held(p.t.Context())
	p.must(err)
	waiting := 0
	for _, o := range held {
		if strings.HasPrefix(o, "Pod down-") {
			waiting++
		}
	}
	if taken, err := p.taken(p.t.Context(), "down"); err != nil || waiting != n || taken != n {
		p.t.Errorf("while no manager runs %d pods wait and %d addresses are taken (%v), want %d of each", waiting, taken, err, n)
	}
	began := time.Now()
	p.scale(2)
	p.freed("down", pods...)
	p.t.Logf("%d pods are gone %.1f s after the managers' start", n, time.Since(began).Seconds())
	if took := time.Since(began); took > time.Minute {
		p.t.Errorf("it took %s, want a minute at most", took)
	}
}

// powerCut: nobody lends a hand.
func powerCut(p *place) {
	pods := p.inhabit("powerless", "10.88.0.0/24", 5)
	replicas, err := p.replicas(p.t.Context())
	p.must(err)
	for _, r := range replicas {
		p.must(p.KillContainers(namespace + "/" + r.Name))
	}
	p.remove(pods[0])
	p.must(p.PowerOff())
	began := time.Now()
	p.must(p.PowerOn(p.t.Context()))
	p.rolledOut()
	p.t.Logf("the manager is ready %.1f s after the power came back", time.Since(began).Seconds())
	p.freed("", pods[0])
	if taken, err := p.taken(p.t.Context(), "powerless"); err != nil || taken != len(pods)-1 {
		p.t.Errorf("%d addresses are taken (%v), want those of the other pods", taken, err)
	}
	p.remove(pods[1:]...)
	p.freed("powerless", pods...)
	p.t.Logf("addresses are given back %.1f s after the power came back", time.Since(began).Seconds())
}

func turns(p *place) {
	pods := p.inhabit("turns", "10.95.0.0/24", 3)
	expect := func(what string, guarded bool) {
		p.t.Helper()
		p.eventually(what, func(ctx context.Context) error {
			guards, err := p.guards(ctx)
			held, heldErr := p.held(ctx)
			if err := errors.Join(err, heldErr); err != nil {
				return err
			}
			if registered := slices.Contains(guards, "ValidatingWebhookConfiguration oakum"); registered != guarded {
				return fmt.Errorf("registered are %q", guards)
			}
			if holds := len(held) > 0; holds != guarded {
				return fmt.Errorf("held are %q", held)
			}
			return nil
		})
	}
	expect("Enforce holds", true)
	p.upgrade(append(quick(), "config.backends.native.mode=Observe")...)
	expect("Observe holds nothing", false)
	p.helm("rollback", release, "--wait", "--timeout", "2m")
	expect("rolled back, it holds", true)
	p.upgrade(append(quick(), "config.backends.native.mode=Off")...)
	expect("Off holds nothing", false)
	p.upgrade(append(quick(), "config.backends.calico.mode=Enforce", "config.backends.whereabouts.mode=Enforce", "config.backends.coil.mode=Enforce")...)
	expect("what is not installed may be enforced", true)
	p.remove(pods...)
	p.freed("turns", pods...)
}

func hostNetwork(p *place) {
	p.upgrade(append(quick(), "hostNetwork=true", "replicas=1")...)
	p.rolledOut()
	pods, err := p.replicas(p.t.Context())
	p.must(err)
	if ip := pods[0].Status.PodIP; ip != cluster.Address {
		p.t.Errorf("the manager has the address %s, want the node's %s", ip, cluster.Address)
	}
	neighbours := p.inhabit("hosted", "10.86.0.0/24", 2)
	p.upgrade(append(quick(), "hostNetwork=true", "replicas=1", "config.log.level=debug")...) // One is replaced by the next on the same ports.
	p.rolledOut()
	p.remove(neighbours...)
	p.freed("hosted", neighbours...)
}

func strict(p *place) {
	root, err := controlplane.Root()
	p.must(err)
	for _, crds := range []string{filepath.Join("coil", "crd"), filepath.Join("calico", "crd", "v1.yaml")} {
		p.must(p.Apply(p.t.Context(), filepath.Join(root, "test", "fixture", crds)))
	}
	p.upgrade(append(quick(), "strict.coil=true", "config.backends.coil.mode=Enforce", "config.backends.calico.mode=Enforce")...)
	p.rolledOut()
	p.scale(0)
	create := func(manifest string) error {
		object := &unstructured.Unstructured{}
		p.must(yaml.Unmarshal([]byte(manifest), object))
		return p.Client.Create(p.t.Context(), object)
	}
	const block = `{apiVersion: coil.cybozu.com/v2, kind: AddressBlock, metadata: {name: default-0, labels: {coil.cybozu.com/request: req-1}}, index: 0, ipv4: 10.1.0.0/27}`
	p.eventually("a block of Coil's is refused, for nobody judges it", func(context.Context) error {
		err := create(block)
		if err == nil || !strings.Contains(err.Error(), `failed calling webhook "addressblocks.coil.oakum.dev"`) {
			return fmt.Errorf("it is answered with %w", errors.Join(err, errors.New("not the webhook's name")))
		}
		return nil
	})
	began := time.Now()
	if err := create(`{apiVersion: crd.projectcalico.org/v1, kind: IPPool, metadata: {name: default}, spec: {cidr: 10.2.0.0/16}}`); err != nil {
		p.t.Errorf("a pool of Calico's is answered with %v", err)
	}
	p.t.Logf("a pool of Calico's passed in %.2f s", time.Since(began).Seconds())
	bystander := cluster.Pod("default", "bystander")
	p.must(p.Client.Create(p.t.Context(), bystander))
	p.remove(bystander)
	p.upgrade(quick()...)
	p.rolledOut()
}

// records are the blocks with their allocations.
func (p *place) records() map[string][]v1alpha1.Allocation {
	p.t.Helper()
	var blocks v1alpha1.AddressBlockList
	p.must(p.Client.List(p.t.Context(), &blocks))
	found := map[string][]v1alpha1.Allocation{}
	for _, b := range blocks.Items {
		found[b.Name] = b.Spec.Allocations
	}
	return found
}

// traceless checks that nothing of Oakum's is in anybody's way.
func (p *place) traceless() {
	p.t.Helper()
	guards, err := p.guards(p.t.Context())
	p.must(err)
	held, err := p.held(p.t.Context())
	p.must(err)
	if left := slices.Concat(guards, held); len(left) > 0 {
		p.t.Errorf("left are %q", left)
	}
}

func uninstalled(p *place) {
	pods := p.inhabit("stays", "10.96.0.0/24", 3)
	before := p.records()
	began := time.Now()
	p.t.Logf("%s", p.helm("uninstall", release, "--wait", "--timeout", "2m"))
	p.t.Logf("uninstalled in %.1f s", time.Since(began).Seconds())
	p.traceless()
	if diff := cmp.Diff(before, p.records()); diff != "" {
		p.t.Errorf("records (-before +after):\n%s", diff)
	}
	var left []string
	for _, kind := range []client.ObjectList{
		&appsv1.DeploymentList{}, &corev1.ServiceList{}, &corev1.ServiceAccountList{}, &rbacv1.RoleList{}, &rbacv1.RoleBindingList{}, &corev1.PodList{},
		&rbacv1.ClusterRoleList{}, &rbacv1.ClusterRoleBindingList{}, &corev1.ConfigMapList{}, &corev1.SecretList{},
	} {
		gvk, err := p.Client.GroupVersionKindFor(kind)
		p.must(err)
		objects, err := p.metadata(p.t.Context(), gvk)
		p.must(err)
		for _, o := range objects {
			if o.Labels["app.kubernetes.io/name"] == "oakum" {
				left = append(left, strings.TrimSuffix(gvk.Kind, "List")+" "+o.Name)
			}
		}
	}
	var leases coordinationv1.LeaseList
	p.must(p.Client.List(p.t.Context(), &leases, client.InNamespace(namespace)))
	for _, l := range leases.Items {
		left = append(left, "Lease "+l.Name)
	}
	if len(left) > 0 {
		p.t.Errorf("left are %q", left)
	}
	// Nobody stands in the way of a pod any more.
	p.remove(pods...)
	p.eventually("the pods are gone", func(ctx context.Context) error {
		for _, pod := range pods {
			if err := p.Client.Get(ctx, client.ObjectKeyFromObject(pod), &corev1.Pod{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s is there (%w)", pod.Name, err)
			}
		}
		return nil
	})
}

func again(p *place) {
	p.install(quick()...)
	p.eventually("what leaked meanwhile is given back", func(ctx context.Context) error {
		n, err := p.taken(ctx, "stays")
		if err == nil && n > 0 {
			err = fmt.Errorf("%d addresses are taken", n)
		}
		return err
	})
}

// namespaceDeleted: somebody deletes the namespace rather than the release, so that no hook runs.
func namespaceDeleted(p *place) {
	pods := p.inhabit("orphaned", "10.97.0.0/24", 3)
	p.must(p.Client.Delete(p.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
	p.eventually("the namespace is gone", func(ctx context.Context) error {
		err := p.Client.Get(ctx, client.ObjectKey{Name: namespace}, &corev1.Namespace{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there (%w)", err)
	})
	bystander := cluster.Pod("default", "bystander")
	p.must(p.Client.Create(p.t.Context(), bystander))
	p.remove(bystander)
	if err := p.Client.Create(p.t.Context(), fixture.Pool("late", fixture.Subnet("10.98.0.0/24", ""))); err == nil {
		p.t.Error("a pool is created although nobody judged it")
	}
	p.t.Logf("$ oakum uninstall\n%s", p.oakum("uninstall"))
	p.traceless()
	p.remove(pods...)
	p.eventually("the pods are gone", func(ctx context.Context) error {
		held, err := p.metadata(ctx, corev1.SchemeGroupVersion.WithKind("PodList"))
		left := map[string]bool{}
		for _, o := range held {
			if strings.HasPrefix(o.Name, "orphaned-") {
				left[o.Name] = true
			}
		}
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("there are %q", slices.Sorted(maps.Keys(left)))
		}
		return err
	})
}
