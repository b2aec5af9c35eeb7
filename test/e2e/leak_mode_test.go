//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends/whereabouts"
	"github.com/oakum-dev/oakum/test/e2e/cluster"
)

// mode returns the settings guarded in another mode, with nothing else that wants finalizers.
func mode(m string) string {
	return strings.ReplaceAll(guarded, "whereabouts: {mode: Enforce,", "native: {mode: \"Off\"}\n  whereabouts: {mode: \""+m+"\",")
}

func TestModesPoolsAndWarnings(t *testing.T) {
	w := found(t)
	w.inhabit()
	w.scene("from Enforce to Observe, to Off and back, with pods that run and addresses that leak", modes, "10.1.0.0/28")
	w.scene("without Oakum an IPPool goes at once, and where no reservations are made two pods have one address", poolWithoutOakum)
	w.scene("with Oakum an IPPool stays until its addresses are given back, and says so", poolWithOakum)
	w.scene("an entry that says nobody's address it is: admitted with a warning, also without a manager", entryOfNobody)
	w.scene("an IPPool that overlaps another: created with a warning", overlappingPool)
	w.scene("a pod's address is taken and given back without a question to the webhook of IPPools, a manager or none", unasked, "10.6.0.0/29")
}

func modes(w *town) {
	const pool = "10.1.0.0-28"
	one, two, three := cluster.Pod("default", "one"), cluster.Pod("default", "two"), cluster.Pod("default", "three")
	w.guard(mode("Enforce"))
	w.run(one, two)
	w.holds("Enforce", pool, map[string]bool{"one": true, "two": true, pool: true})
	w.unguard()

	for n := range 2 {
		pod, offset := fmt.Sprintf("default/gone-%d", n), 9+n
		w.enter(pool, map[string]map[string]any{strconv.Itoa(offset): entry(sandboxID(offset), pod)})
		w.reserve(fmt.Sprintf("10.1.0.%d", offset), pod)
	}
	living := []string{record(one), record(two)}
	leaks := []string{"10.1.0.10 default/gone-1", "10.1.0.9 default/gone-0"}
	w.guard(mode("Observe"))
	w.holds("Observe", pool, map[string]bool{"one": false, "two": false, pool: false})
	w.says(v1alpha1.FinalizersCleared, metav1.ConditionTrue, "no object carries a finalizer of Oakum's")
	w.stays("what leaked waits in Observe", patience, slices.Concat(living, leaks)...)
	w.reports("Pod default/gone-0", "Pod default/gone-1")
	w.commandLine(pool, living)
	w.unguard()

	w.guard(mode("Off"))
	w.run(three)
	living = append(living, record(three))
	w.stays("what leaked waits in Off", glimpse, slices.Concat(living, leaks[:1])...)
	w.holds("Off", pool, map[string]bool{"one": false, "two": false, "three": false, pool: false})
	w.unguard()

	w.guard(mode("Enforce"))
	w.holds("Enforce again", pool, map[string]bool{"one": true, "two": true, "three": true, pool: true})
	w.expect("what leaked goes in Enforce, and nothing else", living...)
	w.delete(one, two, three)
	w.gone(one, two, three)
}

// holds waits until just these pods in default, and an IPPool, carry a finalizer of Oakum's.
func (w *town) holds(what, pool string, want map[string]bool) {
	w.t.Helper()
	w.eventually("finalizers in "+what, func(ctx context.Context) error {
		got := map[string]bool{}
		var pods corev1.PodList
		var object whereabouts.IPPool
		err := errors.Join(
			w.Client.List(ctx, &pods, client.InNamespace(metav1.NamespaceDefault)),
			w.records.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: pool}, &object),
		)
		for _, p := range pods.Items {
			got[p.Name] = slices.Contains(p.Finalizers, v1alpha1.AddressesFinalizer)
		}
		got[pool] = slices.Contains(object.Finalizers, v1alpha1.PoolFinalizer)
		if diff := cmp.Diff(want, got); err == nil && diff != "" {
			err = fmt.Errorf("finalizers (-want +got):\n%s", diff)
		}
		return err
	})
}

// reports waits until the LeakReport names just these owners.
func (w *town) reports(want ...string) {
	w.t.Helper()
	w.eventually("the leaks are reported", func(ctx context.Context) error {
		var report v1alpha1.LeakReport
		err := w.Client.Get(ctx, client.ObjectKey{Name: whereabouts.Name}, &report)
		var got []string
		for _, c := range report.Status.Candidates {
			got = append(got, c.Owner)
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); err == nil && diff != "" {
			err = fmt.Errorf("candidates (-want +got):\n%s", diff)
		}
		return err
	})
	out, _ := w.kubectl("get", "leakreports")
	w.t.Logf("$ kubectl get leakreports\n%s", out)
}

// commandLine looks at two leaks in an IPPool, gone-0 and gone-1, and gives the first one back by hand.
func (w *town) commandLine(name string, living []string) {
	w.t.Helper()
	show := func(want int, args ...string) string {
		out, code := w.oakum("", args...)
		w.t.Logf("$ oakum %s\n%s", strings.Join(args, " "), out)
		if code != want {
			w.t.Errorf("oakum %s ends with code %d, want %d", strings.Join(args, " "), code, want)
		}
		return out
	}
	show(1, "check")
	show(0, "explain", "10.1.0.9")
	show(0, "explain", "default/one")
	type pool struct {
		Name                               string
		Allocated, InUse, Unproven, Leaked int
	}
	var report struct{ Pools []pool }
	w.must(json.Unmarshal([]byte(show(1, "check", "--backend", "whereabouts", "-o", "json")), &report))
	if diff := cmp.Diff([]pool{{Name: name, Allocated: 4, InUse: 2, Leaked: 2}}, report.Pools); diff != "" {
		w.t.Errorf("pools that check tells (-want +got):\n%s", diff)
	}

	var plan map[string]any
	w.must(json.Unmarshal([]byte(show(0, "plan")), &plan))
	releases, _ := plan["releases"].([]any)
	plan["releases"] = slices.DeleteFunc(releases, func(r any) bool { return r.(map[string]any)["owner"] != "Pod default/gone-0" })
	text, err := json.Marshal(plan)
	w.must(err)
	for _, dry := range []bool{true, false} {
		args := []string{"release", "--from-plan", "-", "--dry-run=" + strconv.FormatBool(dry)}
		out, code := w.oakum(string(text), args...)
		w.t.Logf("$ oakum %s\n%s", strings.Join(args, " "), out)
		word := map[bool]string{true: "would release 10.1.0.9 ", false: "released 10.1.0.9 "}[dry]
		if code != 0 || !strings.HasPrefix(out, word) || strings.Count(out, "\n") != 1 {
			w.t.Errorf("oakum %s ends with code %d and says %q, want one line that begins with %q", strings.Join(args, " "), code, out, word)
		}
	}
	w.expect("the one in the plan is free", append(slices.Clone(living), "10.1.0.10 default/gone-1")...)
	out, code := w.oakum(string(text), "release", "--from-plan", "-")
	w.t.Logf("$ oakum release --from-plan - # once more\n%s", out)
	if code != 1 || !strings.HasPrefix(out, "skipped 10.1.0.9 ") {
		w.t.Errorf("the same plan once more ends with code %d and says %q", code, out)
	}
}

// oakum runs the command line with that standard input, and returns its standard output and its exit code.
func (w *town) oakum(in string, args ...string) (out string, code int) {
	w.t.Helper()
	cmd := exec.CommandContext(w.t.Context(), w.binary, append(args, "--kubeconfig", w.Kubeconfig)...)
	cmd.Stdin = strings.NewReader(in)
	text, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		w.t.Logf("oakum %s: %s", strings.Join(args, " "), exit.Stderr)
		return string(text), exit.ExitCode()
	}
	w.must(err)
	return string(text), 0
}

// kubectl returns what kubectl prints and what it prints to its standard error.
func (w *town) kubectl(args ...string) (out, warnings string) {
	w.t.Helper()
	cmd := exec.CommandContext(w.t.Context(), "kubectl", append(args, "--kubeconfig", w.Kubeconfig)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		w.t.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), stderr.String()
}

// deletePool deletes an IPPool and returns what it was.
func (w *town) deletePool(name string) *whereabouts.IPPool {
	w.t.Helper()
	pool := &whereabouts.IPPool{}
	w.must(w.records.Get(w.t.Context(), client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: name}, pool))
	w.must(w.records.Delete(w.t.Context(), pool))
	return pool
}

func poolWithoutOakum(w *town) {
	w.must(w.SetNetwork(cluster.Network{Ranges: []string{"10.2.0.0/29"}, Overlapping: true}))
	one, two := cluster.Pod("default", "one"), cluster.Pod("default", "two")
	w.run(one)
	w.deletePool("10.2.0.0-29")
	w.run(two)
	if one.Status.PodIP != two.Status.PodIP {
		w.t.Errorf("one has %s and two has %s, want the same", one.Status.PodIP, two.Status.PodIP)
	}
	w.delete(one, two)
	w.gone(one, two)
}

func poolWithOakum(w *town) {
	w.must(w.SetNetwork(cluster.Network{Ranges: []string{"10.3.0.0/29"}, Overlapping: true}))
	w.guard(guarded)
	one, two := cluster.Pod("default", "one"), cluster.Pod("default", "two")
	w.run(one)
	w.holds("Enforce", "10.3.0.0-29", map[string]bool{"one": true, "10.3.0.0-29": true})
	pool := w.deletePool("10.3.0.0-29")
	w.eventually("the Event", func(ctx context.Context) error {
		var events corev1.EventList
		err := w.Client.List(ctx, &events, client.InNamespace(pool.Namespace),
			client.MatchingFields{"involvedObject.uid": string(pool.UID), "reason": string(v1alpha1.EventPoolDraining)})
		if err == nil && (len(events.Items) == 0 || !strings.HasSuffix(events.Items[0].Message, "are given back: 1")) {
			err = fmt.Errorf("there are %v", events.Items)
		}
		return err
	})
	w.run(two)
	if one.Status.PodIP == two.Status.PodIP {
		w.t.Errorf("one and two have %s", two.Status.PodIP)
	}
	out, _ := w.kubectl("-n", "kube-system", "get", "ippools")
	w.t.Logf("$ kubectl -n kube-system get ippools\n%s", out)
	out, _ = w.kubectl("-n", "kube-system", "events", "--for", "ippool/10.3.0.0-29")
	w.t.Logf("$ kubectl -n kube-system events --for ippool/10.3.0.0-29\n%s", out)
	w.delete(one, two)
	w.gone(one, two)
	w.eventually("it goes with the last address", func(ctx context.Context) error {
		err := w.records.Get(ctx, key(pool), &whereabouts.IPPool{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is there"))
	})
}

func entryOfNobody(w *town) {
	w.pool("10.4.0.0-29", "10.4.0.0/29")
	_, warning := w.kubectl("-n", "kube-system", "patch", "ippool", "10.4.0.0-29", "--type=merge",
		"-p", `{"spec":{"allocations":{"1":{"id":"","podref":"default/web"},"2":{"id":"x","podref":""}}}}`)
	w.t.Logf("kubectl patch: %s", warning)
	if !strings.HasPrefix(warning, "Warning: ") || !strings.Contains(warning, "allocation-unowned: ") {
		w.t.Errorf("kubectl says %q, want a warning about allocation-unowned", warning)
	}
	w.expect("admitted", "10.4.0.1 default/web (no reservation)", "10.4.0.2 ")
	w.guard(guarded)
	w.stays("what is nobody's is kept", patience, "10.4.0.1 default/web (no reservation)", "10.4.0.2 ")
	out, code := w.oakum("", "check")
	w.t.Logf("$ oakum check\n%s", out)
	if code != 0 || strings.Count(out, "allocation-unowned") != 2 {
		w.t.Errorf("oakum check ends with code %d, want 0 and two problems", code)
	}
	w.enter("10.4.0.0-29", map[string]map[string]any{"1": nil, "2": nil})
}

func overlappingPool(w *town) {
	w.guard(guarded)
	w.pool("10.5.0.0-24", "10.5.0.0/24")
	file := filepath.Join(w.t.TempDir(), "pool.yaml")
	w.must(os.WriteFile(file, []byte(`apiVersion: whereabouts.cni.cncf.io/v1alpha1
kind: IPPool
metadata: {name: 10.5.0.0-29, namespace: kube-system}
spec: {range: 10.5.0.0/29, allocations: {}}
`), 0o600))
	_, warning := w.kubectl("create", "-f", file)
	w.t.Logf("kubectl create: %s", warning)
	if !strings.HasPrefix(warning, "Warning: ") || !strings.Contains(warning, "pool-overlap") || !strings.Contains(warning, "10.5.0.0/24") {
		w.t.Errorf("kubectl says %q, want a warning about pool-overlap that names 10.5.0.0/24", warning)
	}
}

func unasked(w *town) {
	asked := func() (pools, pods int) {
		return w.questions("ippools.whereabouts.oakum.dev"), w.questions("pods.oakum.dev")
	}
	for _, guard := range []bool{false, true} {
		if guard {
			w.guard(guarded)
		}
		w.run(cluster.Pod("default", "first"))
		beforePools, beforePods := asked()
		second := cluster.Pod("default", "second")
		w.run(second)
		w.delete(second)
		w.gone(second)
		first := w.bearer("first", "")
		w.expect("one is left", record(first))
		pools, pods := asked()
		if beforePools == 0 {
			w.t.Error("the API server does not count the questions about the IPPools that were created above")
		}
		if pools != beforePools || pods != beforePods+1 {
			w.t.Errorf("with a manager: %v; the webhook of IPPools was asked %d times, want 0, that of pods %d times, want 1",
				guard, pools-beforePools, pods-beforePods)
		}
		w.delete(first)
		w.gone(first)
	}
}

// questions returns how often the API server has asked a webhook, or tried to.
func (w *town) questions(webhook string) (n int) {
	w.t.Helper()
	httpClient, err := rest.HTTPClientFor(w.Admin)
	w.must(err)
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, strings.TrimSuffix(w.Admin.Host, "/")+"/metrics", nil)
	w.must(err)
	resp, err := httpClient.Do(req)
	w.must(err)
	defer resp.Body.Close() //nolint:errcheck // It was only read.
	text, err := io.ReadAll(resp.Body)
	w.must(err)
	if resp.StatusCode != http.StatusOK {
		w.t.Fatalf("reading the API server's metrics: %s: %s", resp.Status, text)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "apiserver_admission_webhook_admission_duration_seconds_count{") && strings.Contains(line, `name="`+webhook+`"`) {
			fields := strings.Fields(line)
			asked, err := strconv.Atoi(fields[len(fields)-1])
			w.must(err)
			n += asked
		}
	}
	return n
}
