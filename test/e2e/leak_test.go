//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/oakum-dev/oakum/test/e2e/cluster"
)

const (
	// patience is longer than the audit waits under the settings guarded.
	patience = 8 * time.Second
	// glimpse is how long a record is looked at that nobody would give back.
	glimpse = 2 * time.Second
)

// What leaks is first left to Whereabouts and the kubelet, and then to Oakum.
func TestWhatLeaksI2(t *testing.T) {
	w := found(t)
	w.inhabit()
	w.scene("a StatefulSet's pod waits for the address of its predecessor, whose entry has no interface", predecessor, "10.1.0.0/30")
	w.scene("a StatefulSet's pod waits in a range full of other pods' leaks", fullOfOthers, "10.2.0.0/29")
	w.scene("a reservation without an entry and an entry without a reservation fill a range", fullOfHalves, "10.3.0.0/30")
	w.scene("Whereabouts lacks a right, and DEL does not say so", missingRight, "10.4.0.0/29")
	w.scene("a pod runs on a reservation without an entry", missingEntry, "10.5.0.0/29")
	w.scene("of two families one was given back", missingFamily, "10.6.0.0/29", "fd00:6::/125")
	w.scene("the plugin is away, and the kubelet tries until DEL succeeds", awayWithoutOakum, "10.7.0.0/29")
	w.scene("the plugin is away, and Oakum holds the pod until DEL succeeds", awayWithOakum, "10.8.0.0/29")
	w.scene("the plugin is away for longer than the deadline", awayForLong, "10.9.0.0/29")
	w.scene("a sandbox fails after ADD, and then the pod goes", failedForEver, "10.10.0.0/29")
	w.scene("a sandbox fails after ADD, and the next one runs", failedOnce, "10.11.0.0/29")
	w.scene("a sandbox fails after ADD, and the next one runs in another range", failedElsewhere, "10.12.0.0/29")
}

// predecessor is G20: DEL looks for the interface in vain, and so does the successor's ADD.
func predecessor(w *town) {
	neighbour := cluster.Pod("default", "neighbour")
	w.run(neighbour)
	remove := w.stateful()
	strip := func() { w.enter("10.1.0.0-30", map[string]map[string]any{"2": {"ifname": nil}}) }
	records := []string{"10.1.0.1 default/neighbour", "10.1.0.2 default/web-0"}
	first := w.bearer("web-0", "")
	w.running(first)
	strip()
	w.delete(first)
	second := w.bearer("web-0", first.UID)
	w.hangs(second, full)
	w.expect("the predecessor's record stays", records...)

	w.guard(guarded)
	w.stays("a record that may be the waiting pod's own is kept", patience, records...)
	w.delete(second)
	began := time.Now()
	third := w.bearer("web-0", second.UID)
	w.running(third)
	w.expect("the third pod has what was the first one's", records...)
	w.t.Logf("it runs %.1f s after the deletion of a pod that waited in vain", time.Since(began).Seconds())

	strip()
	w.delete(third)
	began = time.Now()
	fourth := w.bearer("web-0", third.UID)
	w.running(fourth)
	if diff := cmp.Diff([]string(nil), w.refusals(fourth)); diff != "" {
		w.t.Errorf("what the plugin refused to the successor of a pod that Oakum held (-want +got):\n%s", diff)
	}
	w.told(third, "AddressReleased", "10.1.0.2 (whereabouts, handle ")
	w.t.Logf("it runs %.1f s after the deletion of a pod that Oakum held", time.Since(began).Seconds())
	remove()
	w.delete(neighbour)
	w.gone(neighbour)
}

func fullOfOthers(w *town) {
	w.pool("10.2.0.0-29", "10.2.0.0/29")
	entries := map[string]map[string]any{}
	var records []string
	for i := 1; i <= 6; i++ {
		pod, address := fmt.Sprintf("default/gone-%d", i), fmt.Sprintf("10.2.0.%d", i)
		entries[fmt.Sprint(i)] = entry(sandboxID(i), pod)
		w.reserve(address, pod)
		records = append(records, address+" "+pod)
	}
	w.enter("10.2.0.0-29", entries)
	remove := w.stateful()
	pod := w.bearer("web-0", "")
	w.hangs(pod, full)
	w.stays("nobody gives them back", glimpse, records...)

	began := time.Now()
	w.guard(guarded)
	w.running(pod)
	w.expect("the leaks are gone", record(pod))
	w.t.Logf("the pod runs %.1f s after Oakum's start", time.Since(began).Seconds())
	remove()
}

func fullOfHalves(w *town) {
	w.pool("10.3.0.0-30", "10.3.0.0/30")
	w.reserve("10.3.0.1", "default/gone-1")
	w.enter("10.3.0.0-30", map[string]map[string]any{"2": entry(sandboxID(2), "default/gone-2")})
	pod := cluster.Pod("default", "web")
	w.must(w.Client.Create(w.t.Context(), pod))
	w.hangs(pod, full)
	w.stays("nobody gives them back", glimpse, "10.3.0.1 default/gone-1 (no entry)", "10.3.0.2 default/gone-2 (no reservation)")

	w.guard(guarded)
	w.running(pod)
	w.expect("the halves are gone", record(pod))
	w.delete(pod)
	w.gone(pod)
}

func missingRight(w *town) {
	fresh := func(name string) *corev1.Pod {
		pod := cluster.Pod("default", name)
		w.run(pod)
		return pod
	}
	end := func(pod *corev1.Pod) {
		w.delete(pod)
		w.gone(pod)
		if diff := cmp.Diff([]string(nil), w.refusals(pod)); diff != "" {
			w.t.Errorf("errors of the plugin (-want +got):\n%s", diff)
		}
	}
	entry, both, reservation := fresh("entry"), fresh("both"), fresh("reservation")
	allow := w.forbid("overlappingrangeipreservations", "delete")
	end(reservation)
	allow()
	// When the kubelet removes what has ended, which it does every minute, containerd calls DEL twice more: in vain, as long as
	// these rights are missing.
	allow = w.forbid("ippools", "patch")
	end(entry)
	allowToo := w.forbid("ippools", "list")
	end(both)
	w.stays("DEL succeeded, and parts are left", glimpse,
		record(entry)+" (no reservation)", record(both), record(reservation)+" (no entry)")
	w.guard(guarded)
	w.expect("the parts are gone")
	allowToo()
	allow()

	for _, right := range []struct{ resource, verb string }{
		{"ippools", "patch"}, {"ippools", "list"}, {"overlappingrangeipreservations", "delete"},
	} {
		pod := fresh("web")
		allow := w.forbid(right.resource, right.verb)
		end(pod)
		w.expect("a pod that Oakum holds takes its records along")
		allow()
	}
}

// missingEntry is G21.
func missingEntry(w *town) {
	lose := func() { w.enter("10.5.0.0-29", map[string]map[string]any{"1": nil}) }
	pod := cluster.Pod("default", "web")
	w.run(pod)
	lose()
	w.delete(pod)
	w.gone(pod)
	w.stays("DEL finds no entry and leaves the reservation", glimpse, "10.5.0.1 default/web (no entry)")
	w.guard(guarded)
	w.expect("the reservation is gone")

	pod = cluster.Pod("default", "web")
	w.run(pod)
	lose()
	w.expect("the entry is back", "10.5.0.1 default/web")
	w.told(pod, "RecordRepaired", "10.5.0.1")
	w.delete(pod)
	w.gone(pod)
	w.expect("both go with the pod")
}

// missingFamily is G23.
func missingFamily(w *town) {
	lose := func() { w.enter("10.6.0.0-29", map[string]map[string]any{"1": nil}) }
	pod := cluster.Pod("default", "web")
	w.run(pod)
	w.expect("both are recorded", "10.6.0.1 default/web", "fd00:6::1 default/web")
	lose()
	w.delete(pod)
	w.gone(pod)
	w.stays("DEL finds nothing in the first range and leaves the second", glimpse,
		"10.6.0.1 default/web (no entry)", "fd00:6::1 default/web")
	w.guard(guarded)
	w.expect("both families are free")

	pod = cluster.Pod("default", "web")
	w.run(pod)
	lose()
	w.delete(pod)
	w.gone(pod)
	w.expect("a pod that Oakum holds takes both along")
}
