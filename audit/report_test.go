package audit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/audit"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/fixture"
)

// street has one hand-out of each state, and an orphan that is due when another grace has passed.
func street(t *testing.T) *desk {
	t.Helper()
	d := sit(t, interceptor.Funcs{})
	d.lend("live", "n1", 1)
	d.lend("gone", "n1", 2, 3)
	d.lend("lost", "n9", 4)
	d.lend("silent", "n2", 5)
	d.seen.Pods = append(d.seen.Pods, running("live", "n1", 1))
	d.seen.Nodes = append(d.seen.Nodes, ipam.Node{Name: "n2", UID: "uid-n2", Ready: ipam.ConditionUnknown})
	return d
}

// local is a moment as the API gives it back.
func local(after time.Duration) metav1.Time { return metav1.NewTime(start().Add(after).Local()) }

func TestTheReportTellsTheLastRun(t *testing.T) {
	const gone, lost = "Pod default/gone (uid uid-gone)", "Pod default/lost (uid uid-lost)"
	orphan := v1alpha1.LeakCandidate{
		Address: "10.0.0.2,10.0.0.3", Handle: "gone-eth0", Owner: gone, Reason: "OwnerGone", Evidence: gone + " does not exist",
		FirstSeen: local(0), ReleaseAfter: local(5 * time.Minute),
	}
	unfenced := v1alpha1.LeakCandidate{
		Address: "10.0.0.4", Handle: "lost-eth0", Owner: lost, Reason: "NodeGone", Evidence: `node "n9" is gone, and nobody says that the machine is off`,
		FirstSeen: local(0), ReleaseAfter: local(15 * time.Minute),
	}
	d := street(t)
	d.audits()
	conditions := func(at time.Duration) []metav1.Condition {
		conditions := []metav1.Condition{
			{Type: "Healthy", Status: "True", Reason: "RunComplete", Message: "every record was read and judged"},
			{Type: "Stopped", Status: "False", Reason: "EvidencePlausible", Message: "all is well"},
			{Type: "Pacing", Status: "False", Reason: "NothingWaits", Message: "all is well"},
			{Type: "FinalizersCleared", Status: "False", Reason: "StillWanted", Message: "the mode is Enforce"},
		}
		for i := range conditions {
			conditions[i].LastTransitionTime = local(at)
		}
		return conditions
	}
	first := v1alpha1.LeakReportStatus{
		Mode:       "Enforce",
		LastRun:    v1alpha1.LeakReportRun{StartedAt: local(0), FinishedAt: local(0), Allocations: 4, InUse: 1, Unproven: 1, Orphaned: 2},
		Candidates: []v1alpha1.LeakCandidate{orphan, unfenced},
		Conditions: conditions(0),
	}
	if diff := cmp.Diff(first, d.report()); diff != "" {
		t.Errorf("after the first run (-want +got):\n%s", diff)
	}
	d.pass(5 * time.Minute)
	d.audits()
	second := v1alpha1.LeakReportStatus{
		Mode: "Enforce",
		LastRun: v1alpha1.LeakReportRun{
			StartedAt: local(5 * time.Minute), FinishedAt: local(5 * time.Minute), Allocations: 4, InUse: 1, Unproven: 1, Orphaned: 2, Released: 1,
		},
		Candidates: []v1alpha1.LeakCandidate{unfenced},
		Released: []v1alpha1.LeakRelease{{
			Address: "10.0.0.2,10.0.0.3", Handle: "gone-eth0", Owner: gone, Reason: "OwnerGone", Evidence: gone + " does not exist",
			At: local(5 * time.Minute), By: "oakum-0",
		}},
		Conditions: conditions(0),
	}
	if diff := cmp.Diff(second, d.report()); diff != "" {
		t.Errorf("after the release, which leaves no candidate (-want +got):\n%s", diff)
	}
}

func TestWhereNothingIsReleasedNoCandidateIsPromisedForATime(t *testing.T) {
	d := street(t)
	d.Mode = config.ModeObserve
	d.audits()
	var got []string
	for _, c := range d.report().Candidates {
		got = append(got, c.Handle+" "+c.ReleaseAfter.UTC().Format(time.RFC3339))
	}
	if diff := cmp.Diff([]string{"gone-eth0 0001-01-01T00:00:00Z", "lost-eth0 0001-01-01T00:00:00Z"}, got); diff != "" {
		t.Errorf("candidates (-want +got):\n%s", diff)
	}
}

func TestTheReportShowsTheOldestSuspicionsAndTheNewestReleases(t *testing.T) {
	d := sit(t, interceptor.Funcs{})
	d.Settings.Pace.Minimum = 1000
	for i := range 130 {
		d.lend(fmt.Sprintf("gone-%d", i), "n1", i)
		d.seen.Pods = append(d.seen.Pods, running(fmt.Sprintf("gone-%d", i), "n1", i))
	}
	d.audits()
	// They go, the last ones first, never more than half at a time, or the evidence would count as collapsed.
	for _, stay := range []int{125, 63, 31, 15, 7, 3, 1, 0} {
		d.pass(time.Second)
		d.seen.Pods = d.seen.Pods[:1+stay]
		d.audits()
	}
	r := d.report()
	if len(r.Candidates) != 100 || r.Truncated != 30 || r.Candidates[0].Handle != "gone-125-eth0" || r.Candidates[5].Handle != "gone-63-eth0" {
		t.Errorf("%d candidates, %d more; the first is %s, the sixth %s", len(r.Candidates), r.Truncated, r.Candidates[0].Handle, r.Candidates[5].Handle)
	}
	d.pass(5 * time.Minute)
	d.audits()
	released := d.report().Released
	if len(d.left()) > 0 || len(released) != 100 || released[0].Handle != "gone-0-eth0" {
		t.Errorf("%d are left, %d releases are told, the first is of %s", len(d.left()), len(released), released[0].Handle)
	}
	if d.report().Candidates != nil || d.report().Truncated != 0 {
		t.Errorf("candidates %v and %d more", d.report().Candidates, d.report().Truncated)
	}
}

func TestTheReportKeepsReleasesAcrossARestartAndAFailedWrite(t *testing.T) {
	fails := false
	d := sit(t, interceptor.Funcs{SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
		if fails {
			return errors.New("409")
		}
		return c.SubResource(sub).Patch(ctx, o, p, opts...)
	}})
	var want []string
	for i, name := range []string{"first", "second", "third"} {
		d.lend(name, "n1", i)
		fails = name == "second"
		d.twice()
		d.pass(time.Minute)
		want = append([]string{name + "-eth0"}, want...)
		if name == "first" {
			d.restart()
		}
	}
	var got []string
	for _, r := range d.report().Released {
		got = append(got, r.Handle)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("releases (-want +got):\n%s", diff)
	}
}

func TestFinalizersThatAreLeftAreCountedPageByPage(t *testing.T) {
	hold := func(o client.Object, finalizers ...string) client.Object { o.SetFinalizers(finalizers); return o }
	objects := []client.Object{
		hold(fixture.Pod("a", "n1"), v1alpha1.AddressesFinalizer), hold(fixture.Pod("b", "n1"), "example.org/other"),
		hold(fixture.Pod("c", "n1"), "example.org/other", v1alpha1.AddressesFinalizer),
		hold(fixture.Node("n1"), v1alpha1.AddressesFinalizer),
		hold(fixture.Pool("p", fixture.Subnet("10.0.0.0/24", "")), v1alpha1.PoolFinalizer),
		hold(fixture.Block("p", 0, "n1"), v1alpha1.BlockFinalizer),
	}
	var asked []string
	pages := interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if err := c.List(ctx, list); err != nil {
			return err
		}
		var o client.ListOptions
		o.ApplyOptions(opts)
		objects, ok := list.(*metav1.PartialObjectMetadataList)
		if !ok {
			return nil
		}
		asked = append(asked, fmt.Sprintf("%s %d", objects.Kind, o.Limit))
		from := len(o.Continue)
		if from+1 < len(objects.Items) {
			objects.Continue = strings.Repeat("*", from+1)
		}
		objects.Items = objects.Items[from : from+1]
		return nil
	}}
	d := sit(t, pages, objects...)
	d.Mode = config.ModeObserve
	d.audits()
	if got := d.conditions()["FinalizersCleared"]; got != "False SomeRemain: 5 objects carry a finalizer of Oakum's" {
		t.Errorf("FinalizersCleared is %q", got)
	}
	want := []string{"PodList 500", "PodList 500", "PodList 500", "NodeList 500", "AddressPoolList 500", "AddressBlockList 500"}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("pages (-want +got):\n%s", diff)
	}
	for _, o := range objects {
		if err := d.Client.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
			t.Fatal(err)
		}
	}
	asked = nil
	for range 3 {
		d.audits()
	}
	if got := d.conditions()["FinalizersCleared"]; got != "True NoneFound: no object carries a finalizer of Oakum's" {
		t.Errorf("FinalizersCleared is %q", got)
	}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("pages, which are read no more when none is left (-want +got):\n%s", diff)
	}
}

func TestEveryReleaseIsExplained(t *testing.T) { // I9
	pod := fixture.Pod("ended", "n1", fixture.UID("uid-ended"))
	namesake := fixture.Pod("gone", "n1", fixture.UID("uid-another"))
	d := sit(t, interceptor.Funcs{}, pod, namesake)
	d.lend("ended", "n1", 1)
	d.lend("gone", "n1", 2, 3)
	d.lend("stuck", "n1", 4)
	d.lend("stale", "n1", 5)
	d.seen.Pods = append(d.seen.Pods, ended("ended"))
	d.stuck["stuck-eth0"] = errors.New("no " + strings.Repeat("!", 2000))
	d.stuck["stale-eth0"] = backends.ErrStale
	d.twice()
	const end = "the kubelet reported the end of Pod default/ended (uid uid-ended): Succeeded, every container terminated, sandbox down"
	failed := "giving back 10.0.0.4 (native, handle stuck-eth0): no "
	want := []string{
		"Normal IPAddressGarbageCollected on Pod default/ended (uid-ended): gave back 10.0.0.1 (native, handle ended-eth0): " + end,
		"Normal IPAddressGarbageCollected on AddressBlock b0 (uid-b0): gave back 10.0.0.2,10.0.0.3 (native, handle gone-eth0): Pod default/gone (uid uid-gone) does not exist",
		"Warning IPAddressGarbageCollectionFailed on AddressBlock b0 (uid-b0): " + failed + strings.Repeat("!", 1024-3-len(failed)) + "...",
	}
	if diff := cmp.Diff(want, d.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	lines := []string{
		`"level"=0 "msg"="released" "pool"="default" "block"="b0" "address"="10.0.0.1" "handle"="ended-eth0"` +
			` "owner"="Pod default/ended (uid uid-ended)" "node"="n1" "verdict"="Free" "reason"="EndReported" "evidence"="E2" "detail"="` + end + `"`,
		`"level"=0 "msg"="released" "pool"="default" "block"="b0" "address"="10.0.0.2,10.0.0.3" "handle"="gone-eth0"` +
			` "owner"="Pod default/gone (uid uid-gone)" "node"="n1" "verdict"="Orphan" "reason"="OwnerGone" "evidence"="E10" "detail"="Pod default/gone (uid uid-gone) does not exist"`,
	}
	var released []string
	for _, line := range d.lines {
		if strings.Contains(line, `"msg"="released"`) {
			released = append(released, line)
		}
	}
	if diff := cmp.Diff(lines, released); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	counted := map[string]float64{"oakum_releases_total native EndReported": 1, "oakum_releases_total native OwnerGone": 1}
	if diff := cmp.Diff(counted, d.values("oakum_releases_total")); diff != "" {
		t.Errorf("metric (-want +got):\n%s", diff)
	}
}

// values reads metrics, by their name and the values of their labels.
func (d *desk) values(names ...string) map[string]float64 {
	d.t.Helper()
	families, err := d.registry.Gather()
	if err != nil {
		d.t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, name := range names {
			if f.GetName() != name {
				continue
			}
			for _, m := range f.GetMetric() {
				key := name
				for _, l := range m.GetLabel() {
					key += " " + l.GetValue()
				}
				values[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return values
}

// pools are records with pools.
type pools struct {
	records
	carver
}

type carver interface{ backends.Blocks }

func (pools) Pools(context.Context) ([]ipam.Pool, error) {
	text := ipam.PoolText{Name: "default", BlockSizeBits: 5, Subnets: []ipam.SubnetText{{IPv4: "10.0.0.0/24"}}}
	pool, _ := text.Parse()
	empty := pool
	empty.Name = "empty"
	return []ipam.Pool{pool, empty}, nil
}

func TestMetrics(t *testing.T) {
	d := street(t)
	d.Backend = pools{records: records{d}}
	d.stuck["gone-eth0"] = errors.New("no")
	d.audits()
	d.pass(5 * time.Minute)
	d.audits()
	want := map[string]float64{
		"oakum_allocations native default in_use":   1,
		"oakum_allocations native default orphaned": 3,
		"oakum_allocations native default unproven": 1,
		"oakum_allocations native empty in_use":     0,
		"oakum_allocations native empty orphaned":   0,
		"oakum_allocations native empty unproven":   0,
		"oakum_pool_capacity native default":        256,
		"oakum_pool_capacity native empty":          256,
		"oakum_leak_candidates native":              2,
		"oakum_audit_duration_seconds native":       2,
		"oakum_audit_stopped native":                0,
		// A release failed, but everything was read and judged.
		"oakum_audit_last_success_timestamp_seconds native": float64(start().Add(5 * time.Minute).Unix()),
	}
	names := []string{
		"oakum_allocations", "oakum_pool_capacity", "oakum_leak_candidates", "oakum_audit_duration_seconds", "oakum_audit_stopped",
		"oakum_audit_last_success_timestamp_seconds",
	}
	if diff := cmp.Diff(want, d.values(names...)); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	d.unlisted = errors.New("503")
	d.pass(5 * time.Minute)
	d.audits()
	want["oakum_audit_duration_seconds native"] = 3
	if diff := cmp.Diff(want, d.values(names...)); diff != "" {
		t.Errorf("metrics after a run that read nothing (-want +got):\n%s", diff)
	}
	d.unlisted, d.stuck = nil, nil
	d.audits()
	want["oakum_audit_duration_seconds native"], want["oakum_leak_candidates native"] = 4, 1
	want["oakum_audit_last_success_timestamp_seconds native"] += 300
	if diff := cmp.Diff(want, d.values(names...)); diff != "" {
		t.Errorf("metrics after the release (-want +got):\n%s", diff)
	}
	if _, err := audit.NewMetrics(d.registry, nil, nil); err == nil {
		t.Error("metrics can be registered twice")
	}
}

// Pods that another backend holds are not this one's to let go, but Oakum is not to be removed either.
func TestFinalizersAreNotClearedWhileAnotherBackendHoldsPods(t *testing.T) {
	d := sit(t, interceptor.Funcs{})
	d.Mode, d.PodsHeld = config.ModeObserve, true
	d.audits()
	want := "False StillWanted: pods are held on behalf of another backend, whose mode is Enforce"
	if got := d.conditions()["FinalizersCleared"]; got != want {
		t.Errorf("FinalizersCleared is %q, want %q", got, want)
	}
}

func TestTheReportTellsWhetherTheManagerIsGuarded(t *testing.T) {
	d := street(t)
	var known *metav1.Condition
	d.Guarded = func() *metav1.Condition { return known }
	told := func() []metav1.Condition {
		var found []metav1.Condition
		for _, c := range d.report().Conditions {
			if c.Type == string(v1alpha1.Guarded) {
				found = append(found, c)
			}
		}
		return found
	}
	d.audits()
	if diff := cmp.Diff([]metav1.Condition(nil), told()); diff != "" {
		t.Errorf("before anything is known (-want +got):\n%s", diff)
	}
	known = &metav1.Condition{Type: "Guarded", Status: "False", Reason: "RightsMissing", Message: "missing: " + strings.Repeat("x", 2000)}
	d.pass(5 * time.Minute)
	d.audits()
	want := *known
	want.Message, want.LastTransitionTime = "missing: "+strings.Repeat("x", 988)+"...", local(5*time.Minute)
	if diff := cmp.Diff([]metav1.Condition{want}, told()); diff != "" {
		t.Errorf("when rights are missing (-want +got):\n%s", diff)
	}
}
