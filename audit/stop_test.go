package audit_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/ipam"
)

// crowd are pods that live, and have no address that matters.
func crowd(n int) (pods []ipam.Pod) {
	for i := range n {
		pods = append(pods, running("pod-"+strconv.Itoa(i), "n1"))
	}
	return pods
}

// fleet are nodes that are ready; the first is n1.
func fleet(n int) (nodes []ipam.Node) {
	for i := range n {
		nodes = append(nodes, ipam.Node{Name: "n" + strconv.Itoa(i+1), UID: "uid-n", Ready: ipam.ConditionTrue})
	}
	return nodes
}

const plausible = "False EvidencePlausible: all is well"

func TestCollapse(t *testing.T) {
	ofPod := func(d *desk) { d.lend("gone", "n1", 1) }
	ofNode := func(d *desk) {
		d.lend("gone", "n1", 1)
		d.recorded[0].Owner.Kind = ipam.OwnerNode
	}
	ofNobody := func(d *desk) {
		d.lend("gone", "n1", 1)
		d.recorded[0].Owner = ipam.Owner{Kind: ipam.OwnerExternal, Name: "printer"}
	}
	tests := map[string]struct {
		recorded    func(*desk)
		pods, nodes []int // in each run
		want        string
	}{
		"no pods at start, and a pod's address (L14)": {
			ofPod, []int{0}, []int{1}, "True EvidenceCollapsed: no pods are listed, and addresses of theirs are allocated",
		},
		"no pods at start, and a node's address": {ofNode, []int{0}, []int{1}, plausible},
		"no pods at start, and nobody's address": {ofNobody, []int{0}, []int{1}, plausible},
		"nothing at start, and nothing recorded": {func(*desk) {}, []int{0}, []int{0}, plausible},
		"no nodes at start, and a pod's address": {
			ofPod, []int{1}, []int{0}, "True EvidenceCollapsed: no nodes are listed, and addresses of theirs are allocated",
		},
		"no nodes at start, and a node's address": {
			ofNode, []int{1}, []int{0}, "True EvidenceCollapsed: no nodes are listed, and addresses of theirs are allocated",
		},
		"no pods after there were 500 (L14)": {
			ofPod, []int{500, 0}, []int{3, 3}, "True EvidenceCollapsed: no pods are listed, and there were 500",
		},
		"no pods after there were some, whosever the addresses are": {
			ofNobody, []int{1, 0}, []int{3, 3}, "True EvidenceCollapsed: no pods are listed, and there were 1",
		},
		"no nodes after there were some": {
			ofPod, []int{9, 9}, []int{3, 0}, "True EvidenceCollapsed: no nodes are listed, and there were 3",
		},
		"less than half of the pods": {
			ofPod, []int{500, 249}, []int{3, 3}, "True EvidenceCollapsed: 249 pods are listed, and there were 500",
		},
		"half of the pods": {ofPod, []int{500, 250}, []int{3, 3}, plausible},
		"less than half of the nodes": {
			ofPod, []int{9, 9}, []int{7, 3}, "True EvidenceCollapsed: 3 nodes are listed, and there were 7",
		},
		"half of the nodes":              {ofPod, []int{9, 9}, []int{6, 3}, plausible},
		"more of everything":             {ofPod, []int{9, 900}, []int{1, 100}, plausible},
		"no pods, run after run":         {ofPod, []int{9, 0, 0}, []int{3, 3, 3}, "True EvidenceCollapsed: no pods are listed, and addresses of theirs are allocated"},
		"few pods, and as few again":     {ofPod, []int{500, 9, 9}, []int{3, 3, 3}, plausible},
		"few pods, and fewer after that": {ofPod, []int{500, 9, 4}, []int{3, 3, 3}, "True EvidenceCollapsed: 4 pods are listed, and there were 9"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := sit(t, interceptor.Funcs{})
			tt.recorded(d)
			for i := range tt.pods {
				d.seen.Pods, d.seen.Nodes = crowd(tt.pods[i]), fleet(tt.nodes[i])
				d.audits()
			}
			if diff := cmp.Diff(tt.want, d.conditions()["Stopped"]); diff != "" {
				t.Errorf("Stopped (-want +got):\n%s", diff)
			}
		})
	}
}

// TestWhileEvidenceIsCollapsedNothingHappens is L14: an orphan is due, and pods that live are not in the list.
func TestWhileEvidenceIsCollapsedNothingHappens(t *testing.T) {
	d := sit(t, interceptor.Funcs{})
	d.lend("live", "n1", 1)
	d.lend("gone", "n1", 2)
	d.lend("ended", "n1", 3)
	all := append(crowd(20), running("live", "n1", 1))
	d.seen.Pods = all
	d.recorded = d.recorded[:2]
	d.audits()
	d.lend("ended", "n1", 3)
	before := d.report().Candidates

	d.seen.Pods = []ipam.Pod{ended("ended")}
	for range 2 {
		d.seen.Pods = d.seen.Pods[:len(d.seen.Pods)-1] // Less, and then nothing.
		d.pass(5 * time.Minute)
		if wait := d.audits(); wait != 5*time.Minute {
			t.Errorf("the next run is in %s", wait)
		}
		d.seen.Pods = append(d.seen.Pods, ended("ended"))
	}
	if diff := cmp.Diff([]string{"live-eth0", "gone-eth0", "ended-eth0"}, d.left()); diff != "" {
		t.Errorf("handles that are left (-want +got):\n%s", diff)
	}
	told := []string{"Warning AuditStopped on LeakReport native (): no pods are listed, and there were 21: nothing is released until a list is plausible again"}
	if diff := cmp.Diff(told, d.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]float64{"oakum_audit_stopped native": 1}, d.values("oakum_audit_stopped")); diff != "" {
		t.Errorf("metric (-want +got):\n%s", diff)
	}
	// What was suspected stays so, and is promised for no time; what lives is no candidate.
	for i := range before {
		before[i].ReleaseAfter.Reset()
	}
	if diff := cmp.Diff(before, d.report().Candidates); diff != "" {
		t.Errorf("candidates (-want +got):\n%s", diff)
	}

	// The ledger is as it was: the orphan's wait went on.
	d.seen.Pods = slices.Concat(all, []ipam.Pod{ended("ended")})
	d.audits()
	if diff := cmp.Diff([]string{"live-eth0"}, d.left()); diff != "" {
		t.Errorf("handles that are left when the list is plausible again (-want +got):\n%s", diff)
	}
	if got := d.conditions()["Stopped"]; got != plausible {
		t.Errorf("Stopped is %q", got)
	}
	if diff := cmp.Diff(map[string]float64{"oakum_audit_stopped native": 0}, d.values("oakum_audit_stopped")); diff != "" {
		t.Errorf("metric (-want +got):\n%s", diff)
	}
}

func TestPace(t *testing.T) {
	tests := map[string]struct {
		pace          config.Pace
		orphans, live int
		proven        int
		// left is how many orphans are left after each run that may release.
		left []int
		want string
	}{
		"the minimum, where the fraction is less": {
			pace: config.Pace{Minimum: 3, Fraction: 0.1}, orphans: 8, live: 2,
			left: []int{5, 2, 0, 0}, want: "True MoreThanOneRun: 5 releases wait for the next runs",
		},
		"the fraction of all hand-outs, where that is more": {
			pace: config.Pace{Minimum: 1, Fraction: 0.5}, orphans: 8, live: 2,
			left: []int{3, 1, 0, 0}, want: "True MoreThanOneRun: 3 releases wait for the next runs",
		},
		"proof beside it, however much": {
			pace: config.Pace{Minimum: 2}, orphans: 3, proven: 20,
			left: []int{1, 0}, want: "True MoreThanOneRun: 1 releases wait for the next runs",
		},
		"all at once, where it suffices": {
			pace: config.Pace{Minimum: 50, Fraction: 0.1}, orphans: 50,
			left: []int{0, 0}, want: "False NothingWaits: all is well",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := sit(t, interceptor.Funcs{})
			d.Settings.Pace = tt.pace
			for i := range tt.live {
				d.lend(fmt.Sprintf("live-%d", i), "n1", 500+i)
				d.seen.Pods = append(d.seen.Pods, running(fmt.Sprintf("live-%d", i), "n1", 500+i))
			}
			// Suspected in a clear order: each run finds one more, the last recorded first.
			var order []string
			for i := range tt.orphans {
				d.lend(fmt.Sprintf("gone-%d", i), "n1", i)
				order = append(order, fmt.Sprintf("gone-%d-eth0", i))
				slices.Reverse(d.recorded)
				d.audits()
				slices.Reverse(d.recorded)
				d.pass(time.Second)
			}
			d.pass(5 * time.Minute)
			for i := range tt.proven {
				d.lend(fmt.Sprintf("ended-%d", i), "n1", 300+i)
				d.seen.Pods = append(d.seen.Pods, ended(fmt.Sprintf("ended-%d", i)))
			}
			var left []int
			for i := range tt.left {
				wait := d.audits()
				rest := d.left()[tt.live:]
				left = append(left, len(rest))
				if diff := cmp.Diff(order[len(order)-len(rest):], rest); len(rest) > 0 && diff != "" {
					t.Errorf("what is left is not the youngest (-want +got):\n%s", diff)
				}
				if wait != 5*time.Minute {
					t.Errorf("the next run is in %s", wait)
				}
				if got := d.conditions()["Pacing"]; i == 0 && got != tt.want {
					t.Errorf("Pacing is %q, want %q", got, tt.want)
				}
				d.pass(wait)
			}
			if diff := cmp.Diff(tt.left, left); diff != "" {
				t.Errorf("orphans that are left (-want +got):\n%s", diff)
			}
			if got := d.conditions()["Pacing"]; got != "False NothingWaits: all is well" {
				t.Errorf("in the end Pacing is %q", got)
			}
		})
	}
}
