//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/test/e2e/cluster"
	"github.com/oakum-dev/oakum/test/e2e/cluster/cni"
)

// missDEL runs two pods that are in no hurry to end, deletes one with grace and the other one by force while the plugin is
// away, and returns them when DEL has failed for both.
func (w *town) missDEL() (graceful, forced *corev1.Pod) {
	w.t.Helper()
	graceful, forced = cluster.Pod("default", "graceful", "-deaf"), cluster.Pod("default", "forced", "-deaf")
	w.run(graceful, forced)
	w.must(w.RemoveWhereabouts())
	w.delete(graceful)
	w.force(forced)
	w.eventually("DEL fails", func(context.Context) error {
		if a, b := len(w.refusals(graceful)), len(w.refusals(forced)); a == 0 || b == 0 {
			return fmt.Errorf("it has failed %d and %d times", a, b)
		}
		return nil
	})
	return graceful, forced
}

// record is how a pod's address is recorded.
func record(p *corev1.Pod) string { return p.Status.PodIP + " " + p.Namespace + "/" + p.Name }

// awayWithoutOakum is G22. A pod that is deleted by force is forgotten while its sandbox is still there.
func awayWithoutOakum(w *town) {
	graceful, forced := w.missDEL()
	w.gone(forced)
	w.stays("the records stay while DEL fails", glimpse, record(graceful), record(forced))
	if !w.exists(graceful) {
		w.t.Error("a pod is gone while DEL fails")
	}
	w.must(w.RestoreWhereabouts())
	w.gone(graceful)
	w.expect("DEL succeeds")
}

func awayWithOakum(w *town) {
	w.guard(guarded)
	early := w.early(true)
	graceful, forced := w.missDEL()
	w.stays("the records stay while DEL fails", patience, record(graceful), record(forced))
	if !w.exists(graceful) || !w.exists(forced) {
		w.t.Error("a pod is gone while DEL fails")
	}
	began := time.Now()
	w.must(w.RestoreWhereabouts())
	w.gone(graceful, forced)
	w.expect("DEL succeeds")
	w.t.Logf("the pods are gone %.1f s after the plugin is back", time.Since(began).Seconds())
	early.none(w.t, 4)
}

// awayForLong is about a deadline that is over while DEL fails: the kubelet keeps a pod that was deleted with grace, and its
// address; of one that was deleted by force it keeps nothing, and the audit finds its record.
func awayForLong(w *town) {
	const deadline = 10 * time.Second
	w.guard(strings.Replace(guarded, "deadline: 1m", "deadline: "+deadline.String(), 1))
	early := w.early(true)
	letGo := func(pod *corev1.Pod) {
		w.eventually("the finalizer is off", func(ctx context.Context) error {
			var now corev1.Pod
			if err := w.Client.Get(ctx, key(pod), &now); err != nil || now.UID != pod.UID || !held(&now) {
				return client.IgnoreNotFound(err)
			}
			pod.DeletionTimestamp = now.DeletionTimestamp
			return fmt.Errorf("it is on since %s", now.DeletionTimestamp)
		})
		late := time.Since(pod.DeletionTimestamp.Add(deadline))
		if late < -time.Second || late > 5*time.Second {
			w.t.Errorf("the finalizer came off %s after the deadline", late)
		}
		w.t.Logf("the finalizer comes off %.1f s after the deadline", late.Seconds())
		w.told(pod, "AddressesLeft", pod.Status.PodIP+" stays allocated")
	}
	graceful, forced := w.missDEL()
	letGo(forced)
	w.gone(forced)
	began := time.Now()
	w.expect("the audit takes what the pod left", record(graceful))
	w.t.Logf("the audit frees the address %.1f s after the pod is gone", time.Since(began).Seconds())
	letGo(graceful)
	w.stays("the pod exists", patience, record(graceful))
	if !w.exists(graceful) {
		w.t.Error("the pod is gone while DEL fails")
	}
	w.must(w.RestoreWhereabouts())
	w.gone(graceful)
	w.expect("DEL succeeds")
	early.none(w.t, 4)
}

// failAdd creates a pod whose sandboxes fail after Whereabouts has given them an address. This is G32: of a sandbox whose
// ADD failed containerd remembers nothing, so nobody calls DEL once more.
func (w *town) failAdd() *corev1.Pod {
	w.t.Helper()
	w.must(errors.Join(w.Plugin.Inject(cni.FailAdd), w.Plugin.Inject(cni.FailDel)))
	pod := cluster.Pod("default", "web")
	w.must(w.Client.Create(w.t.Context(), pod))
	w.hangs(pod, "failing this ADD")
	return pod
}

func (w *town) heal() {
	w.t.Helper()
	w.must(errors.Join(w.Plugin.Heal(cni.FailAdd), w.Plugin.Heal(cni.FailDel)))
}

func failedForEver(w *town) {
	for _, guard := range []bool{false, true} {
		pod := w.failAdd()
		w.delete(pod)
		w.gone(pod)
		w.heal()
		if !guard {
			w.stays("nobody calls DEL", glimpse, "10.10.0.1 default/web")
			w.guard(guarded)
		}
		w.expect("the record is gone")
	}
}

func failedOnce(w *town) {
	w.guard(guarded)
	pod := w.failAdd()
	w.heal()
	w.running(pod)
	early := w.early(false)
	w.stays("the next sandbox has the record of the first", patience, "10.11.0.1 default/web")
	w.delete(pod)
	w.gone(pod)
	w.expect("it goes with the pod")
	early.none(w.t, 1)
}

func failedElsewhere(w *town) {
	pod := w.failAdd()
	w.must(w.SetNetwork(cluster.Network{Ranges: []string{"10.13.0.0/29"}}))
	w.heal()
	w.running(pod)
	w.stays("the pod has two records", glimpse, "10.12.0.1 default/web", "10.13.0.1 default/web")
	early := w.early(false)
	w.guard(guarded)
	w.expect("the first one goes", "10.13.0.1 default/web")
	w.stays("the pod keeps its own", patience, "10.13.0.1 default/web")
	w.delete(pod)
	w.gone(pod)
	w.expect("it goes with the pod")
	early.none(w.t, 2)
}
