package envtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/fixture"
)

// impatient are settings of an audit for which nobody has to wait.
func impatient(mode string) string {
	return fmt.Sprintf("backends: {native: {mode: %s}}\naudit: {interval: 1s, gracePeriod: 2s, quarantine: 4s}\n", mode)
}

// outcome is how a command ended.
type outcome struct {
	Code           int
	Stdout, Stderr string
}

// oakum runs a command as a process, and returns what it used too.
func (p *plane) oakum(t *testing.T, kubeconfig string, args ...string) (outcome, *os.ProcessState) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), p.binary, args...)
	cmd.Env = slices.Concat(os.Environ(), p.env, []string{"KUBECONFIG=" + kubeconfig})
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
			t.Fatal(err)
		}
	}
	return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}, cmd.ProcessState
}

// runs compares how a command ends with how it should.
func (p *plane) runs(t *testing.T, want outcome, kubeconfig string, args ...string) {
	t.Helper()
	got, _ := p.oakum(t, kubeconfig, args...)
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("oakum %s (-want +got):\n%s", strings.Join(args, " "), diff)
	}
}

// unguard lets every write pass while no manager runs.
func (s *scene) unguard() {
	s.t.Helper()
	var mutating admissionregistrationv1.MutatingWebhookConfiguration
	var validating admissionregistrationv1.ValidatingWebhookConfiguration
	ignore := admissionregistrationv1.Ignore
	err := errors.Join(
		rewrite(s.t.Context(), s.client, withName(&mutating, "oakum"), func(c *admissionregistrationv1.MutatingWebhookConfiguration) error {
			for i := range c.Webhooks {
				c.Webhooks[i].FailurePolicy = &ignore
			}
			return s.client.Update(s.t.Context(), c)
		}),
		rewrite(s.t.Context(), s.client, withName(&validating, "oakum"), func(c *admissionregistrationv1.ValidatingWebhookConfiguration) error {
			for i := range c.Webhooks {
				c.Webhooks[i].FailurePolicy = &ignore
			}
			return s.client.Update(s.t.Context(), c)
		}))
	if err != nil {
		s.t.Fatal(err)
	}
}

func withName[T client.Object](o T, name string) T {
	o.SetName(name)
	return o
}

// plant creates an object, and tries until the API server heeds that its webhooks are loosened.
func (s *scene) plant(o client.Object) {
	s.t.Helper()
	eventually(s.t, func() error { return s.client.Create(s.t.Context(), o) })
}

// vanish deletes a pod that nothing holds.
func (s *scene) vanish(p *corev1.Pod) {
	s.t.Helper()
	if err := s.client.Delete(s.t.Context(), p, client.GracePeriodSeconds(0)); err != nil {
		s.t.Fatal(err)
	}
}

// reported waits until the LeakReport is as wanted.
func (s *scene) reported(what string, is func(v1alpha1.LeakReportStatus) bool) v1alpha1.LeakReportStatus {
	s.t.Helper()
	var r v1alpha1.LeakReport
	eventually(s.t, func() error {
		if err := s.client.Get(s.t.Context(), client.ObjectKey{Name: "native"}, &r); err != nil {
			return err
		}
		if !is(r.Status) {
			return fmt.Errorf("the report does not tell %s: %+v", what, r.Status)
		}
		return nil
	})
	return r.Status
}

// handlesIn lists what a block records.
func (s *scene) handlesIn(b *v1alpha1.AddressBlock) (handles []string) {
	s.t.Helper()
	s.read(b)
	for _, a := range b.Spec.Allocations {
		handles = append(handles, a.Handle)
	}
	return handles
}

// TestAudit plants leaks while no manager runs (scenario 11), lets the audit observe them, gives one back by hand, and
// leaves the other one to the audit.
func TestAudit(t *testing.T) {
	t.Parallel()
	p := own(t, controlplane.Start)
	s := p.scene(t, "audit")
	s.unguard()
	s.plant(fixture.Pool(s.name, fixture.Network("blue"), fixture.Subnet("10.7.0.0/28", "")))
	s.node(s.name)
	live, gone, lost := s.pod("live", s.name), s.pod("gone", s.name), s.pod("lost", s.name)
	block := fixture.Block(s.name, 0, s.name,
		fixture.Entry(0, "live-eth0", fixture.OfPod(live)), fixture.Entry(1, "gone-eth0", fixture.OfPod(gone)),
		fixture.Entry(2, "lost-eth0", fixture.OfPod(lost)), fixture.Entry(3, "router", fixture.External("router")))
	block.Spec.IPv4 = "10.7.0.0/30"
	s.plant(block)
	s.vanish(gone)
	s.vanish(lost)
	owner := func(p *corev1.Pod) string { return fmt.Sprintf("Pod default/%s (uid %s)", p.Name, p.UID) }
	all := []string{"live-eth0", "gone-eth0", "lost-eth0", "router"}

	manager := p.start(t, impatient("Observe"))
	t.Run("Observe reports and releases nothing, however long it lasts", func(t *testing.T) {
		s := s.in(t)
		first := s.reported("both leaks", func(r v1alpha1.LeakReportStatus) bool { return len(r.Candidates) == 2 })
		r := s.reported("a later run", func(r v1alpha1.LeakReportStatus) bool {
			return r.LastRun.StartedAt.Sub(first.LastRun.StartedAt.Time) > 6*time.Second
		})
		want := v1alpha1.LeakReportRun{
			StartedAt: r.LastRun.StartedAt, FinishedAt: r.LastRun.FinishedAt, Allocations: 4, InUse: 2, Orphaned: 2,
		}
		if diff := gocmp.Diff(want, r.LastRun); diff != "" {
			t.Errorf("last run (-want +got):\n%s", diff)
		}
		if diff := gocmp.Diff(all, s.handlesIn(block)); diff != "" {
			t.Errorf("handles (-want +got):\n%s", diff)
		}
	})
	t.Run("kubectl get shows the report in a line", func(t *testing.T) {
		columns, cells := table(t, p.Admin, "leakreports")
		want := []string{"Name", "Mode", "Allocations", "Orphaned", "Unproven", "Released", "Last run"}
		if diff := gocmp.Diff(want, columns); diff != "" {
			t.Errorf("columns (-want +got):\n%s", diff)
		}
		if diff := gocmp.Diff([]string{"native", "Observe", "4", "2", "0", "0"}, cells[:6]); diff != "" {
			t.Errorf("cells (-want +got):\n%s", diff)
		}
	})
	t.Run("check finds both, also for who may only read", func(t *testing.T) {
		leaks := []string{
			"BACKEND   POOL      NETWORK   BLOCKS   CAPACITY   ALLOCATED   IN USE   UNPROVEN   LEAKED",
			"native    audit-1   blue      1        16         4           2        0          2",
			"",
			"ADDRESS    OWNER                                                         NODE      REASON      WHY",
			fmt.Sprintf("10.7.0.1   %s   audit-1   OwnerGone   %[1]s does not exist", owner(gone)),
			fmt.Sprintf("10.7.0.2   %s   audit-1   OwnerGone   %[1]s does not exist", owner(lost)),
			"",
		}
		want := outcome{1, strings.Join(leaks, "\n"), "oakum: leaks were found\n"}
		p.runs(t, want, p.Kubeconfig, "check")

		s := s.in(t)
		viewer := p.as(t, "viewer")
		s.bind("viewer", "oakum-view")
		var blind outcome
		eventually(t, func() error {
			if blind, _ = p.oakum(t, viewer, "check"); blind.Code != 2 || strings.Contains(blind.Stdout, "No pools.") {
				return fmt.Errorf("who may read our kinds alone gets %+v", blind)
			}
			return nil
		})
		const forbidden = `%s is forbidden: User "viewer" cannot list resource "%[1]s" in API group "" at the cluster scope`
		missing := fmt.Sprintf("pods: "+forbidden+"; ", "pods") + fmt.Sprintf("nodes: "+forbidden+"\n", "nodes")
		if diff := gocmp.Diff("oakum: not everything could be read: "+missing, blind.Stderr); diff != "" {
			t.Errorf("stderr (-want +got):\n%s", diff)
		}
		s.create(&rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: "owners"},
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods", "nodes"}, Verbs: []string{"list"}}},
		})
		s.bind("viewer", "owners")
		eventually(t, func() error {
			if got, _ := p.oakum(t, viewer, "check"); !gocmp.Equal(want, got) {
				return fmt.Errorf("who may read all gets (-want +got):\n%s", gocmp.Diff(want, got))
			}
			return nil
		})
	})
	t.Run("explain tells about a leak, a pod that lives, and nothing", func(t *testing.T) {
		s.read(block)
		got, _ := p.oakum(t, p.Kubeconfig, "explain", "10.7.0.1")
		if want := "Verdict:   Orphan (OwnerGone, E10): " + owner(gone) + " does not exist\n"; got.Code != 0 || !strings.Contains(got.Stdout, want) {
			t.Errorf("got %+v, want %q", got, want)
		}
		got, _ = p.oakum(t, p.Kubeconfig, "explain", "default/live")
		if want := "Verdict:   Keep (InUse, E11): " + owner(live) + " is alive\n"; got.Code != 0 || !strings.Contains(got.Stdout, want) {
			t.Errorf("got %+v, want %q", got, want)
		}
		p.runs(t, outcome{1, "", "oakum: 192.0.2.1 belongs to no pool\n"}, p.Kubeconfig, "explain", "192.0.2.1")
	})
	t.Run("release gives back what stays in the plan", func(t *testing.T) {
		s := s.in(t)
		got, _ := p.oakum(t, p.Kubeconfig, "plan")
		var plan struct {
			Version  int              `json:"version"`
			At       time.Time        `json:"at"`
			Releases []map[string]any `json:"releases"`
		}
		if err := json.Unmarshal([]byte(got.Stdout), &plan); err != nil || got.Code != 0 || len(plan.Releases) != 2 {
			t.Fatalf("%+v: %v", got, err)
		}
		plan.Releases = plan.Releases[:1]
		text, err := json.Marshal(plan)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "plan.json")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		what := fmt.Sprintf("10.7.0.1 (handle gone-eth0, %s)", owner(gone))
		p.runs(t, outcome{0, fmt.Sprintf("would release %s: %s does not exist\n", what, owner(gone)), ""}, p.Kubeconfig, "release", "--from-plan", file, "--dry-run")
		p.runs(t, outcome{0, fmt.Sprintf("released %s: %s does not exist\n", what, owner(gone)), ""}, p.Kubeconfig, "release", "--from-plan", file)
		p.runs(t, outcome{
			1, fmt.Sprintf("skipped %s: it is not recorded any more\n", what), "oakum: not everything in the plan was given back: 1 of 1 were skipped\n",
		}, p.Kubeconfig, "release", "--from-plan", file)
		if diff := gocmp.Diff([]string{"live-eth0", "lost-eth0", "router"}, s.handlesIn(block)); diff != "" {
			t.Errorf("handles (-want +got):\n%s", diff)
		}
	})
	if err := manager.Stop(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	manager = p.start(t, impatient("Enforce"))
	t.Run("Enforce gives the other one back after two sightings, and nothing that is in use", func(t *testing.T) {
		s := s.in(t)
		r := s.reported("the release", func(r v1alpha1.LeakReportStatus) bool { return len(r.Released) == 1 })
		if took := r.Released[0].At.Sub(began); took < time.Second { // Two, but the API keeps whole seconds.
			t.Errorf("it was released after %s", took)
		}
		if r.Released[0].Handle != "lost-eth0" || r.Released[0].Address != "10.7.0.2" || r.Released[0].Owner != owner(lost) {
			t.Errorf("released was %+v", r.Released[0])
		}
		s.reported("an end of it", func(r v1alpha1.LeakReportStatus) bool {
			return r.LastRun.Allocations == 2 && r.LastRun.InUse == 2 && r.Candidates == nil
		})
		if diff := gocmp.Diff([]string{"live-eth0", "router"}, s.handlesIn(block)); diff != "" {
			t.Errorf("handles (-want +got):\n%s", diff)
		}
		s.held(live) // Backfilled: planted pods are held like any other.
	})
	if err := manager.Stop(); err != nil {
		t.Fatal(err)
	}
	t.Run("uninstall removes guards and finalizers, and no record", func(t *testing.T) {
		s := s.in(t)
		before, _ := p.oakum(t, p.Kubeconfig, "uninstall", "--dry-run")
		if before.Code != 0 || !strings.HasSuffix(before.Stdout, "would have removed finalizers from 4 objects\n") {
			t.Errorf("a dry run: %+v", before)
		}
		s.held(live)
		p.runs(t, outcome{0, "removed finalizers from 4 objects\nnone is left\n", ""}, p.Kubeconfig, "uninstall", "--finalizers-only")
		after, _ := p.oakum(t, p.Kubeconfig, "uninstall")
		want := strings.ReplaceAll(strings.TrimSuffix(before.Stdout, "would have removed finalizers from 4 objects\n"), "would have ", "")
		if diff := gocmp.Diff(outcome{0, want + "removed finalizers from 0 objects\nnone is left\n", ""}, after); diff != "" {
			t.Errorf("uninstall (-want +got):\n%s", diff)
		}
		s.read(live)
		if len(live.Finalizers)+len(live.Annotations) > 0 {
			t.Errorf("the pod has finalizers %q and annotations %q", live.Finalizers, live.Annotations)
		}
		if diff := gocmp.Diff([]string{"live-eth0", "router"}, s.handlesIn(block)); diff != "" {
			t.Errorf("handles (-want +got):\n%s", diff)
		}
		err := s.client.Get(t.Context(), client.ObjectKey{Name: "oakum"}, &admissionregistrationv1.ValidatingWebhookConfiguration{})
		if !apierrors.IsNotFound(err) {
			t.Errorf("the webhooks: %v", err)
		}
		p.runs(t, outcome{0, "removed finalizers from 0 objects\nnone is left\n", ""}, p.Kubeconfig, "uninstall")
	})
}

// table asks for a list as kubectl does, and returns its columns and its only row.
func table(t *testing.T, config *rest.Config, resource string) (columns, cells []string) {
	t.Helper()
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	path, err := url.JoinPath(config.Host, "apis/ipam.oakum.dev/v1alpha1", resource)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // It was only read.
	var answer metav1.Table
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || len(answer.Rows) != 1 {
		t.Fatalf("%d rows: %v", len(answer.Rows), err)
	}
	for _, c := range answer.ColumnDefinitions {
		columns = append(columns, c.Name)
	}
	for _, c := range answer.Rows[0].Cells {
		cells = append(cells, fmt.Sprint(c))
	}
	return columns, cells
}

// as writes a kubeconfig of a user who is in no group but that of all.
func (p *plane) as(t *testing.T, user string) (path string) {
	t.Helper()
	return p.kubeconfig(t, func(c *clientcmdapi.Config) {
		for _, info := range c.AuthInfos {
			info.Impersonate, info.ImpersonateGroups = user, []string{"system:authenticated"}
		}
	})
}

// kubeconfig writes a changed copy of the admin's.
func (p *plane) kubeconfig(t *testing.T, change func(*clientcmdapi.Config)) (path string) {
	t.Helper()
	c, err := clientcmd.LoadFromFile(p.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	change(c)
	path = filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*c, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestCheckIsFrugal checks a cluster with 20,000 hand-outs in 625 blocks.
func TestCheckIsFrugal(t *testing.T) {
	t.Parallel()
	const blocks, size, pod = 625, 32, "6f0c0000-0000-0000-0000-%012d"
	p := own(t, controlplane.StartBare)
	root, err := controlplane.Root()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Apply(t.Context(), filepath.Join(root, "config", "crd")); err != nil {
		t.Fatal(err)
	}
	s := p.scene(t, "frugal")
	s.node(s.name)
	s.plant(fixture.Pool(s.name, fixture.Subnet("10.0.0.0/16", ""), fixture.BlockSize(5)))
	s.plant(planted(s.name, 0, size, pod)) // The kind is served when this succeeds.
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for i := 1 + worker; i < blocks; i += 8 {
				if err := s.client.Create(t.Context(), planted(s.name, i, size, pod)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()

	asked := make(chan string, 1000)
	kubeconfig := p.watched(t, asked)
	// Without a limit it is a matter of chance how much is resident: Go collects when the heap has doubled.
	p.env = []string{"GOMEMLIMIT=128MiB"}
	began := time.Now()
	got, state := p.oakum(t, kubeconfig, "check", "-o", "json")
	took := time.Since(began)
	close(asked)
	var report struct {
		Pools []struct{ Blocks, Allocated, Leaked int }
		Leaks []any
	}
	if err := json.Unmarshal([]byte(got.Stdout), &report); err != nil {
		t.Fatal(err)
	}
	if got.Code != 1 || len(report.Leaks) != blocks*size || report.Pools[0].Leaked != blocks*size || report.Pools[0].Blocks != blocks {
		t.Errorf("exit code %d, %d leaks, pools %+v, %s", got.Code, len(report.Leaks), report.Pools, got.Stderr)
	}
	rss := state.SysUsage().(*syscall.Rusage).Maxrss / 1024
	t.Logf("%s, of which %s of work, and %d MiB", took, state.UserTime()+state.SystemTime(), rss)
	// Linux counts what this process had when it started the other one.
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		t.Fatal(err)
	}
	if rss > max(200, own.Maxrss/1024) {
		t.Errorf("it took %d MiB", rss)
	}
	if took > 15*time.Second {
		t.Errorf("it took %s", took)
	}
	want := []string{
		"addressblocks 500 first", "addressblocks 500 next", "addresspools 500 first", "nodes 500 first", "pods 500 first",
	}
	lists := slices.Sorted(func(yield func(string) bool) {
		for list := range asked {
			if !yield(list) {
				return
			}
		}
	})
	if diff := gocmp.Diff(want, lists); diff != "" {
		t.Errorf("lists (-want +got):\n%s", diff)
	}
}

// planted is a full block, whose owners do not exist.
func planted(pool string, index, size int, uid string) *v1alpha1.AddressBlock {
	b := fixture.Block(pool, int32(index), pool)
	b.Spec.IPv4 = fmt.Sprintf("10.0.%d.%d/27", index*size/256, index*size%256)
	for o := range size {
		n := index*size + o
		fixture.Entry(int32(o), fmt.Sprintf(uid+"-eth0", n), v1alpha1.Attributes{
			Type: v1alpha1.OwnerPod, Namespace: "default", Name: fmt.Sprintf("pod-%d", n), UID: types.UID(fmt.Sprintf(uid, n)), Node: pool,
		})(b)
	}
	return b
}

// watched writes a kubeconfig through which every list that is asked for can be seen.
func (p *plane) watched(t *testing.T, asked chan<- string) (path string) {
	t.Helper()
	target, err := url.Parse(p.Admin.Host)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(p.Admin)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(&httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			if q := r.In.URL.Query(); q.Has("limit") {
				page := "first"
				if q.Get("continue") != "" {
					page = "next"
				}
				asked <- fmt.Sprintf("%s %s %s", filepath.Base(r.In.URL.Path), q.Get("limit"), page)
			} else if parts := strings.Split(r.In.URL.Path, "/"); len(parts) == 5 && parts[1] == "apis" {
				asked <- parts[4] + " all"
			}
		},
	})
	t.Cleanup(server.Close)
	return p.kubeconfig(t, func(c *clientcmdapi.Config) {
		for _, cluster := range c.Clusters {
			*cluster = clientcmdapi.Cluster{Server: server.URL}
		}
		for _, info := range c.AuthInfos {
			*info = clientcmdapi.AuthInfo{}
		}
	})
}
