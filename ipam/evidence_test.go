package ipam

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Every pod in every state, on a node in every state.
func TestEndOfEveryPod(t *testing.T) {
	for name, p := range everyPod() {
		for node, n := range everyNode() {
			t.Run(name+" on a node that is "+node, func(t *testing.T) {
				n.observed.Pods, n.observed.PodsKnown = []Pod{p}, true
				got := NewWorld(n.observed).End(p)
				if diff := cmp.Diff(wantEnd(t, p, n.unproven), got); diff != "" {
					t.Errorf("verdict (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// wantEnd is the law of a pod's end, told as a table in which each pod must have exactly one row. A column that is
// empty fits everything.
func wantEnd(t *testing.T, p Pod, unproven Verdict) Verdict {
	t.Helper()
	alive := Verdict{Disposition: Keep, Reason: InUse, Evidence: "E11", Detail: "Pod default/web-0 (uid u1) is alive"}
	proven := Verdict{
		Disposition: Free, Reason: EndReported, Evidence: "E2",
		Detail: "the kubelet reported the end of Pod default/web-0 (uid u1): " + string(p.Phase) + ", every container terminated, sandbox down",
	}
	table := []struct {
		deleted, phase, containers, sandbox, disrupted string
		want                                           Verdict
	}{
		{deleted: "no", phase: "Pending Running Unknown", want: alive},
		{phase: "Succeeded Failed", containers: "terminated", sandbox: "False", disrupted: "no", want: proven},

		// It is going, and its node has not told.
		{deleted: "yes", phase: "Pending Running Unknown", want: unproven},
		// E9: a phase that claims an end which something else contradicts.
		{phase: "Succeeded Failed", containers: "running", want: unproven},
		{phase: "Succeeded Failed", containers: "terminated", sandbox: "absent True", want: unproven},
		{phase: "Succeeded Failed", containers: "terminated", sandbox: "False", disrupted: "yes", want: unproven},
	}
	fits := func(column, value string) bool { return column == "" || strings.Contains(column, value) }
	var found []Verdict
	for _, row := range table {
		if fits(row.deleted, word(p.Deleted.IsZero(), "no", "yes")) &&
			fits(row.phase, string(p.Phase)) &&
			fits(row.containers, word(p.ContainersTerminated, "terminated", "running")) &&
			fits(row.sandbox, word(p.Sandbox == "", "absent", string(p.Sandbox))) &&
			fits(row.disrupted, word(p.Disrupted, "yes", "no")) {
			found = append(found, row.want)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d rows of the table are about this pod", len(found))
	}
	return found[0]
}

func everyPod() map[string]Pod {
	pods := make(map[string]Pod)
	for _, deleted := range []time.Time{{}, at("11:00:00")} {
		for _, phase := range []Phase{"Pending", "Running", "Succeeded", "Failed", "Unknown"} {
			for _, terminated := range []bool{false, true} {
				for _, sandbox := range []Condition{"", ConditionTrue, ConditionFalse} {
					for _, disrupted := range []bool{false, true} {
						name := fmt.Sprintf("a %s %s pod with containers %s and sandbox %s, %s",
							word(deleted.IsZero(), "wanted", "deleted"), phase, word(terminated, "terminated", "running"),
							word(sandbox == "", "absent", string(sandbox)), word(disrupted, "disrupted", "undisturbed"))
						pods[name] = Pod{
							Namespace: "default", Name: "web-0", UID: "u1", Node: "n1",
							Deleted: deleted, Phase: phase, ContainersTerminated: terminated, Sandbox: sandbox, Disrupted: disrupted,
						}
					}
				}
			}
		}
	}
	return pods
}

type nodeCase struct {
	observed Observation
	// unproven is the verdict on a pod of that node whose end nobody reported.
	unproven Verdict
}

func everyNode() map[string]nodeCase {
	node := func(n Node) Observation {
		n.Name = "n1"
		return Observation{Nodes: []Node{n}, NodesKnown: true, NodeDeletionMeansFenced: true}
	}
	gone := func(fences bool, gone time.Duration) Observation {
		return Observation{NodesKnown: true, NodeDeletionMeansFenced: fences, NodesGoneFor: map[string]time.Duration{"n1": gone}}
	}
	ending := Verdict{
		Disposition: Keep, Reason: Ending, Evidence: "E7",
		Detail: `Pod default/web-0 (uid u1) is going, and the kubelet of node "n1" has not reported its end`,
	}
	notReady := Verdict{
		Disposition: Keep, Reason: NodeNotReady, Evidence: "E8",
		Detail: `Pod default/web-0 (uid u1) is going, and node "n1" is not ready: the sandbox may still run`,
	}
	unknown := Verdict{
		Disposition: Keep, Reason: NodeUnknown, Evidence: "E8",
		Detail: `Pod default/web-0 (uid u1) is going, and nothing is known about node "n1"`,
	}
	off := Verdict{
		Disposition: Free, Reason: NodeOutOfService, Evidence: "E4",
		Detail: `node "n1" is not ready and has the taint node.kubernetes.io/out-of-service`,
	}
	missing := Verdict{
		Disposition: Quarantine, Reason: NodeGone, Evidence: "E6",
		Detail: `node "n1" is gone, and nobody says that the machine is off`,
	}
	fencing := func(gone string) Verdict {
		return Verdict{
			Disposition: Keep, Reason: NodeFencing, Evidence: "E5",
			Detail: `node "n1" has been gone for ` + gone + `, and after 40s that means that the machine is off`,
		}
	}
	fenced := Verdict{
		Disposition: Free, Reason: NodeFenced, Evidence: "E5",
		Detail: `node "n1" has been gone for 40s, and its deletion means that the machine is off`,
	}
	return map[string]nodeCase{
		"ready":                                  {node(Node{Ready: ConditionTrue}), ending},
		"ready in spite of the taint":            {node(Node{Ready: ConditionTrue, OutOfService: true}), ending},
		"ready and being deleted":                {node(Node{Ready: ConditionTrue, Terminating: true}), ending},
		"not ready":                              {node(Node{Ready: ConditionFalse}), notReady},
		"lost":                                   {node(Node{Ready: ConditionUnknown}), notReady},
		"not ready and being deleted":            {node(Node{Ready: ConditionFalse, Terminating: true}), notReady},
		"not ready and tainted":                  {node(Node{Ready: ConditionFalse, OutOfService: true}), off},
		"lost and tainted":                       {node(Node{Ready: ConditionUnknown, OutOfService: true}), off},
		"silent":                                 {node(Node{}), unknown},
		"silent and tainted":                     {node(Node{OutOfService: true}), unknown},
		"gone":                                   {gone(false, time.Hour), missing},
		"gone and fenced, not long enough":       {gone(true, 40*time.Second-1), fencing("39s")},
		"gone and fenced, nobody knows how long": {Observation{NodesKnown: true, NodeDeletionMeansFenced: true}, fencing("0s")},
		"gone and fenced long enough":            {gone(true, 40*time.Second), fenced},
		"unknown":                                {Observation{}, unknown},
		"unknown, whatever is said of its end": {Observation{
			NodeDeletionMeansFenced: true,
			NodesGoneFor:            map[string]time.Duration{"n1": time.Hour},
		}, unknown},
	}
}

func word(yes bool, then, otherwise string) string {
	if yes {
		return then
	}
	return otherwise
}
