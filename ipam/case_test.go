package ipam

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What happened to people, told for each kind of record that it can happen to.
func TestJudgeCases(t *testing.T) {
	pod := func(d Disposition, r Reason, evidence, detail string) Verdict {
		return Verdict{Disposition: d, Reason: r, Evidence: evidence, Detail: "Pod default/web-0" + detail}
	}
	drift := func(v Verdict) Verdict { v.Drift = true; return v }
	lives := func(uid string) Verdict { return pod(Keep, InUse, "E11", uid+" is alive") }
	untold := func(uid string) Verdict {
		return Verdict{Disposition: Keep, Reason: OwnerUnknown, Detail: "nobody here can tell about Pod default/web-0" + uid}
	}
	machine := Verdict{Keep, InUse, "E11", "10.0.0.7 is in use by VirtualMachine default/db (uid v1)", true}
	maybe := pod(Keep, Starting, "E13", " is starting, and the record may be its own")
	ending := pod(Keep, Ending, "E7", ` (uid u1) is going, and the kubelet of node "n1" has not reported its end`)
	reported := Verdict{
		Disposition: Free, Reason: EndReported, Evidence: "E2",
		Detail: "the kubelet reported the end of Pod default/web-0 (uid u1): Failed, every container terminated, sandbox down",
	}
	off := Verdict{
		Disposition: Free, Reason: NodeOutOfService, Evidence: "E4",
		Detail: `node "n1" is not ready and has the taint node.kubernetes.io/out-of-service`,
	}
	vanished := Verdict{
		Disposition: Quarantine, Reason: NodeGone, Evidence: "E6", Detail: `node "n1" is gone, and nobody says that the machine is off`,
	}
	vanishedTunnel := Verdict{Disposition: Quarantine, Reason: NodeGone, Evidence: "E6", Detail: "Node n1 is gone"}
	orphan := pod(Orphan, OwnerGone, "E10", " does not exist")
	elsewhere := ", and every node that it can have been on is ready"
	orphanAnywhere := pod(Orphan, OwnerGone, "E10", " does not exist"+elsewhere)
	sandboxed := func(old string) Verdict {
		return pod(Orphan, OwnerReplaced, "E12", " has sandbox c2 now, not "+old)
	}
	older := pod(Orphan, OwnerReplaced, "E12", " was replaced: the pod of that name has other addresses"+elsewhere)
	successorNamed := " was replaced: the pod of that name (uid u1) was created when the record was there already"
	earlier := pod(Orphan, OwnerReplaced, "E13", successorNamed)
	earlierAnywhere := pod(Orphan, OwnerReplaced, "E13", successorNamed+elsewhere)

	nobody := seen(nodes(ready("n1")))
	live := seen(nodes(ready("n1")), web())
	both := seen(nodes(ready("n1")), web(naming("10.0.0.7", "fd00::7")))
	moved := seen(nodes(ready("n1"), ready("n2")), web(on("n2")))
	newer := seen(nodes(ready("n1")), web(naming("10.0.0.8"), renewed))
	newerUntold := seen(nodes(ready("n1")), web(naming("10.0.0.8")))
	starting := seen(nodes(ready("n1")), web(pending, naming(), unreadable))
	migrated := seen(nodes(ready("n1")))
	migrated.Others = map[OwnerKind]map[Name]Presence{
		OwnerVirtualMachine: {Name{"default", "db"}: {UID: "v1", Addresses: addrs("10.0.0.7")}},
	}
	forced := seen(nodes(ready("n1")), web(deleted))
	successor := seen(nodes(ready("n1")), web(deleted, naming("10.0.0.8"), renewed, func(p *Pod) { p.UID = "u2" }))
	successorUntold := seen(nodes(ready("n1")), web(deleted, naming("10.0.0.8")))
	evicted := seen(nodes(ready("n1")), web(ended, func(p *Pod) { p.Phase = PhaseFailed }))
	lingering := seen(nodes(ready("n1")), web(ended, func(p *Pod) { p.Sandbox = ConditionTrue }))
	dead := seen(nodes(Node{Name: "n1", Ready: ConditionUnknown, OutOfService: true}), web(deleted))
	leaving := seen(nodes(Node{Name: "n1", UID: "n1-uid", Ready: ConditionUnknown, Terminating: true}), web())

	vm := native()
	vm.Owner = Owner{Kind: OwnerVirtualMachine, Namespace: "default", Name: "db", UID: "v1"}

	tests := map[string]struct {
		record   Allocation
		observed Observation
		want     Verdict
	}{
		"L01 native: a pod with two addresses keeps both":                {handout(native(), "10.0.0.7", "fd00::7"), both, lives(" (uid u1)")},
		"L01 calico: a pod with two addresses keeps both":                {handout(calico(), "10.0.0.7", "fd00::7"), both, lives("")},
		"L01 calico: a pod of which one address is known keeps both":     {handout(calico(), "fd00::7", "10.0.0.7"), live, lives("")},
		"L01 whereabouts: a pod with a second address keeps that":        {handout(whereabouts(), "fd00::7"), both, lives("")},
		"L02 native: a pod on another node than recorded stays":          {native(), moved, drift(lives(" (uid u1)"))},
		"L02 calico: a pod on another node than recorded stays":          {calico(), moved, drift(lives(""))},
		"L03 calico: a pod's node may have another name in the record":   {onNode(calico(), "worker-1"), live, drift(lives(""))},
		"L05 calico: the older sandbox's entry goes":                     {calico(), newer, sandboxed("c1")},
		"L05 calico: the newer sandbox's entry stays":                    {inSandbox(handout(calico(), "10.0.0.8"), "c2"), newer, lives("")},
		"L05 whereabouts: the older sandbox's entry goes":                {whereabouts(), settled(newerUntold), older},
		"L05 whereabouts: the newer sandbox's entry stays":               {inSandbox(whereabouts(), "c2"), live, lives("")},
		"L07 native: a pod that just started has its address":            {since(native(), "10:00:05"), starting, pod(Keep, Starting, "E13", " (uid u1) is starting")},
		"L07 calico: a pod that just started has its address":            {since(calico(), "10:00:05"), starting, maybe},
		"L07 whereabouts: a pod that just started has its address":       {since(whereabouts(), "10:00:05"), starting, maybe},
		"L07 whereabouts: so has one that has been starting for 2 hours": {since(whereabouts(), "12:00:00"), starting, maybe},
		"L11 native: what a virtual machine reports stays":               {native(), migrated, machine},
		"L11 calico: what a virtual machine reports stays":               {calico(), migrated, machine},
		"L11 whereabouts: what a virtual machine reports stays":          {whereabouts(), migrated, machine},
		"L14 native: a list that is not complete ends nothing":           {native(), Observation{}, untold(" (uid u1)")},
		"L14 calico: a list that is not complete ends nothing":           {calico(), Observation{}, untold("")},
		"L14 whereabouts: a list that is not complete ends nothing":      {whereabouts(), Observation{}, untold("")},
		"L16 a stopped virtual machine has its address":                  {vm, migrated, Verdict{Keep, InUse, "E11", "VirtualMachine default/db (uid v1) exists", false}},
		"L18 native: a forced deletion frees nothing":                    {native(), forced, ending},
		"L18 calico: a forced deletion frees nothing":                    {calico(), forced, ending},
		"L18 whereabouts: a forced deletion frees nothing":               {whereabouts(), forced, ending},
		"L19 calico: a pod whose annotation was blanked has its address": {calico(), live, lives("")},
		"L49 native: a dying successor does not hold what it never had":  {native(), successor, pod(Orphan, OwnerReplaced, "E12", " (uid u1) was replaced by uid u2")},
		"L49 calico: a dying successor does not hold what it never had":  {calico(), successor, sandboxed("c1")},
		"L49 calico: a dying successor holds its own": {
			inSandbox(handout(calico(), "10.0.0.8"), "c2"),
			successor,
			pod(Keep, Ending, "E7", ` (uid u2) is going, and the kubelet of node "n1" has not reported its end`),
		},
		"L49 whereabouts: a dying successor holds what may be its own": {whereabouts(), successorUntold, ending},
		"L49 whereabouts: a dying successor does not hold what was there before it": {
			after("u0", whereabouts()), settled(successorUntold), earlierAnywhere,
		},

		"G20 native: a predecessor's entry goes while the pod starts": {
			withUID(native(), "u0"), starting, pod(Orphan, OwnerReplaced, "E12", " (uid u0) was replaced by uid u1"),
		},
		"G20 calico: a predecessor's entry goes while the pod starts":      {after("", calico()), starting, earlier},
		"G20 whereabouts: a predecessor's entry goes while the pod starts": {after("u0", whereabouts()), settled(starting), earlierAnywhere},
		"G21 whereabouts: a reservation without an entry is completed while its pod lives": {
			lacking(whereabouts()), live,
			pod(Repair, RecordIncomplete, "E11", " is alive, but its record lacks a part: no entry"),
		},
		"G22 native: a pod that went unseen leaves an orphan":              {native(), nobody, pod(Orphan, OwnerGone, "E10", " (uid u1) does not exist")},
		"G22 calico: a pod that went unseen leaves an orphan":              {calico(), nobody, orphan},
		"G22 whereabouts: a pod that went unseen leaves an orphan":         {whereabouts(), settled(nobody), orphanAnywhere},
		"G23 whereabouts: half of a pair goes by itself":                   {handout(whereabouts(), "fd00::7"), settled(nobody), orphanAnywhere},
		"G24 native: a pod goes with its node":                             {native(), seen(nil), vanished},
		"G24 calico: a pod goes with its node":                             {calico(), seen(nil), vanished},
		"G24 calico: a tunnel's address goes with its node":                {withUID(tunnel(), ""), seen(nil), vanishedTunnel},
		"G25 calico: a tunnel's address goes although others stay":         {withUID(tunnel(), ""), seen(nodes(ready("n2"))), vanishedTunnel},
		"G27 native: an evicted pod's address goes with its sandbox":       {native(), evicted, reported},
		"G27 calico: an evicted pod's address goes with its sandbox":       {calico(), evicted, reported},
		"G27 whereabouts: an evicted pod's address goes with its sandbox":  {whereabouts(), evicted, reported},
		"G27 native: a pod that succeeded in a running sandbox stays":      {native(), lingering, ending},
		"G27 calico: a pod that succeeded in a running sandbox stays":      {calico(), lingering, ending},
		"G27 whereabouts: a pod that succeeded in a running sandbox stays": {whereabouts(), lingering, ending},
		"G29 calico: half of a failed pair goes":                           {handout(calico(), "10.0.0.6"), newer, sandboxed("c1")},
		"G29 whereabouts: half of a failed pair goes":                      {handout(whereabouts(), "10.0.0.6"), settled(live), older},
		"G32 calico: a sandbox that no pod mentions goes":                  {inSandbox(handout(calico(), "10.0.0.6"), "c0"), newer, sandboxed("c0")},
		"G32 whereabouts: a sandbox that no pod mentions goes":             {inSandbox(handout(whereabouts(), "10.0.0.6"), "c0"), settled(live), older},

		"B43 native: the taint frees a dead node's pod":                  {native(), dead, off},
		"B43 calico: the taint frees a dead node's pod":                  {calico(), dead, off},
		"B43 whereabouts: the taint frees a dead node's pod":             {whereabouts(), dead, off},
		"B44 native: a pod that is being deleted has its address so far": {native(), forced, ending},
		"B44 native: a pod on a node that is being deleted stays":        {native(), leaving, lives(" (uid u1)")},
		"B44 native: a node that is being deleted has its address":       {tunnel(), leaving, Verdict{Keep, InUse, "E11", "Node n1 (uid n1-uid) exists", false}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, Judge(tt.record, NewWorld(tt.observed))); diff != "" {
				t.Errorf("verdict (-want +got):\n%s", diff)
			}
		})
	}
}

func onNode(a Allocation, node string) Allocation {
	a.Owner.Node = node
	return a
}

func inSandbox(a Allocation, id string) Allocation {
	a.Owner.ContainerID = id
	return a
}

func withUID(a Allocation, uid string) Allocation {
	a.Owner.UID = uid
	return a
}
