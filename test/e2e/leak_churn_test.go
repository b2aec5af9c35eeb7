//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/backends/whereabouts"
	"github.com/oakum-dev/oakum/test/e2e/cluster"
	"github.com/oakum-dev/oakum/test/e2e/cluster/cni"
)

func TestManyPodsComeAndGo(t *testing.T) {
	w := found(t)
	w.inhabit()
	w.scene("a namespace is deleted while Whereabouts lacks a right", lostWithTheirNamespace, "10.1.0.0/24")
	w.scene("one name is deleted and created again, fifty times", oneName, "10.2.0.0/24")
	w.scene("the manager is killed amid a hundred deletions", amidDeletions, "10.3.0.0/24")
	w.scene("Whereabouts' control loop runs beside Oakum", besideTheControlLoop, "10.4.0.0/24")
}

// crowd runs n pods of a namespace.
func (w *town) crowd(namespace string, n int) []*corev1.Pod {
	w.t.Helper()
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		pods[i] = cluster.Pod(namespace, fmt.Sprintf("pod-%d", i))
		pods[i].Spec.TerminationGracePeriodSeconds = new(int64(2))
	}
	began := time.Now()
	w.run(pods...)
	w.t.Logf("%d pods run after %.1f s", n, time.Since(began).Seconds())
	return pods
}

// lostWithTheirNamespace is about DELs that succeed and do not give back all.
func lostWithTheirNamespace(w *town) {
	doom := func(name, resource, verb string) (records []string) {
		namespace := w.namespace(name)
		pods := w.crowd(name, 30)
		allow := w.forbid(resource, verb)
		defer allow()
		began := time.Now()
		w.must(w.Client.Delete(w.t.Context(), namespace))
		w.gone(pods...)
		empty := time.Since(began)
		w.eventually("the namespace is gone", func(ctx context.Context) error {
			err := w.Client.Get(ctx, key(namespace), namespace)
			if apierrors.IsNotFound(err) {
				return nil
			}
			return errors.Join(err, fmt.Errorf("it is there: %v", namespace.Status.Conditions))
		})
		w.t.Logf("namespace %s: its pods are gone after %.1f s, itself after %.1f s", name, empty.Seconds(), time.Since(began).Seconds())
		for _, p := range pods {
			records = append(records, record(p))
		}
		if name == "guarded" {
			w.expect("Oakum gives back what DEL does not")
		}
		return records
	}
	records := doom("unguarded", "overlappingrangeipreservations", "delete")
	for i := range records {
		records[i] += " (no entry)"
	}
	w.stays("nobody gives the reservations back", glimpse, records...)
	began := time.Now()
	w.guard(guarded)
	w.expect("the reservations are gone")
	w.t.Logf("%d reservations are gone %.1f s after Oakum's start", len(records), time.Since(began).Seconds())
	early := w.early(true)
	doom("guarded", "ippools", "list")
	early.none(w.t, 30)
}

// oneName is L13.
func oneName(w *town) {
	const rounds = 50
	bystander := cluster.Pod("default", "bystander")
	w.run(bystander)
	again := func(args ...string) (pod *corev1.Pod) {
		w.eventually("the name is free", func(ctx context.Context) error {
			pod = cluster.Pod("default", "same", args...)
			return w.Client.Create(ctx, pod)
		})
		return pod
	}
	stop := w.sharing()
	pod := again("-deaf")
	w.running(pod)
	w.force(pod)
	pod = again()
	w.running(pod)
	if shared := stop(); len(shared) == 0 {
		w.t.Error("without Oakum no two sandboxes of one name had one address")
	} else {
		w.t.Logf("without Oakum: %q", shared)
	}
	w.delete(pod)
	w.gone(pod)
	w.expect("one is left", record(bystander))
	w.eventually("both sandboxes have ended", func(context.Context) error {
		sandboxes, err := w.Sandboxes()
		if err == nil && slices.ContainsFunc(sandboxes, func(s cluster.Sandbox) bool { return s.Pod == "default/same" }) {
			err = errors.New("one runs")
		}
		return err
	})

	w.guard(guarded)
	stop = w.sharing()
	began := time.Now()
	for i := range rounds {
		var args []string
		if i%10 == 0 {
			args = append(args, "-deaf")
		}
		pod = again(args...)
		switch i % 5 {
		case 0:
			w.running(pod)
		case 1, 2:
			w.eventually("ADD has begun", func(context.Context) error {
				calls, err := w.Plugin.Calls()
				if err == nil && !slices.ContainsFunc(calls, func(c cni.Call) bool { return c.UID == string(pod.UID) }) {
					err = errors.New("no call is for it")
				}
				return err
			})
		}
		w.must(w.Client.Delete(w.t.Context(), pod, client.GracePeriodSeconds(int64(i%2))))
	}
	w.gone(pod)
	w.expect("the records are the living's", record(bystander))
	w.t.Logf("%d rounds take %.1f s", rounds, time.Since(began).Seconds())
	if diff := cmp.Diff([]string(nil), stop()); diff != "" {
		w.t.Errorf("addresses of two sandboxes at a time (-want +got):\n%s", diff)
	}
	w.delete(bystander)
	w.gone(bystander)
}

// sharing looks on until the function that it returns is called, which returns what two sandboxes had at the same time.
func (w *town) sharing() (stop func() []string) {
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan struct{})
	shared, addresses := map[string]bool{}, map[string][]string{}
	look := func() error {
		sandboxes, err := w.Sandboxes()
		if err != nil {
			return err
		}
		if slices.ContainsFunc(sandboxes, func(s cluster.Sandbox) bool { return addresses[s.ID] == nil }) {
			calls, err := w.Plugin.Calls()
			if err != nil {
				return err
			}
			for _, c := range calls {
				if c.Command == "ADD" && c.Error == "" {
					addresses[c.Container] = c.Addresses
				}
			}
		}
		users := map[string]string{}
		for _, s := range sandboxes {
			for _, a := range addresses[s.ID] {
				if users[a] != "" {
					shared[a+" "+users[a]+" "+s.Pod] = true
				}
				users[a] = s.Pod
			}
		}
		return nil
	}
	go func() {
		defer close(ended)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if err := look(); err != nil {
					w.t.Error(err)
				}
			}
		}
	}()
	return func() []string {
		cancel()
		<-ended
		return slices.Sorted(maps.Keys(shared))
	}
}

// tally counts how often each record goes.
type tally struct {
	mu   sync.Mutex
	gone map[string]int
}

// tally begins to count.
func (w *town) tally() *tally {
	w.t.Helper()
	c := &tally{gone: map[string]int{}}
	add := func(what string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.gone[what]++
	}
	shoot(w, &whereabouts.IPPoolList{}, func(before, now frame[*whereabouts.IPPool]) {
		if before.object == nil {
			return
		}
		for offset, e := range before.object.Spec.Allocations {
			if now.object.Spec.Allocations[offset].ID != e.ID {
				add("the entry of " + e.PodRef)
			}
		}
	})
	shoot(w, &whereabouts.OverlappingRangeIPReservationList{}, func(_, now frame[*whereabouts.OverlappingRangeIPReservation]) {
		if now.event == watch.Deleted {
			add("the reservation of " + now.object.Spec.PodRef)
		}
	})
	return c
}

// count returns how many records have gone.
func (c *tally) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.gone)
}

// once waits until the entry and the reservation of each of these pods have gone, and checks that each went once, and nothing else.
func (c *tally) once(w *town, pods []*corev1.Pod) {
	w.t.Helper()
	want := map[string]int{}
	for _, p := range pods {
		want["the entry of "+p.Namespace+"/"+p.Name] = 1
		want["the reservation of "+p.Namespace+"/"+p.Name] = 1
	}
	w.eventually("the watcher has seen all go", func(context.Context) error {
		if n := c.count(); n < len(want) {
			return fmt.Errorf("%d have gone, want %d", n, len(want))
		}
		return nil
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if diff := cmp.Diff(want, c.gone); diff != "" {
		w.t.Errorf("how often records have gone (-want +got):\n%s", diff)
	}
}

// strip takes the interface from the entries of pods, as an older release wrote them: DEL does not find them.
func (w *town) strip(pool string, pods []*corev1.Pod) {
	w.t.Helper()
	stripped := map[string]map[string]any{}
	for _, p := range pods {
		_, last, _ := strings.Cut(strings.TrimPrefix(p.Status.PodIP, "10."), ".0.")
		stripped[last] = map[string]any{"ifname": nil}
	}
	w.enter(pool, stripped)
}

// amidDeletions is about pods whose DEL gives nothing back, so that all releases are Oakum's.
func amidDeletions(w *town) {
	w.guard(guarded)
	bystanders := []*corev1.Pod{cluster.Pod("default", "one"), cluster.Pod("default", "two")}
	w.run(bystanders...)
	w.enter("10.3.0.0-24", map[string]map[string]any{"200": {"id": "by-hand", "podref": "nobody"}})
	pods := w.crowd("default", 100)
	w.strip("10.3.0.0-24", pods)
	early, tally := w.early(true), w.tally()
	began := time.Now()
	w.delete(pods...)
	w.eventually("a tenth has gone", func(context.Context) error {
		if n := tally.count(); n < 20 {
			return fmt.Errorf("%d records have gone", n)
		}
		return nil
	})
	w.manager.Kill()
	at, n := time.Since(began), tally.count()
	w.manager = nil
	left, err := w.recorded(w.t.Context())
	w.must(err)
	if len(left) < 10 {
		w.t.Errorf("the manager was killed too late: %q are left", left)
	}
	w.guard(guarded)
	w.gone(pods...)
	w.expect("all is given back but the neighbours'", record(bystanders[0]), record(bystanders[1]),
		"10.3.0.200 nobody (no reservation)")
	w.t.Logf("killed after %.1f s, when %d of %d records had gone; all are free after %.1f s", at.Seconds(), n, 2*len(pods), time.Since(began).Seconds())
	tally.once(w, pods)
	early.none(w.t, 2*len(pods))
	w.enter("10.3.0.0-24", map[string]map[string]any{"200": nil})
	w.delete(bystanders...)
	w.gone(bystanders...)
}

// besideTheControlLoop follows docs/backends/whereabouts.md: the pod controller acts, and the reconciler rests.
func besideTheControlLoop(w *town) {
	network, err := w.Plugin.IPAM("")
	w.must(err)
	config, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "blue", "type": "macvlan", "ipam": network})
	w.must(err)
	w.must(w.records.Create(w.t.Context(), &whereabouts.NetworkAttachmentDefinition{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "blue"},
		Spec:       whereabouts.AttachmentSpec{Config: string(config)},
	}))
	loop, err := w.StartControlLoop(w.t.Context(), "0 0 29 2 *")
	w.must(err)
	w.guard(guarded)
	grep := func(mark, file string) (lines []string) {
		text, err := os.ReadFile(file)
		w.must(err)
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, mark) {
				lines = append(lines, line)
			}
		}
		return lines
	}
	before := len(grep(`"level":"error"`, w.manager.Log))
	pods := w.crowd("default", 20)
	for _, p := range pods {
		w.annotate(p, "k8s.v1.cni.cncf.io/network-status", fmt.Sprintf(`[{"name":"default/blue","interface":"eth0","ips":[%q]}]`, p.Status.PodIP))
	}
	w.strip("10.4.0.0-24", pods[:10])
	early, tally := w.early(true), w.tally()
	w.delete(pods...)
	w.gone(pods...)
	w.expect("all is given back")
	tally.once(w, pods)
	early.none(w.t, 2*len(pods))
	w.eventually("the control loop has seen all deletions", func(context.Context) error {
		if saw := len(grep("deleted pod [default/pod-", loop.Log)); saw != len(pods) {
			return fmt.Errorf("it saw %d", saw)
		}
		return nil
	})
	if failures := grep(`"level":"error"`, w.manager.Log)[before:]; len(failures) > 0 {
		w.t.Errorf("errors of the manager: %q", failures)
	}
	if failures := grep("[error]", loop.Log); len(failures) > 0 {
		w.t.Errorf("errors of the control loop: %q", failures)
	}
	w.t.Logf("the control loop gave back %d of %d itself", len(grep("stale allocation to cleanup", loop.Log)), len(pods))
}
