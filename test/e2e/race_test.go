//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/oakum-dev/oakum/test/e2e/cluster"
	"github.com/oakum-dev/oakum/test/e2e/cluster/cni"
)

func TestHowPodsBeginAndEndI1I3I8(t *testing.T) {
	w := found(t)
	w.inhabit()
	w.scene("they are created", creation, "10.1.0.0/24")
	w.scene("they end no later than without Oakum", deletion, "10.2.0.0/24")
	w.scene("they are deleted by force", byForce, "10.3.0.0/24")
	w.scene("with an address of ours", gracefully, "10.4.0.0/24")
	w.scene("with a job", afterAJob, "10.5.0.0/24")
	w.scene("with their namespace while the plugin is away", withItsNamespace, "10.6.0.0/24")
}

// creation creates pods that nobody schedules, asking Oakum or not, in turn. In kube-system the API server asks nobody.
func creation(w *town) {
	const rounds = 50
	number := 0
	create := func(namespace string) (*corev1.Pod, time.Duration) {
		w.t.Helper()
		number++
		pod := cluster.Pod(namespace, fmt.Sprintf("created-%d", number))
		pod.Spec.SchedulerName = "nobody"
		began := time.Now()
		w.must(w.Client.Create(w.t.Context(), pod))
		return pod, time.Since(began)
	}
	compare := func(what string, wantHeld bool) {
		w.t.Helper()
		var asked, unasked []time.Duration
		for range rounds {
			pod, took := create("default")
			if held(pod) != wantHeld {
				w.t.Errorf("%s: %s is held: %v", what, pod.Name, held(pod))
			}
			other, tookOther := create("kube-system")
			asked, unasked = append(asked, took), append(unasked, tookOther)
			w.must(w.Client.Delete(w.t.Context(), pod))
			w.must(w.Client.Delete(w.t.Context(), other))
		}
		w.t.Logf("%s: creating a pod takes %s, and without a webhook %s (medians of %d)", what, median(asked), median(unasked), rounds)
	}
	w.guard(guarded)
	compare("with Oakum", true)

	w.must(w.manager.Signal(syscall.SIGSTOP))
	hung, took := create("default")
	w.must(w.manager.Signal(syscall.SIGCONT))
	w.must(w.Client.Delete(w.t.Context(), hung))
	w.t.Logf("while Oakum hangs: creating a pod takes %s", took)
	if took > 5*time.Second {
		w.t.Errorf("while Oakum hangs, creating a pod takes %s", took)
	}

	w.unguard()
	compare("while Oakum is away", false)
	pod := cluster.Pod("default", "unguarded")
	w.run(pod)
	w.delete(pod)
	w.gone(pod)
}

// deletion deletes pods that are held and pods that are not, side by side.
func deletion(w *town) {
	const batches, size = 5, 20
	w.namespace("plain")
	w.guard(strings.Replace(guarded, "deadline: 1m", "deadline: 1m, excludedNamespaces: [kube-system, plain]", 1))
	film := shoot[*corev1.Pod](w, &corev1.PodList{}, nil)
	took := map[string][]time.Duration{}
	ahead := 0
	for batch := range batches {
		var pods []*corev1.Pod
		for i := range size {
			for _, namespace := range []string{"default", "plain"} {
				pods = append(pods, cluster.Pod(namespace, fmt.Sprintf("deleted-%d-%d", batch, i)))
			}
		}
		w.run(pods...)
		deleted := map[*corev1.Pod]time.Time{}
		for _, p := range pods {
			if held(p) != (p.Namespace == "default") {
				w.t.Errorf("%s/%s is held: %v", p.Namespace, p.Name, held(p))
			}
			deleted[p] = time.Now()
			w.delete(p)
		}
		for _, p := range pods {
			frames := w.seenGone(film, p)
			took[p.Namespace] = append(took[p.Namespace], frames[len(frames)-1].at.Sub(deleted[p]))
			letGo, ok := first(frames, func(f frame[*corev1.Pod]) bool { return !held(f.object) && f.event != watch.Deleted })
			switch {
			case p.Namespace == "plain":
			case ok && *letGo.object.DeletionGracePeriodSeconds > 0:
				ahead++
			default:
				w.t.Logf("the kubelet was first: %q", story(frames))
			}
		}
	}
	w.t.Logf("Oakum let the pod go before the kubelet's last DELETE in %d of %d", ahead, batches*size)
	w.t.Logf("from deletion to gone it takes %s, and without Oakum %s (medians of %d)", median(took["default"]), median(took["plain"]), batches*size)
	if ahead < batches*size*98/100 {
		w.t.Errorf("Oakum let the pod go before the kubelet's last DELETE in %d of %d, want 98 %%", ahead, batches*size)
	}
}

// byForce deletes pods by force that do not heed SIGTERM. The API server would drop them at once, were they not held.
func byForce(w *town) {
	w.guard(guarded)
	g := w.gauge()
	w.subnet("force", "10.60.0.0/24")
	var pods []*corev1.Pod
	for i := range 20 {
		pods = append(pods, cluster.Pod("default", fmt.Sprintf("deaf-%d", i), "-deaf"))
	}
	w.run(pods...)
	ids := map[*corev1.Pod]string{}
	sandboxes, err := w.Sandboxes()
	w.must(err)
	for _, p := range pods {
		w.take("force", p)
		i := slices.IndexFunc(sandboxes, func(s cluster.Sandbox) bool { return s.UID == p.UID })
		ids[p] = sandboxes[i].ID
	}
	early := w.early(true)
	film := shoot[*corev1.Pod](w, &corev1.PodList{}, nil)

	// The second ten are stopped on their way: their processes have ended, and their addresses are still set up.
	for _, part := range []struct {
		pods []*corev1.Pod
		hold bool
	}{{pods[:10], false}, {pods[10:], true}} {
		if part.hold {
			w.must(w.Plugin.Inject(cni.HoldDel))
			defer func() { w.must(w.Plugin.Heal(cni.HoldDel)) }()
		}
		w.force(part.pods...)
		if part.hold {
			w.eventually("every DEL is held", func(context.Context) error {
				calls, err := w.Plugin.Calls()
				begun := map[string]bool{}
				for _, c := range calls {
					begun[c.Container] = begun[c.Container] || c.Command == "DEL"
				}
				for _, p := range part.pods {
					if !begun[ids[p]] {
						err = errors.Join(err, fmt.Errorf("there is no DEL for %s", p.Name))
					}
				}
				return err
			})
			before, err := w.taken(w.t.Context(), "force")
			w.must(err)
			w.survives("while DEL is held", g, looks)
			after, err := w.taken(w.t.Context(), "force")
			w.must(err)
			if diff := gocmp.Diff(before, after); diff != "" || len(after) != len(part.pods) {
				w.t.Errorf("native addresses while DEL is held (-before +after):\n%s%q", diff, after)
			}
			w.must(w.Plugin.Heal(cni.HoldDel))
		}
		w.gone(part.pods...)
	}
	w.expect("all is given back")
	w.freed("force")
	early.none(w.t, 3*len(pods))

	calls, err := w.Plugin.Calls()
	w.must(err)
	var entries, allocations []time.Duration
	for _, p := range pods {
		i := slices.IndexFunc(calls, func(c cni.Call) bool { return c.Command == "DEL" && c.Container == ids[p] })
		entries = append(entries, early.at("entry "+ids[p]+"/eth0").Sub(calls[i].Begin))
		allocations = append(allocations, early.at("allocation "+handle(p)).Sub(calls[i].End))
		frames := w.seenGone(film, p)
		letGo := frames[len(frames)-1].object
		if letGo.Status.Phase != corev1.PodFailed && letGo.Status.Phase != corev1.PodSucceeded {
			w.t.Errorf("the kubelet had not reported the end of %s when it was let go: %q", p.Name, story(frames))
		}
	}
	w.t.Logf("the first of %d entries went %s after its sandbox had ended, the median %s", len(pods), slices.Min(entries), median(entries))
	w.t.Logf("the first of %d allocations went %s after DEL had ended, the median %s", len(pods), slices.Min(allocations), median(allocations))
	if slices.Min(entries) < 0 || slices.Min(allocations) < 0 {
		w.t.Error("an address was free before its sandbox was gone")
	}
}

// seenGone waits until a film shows that a pod is gone, and returns what it shows of it.
func (w *town) seenGone(f *film[*corev1.Pod], p *corev1.Pod) (frames []frame[*corev1.Pod]) {
	w.t.Helper()
	w.eventually(p.Name+" is gone", func(context.Context) error {
		if frames = f.of(p); len(frames) == 0 || frames[len(frames)-1].event != watch.Deleted {
			return fmt.Errorf("its story is %q", story(frames))
		}
		return nil
	})
	return frames
}

func median(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2].Round(10 * time.Microsecond)
}
