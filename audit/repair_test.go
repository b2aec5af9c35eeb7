package audit_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/fixture"
)

// mender is a backend that completes records.
type mender struct{ records }

// Repair implements backends.Repairer.
func (m mender) Repair(_ context.Context, a ipam.Allocation) error {
	m.calls = append(m.calls, fmt.Sprintf("repair %s of %s", a.Handle, a.Owner))
	if err := m.stuck[a.Handle]; err != nil {
		return err
	}
	for i := range m.recorded {
		if m.recorded[i].Handle == a.Handle {
			m.recorded[i].Gap = ""
		}
	}
	return nil
}

// gap is a desk with a hand-out by name that is in use, and whose record lacks a part.
func gap(t *testing.T) *desk {
	t.Helper()
	pod := fixture.Pod("web", "n1")
	pod.UID = "uid-web"
	d := sit(t, interceptor.Funcs{}, pod)
	d.Backend = mender{records{d}}
	d.lendByName("web", 1)
	d.recorded[0].Gap = "no entry"
	d.seen.Pods = append(d.seen.Pods, running("web", "n1", 1))
	return d
}

func TestARecordIsCompletedAtTheSecondSighting(t *testing.T) {
	d := gap(t)
	var got [][]string
	for _, after := range []time.Duration{0, 5*time.Minute - 1, 1, 5 * time.Minute, time.Hour} {
		d.pass(after)
		d.audits()
		got = append(got, d.did("repair "))
	}
	want := [][]string{nil, nil, {"web-eth0 of Pod default/web (uid uid-web)"}, nil, nil}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("repairs in each run (-want +got):\n%s", diff)
	}
	told := []string{"Normal RecordRepaired on Pod default/web (uid-web): completed the record of 10.0.0.1 (native, handle web-eth0): Pod default/web is alive, but its record lacks a part: no entry"}
	if diff := cmp.Diff(told, d.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestWhatKeepsARecordIncomplete(t *testing.T) {
	const owner = "Pod default/web (uid uid-web)"
	attempt := []string{"web-eth0 of " + owner}
	unable := "completing the record of web-eth0 of " + owner + ": a policy says no"
	healthy := "True RunComplete: every record was read and judged"
	tests := map[string]struct {
		change  func(*desk)
		repairs []string
		events  []string
		healthy string
	}{
		"another record by now is no error (I6)": {
			change:  func(d *desk) { d.stuck["web-eth0"] = fmt.Errorf("offset 1: %w", backends.ErrStale) },
			repairs: attempt, healthy: healthy,
		},
		"an error is told": {
			change:  func(d *desk) { d.stuck["web-eth0"] = errors.New("a policy says no") },
			repairs: attempt, healthy: "False RunFailed: " + unable,
			events: []string{"Warning RecordRepairFailed on Pod default/web (uid-web): completing the record of 10.0.0.1 (native, handle web-eth0): a policy says no"},
		},
		"a pod that is gone when it is looked at once more": {
			change: func(d *desk) {
				live := d.seen
				live.Pods = live.Pods[:1]
				d.live = &live
			},
			healthy: healthy,
		},
		"a pod that has another address when it is looked at once more": {
			change: func(d *desk) {
				live := d.seen
				live.Pods = []ipam.Pod{running("web", "n1", 2)}
				d.live = &live
			},
			healthy: healthy,
		},
		"a look that fails": {
			change:  func(d *desk) { d.unlooked = errors.New("503") },
			healthy: "False RunFailed: looking at web-eth0 of Pod default/web: 503",
		},
		"a mode that only looks": {
			change:  func(d *desk) { d.Mode = config.ModeObserve },
			healthy: healthy,
		},
		"a backend that cannot": {
			change:  func(d *desk) { d.Backend = records{d} },
			healthy: `False RunFailed: completing the record of web-eth0: backend "native" cannot`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := gap(t)
			d.audits()
			d.pass(5 * time.Minute)
			tt.change(d)
			d.audits()
			if diff := cmp.Diff(tt.repairs, d.did("repair ")); diff != "" {
				t.Errorf("repairs (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.events, d.events); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.healthy, d.conditions()["Healthy"]); diff != "" {
				t.Errorf("Healthy (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"web-eth0"}, d.left()); diff != "" {
				t.Errorf("handles that are left (-want +got):\n%s", diff)
			}
		})
	}
}

// TestANodesRecordIsCompletedToo has an owner that is no pod, so that nobody bears its name.
func TestANodesRecordIsCompletedToo(t *testing.T) {
	d := gap(t)
	d.recorded[0].Owner = ipam.Owner{Kind: ipam.OwnerNode, Name: "n1", UID: "uid-n1", Node: "n1"}
	d.seen.Pods = d.seen.Pods[:1]
	d.twice()
	if diff := cmp.Diff([]string{"web-eth0 of Node n1 (uid uid-n1)"}, d.did("repair ")); diff != "" {
		t.Errorf("repairs (-want +got):\n%s", diff)
	}
}

func TestWhatIsToBeRepairedIsInUse(t *testing.T) {
	d := gap(t)
	d.Mode = config.ModeObserve
	d.twice()
	run := d.report().LastRun
	if run.Allocations != 1 || run.InUse != 1 || run.Unproven != 0 || run.Orphaned != 0 || d.report().Candidates != nil {
		t.Errorf("the last run is %+v, the candidates are %v", run, d.report().Candidates)
	}
	want := map[string]float64{"oakum_allocations native default in_use": 1, "oakum_leak_candidates native": 0}
	if diff := cmp.Diff(want, d.values("oakum_allocations", "oakum_leak_candidates")); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}
