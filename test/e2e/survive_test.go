//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends/whereabouts"
	"github.com/oakum-dev/oakum/test/e2e/cluster"
	"github.com/oakum-dev/oakum/test/e2e/cluster/cni"
)

func TestTheAddressOfALivingPodStaysI1(t *testing.T) {
	w := found(t)
	w.inhabit()
	w.scene("whatever pods say of theirs, and if they say nothing", whateverPodsSay, "10.1.0.0/24")
	w.scene("while ADD fails again and again", whileAddFails, "10.2.0.0/24")
	w.scene("while a namesake's goes", whileANamesakesGoes, "10.3.0.0/24")
	w.scene("while the API server answers with errors", whileReadsFail, "10.4.0.0/24")
	w.scene("while the list of pods is empty", whileTheListIsEmpty, "10.5.0.0/24")
}

// What Multus would do for pods is done by hand here: the program that hands out the addresses is Whereabouts itself.
func whateverPodsSay(w *town) {
	w.guard(guarded)
	g := w.gauge()
	image, zero := cluster.Pod("default", "image"), cluster.Pod("default", "zero")
	image.Spec.Containers[0].Image = "oakum.dev/nowhere:test"
	w.must(w.Client.Create(w.t.Context(), image))
	w.pending(image)
	w.must(w.SetNetwork(cluster.Network{Ranges: []string{"fd00:1:2:3:1::-fd00:1:2:3:1::f/64"}}))
	w.run(zero)

	// The default network is somebody else's from here on, so that nothing but what is said below speaks for an address.
	w.foreignNetwork()
	status := func(ifname string, isDefault bool) func([]string) string {
		return func(addrs []string) string {
			text, err := json.Marshal([]map[string]any{{"name": "default/blue", "interface": ifname, "ips": addrs, "default": isDefault}})
			w.must(err)
			return string(text)
		}
	}
	ending := cluster.Network{Ranges: []string{"fd00:4:5:6:1::-fd00:4:5:6:1::f/64"}}
	named := cluster.Network{Ranges: []string{"10.0.0.5-10.0.0.9/24", "fd00::5-fd00::9/64"}, Name: "net1"}
	plain := cluster.Network{Ranges: []string{"10.8.0.0/24", "fd00::5-fd00::9/64"}}
	pods := []*corev1.Pod{image, zero}
	for _, tt := range []struct {
		name, ifname string
		network      cluster.Network
		says         func(addrs []string) string
	}{
		{"silent", "net1", plain, nil},
		{"garbled", "net1", plain, func([]string) string { return "[{" }},
		{"default", "eth0", plain, status("eth0", true)},
		{"sriov", "sriov0", plain, status("sriov0", false)},
		{"named", "net1", named, status("net1", false)},
		{"ending", "net1", ending, status("net1", false)},
	} {
		pod := cluster.Pod("default", tt.name)
		pod.Annotations = map[string]string{"k8s.v1.cni.cncf.io/networks": "blue"}
		w.run(pod)
		addrs := w.attach(pod, tt.ifname, tt.network)
		if tt.says != nil {
			w.annotate(pod, "k8s.v1.cni.cncf.io/network-status", tt.says(addrs))
		}
		pods = append(pods, pod)
	}
	// That nothing goes below is worth something because this one does.
	leak := cluster.Pod("default", "leak")
	w.run(leak)
	w.attach(leak, "net1", plain)
	var records []string
	w.eventually("what nobody speaks for goes", func(ctx context.Context) (err error) {
		records, err = w.everything(ctx)
		if err == nil && slices.ContainsFunc(records, func(r string) bool { return strings.Contains(r, "default/leak") }) {
			err = errors.New("it has not gone")
		}
		return err
	})
	w.counts("nothing else is suspected", v1alpha1.LeakReportRun{Allocations: 8, InUse: 6, Unproven: 2})

	for _, part := range []string{"reservation fd00-1-2-3-1--0,", "reservation fd00-4-5-6-1--0,", "reservation net1-10.0.0.5,", "reservation net1-fd00--5,", "reservation fd00--5,"} {
		if !slices.ContainsFunc(records, func(r string) bool { return strings.HasPrefix(r, part) }) {
			w.t.Errorf("there is no %s among\n%s", part, strings.Join(records, "\n"))
		}
	}
	w.survives("whatever pods say", g, looks)
	w.counts("nothing was suspected", v1alpha1.LeakReportRun{Allocations: 8, InUse: 6, Unproven: 2})
	w.alive(pods...)
	w.delete(append(pods, leak)...)
	w.gone(append(pods, leak)...)
}

func whileAddFails(w *town) {
	w.guard(guarded)
	g := w.gauge()
	pod := cluster.Pod("default", "stuck")
	for _, fault := range []cni.Fault{cni.FailAdd, cni.FailDel} {
		w.must(w.Plugin.Inject(fault))
		defer func() { w.must(w.Plugin.Heal(fault)) }()
	}
	w.must(w.Client.Create(w.t.Context(), pod))
	w.expect("ADD has handed out an address", "10.2.0.1 default/stuck")
	var before int
	ids := map[string]bool{}
	w.eventually("the audit has run", func(ctx context.Context) error {
		var pool whereabouts.IPPool
		w.must(w.records.Get(ctx, client.ObjectKey{Namespace: "kube-system", Name: "10.2.0.0-24"}, &pool))
		e, ok := pool.Spec.Allocations["1"]
		if !ok {
			w.t.Fatal("the address has gone from the record")
		}
		ids[e.ID] = true
		runs, err := g.runs(ctx)
		if before == 0 {
			before = runs
		}
		if err == nil && runs < before+2*looks {
			err = fmt.Errorf("it has run %d times", runs-before)
		}
		return err
	})
	w.counts("nothing is suspected", v1alpha1.LeakReportRun{Allocations: 1, InUse: 1})
	w.t.Logf("the record bore the ids of %d sandboxes one after the other", len(ids))
	for _, fault := range []cni.Fault{cni.FailAdd, cni.FailDel} {
		w.must(w.Plugin.Heal(fault))
	}
	w.running(pod)
	w.expect("the address is the same", "10.2.0.1 default/stuck")
	w.delete(pod)
	w.gone(pod)
}

// L49: what a pod left behind goes, and its terminating namesake keeps its own until its sandbox is gone.
func whileANamesakesGoes(w *town) {
	predecessor := cluster.Pod("default", "web-0")
	w.run(predecessor)
	w.attach(predecessor, "net1", cluster.Network{Ranges: []string{"10.8.0.0/24"}})
	w.delete(predecessor)
	w.gone(predecessor)
	w.expect("one address is left behind", "10.8.0.1 default/web-0")

	successor := cluster.Pod("default", "web-0", "-deaf")
	early := w.early(false)
	w.guard(strings.Replace(guarded, "gracePeriod: 2s, quarantine: 4s", "gracePeriod: 5s, quarantine: 6s", 1))
	w.counts("it is suspected before the successor is there", v1alpha1.LeakReportRun{Allocations: 1, Orphaned: 1})
	w.run(successor)
	w.must(w.Client.Delete(w.t.Context(), successor, client.GracePeriodSeconds(20)))
	w.expect("what was left behind goes", "10.3.0.1 default/web-0")
	w.alive(successor)
	w.gone(successor)
	w.expect("both are free")
	early.none(w.t, 4)
}

func whileReadsFail(w *town) {
	p := w.proxy()
	w.guardThrough(p)
	g := w.gauge()
	old, going, young := cluster.Pod("default", "old"), cluster.Pod("default", "going"), cluster.Pod("default", "young")
	w.run(old, going)
	w.reported()

	p.fails.Store(true)
	p.cut()
	w.delete(going)
	w.run(young)
	w.expect("the plugin gives the address back", has(old), has(young))
	w.survives("while reads fail", g, looks)
	if !held(w.now(going)) {
		w.t.Error("a pod was let go, although nobody could see its end")
	}
	p.fails.Store(false)
	w.gone(going)
	w.counts("the audit sees again", v1alpha1.LeakReportRun{Allocations: 2, InUse: 2})
	w.survives("when reads succeed again", g, looks)
	w.alive(old, young)
	w.delete(old, young)
	w.gone(old, young)
}

// L14.
func whileTheListIsEmpty(w *town) {
	p := w.proxy()
	var pods []*corev1.Pod
	for i := range 3 {
		pods = append(pods, cluster.Pod("default", fmt.Sprintf("early-%d", i)))
	}
	w.run(pods...)
	g := w.gauge()
	stopped := func(message string) {
		w.t.Helper()
		w.says(v1alpha1.Stopped, "True", message)
		w.survives("while "+message, g, looks)
		w.says(v1alpha1.Stopped, "True", "no pods are listed")
		w.stopEvent(message)
		if n, err := g.read(w.t.Context(), `oakum_audit_stopped{backend="whereabouts"}`); err != nil || n != 1 {
			w.t.Errorf("the metric oakum_audit_stopped is %v (%v)", n, err)
		}
		p.relist(podList{})
		w.says(v1alpha1.Stopped, "False", "")
	}

	p.relist(podList{empty: true})
	w.guardThrough(p)
	stopped("no pods are listed, and addresses of theirs are allocated")

	for i := range 50 {
		pods = append(pods, cluster.Pod("default", fmt.Sprintf("later-%d", i)))
	}
	began := time.Now()
	w.run(pods[3:]...)
	w.t.Logf("50 pods run after %s", time.Since(began))
	w.counts("all addresses are in use", v1alpha1.LeakReportRun{Allocations: 53, InUse: 53})
	p.relist(podList{empty: true})
	stopped("no pods are listed, and there were ")
	w.counts("all addresses are in use again", v1alpha1.LeakReportRun{Allocations: 53, InUse: 53})
	w.alive(pods...)
	w.delete(pods...)
	w.gone(pods...)
}

// guardThrough starts Oakum's manager behind a proxy.
func (w *town) guardThrough(p *proxy) {
	w.t.Helper()
	through, err := w.Through(p.URL)
	w.must(err)
	w.manager, err = through.StartManager(w.t.Context(), w.binary, guarded)
	w.must(err)
}

// stopEvent waits until an Event says why the audit has stopped.
func (w *town) stopEvent(note string) {
	w.t.Helper()
	w.eventually("an Event says it", func(ctx context.Context) error {
		var events corev1.EventList
		err := w.Client.List(ctx, &events, client.MatchingFields{"reason": string(v1alpha1.EventAuditStopped)})
		if err == nil && !slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return strings.Contains(e.Message, note) }) {
			err = fmt.Errorf("there are %d Events, of which none says %q", len(events.Items), note)
		}
		return err
	})
}

// has tells that a pod which was read as it runs has its address, as recorded does.
func has(p *corev1.Pod) string { return p.Status.PodIP + " " + p.Namespace + "/" + p.Name }

// pending waits until a pod has an address and does not run.
func (w *town) pending(p *corev1.Pod) {
	w.t.Helper()
	w.eventually(p.Name+" has an address", func(ctx context.Context) error {
		if err := w.Client.Get(ctx, client.ObjectKeyFromObject(p), p); err != nil {
			return err
		}
		if p.Status.Phase != corev1.PodPending || p.Status.PodIP == "" {
			return fmt.Errorf("%s is %s, with the address %q", p.Name, p.Status.Phase, p.Status.PodIP)
		}
		return nil
	})
}

// now reads a pod again.
func (w *town) now(p *corev1.Pod) *corev1.Pod {
	w.t.Helper()
	now := &corev1.Pod{}
	w.must(w.Client.Get(w.t.Context(), client.ObjectKeyFromObject(p), now))
	return now
}

// alive checks that the very pods are there, with a sandbox each.
func (w *town) alive(pods ...*corev1.Pod) {
	w.t.Helper()
	sandboxes, err := w.Sandboxes()
	w.must(err)
	for _, p := range pods {
		if !w.exists(p) || !slices.ContainsFunc(sandboxes, func(s cluster.Sandbox) bool { return s.UID == p.UID }) {
			w.t.Errorf("%s is not alive any more", p.Name)
		}
	}
}

// annotate sets an annotation of a pod.
func (w *town) annotate(p *corev1.Pod, key, value string) {
	w.t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{key: value}}})
	w.must(err)
	w.must(w.Client.Patch(w.t.Context(), p, client.RawPatch(types.MergePatchType, patch)))
}

// foreignNetwork lets the pods that are yet to start have a default network whose addresses nobody records.
func (w *town) foreignNetwork() {
	w.t.Helper()
	const plugin = "#!/bin/sh\n" + `if [ "$CNI_COMMAND" = ADD ]; then echo '{"cniVersion":"1.0.0","ips":[{"address":"192.0.2.1/24"}]}'; fi` + "\n"
	w.must(os.WriteFile(filepath.Join(w.folder(), "bin", "foreign"), []byte(plugin), 0o700))
	w.must(w.Plugin.SetIPAM(json.RawMessage(`{"type":"foreign"}`)))
}

// folder is the cluster's.
func (w *town) folder() string { return filepath.Dir(filepath.Dir(string(w.Plugin))) }

// attach gives the sandbox of a pod that runs further addresses, from Whereabouts, and returns them.
func (w *town) attach(p *corev1.Pod, ifname string, n cluster.Network) []string {
	w.t.Helper()
	sandboxes, err := w.Sandboxes()
	w.must(err)
	i := slices.IndexFunc(sandboxes, func(s cluster.Sandbox) bool { return s.UID == p.UID })
	if i < 0 {
		w.t.Fatalf("%s has no sandbox", p.Name)
	}
	usual, err := w.Plugin.IPAM("")
	w.must(err)
	w.must(w.SetNetwork(n))
	section, err := w.Plugin.IPAM("")
	w.must(errors.Join(err, w.Plugin.SetIPAM(usual)))
	in, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "blue", "type": "blue", "ipam": section})
	w.must(err)
	cmd := exec.CommandContext(w.t.Context(), filepath.Join(w.folder(), "bin", "whereabouts"))
	cmd.Stdin = bytes.NewReader(in)
	cmd.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID="+sandboxes[i].ID, "CNI_IFNAME="+ifname, "CNI_NETNS=/run/netns/none", "CNI_PATH=/none",
		fmt.Sprintf("CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_UID=%s", p.Namespace, p.Name, p.UID))
	out, err := cmd.Output()
	var result struct {
		IPs []struct {
			Address string `json:"address"`
		} `json:"ips"`
	}
	if err := errors.Join(err, json.Unmarshal(out, &result)); err != nil {
		w.t.Fatalf("attaching %s to %v: %v: %s", p.Name, n.Ranges, err, out)
	}
	var addrs []string
	for _, ip := range result.IPs {
		addr, _, _ := strings.Cut(ip.Address, "/")
		addrs = append(addrs, addr)
	}
	return addrs
}

// inhabit creates a pod that stays, without an address: in a cluster that has no pod any more the audit believes nothing.
func (w *town) inhabit() {
	w.t.Helper()
	pod := cluster.Pod(metav1.NamespaceSystem, "inhabitant")
	pod.Spec.SchedulerName = "nobody"
	w.must(w.Client.Create(w.t.Context(), pod))
}
