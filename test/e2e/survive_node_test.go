//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/e2e/cluster"
)

// hasty lets pods go soon, and leaves a kubelet that comes back the time that it needs to end what it must not run.
const (
	hasty = `
backends: {whereabouts: {mode: Enforce, defaultNetwork: true}}
audit: {interval: 1s, gracePeriod: 8s, quarantine: 10s}
finalizers: {pods: {deadline: 5s}}
leaderElection: {enabled: false}
`
	hastyLooks = 14
)

func TestAnAddressOutlivesItsNodesSilenceI1I3(t *testing.T) {
	w := found(t)
	w.inhabit()
	w.scene("containerd is killed and starts again", containerdRestarts, "10.1.0.0/24")
	w.scene("the kubelet is silent for a while", nodeIsSilent, "10.2.0.0/24")
	w.scene("the Node is deleted and comes back", nodeIsReplaced, "10.3.0.0/24")
}

// tenants runs pods that have an address of Whereabouts and one of an AddressPool.
func (w *town) tenants(pool, subnet string, names ...string) []*corev1.Pod {
	w.t.Helper()
	w.subnet(pool, subnet)
	pods := make([]*corev1.Pod, len(names))
	for i, name := range names {
		pods[i] = cluster.Pod("default", name)
	}
	w.run(pods...)
	for _, p := range pods {
		w.take(pool, p)
	}
	return pods
}

// left waits until just these pods have an address of an AddressPool.
func (w *town) left(pool string, want ...string) {
	w.t.Helper()
	w.eventually("the native allocations are as wanted", func(ctx context.Context) error {
		got, err := w.taken(ctx, pool)
		if diff := gocmp.Diff(want, got); err == nil && diff != "" {
			err = fmt.Errorf("pods with an address (-want +got):\n%s", diff)
		}
		return err
	})
}

func containerdRestarts(w *town) {
	w.guard(hasty)
	g := w.gauge()
	pods := w.tenants("containerd", "10.64.0.0/24", "before")
	w.Containerd.Kill()
	w.survives("while containerd is down", g, hastyLooks)
	w.must(w.Containerd.Start(w.t.Context()))
	pods = append(pods, cluster.Pod("default", "after"))
	w.run(pods[1])
	w.survives("when containerd is back", g, hastyLooks)
	w.left("containerd", "default/before")
	w.alive(pods...)
	w.delete(pods...)
	w.gone(pods...)
	w.freed("containerd")
}

func nodeIsSilent(w *town) {
	w.guard(hasty)
	g := w.gauge()
	pods := w.tenants("silent", "10.65.0.0/24", "kept", "forced-1", "forced-2")
	kept, forced := pods[0], pods[1:]
	early := w.early(true)
	w.must(w.Kubelet.Stop())
	began := time.Now()
	w.eventually("the node is not ready", func(ctx context.Context) error {
		var node corev1.Node
		err := w.Client.Get(ctx, client.ObjectKey{Name: cluster.Node}, &node)
		if err == nil && ready(node) == corev1.ConditionTrue {
			err = fmt.Errorf("it is, %s after its kubelet was stopped", time.Since(began))
		}
		return err
	})
	began = time.Now()
	w.force(forced...)
	w.gone(forced...)
	if took := time.Since(began); took < 4*time.Second || took > 10*time.Second {
		w.t.Errorf("the pods were let go %s after their deletion, want a deadline of 5s", took)
	}
	for _, p := range forced {
		w.told(p, string(v1alpha1.EventAddressesLeft), `node "node-1" is not ready: the sandbox may still run`)
	}
	w.survives("while the node is not ready", g, hastyLooks)
	w.left("silent", "default/forced-1", "default/forced-2", "default/kept")
	w.counts("nothing is suspected", v1alpha1.LeakReportRun{Allocations: 3, InUse: 1, Unproven: 2})
	sandboxes, err := w.Sandboxes()
	w.must(err)
	if len(sandboxes) != len(pods) {
		w.t.Errorf("%d sandboxes run, want %d: what is gone from the API runs still", len(sandboxes), len(pods))
	}
	explained := w.explain("default/forced-1")
	const why = `the record does not tell its node, and node "node-1" is not ready: the sandbox may still run there`
	if !strings.Contains(explained, why) {
		w.t.Errorf("oakum explain says\n%s\nwant %q", explained, why)
	}

	w.must(w.Kubelet.Start(w.t.Context()))
	w.expect("what was forced is free", has(kept))
	w.left("silent", "default/kept")
	early.none(w.t, 6)
	w.alive(kept)
	w.delete(kept)
	w.gone(kept)
	w.freed("silent")
}

func nodeIsReplaced(w *town) {
	w.guard(hasty)
	g := w.gauge()
	pods := w.tenants("replaced", "10.66.0.0/24", "kept", "forced")
	kept, forced := pods[0], pods[1]
	before, err := w.Sandboxes()
	w.must(err)
	early := w.early(true)
	var old corev1.Node
	w.must(w.Client.Get(w.t.Context(), client.ObjectKey{Name: cluster.Node}, &old))
	if !held(&old) {
		w.t.Errorf("the Node has the finalizers %q", old.Finalizers)
	}
	w.must(w.Kubelet.Stop())
	w.must(w.Client.Delete(w.t.Context(), &old))
	began := time.Now()
	w.eventually("the Node is gone", func(ctx context.Context) error {
		err := w.Client.Get(ctx, client.ObjectKeyFromObject(&old), &corev1.Node{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %w", err)
	})
	if took := time.Since(began); took > 2*time.Second {
		w.t.Errorf("the Node was gone %s after its deletion, want 2s", took)
	}
	w.force(forced)
	w.gone(forced)
	w.expect("nothing is free", has(kept), has(forced))
	w.left("replaced", "default/forced", "default/kept")

	w.must(w.Kubelet.Start(w.t.Context()))
	var node corev1.Node
	w.must(w.Client.Get(w.t.Context(), client.ObjectKey{Name: cluster.Node}, &node))
	if node.UID == old.UID {
		w.t.Error("the Node is the old one")
	}
	w.expect("what was forced is free", has(kept))
	w.left("replaced", "default/kept")
	early.none(w.t, 3)
	w.survives("when the Node is back", g, hastyLooks)
	after, err := w.Sandboxes()
	w.must(err)
	before = slices.DeleteFunc(before, func(s cluster.Sandbox) bool { return s.UID == forced.UID })
	if diff := gocmp.Diff(before, after); diff != "" {
		w.t.Errorf("sandboxes (-before +after):\n%s", diff)
	}
	w.alive(kept)
	w.delete(kept)
	w.gone(kept)
	w.freed("replaced")
}

// ready returns the status of a node's condition of that name.
func ready(n corev1.Node) corev1.ConditionStatus {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return corev1.ConditionUnknown
}

// explain returns what oakum explain says.
func (w *town) explain(subject string) string {
	w.t.Helper()
	out, err := exec.CommandContext(w.t.Context(), w.binary, "explain", subject, "--kubeconfig", w.Kubeconfig).CombinedOutput()
	if err != nil {
		w.t.Fatalf("explaining %s: %v: %s", subject, err, out)
	}
	return string(out)
}
