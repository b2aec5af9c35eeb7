package audit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
)

func TestHandOutsAreListedBeforeTheirOwners(t *testing.T) { // L06
	d := sit(t, interceptor.Funcs{})
	d.lend("gone", "n1", 1)
	d.audits()
	first := []string{"list hand-outs", "list owners", "look at gone-eth0"}
	if diff := cmp.Diff(first, d.calls); diff != "" {
		t.Errorf("first run (-want +got):\n%s", diff)
	}
	d.calls = nil
	d.pass(5 * time.Minute)
	d.audits()
	second := slices.Concat(first, []string{"release gone-eth0"})
	if diff := cmp.Diff(second, d.calls); diff != "" {
		t.Errorf("second run (-want +got):\n%s", diff)
	}
}

// TestAPodBornBetweenTheListsKeepsItsAddress is L06 with the lists the other way round, as a cache that lags shows them.
func TestAPodBornBetweenTheListsKeepsItsAddress(t *testing.T) {
	d := sit(t, interceptor.Funcs{})
	d.lend("fresh", "n1", 1)
	live := d.seen
	live.Pods = append(slices.Clone(live.Pods), running("fresh", "n1", 1))
	d.live = &live
	d.twice()
	d.seen, d.live = live, nil
	d.twice()
	if diff := cmp.Diff([]string{"fresh-eth0"}, d.left()); diff != "" {
		t.Errorf("handles that are left (-want +got):\n%s", diff)
	}
}

func TestASuspicionMustLast(t *testing.T) {
	silent := func(d *desk) { d.seen.Nodes[0].Ready = ipam.ConditionUnknown }
	back := func(d *desk) { d.seen.Pods = append(d.seen.Pods, running("gone", "n1", 1)) }
	goes := func(d *desk) { d.seen.Pods = d.seen.Pods[:1] }
	type step struct {
		after  time.Duration
		change func(*desk)
		// left says whether the address is still recorded after a run.
		left bool
	}
	tests := map[string]struct {
		node  string
		pods  []ipam.Pod
		steps []step
	}{
		"an orphan goes at the second sighting a grace apart (G32)": {
			node:  "n1",
			steps: []step{{left: true}, {after: 5*time.Minute - 1, left: true}, {after: 1, left: false}},
		},
		"an orphan of a node that is gone goes after a quarantine (G24)": {
			node:  "n2",
			steps: []step{{left: true}, {after: 5 * time.Minute, left: true}, {after: 10*time.Minute - 1, left: true}, {after: 1, left: false}},
		},
		"what is proven goes at once (G27)": {
			node: "n1", pods: []ipam.Pod{ended("gone")},
			steps: []step{{left: false}},
		},
		"an owner that is seen in between starts the wait anew": {
			node: "n1",
			steps: []step{
				{left: true},
				{after: 4 * time.Minute, change: back, left: true},
				{after: 4 * time.Minute, change: goes, left: true},
				{after: 4 * time.Minute, left: true},
				{after: time.Minute, left: false},
			},
		},
		"nothing goes while the node is silent (E10b)": {
			node:  "n1",
			steps: []step{{change: silent, left: true}, {after: time.Hour, left: true}},
		},
		"a pod that is starting keeps its address, however long it takes (L07)": {
			node: "n1", pods: []ipam.Pod{{Namespace: "default", Name: "gone", UID: "uid-gone", Node: "n1", Phase: ipam.PhasePending}},
			steps: []step{{left: true}, {after: 2 * time.Hour, left: true}},
		},
		"a pod that was force-deleted keeps its address while its node has not reported the end (L18)": {
			node: "n1", pods: []ipam.Pod{func() ipam.Pod { p := running("gone", "n1", 1); p.Deleted = start(); return p }()},
			steps: []step{{left: true}, {after: time.Hour, left: true}},
		},
		"a pod on another node than recorded keeps its address (L02)": {
			node: "n1", pods: []ipam.Pod{running("gone", "n2", 1)},
			steps: []step{{left: true}, {after: time.Hour, left: true}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := sit(t, interceptor.Funcs{})
			d.lend("gone", tt.node, 1)
			d.seen.Pods = append(d.seen.Pods, tt.pods...)
			var want, got []bool
			for _, s := range tt.steps {
				d.pass(s.after)
				if s.change != nil {
					s.change(d)
				}
				d.audits()
				want, got = append(want, s.left), append(got, len(d.left()) > 0)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("left after each run (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTheClockOnTheWallShortensNoWait(t *testing.T) {
	d := sit(t, interceptor.Funcs{})
	d.lend("gone", "n1", 1)
	d.audits()
	for _, jump := range []time.Duration{time.Hour, -2 * time.Hour} {
		d.now.Wall = d.now.Wall.Add(jump)
		d.audits()
	}
	if diff := cmp.Diff([]string{"gone-eth0"}, d.left()); diff != "" {
		t.Errorf("handles that are left (-want +got):\n%s", diff)
	}
}

func TestTheLastLookDecides(t *testing.T) {
	healthy := "True RunComplete: every record was read and judged"
	tests := map[string]struct {
		live  func(*ipam.Observation)
		stuck error
		left  []string
		line  string
	}{
		"an owner that is back keeps its address": {
			live: func(o *ipam.Observation) { o.Pods = append(slices.Clone(o.Pods), running("gone", "n1", 1)) },
			left: []string{"gone-eth0"}, line: `"level"=0 "msg"="kept"`,
		},
		"another pod that names the address keeps it": {
			live: func(o *ipam.Observation) { o.Pods = append(slices.Clone(o.Pods), running("other", "n1", 1)) },
			left: []string{"gone-eth0"}, line: `"level"=0 "msg"="kept"`,
		},
		"a node that is gone makes it another suspicion, that must last": {
			live: func(o *ipam.Observation) { o.Nodes = nil },
			left: []string{"gone-eth0"}, line: `"level"=0 "msg"="kept"`,
		},
		"a node that is silent keeps it": {
			live: func(o *ipam.Observation) {
				o.Nodes = []ipam.Node{{Name: "n1", UID: "uid-n1", Ready: ipam.ConditionFalse}}
			},
			left: []string{"gone-eth0"}, line: `"level"=0 "msg"="kept"`,
		},
		"another hand-out at the place is no error (I6)": {
			stuck: fmt.Errorf("offset 1: %w", backends.ErrStale),
			left:  []string{"gone-eth0"}, line: `"level"=0 "msg"="kept: another hand-out is there by now"`,
		},
		"a suspicion that it confirms ends in a release": {line: `"level"=0 "msg"="released"`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := sit(t, interceptor.Funcs{})
			d.lend("gone", "n1", 1)
			d.audits()
			if tt.live != nil {
				live := d.seen
				tt.live(&live)
				d.live = &live
			}
			if tt.stuck != nil {
				d.stuck["gone-eth0"] = tt.stuck
			}
			d.pass(5 * time.Minute)
			d.audits()
			if diff := cmp.Diff(tt.left, d.left()); diff != "" {
				t.Errorf("handles that are left (-want +got):\n%s", diff)
			}
			if len(d.lines) != 1 || !strings.HasPrefix(d.lines[0], tt.line+" ") {
				t.Errorf("log %q, want one line with %s", d.lines, tt.line)
			}
			if got := d.conditions()["Healthy"]; got != healthy {
				t.Errorf("Healthy is %q, want %q", got, healthy)
			}
			if told := len(d.events) > 0; told != (tt.left == nil) {
				t.Errorf("events %q", d.events)
			}
		})
	}
}

func TestOneHandleIsAllOrNone(t *testing.T) {
	for name, tt := range map[string]struct {
		pods []ipam.Pod
		left []string
	}{
		"nobody has an address of it":            {nil, nil},
		"one of its addresses is somebody's":     {[]ipam.Pod{running("other", "n1", 2)}, []string{"gone-eth0"}},
		"the other one is, in another block":     {[]ipam.Pod{running("other", "n1", 300)}, []string{"gone-eth0"}},
		"an address beside it is somebody's":     {[]ipam.Pod{running("other", "n1", 3)}, nil},
		"only one family is in the status (L01)": {[]ipam.Pod{running("gone", "n1", 1)}, []string{"gone-eth0"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := sit(t, interceptor.Funcs{})
			d.lend("gone", "n1", 1, 2)
			d.recorded[0].Places = append(d.recorded[0].Places, place("b1", 300))
			d.seen.Pods = append(d.seen.Pods, tt.pods...)
			d.twice()
			if diff := cmp.Diff(tt.left, d.left()); diff != "" {
				t.Errorf("handles that are left (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAReleaseThatFailsIsToldAndTriedAgain(t *testing.T) { // B39
	d := sit(t, interceptor.Funcs{})
	for i := range 100 {
		d.lend(fmt.Sprintf("gone-%d", i), "n1", i)
	}
	d.Settings.Pace.Minimum = 100
	d.stuck["gone-0-eth0"] = errors.New("a policy says no")
	d.audits()
	d.pass(5 * time.Minute)
	waits := []time.Duration{d.audits()}
	if diff := cmp.Diff([]string{"gone-0-eth0"}, d.left()); diff != "" {
		t.Errorf("handles that are left (-want +got):\n%s", diff)
	}
	failed := "Warning IPAddressGarbageCollectionFailed on AddressBlock b0 (uid-b0): giving back 10.0.0.0 (native, handle gone-0-eth0): a policy says no"
	if diff := cmp.Diff(failed, d.events[0]); diff != "" {
		t.Errorf("event (-want +got):\n%s", diff)
	}
	want := "False RunFailed: giving back gone-0-eth0 of Pod default/gone-0 (uid uid-gone-0): a policy says no"
	if diff := cmp.Diff(want, d.conditions()["Healthy"]); diff != "" {
		t.Errorf("Healthy (-want +got):\n%s", diff)
	}
	for range 9 {
		waits = append(waits, d.audits())
	}
	var seconds []float64
	for _, w := range waits {
		seconds = append(seconds, w.Seconds())
	}
	if diff := cmp.Diff([]float64{2, 4, 8, 16, 32, 64, 128, 256, 300, 300}, seconds); diff != "" {
		t.Errorf("seconds until the next try (-want +got):\n%s", diff)
	}
	delete(d.stuck, "gone-0-eth0")
	if wait := d.audits(); wait != 5*time.Minute || len(d.left()) > 0 {
		t.Errorf("in the end %q are left, and the next run is in %s", d.left(), wait)
	}
	got := d.values("oakum_release_errors_total")
	if diff := cmp.Diff(map[string]float64{"oakum_release_errors_total native": 10}, got); diff != "" {
		t.Errorf("metric (-want +got):\n%s", diff)
	}
}

func TestWhatCannotBeReleasedDoesNotUseUpThePace(t *testing.T) {
	d := sit(t, interceptor.Funcs{})
	d.Settings.Pace = config.Pace{Minimum: 1}
	d.lend("old", "n1", 0)
	d.audits()
	d.pass(time.Minute)
	d.lend("young", "n1", 1)
	d.stuck["old-eth0"] = errors.New("no")
	d.twice()
	d.pass(5 * time.Minute)
	d.audits()
	if diff := cmp.Diff([]string{"old-eth0"}, d.left()); diff != "" {
		t.Errorf("handles that are left (-want +got):\n%s", diff)
	}
}

func TestAListThatFailsIsTriedAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		unlisted, unseen error
		want             string
	}{
		"of hand-outs": {unlisted: errors.New("503"), want: "False RunFailed: listing the hand-outs: 503"},
		"of owners":    {unseen: errors.New("not synced"), want: "False RunFailed: not synced"},
	} {
		t.Run(name, func(t *testing.T) {
			d := sit(t, interceptor.Funcs{})
			d.lend("gone", "n1", 1)
			d.audits()
			before := d.report().LastRun
			d.unlisted, d.unseen = tt.unlisted, tt.unseen
			d.pass(time.Hour)
			if wait := d.audits(); wait != 2*time.Second {
				t.Errorf("the next try is in %s", wait)
			}
			if diff := cmp.Diff(tt.want, d.conditions()["Healthy"]); diff != "" {
				t.Errorf("Healthy (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, d.report().LastRun); diff != "" {
				t.Errorf("last run (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"gone-eth0"}, d.left()); diff != "" {
				t.Errorf("handles that are left (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOnlyEnforceReleases(t *testing.T) {
	for mode, left := range map[config.Mode][]string{
		config.ModeObserve: {"gone-eth0", "ended-eth0"}, config.ModeWarn: {"gone-eth0", "ended-eth0"}, config.ModeEnforce: nil,
	} {
		t.Run(string(mode), func(t *testing.T) {
			d := sit(t, interceptor.Funcs{})
			d.Mode = mode
			d.lend("gone", "n1", 1)
			d.lend("ended", "n1", 2)
			d.seen.Pods = append(d.seen.Pods, ended("ended"))
			d.twice()
			if diff := cmp.Diff(left, d.left()); diff != "" {
				t.Errorf("handles that are left (-want +got):\n%s", diff)
			}
			if told := d.report().Mode; told != string(mode) {
				t.Errorf("the report's mode is %s", told)
			}
			if candidates := len(d.report().Candidates); candidates != len(left) {
				t.Errorf("%d candidates are reported", candidates)
			}
		})
	}
}

func TestAStoppedMachineKeepsItsAddressAcrossARestart(t *testing.T) { // L16
	d := sit(t, interceptor.Funcs{})
	d.lend("vm", "", 1)
	d.recorded[0].Owner.Kind = ipam.OwnerVirtualMachine
	d.seen.Others = map[ipam.OwnerKind]map[ipam.Name]ipam.Presence{
		ipam.OwnerVirtualMachine: {{Namespace: "default", Name: "vm"}: {UID: "uid-vm"}},
	}
	d.twice()
	d.restart()
	d.twice()
	if diff := cmp.Diff([]string{"vm-eth0"}, d.left()); diff != "" {
		t.Errorf("handles that are left (-want +got):\n%s", diff)
	}
}

func TestARestartStartsEveryWaitAnew(t *testing.T) {
	d := sit(t, interceptor.Funcs{})
	d.lend("gone", "n1", 1)
	d.audits()
	d.pass(time.Hour)
	d.restart()
	d.audits()
	if diff := cmp.Diff([]string{"gone-eth0"}, d.left()); diff != "" {
		t.Errorf("handles that are left (-want +got):\n%s", diff)
	}
}

// TestAnOwnerThatGoesIsSuspectedAtOnce has a pod go just after a run: its address is free a grace later, and not a
// grace after the next run.
func TestAnOwnerThatGoesIsSuspectedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := sit(t, interceptor.Funcs{})
		d.Clock = cluster.SystemClock()
		d.Settings.Interval = metav1.Duration{Duration: time.Hour}
		gone := make(chan ipam.Owner, 10)
		d.Gone = gone
		d.lend("web", "n1", 1)
		d.lend("other", "n1", 2)
		d.seen.Pods = append(d.seen.Pods, running("web", "n1", 1), running("other", "n1", 2))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- d.Start(ctx) }()
		synctest.Wait()

		d.calls, d.seen.Pods = nil, slices.DeleteFunc(slices.Clone(d.seen.Pods), func(p ipam.Pod) bool { return p.Name == "web" })
		for _, name := range []string{"web", "stranger"} {
			gone <- ipam.Owner{Kind: ipam.OwnerPod, Namespace: "default", Name: name, UID: "uid-" + name, Node: "n1"}
		}
		<-time.After(5*time.Minute - 1)
		synctest.Wait()
		looked := []string{"list hand-outs of web", "look at web-eth0", "list hand-outs of stranger"}
		if diff := cmp.Diff(looked, d.did("")); diff != "" {
			t.Errorf("calls before the grace is over (-want +got):\n%s", diff)
		}
		<-time.After(1)
		synctest.Wait()
		if diff := cmp.Diff([]string{"other-eth0"}, d.left()); diff != "" {
			t.Errorf("handles that are left (-want +got):\n%s", diff)
		}
		want := map[string]float64{"oakum_audit_interval_seconds native": 3600, "oakum_release_errors_total native": 0}
		if diff := cmp.Diff(want, d.values("oakum_audit_interval_seconds", "oakum_release_errors_total")); diff != "" {
			t.Errorf("metrics from the start (-want +got):\n%s", diff)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// L03: an address in use shows that the plugin has another name for its node, so nothing is known about a name that no Node
// bears. Once that pod is gone, the node is.
func TestAPluginsOwnNameForANodeIsUnknown(t *testing.T) {
	d := sit(t, interceptor.Funcs{})
	d.lend("web", "worker-1", 1)
	d.lend("gone", "worker-1", 2)
	d.seen.Pods = append(d.seen.Pods, running("web", "n1", 1))
	for range 3 {
		d.audits()
		d.pass(d.Settings.Quarantine.Duration)
	}
	if diff := cmp.Diff([]string{"web-eth0", "gone-eth0"}, d.left()); diff != "" {
		t.Errorf("handles that are left (-want +got):\n%s", diff)
	}
}
