// Package envtest tests Oakum as users meet it: on a real API server, with everything of config/ in it and the binary
// as a process beside it.
package envtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	_ "github.com/oakum-dev/oakum/cli" // What the binary is built of: else go test would not see it change, and answer from its cache.
	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/fixture"
)

// settings are those of the managers that tests start.
const settings = "backends: {native: {mode: Enforce}}\n"

// shared is for all tests that stop no manager and change nothing that another test could notice.
var shared *plane //nolint:gochecknoglobals // TestMain has no other way to hand it to the tests.

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	ctrl.SetLogger(logr.Discard())
	dir, err := os.MkdirTemp("", "oakum-")
	if err != nil {
		return 1, fmt.Errorf("making a folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cp, err := controlplane.Start(dir)
	defer func() { err = errors.Join(err, cp.Stop()) }()
	if err != nil {
		return 1, err
	}
	shared = &plane{ControlPlane: cp}
	if shared.binary, err = cp.Build(context.Background()); err != nil {
		return 1, err
	}
	if shared.manager, err = cp.StartManager(context.Background(), shared.binary, settings); err != nil {
		return 1, err
	}
	defer shared.manager.Kill()
	return m.Run(), lacks(shared.manager)
}

// lacks returns an error if a manager was refused anything for want of a right: it has those of its mode and no others.
func lacks(m *controlplane.Manager) error {
	log, err := os.ReadFile(m.Log)
	if err != nil {
		return fmt.Errorf("reading the manager's log: %w", err)
	}
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, `User \"`+controlplane.ServiceAccount+`\" cannot`) || strings.Contains(line, "the self-check failed") {
			return fmt.Errorf("the manager lacks something: %s", line)
		}
	}
	return nil
}

// plane is a control plane, and the binary for its managers.
type plane struct {
	*controlplane.ControlPlane
	binary string
	// manager is the one that TestMain started.
	manager *controlplane.Manager
	scenes  atomic.Int64
	// poor: its managers lack rights or webhooks at times.
	poor bool
	// env is what oakum finds in its environment beside this process' own.
	env []string
}

// own starts a control plane for one test.
func own(t *testing.T, start func(dir string) (*controlplane.ControlPlane, error)) *plane {
	t.Helper()
	cp, err := start(t.TempDir())
	t.Cleanup(func() {
		if err := cp.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return &plane{ControlPlane: cp, binary: shared.binary}
}

// launch starts a manager that ends with the test, and does not wait for it.
func (p *plane) launch(t *testing.T, settings string) *controlplane.Manager {
	t.Helper()
	m, err := p.LaunchManager(p.binary, settings)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Kill()
		if err := lacks(m); err != nil && !p.poor {
			t.Error(err)
		}
	})
	return m
}

// start does as launch, and waits until the manager is ready.
func (p *plane) start(t *testing.T, settings string) *controlplane.Manager {
	t.Helper()
	m := p.launch(t, settings)
	if err := m.AwaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m
}

// scene is what one test has for itself: a name that no other test uses, and a client that keeps warnings.
type scene struct {
	*plane
	t        *testing.T
	name     string
	client   client.Client
	warnings *warnings
}

// scene begins names with a word about the test.
func (p *plane) scene(t *testing.T, about string) *scene {
	t.Helper()
	s := &scene{plane: p, t: t, name: fmt.Sprintf("%s-%d", about, p.scenes.Add(1)), warnings: &warnings{}}
	s.client = s.connect(p.Admin)
	return s
}

// connect returns a client whose warnings the scene keeps.
func (s *scene) connect(config *rest.Config) client.Client {
	s.t.Helper()
	config = rest.CopyConfig(config)
	config.WarningHandler = s.warnings
	c, err := client.New(config, client.Options{Scheme: s.Client.Scheme()})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// in returns the scene for a part of its test.
func (s *scene) in(t *testing.T) *scene {
	part := *s
	part.t = t
	return &part
}

// warnings keeps those that came with answers.
type warnings struct {
	mu   sync.Mutex
	kept []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept = append(w.kept, text)
}

// take returns the warnings since it was last called.
func (w *warnings) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	kept := w.kept
	w.kept = nil
	return kept
}

// create creates objects that must be admitted, and reports their status as a kubelet does. Warnings of it are
// forgotten.
func (s *scene) create(objects ...client.Object) {
	s.t.Helper()
	for _, o := range objects {
		reported := o.DeepCopyObject().(client.Object)
		if err := s.client.Create(s.t.Context(), o); err != nil {
			s.t.Fatal(err)
		}
		switch o.(type) {
		case *corev1.Pod, *corev1.Node:
			s.report(reported)
		}
	}
	s.warnings.take()
}

// report writes the status of an object and nothing else.
func (s *scene) report(object client.Object) {
	s.t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		s.t.Fatal(err)
	}
	patch, err := json.Marshal(map[string]any{"status": content["status"]})
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.client.Status().Patch(s.t.Context(), object, client.RawPatch(types.MergePatchType, patch)); err != nil {
		s.t.Fatal(err)
	}
}

// node creates a node of that name.
func (s *scene) node(name string, knobs ...func(*corev1.Node)) *corev1.Node {
	s.t.Helper()
	n := fixture.Node(name, knobs...)
	s.create(n)
	return n
}

// pod creates a running pod on a node.
func (s *scene) pod(name, node string, knobs ...func(*corev1.Pod)) *corev1.Pod {
	s.t.Helper()
	p := fixture.Pod(name, node, append([]func(*corev1.Pod){fixture.Running()}, knobs...)...)
	s.create(p)
	return p
}

// block creates the first block of the pool that bears the scene's name, for a node of that name.
func (s *scene) block(knobs ...func(*v1alpha1.AddressBlock)) *v1alpha1.AddressBlock {
	s.t.Helper()
	b := fixture.Block(s.name, 0, s.name, knobs...)
	s.create(b)
	return b
}

// read reads an object again.
func (s *scene) read(object client.Object) {
	s.t.Helper()
	if err := s.client.Get(s.t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
		s.t.Fatal(err)
	}
}

// current reads an object and waits until the API server's own cache has that version. Until then the server judges a patch
// against the old version first, webhooks and all, and tries anew with the one in etcd when that was refused.
func (s *scene) current(object client.Object) {
	s.t.Helper()
	s.read(object)
	atLeast := &client.GetOptions{Raw: &metav1.GetOptions{ResourceVersion: object.GetResourceVersion()}}
	if err := s.client.Get(s.t.Context(), client.ObjectKeyFromObject(object), object, atLeast); err != nil {
		s.t.Fatal(err)
	}
}

// take adds allocations to a block, to as many as it had when it was read.
func (s *scene) take(b *v1alpha1.AddressBlock, entries ...func(*v1alpha1.AddressBlock)) error {
	s.t.Helper()
	var added v1alpha1.AddressBlock
	for _, add := range entries {
		add(&added)
	}
	patch := []map[string]any{{"op": "add", "path": "/spec/allocations", "value": added.Spec.Allocations}}
	if len(b.Spec.Allocations) > 0 {
		patch = nil
		for _, a := range added.Spec.Allocations {
			patch = append(patch, map[string]any{"op": "add", "path": "/spec/allocations/-", "value": a})
		}
	}
	data, err := json.Marshal(patch)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.client.Patch(s.t.Context(), b.DeepCopy(), client.RawPatch(types.JSONPatchType, data))
}

// patch writes a patch that must be admitted.
func (s *scene) patch(object client.Object, t types.PatchType, patch string) {
	s.t.Helper()
	if err := s.client.Patch(s.t.Context(), object, client.RawPatch(t, []byte(patch))); err != nil {
		s.t.Fatal(err)
	}
}

// annotate sets one annotation.
func (s *scene) annotate(object client.Object, key, value string) {
	s.t.Helper()
	s.patch(object, types.MergePatchType, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, key, value))
}

// dry returns the scene with a client whose writes change nothing.
func (s *scene) dry() *scene {
	dry := *s
	dry.client = client.NewDryRunClient(s.client)
	return &dry
}

// held checks that a pod waits for its addresses before it goes.
func (s *scene) held(pod *corev1.Pod) {
	s.t.Helper()
	s.read(pod)
	if !slices.Contains(pod.Finalizers, v1alpha1.AddressesFinalizer) {
		s.t.Errorf("pod %s has an address and finalizers %q", pod.Name, pod.Finalizers)
	}
}

// bind gives a user a ClusterRole.
func (s *scene) bind(user, role string) {
	s.t.Helper()
	s.create(&rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user + "-" + role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	})
}

// rewrite reads an object and writes it, until nobody else writes in between.
func rewrite[T client.Object](ctx context.Context, c client.Reader, object T, write func(T) error) error {
	for {
		if err := c.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		if err := write(object); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// answer is all that a user sees of the API server's answer to a write. The zero answer is an admission without a
// word.
type answer struct {
	Code     int32
	Reason   metav1.StatusReason
	Message  string
	Causes   []metav1.StatusCause
	Warnings []string
}

// answer returns what a write was answered, and forgets its warnings.
func (s *scene) answer(err error) answer {
	a := answer{Warnings: s.warnings.take()}
	if err == nil {
		return a
	}
	a.Message = err.Error()
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		a.Code, a.Reason = status.Status().Code, status.Status().Reason
		if d := status.Status().Details; d != nil && a.Code == http.StatusUnprocessableEntity {
			a.Causes = d.Causes // A policy's refusal has one too, which says the same as the message.
		}
	}
	return a
}

// wants compares the answer to a write with one in which NAME stands for the scene's name, as do further names for
// their values.
func (s *scene) wants(want answer, err error, values ...string) {
	s.t.Helper()
	if diff := s.diff(want, err, values...); diff != "" {
		s.t.Errorf("answer (-want +got):\n%s", diff)
	}
}

func (s *scene) diff(want answer, err error, values ...string) string {
	fill := strings.NewReplacer(append([]string{"NAME", s.name}, values...)...).Replace
	want.Message = fill(want.Message)
	want.Causes, want.Warnings = slices.Clone(want.Causes), slices.Clone(want.Warnings)
	for i := range want.Causes {
		want.Causes[i].Message = fill(want.Causes[i].Message)
	}
	for i := range want.Warnings {
		want.Warnings[i] = fill(want.Warnings[i])
	}
	return gocmp.Diff(want, s.answer(err), cmpopts.EquateEmpty())
}

// soon does as wants with a write that changes nothing, so a dry run, until the answer is as wanted: the manager
// hears of the writes before it with a delay.
func (s *scene) soon(want answer, write func() error) {
	s.t.Helper()
	eventually(s.t, func() error {
		if diff := s.diff(want, write()); diff != "" {
			return fmt.Errorf("answer (-want +got):\n%s", diff)
		}
		return nil
	})
}

// eventually tries until there is no error, as long as anything may take.
func eventually(t *testing.T, try func() error) {
	t.Helper()
	deadline := time.After(controlplane.Deadline)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for err := try(); err != nil; err = try() {
		select {
		case <-deadline:
			t.Fatalf("after %s: %v", controlplane.Deadline, err)
		case <-tick.C:
		}
	}
}
