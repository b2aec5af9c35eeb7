//go:build e2e

package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/test/e2e/cluster/cni"
)

// doomed names the folder in which this binary, run once more by a test, starts a cluster that does not get to its Stop.
const doomed = "OAKUM_DOOMED_CLUSTER"

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	if dir := os.Getenv(doomed); dir != "" {
		c, err := Start(context.Background(), dir, Options{Bare: true})
		if err == nil {
			err = c.Client.Create(context.Background(), Pod(metav1.NamespaceDefault, "web", "-deaf"))
		}
		fmt.Fprintln(os.Stdout, err)
		if err != nil {
			os.Exit(1)
		}
		_, err = io.Copy(io.Discard, os.Stdin) // This does not end.
		fmt.Fprintln(os.Stderr, err, c.Stop())
	}
	os.Exit(m.Run())
}

// begin starts a cluster that ends with the test.
func begin(t *testing.T, options Options) *Cluster {
	t.Helper()
	c, err := Start(t.Context(), t.TempDir(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// eventually tries until there is no error.
func eventually(t *testing.T, try func(context.Context) error) {
	t.Helper()
	if err := Await(t.Context(), try); err != nil {
		t.Fatal(err)
	}
}

func TestPodsOfAStatefulSet(t *testing.T) {
	c := begin(t, Options{Network: Network{Ranges: []string{"10.9.0.0/28"}}})
	binary, err := c.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.StartManager(t.Context(), binary, "backends: {native: {mode: Enforce}}\n"); err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"app": "web"}
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "web"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(2)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: PodSpec()},
		},
	}
	if err := c.Client.Create(t.Context(), set); err != nil {
		t.Fatal(err)
	}

	var addresses []string
	eventually(t, func(ctx context.Context) (err error) {
		addresses, err = running(ctx, c, "web-0", "web-1")
		return err
	})
	within := netip.MustParsePrefix("10.9.0.0/28")
	for _, a := range addresses {
		if !within.Contains(netip.MustParseAddr(a)) {
			t.Errorf("a pod has %s, which is not in %s", a, within)
		}
	}
	if diff := cmp.Diff([]string{"default/web-0 [payload]", "default/web-1 [payload]"}, sandboxes(t, c)); diff != "" {
		t.Errorf("sandboxes (-want +got):\n%s", diff)
	}
	entries, reservations := records(t, c)
	if diff := cmp.Diff([]string{"default/web-0", "default/web-1"}, entries); diff != "" {
		t.Errorf("owners in the IPPool (-want +got):\n%s", diff)
	}
	slices.Sort(addresses)
	if diff := cmp.Diff(addresses, reservations); diff != "" {
		t.Errorf("reservations (-want +got):\n%s", diff)
	}

	if err := c.Client.Delete(t.Context(), set, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(context.Context) error {
		entries, reservations := records(t, c)
		if left := slices.Concat(sandboxes(t, c), entries, reservations); len(left) > 0 {
			return fmt.Errorf("the StatefulSet is deleted, and of it are left %q", left)
		}
		return nil
	})
}

func TestFaultsOfThePlugin(t *testing.T) {
	c := begin(t, Options{Bare: true, Network: Network{Ranges: []string{"10.9.0.0/28", "fd00:9::/124"}, Name: "blue"}})
	pod := Pod(metav1.NamespaceDefault, "web")
	create := func() {
		t.Helper()
		if err := c.Client.Create(t.Context(), pod.DeepCopy()); err != nil {
			t.Fatal(err)
		}
	}
	remove := func() {
		t.Helper()
		if err := c.Client.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	}
	// calls waits for a call that has ended, or is under way, and returns the first.
	await := func(what string, match func(cni.Call) bool) cni.Call {
		t.Helper()
		var found cni.Call
		eventually(t, func(context.Context) error {
			calls, err := c.Plugin.Calls()
			i := slices.IndexFunc(calls, match)
			if err != nil || i < 0 {
				return errors.Join(err, fmt.Errorf("no call of the plugin is %s, of %d", what, len(calls)))
			}
			found = calls[i]
			return nil
		})
		return found
	}

	if err := c.Plugin.Inject(cni.FailAdd); err != nil {
		t.Fatal(err)
	}
	create()
	failed := await("an ADD that failed", func(call cni.Call) bool { return call.Command == "ADD" && call.Error != "" })
	if len(failed.Addresses) != 2 {
		t.Errorf("the failed ADD had addresses %q, want one of each family", failed.Addresses)
	}
	if err := c.Plugin.Heal(cni.FailAdd); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error { _, err := running(ctx, c, "web"); return err })

	// A forced deletion takes the pod out of the API at once. DEL begins after the sandbox's processes have ended, and the
	// records stay for as long as DEL is held.
	if err := c.Plugin.Inject(cni.HoldDel); err != nil {
		t.Fatal(err)
	}
	before, err := c.Sandboxes()
	if err != nil || len(before) != 1 {
		t.Fatalf("sandboxes before the deletion: %v, %v; want one", before, err)
	}
	remove()
	held := await("a DEL that is held", func(call cni.Call) bool {
		return call.Command == "DEL" && call.Container == before[0].ID && call.End.IsZero()
	})
	if left := sandboxes(t, c); len(left) > 0 {
		t.Errorf("DEL has begun, and there run %q", left)
	}
	entries, reservations := records(t, c)
	if diff := cmp.Diff([]string{"default/web", "default/web"}, entries); diff != "" {
		t.Errorf("owners in the IPPools while DEL is held (-want +got):\n%s", diff)
	}
	if len(reservations) != 2 || !strings.HasPrefix(reservations[0], "blue-") {
		t.Errorf("reservations are %q while DEL is held, want two of the network blue", reservations)
	}
	if err := c.Plugin.Heal(cni.HoldDel); err != nil {
		t.Fatal(err)
	}
	await("the DEL that was held", func(call cni.Call) bool {
		return call.Begin.Equal(held.Begin) && !call.End.IsZero() && call.Error == ""
	})
	if entries, reservations := records(t, c); len(entries)+len(reservations) > 0 {
		t.Errorf("after DEL there are %q and %q", entries, reservations)
	}

	// Without the binary there is no DEL either.
	create()
	eventually(t, func(ctx context.Context) error { _, err := running(ctx, c, "web"); return err })
	if err := c.RemoveWhereabouts(); err != nil {
		t.Fatal(err)
	}
	remove()
	await("a DEL that failed", func(call cni.Call) bool { return call.Command == "DEL" && call.Error != "" })
	if entries, _ := records(t, c); len(entries) != 2 {
		t.Errorf("without Whereabouts the owners in the IPPools are %q, want two", entries)
	}
	if err := c.RestoreWhereabouts(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(context.Context) error {
		if entries, _ := records(t, c); len(entries) > 0 {
			return fmt.Errorf("Whereabouts is back, and owners in the IPPools are %q", entries)
		}
		return nil
	})
}

func TestWhatEndsAndBeginsAgain(t *testing.T) {
	c := begin(t, Options{Bare: true})
	if err := c.Client.Create(t.Context(), Pod(metav1.NamespaceDefault, "web")); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error { _, err := running(ctx, c, "web"); return err })
	before := sandboxes(t, c)

	c.Kubelet.Kill()
	c.Containerd.Kill()
	if diff := cmp.Diff(before, sandboxes(t, c)); diff != "" {
		t.Errorf("sandboxes without kubelet and containerd (-want +got):\n%s", diff)
	}
	if err := c.SetNetwork(Network{Ranges: []string{"10.8.0.0/29"}}); err != nil {
		t.Fatal(err)
	}
	if err := c.Containerd.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Kubelet.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.StartControlLoop(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if err := c.Client.Create(t.Context(), Pod(metav1.NamespaceDefault, "late", "-finish", "100ms", "-code", "3")); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(context.Context) error {
		calls, err := c.Plugin.Calls()
		i := slices.IndexFunc(calls, func(call cni.Call) bool { return call.Pod == "default/late" && !call.End.IsZero() })
		if err != nil || i < 0 {
			return errors.Join(err, errors.New("no address for default/late"))
		}
		if diff := cmp.Diff([]string{"10.8.0.1/29"}, calls[i].Addresses); diff != "" {
			t.Errorf("addresses in the new network (-want +got):\n%s", diff)
		}
		return nil
	})
	eventually(t, func(ctx context.Context) error {
		var pod corev1.Pod
		if err := c.Client.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: "late"}, &pod); err != nil {
			return err
		}
		for _, s := range pod.Status.ContainerStatuses {
			if s.State.Terminated != nil && s.State.Terminated.ExitCode == 3 || s.LastTerminationState.Terminated != nil && s.LastTerminationState.Terminated.ExitCode == 3 {
				return nil
			}
		}
		return errors.New("default/late has not ended with code 3")
	})
}

func TestNothingIsLeft(t *testing.T) {
	before := named(t)
	dir := t.TempDir()
	c, err := Start(t.Context(), dir, Options{Bare: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Client.Create(t.Context(), Pod(metav1.NamespaceDefault, "web", "-deaf")); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error { _, err := running(ctx, c, "web"); return err })
	if left := c.left(t); len(left) == 0 {
		t.Error("while the cluster runs, nothing of it is found")
	}
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
	if left := c.left(t); len(left) > 0 {
		t.Errorf("after Stop there is left:\n%s", strings.Join(left, "\n"))
	}
	if diff := cmp.Diff(before, named(t)); diff != "" {
		t.Errorf("network namespaces with names (-before +after):\n%s", diff)
	}

	// The same folder again, and a change of mind when containerd is up.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_ = Await(ctx, func(context.Context) error {
			_, err := os.Stat(filepath.Join(c.sockets(), "containerd.sock"))
			return err
		})
		cancel()
	}()
	if _, err := Start(ctx, dir, Options{Bare: true}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled Start answers %v, want %v", err, context.Canceled)
	}
	if left := c.left(t); len(left) > 0 {
		t.Errorf("after a cancelled Start there is left:\n%s", strings.Join(left, "\n"))
	}
}

func TestNothingIsLeftOfTheKilled(t *testing.T) {
	c := &Cluster{dir: t.TempDir()}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), doomed+"="+c.dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "<nil>\n" {
		t.Errorf("the process to be killed answers %q, %v", line, err)
	}
	eventually(t, func(context.Context) error {
		if len(sandboxes(t, c)) == 0 {
			return errors.New("no sandbox runs")
		}
		return nil
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the process to be killed ended by itself")
	}
	eventually(t, func(context.Context) error {
		if left := c.left(t); len(left) > 0 {
			return fmt.Errorf("there is left:\n%s", strings.Join(left, "\n"))
		}
		return nil
	})
}

// left lists what there is of a cluster outside its folder: processes, mounts, cgroups, sockets.
func (c *Cluster) left(t *testing.T) []string {
	t.Helper()
	var left []string
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range lines {
		// Who ended meanwhile has no command line.
		line, _ := os.ReadFile(file)
		if text := strings.ReplaceAll(string(line), "\x00", " "); strings.Contains(text, c.dir) || strings.Contains(text, c.sockets()) {
			left = append(left, "process "+text)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, c.dir) {
			left = append(left, "mount "+strings.TrimSpace(line))
		}
	}
	// A container's command line names no folder of ours, but its root is one.
	roots, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range roots {
		list, _ := os.ReadFile(file)
		if root, _, _ := strings.Cut(string(list), "\n"); strings.Contains(root, c.dir+"/") {
			left = append(left, "container "+root)
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup/" + c.cgroup(), "/sys/fs/cgroup/*/" + c.cgroup(), c.sockets()} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, found...)
	}
	return left
}

// named lists the network namespaces that have names on this machine.
func named(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob("/run/netns/*")
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// running returns the addresses of pods, or which of them does not run.
func running(ctx context.Context, c *Cluster, names ...string) ([]string, error) {
	var addresses []string
	for _, name := range names {
		var pod corev1.Pod
		if err := c.Client.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: name}, &pod); err != nil {
			return nil, err
		}
		if pod.Status.Phase != corev1.PodRunning || len(pod.Status.PodIPs) == 0 {
			return nil, fmt.Errorf("pod %s is %s", name, pod.Status.Phase)
		}
		for _, ip := range pod.Status.PodIPs {
			addresses = append(addresses, ip.IP)
		}
	}
	return addresses, nil
}

// sandboxes lists what runs, without ids.
func sandboxes(t *testing.T, c *Cluster) []string {
	t.Helper()
	running, err := c.Sandboxes()
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, s := range running {
		texts = append(texts, fmt.Sprint(s.Pod, " ", s.Containers))
	}
	return texts
}

// records lists the owners in all of Whereabouts' IPPools, and the names of its reservations, sorted.
func records(t *testing.T, c *Cluster) (owners, reservations []string) {
	t.Helper()
	list := func(kind string) []unstructured.Unstructured {
		l := &unstructured.UnstructuredList{}
		l.SetGroupVersionKind(schema.GroupVersionKind{Group: "whereabouts.cni.cncf.io", Version: "v1alpha1", Kind: kind})
		if err := c.Client.List(t.Context(), l, client.InNamespace(metav1.NamespaceSystem)); err != nil {
			t.Fatal(err)
		}
		return l.Items
	}
	for _, pool := range list("IPPoolList") {
		allocations, _, err := unstructured.NestedMap(pool.Object, "spec", "allocations")
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range allocations {
			owners = append(owners, fmt.Sprint(a.(map[string]any)["podref"]))
		}
	}
	for _, reservation := range list("OverlappingRangeIPReservationList") {
		reservations = append(reservations, reservation.GetName())
	}
	slices.Sort(owners)
	slices.Sort(reservations)
	return owners, reservations
}
