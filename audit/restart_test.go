package audit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/ipam"
)

// restarter is a backend whose blocks are given back by programs when they start.
type restarter struct{ records }

// Restart implements backends.Restarter. One that is stuck answers with an error, or refuses if that has no text.
func (r restarter) Restart(_ context.Context, a ipam.Allocation) (string, error) {
	r.calls = append(r.calls, "restart "+a.Owner.Node)
	if err := r.stuck[a.Handle]; err == nil || err.Error() != "" {
		return "", err
	}
	return "it was restarted a moment ago", nil
}

// block is a desk with a block of node n1 that nobody uses.
func block(t *testing.T) *desk {
	t.Helper()
	d := sit(t, interceptor.Funcs{})
	d.Backend, d.Restart = restarter{records{d}}, true
	d.recorded = append(d.recorded, ipam.Allocation{
		Backend: "native", Handle: "b1", Owner: ipam.Owner{Kind: ipam.OwnerAgent, Name: "n1", Node: "n1"}, Places: []ipam.Place{place("b0", 1)},
	})
	d.seen.Pods[0].Addresses = append(d.seen.Pods[0].Addresses, addr(9))
	return d
}

func TestWhatIsStrandedIsNeverReleased(t *testing.T) {
	const told = "Normal AgentRestarted on AddressBlock b0 (uid-b0): restarted the program on node \"n1\" that has it: no pod has an address of it, and none on node \"n1\" waits for one"
	tests := map[string]struct {
		change   func(*desk)
		restarts []string
		events   []string
		failed   bool
	}{
		"its program is restarted after the second sighting": {change: func(*desk) {}, restarts: []string{"n1"}, events: []string{told}},
		"unless nobody asked for that":                       {change: func(d *desk) { d.Restart = false }},
		"or the mode is not Enforce":                         {change: func(d *desk) { d.Mode = config.ModeObserve }},
		"or it cannot":                                       {change: func(d *desk) { d.Backend = records{d} }},
		"a refusal is no failure":                            {change: func(d *desk) { d.stuck["b1"] = errors.New("") }, restarts: []string{"n1"}},
		"nor is another record by now":                       {change: func(d *desk) { d.stuck["b1"] = fmt.Errorf("gone: %w", backends.ErrStale) }, restarts: []string{"n1"}},
		"an error is":                                        {change: func(d *desk) { d.stuck["b1"] = errors.New("a budget says no") }, restarts: []string{"n1"}, failed: true},
		"a pod that waits on the node may get an address": {
			change: func(d *desk) { d.seen.Pods = append(d.seen.Pods, pending("web", "u1")) },
		},
		"a pod that waits there as a live look shows, too": {
			change: func(d *desk) {
				live := d.seen
				live.Pods = append([]ipam.Pod{pending("web", "u1")}, live.Pods...)
				d.live = &live
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := block(t)
			tt.change(d)
			d.twice()
			if diff := cmp.Diff(tt.restarts, d.did("restart ")); diff != "" {
				t.Errorf("restarts (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"b1"}, d.left()); diff != "" {
				t.Errorf("handles that are left (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.events, d.events); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if released := d.report().LastRun.Released; released != 0 {
				t.Errorf("the report tells of %d releases", released)
			}
			if failed := !strings.HasPrefix(d.conditions()["Healthy"], "True"); failed != tt.failed {
				t.Errorf("the condition Healthy is %q", d.conditions()["Healthy"])
			}
		})
	}
}

// A candidate that only its own program can give back has no time at which it goes.
func TestWhatIsStrandedIsReported(t *testing.T) {
	d := block(t)
	d.twice()
	report := d.report()
	if len(report.Candidates) != 1 || report.LastRun.Orphaned != 1 {
		t.Fatalf("the report is %+v", report)
	}
	c := report.Candidates[0]
	if c.Reason != string(ipam.Unused) || !c.ReleaseAfter.IsZero() {
		t.Errorf("the candidate is %+v, want Unused and no ReleaseAfter", c)
	}
}
