package ipam

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The table of evidence, row by row. E3 is a hand-out that is no longer recorded: there is nothing to judge.
func TestJudge(t *testing.T) {
	tests := map[string]struct {
		record   Allocation
		observed Observation
		want     Verdict
	}{
		"E0 what is recorded for a pod in its node's network is kept until the pod is gone": {
			record:   native(),
			observed: seen(nodes(ready("n1")), web(ended, hostNetwork)),
			want:     Verdict{Keep, NoAddress, "E0", "Pod default/web-0 (uid u1) has no address of its own", false},
		},
		"E0 a mirror pod's end is not the kubelet's report": {
			record:   native(),
			observed: seen(nodes(ready("n1")), web(ended, func(p *Pod) { p.Mirror = true })),
			want:     Verdict{Keep, NoAddress, "E0", "Pod default/web-0 (uid u1) has no address of its own", false},
		},
		"E0 what an ended pod in its node's network names is its node's to keep": {
			record:   native(),
			observed: seen(nodes(ready("n1")), web(ended, hostNetwork, func(p *Pod) { p.Name = "db-0" })),
			want:     Verdict{Orphan, OwnerGone, "E10", "Pod default/web-0 (uid u1) does not exist", false},
		},
		"E1 what is recorded for a pod that was never scheduled is kept until the pod is gone": {
			record:   native(),
			observed: seen(nodes(ready("n1")), web(pending, deleted, on(""))),
			want:     Verdict{Keep, NodeUnknown, "E8", `Pod default/web-0 (uid u1) is going, and nothing is known about node ""`, false},
		},
		"E2 the kubelet's report of an end is proof": {
			record:   native(),
			observed: seen(nodes(ready("n1")), web(deleted, ended)),
			want: Verdict{
				Free, EndReported, "E2",
				"the kubelet reported the end of Pod default/web-0 (uid u1): Succeeded, every container terminated, sandbox down", false,
			},
		},
		"E2 a finished Job's pod that nobody deletes has ended too": {
			record:   native(),
			observed: seen(nodes(lost()), web(ended)),
			want: Verdict{
				Free, EndReported, "E2",
				"the kubelet reported the end of Pod default/web-0 (uid u1): Succeeded, every container terminated, sandbox down", false,
			},
		},
		"E2 the end is proof for a record without UID that the pod names": {
			record:   whereabouts(),
			observed: seen(nodes(ready("n1")), web(ended)),
			want: Verdict{
				Free, EndReported, "E2",
				"the kubelet reported the end of Pod default/web-0 (uid u1): Succeeded, every container terminated, sandbox down", false,
			},
		},
		"E4 an administrator's word that the machine is off is proof": {
			record:   native(),
			observed: seen(nodes(Node{Name: "n1", Ready: ConditionUnknown, OutOfService: true}), web(deleted)),
			want:     Verdict{Free, NodeOutOfService, "E4", `node "n1" is not ready and has the taint node.kubernetes.io/out-of-service`, false},
		},
		"E4 it is proof for a pod that does not exist any more": {
			record:   native(),
			observed: seen(nodes(Node{Name: "n1", Ready: ConditionUnknown, OutOfService: true})),
			want:     Verdict{Free, NodeOutOfService, "E4", `node "n1" is not ready and has the taint node.kubernetes.io/out-of-service`, false},
		},
		"E5 a deleted node is proof where that means that the machine is off": {
			record:   native(),
			observed: fenced(seen(nil, web(deleted)), "n1", 41500*time.Millisecond),
			want:     Verdict{Free, NodeFenced, "E5", `node "n1" has been gone for 41s, and its deletion means that the machine is off`, false},
		},
		"E5 it is proof for the node's own address": {
			record:   tunnel(),
			observed: fenced(seen(nil), "n1", time.Minute),
			want:     Verdict{Free, NodeFenced, "E5", "Node n1 (uid n1-uid) has been gone for 1m0s, and its deletion means that the machine is off", false},
		},
		"E6 a deleted node puts its pods' addresses into quarantine": {
			record:   native(),
			observed: seen(nil, web(deleted)),
			want:     Verdict{Quarantine, NodeGone, "E6", `node "n1" is gone, and nobody says that the machine is off`, false},
		},
		"E6 a deleted node puts its own address into quarantine": {
			record:   tunnel(),
			observed: seen(nil),
			want:     Verdict{Quarantine, NodeGone, "E6", "Node n1 (uid n1-uid) is gone", false},
		},
		"E6 a node of the same name inherits nothing": {
			record:   tunnel(),
			observed: seen(nodes(Node{Name: "n1", UID: "new", Ready: ConditionTrue})),
			want:     Verdict{Quarantine, NodeReplaced, "E6", "Node n1 (uid n1-uid) is gone: that name is uid new now", false},
		},
		"E6 a node of the same name knows nothing of pods before its time": {
			record:   since(native(), "11:00:00"),
			observed: seen(nodes(Node{Name: "n1", Created: at("11:01:01"), Ready: ConditionTrue})),
			want: Verdict{
				Quarantine, NodeReplaced, "E6",
				`Pod default/web-0 (uid u1) does not exist, and node "n1" was replaced after that`, false,
			},
		},
		"E6 nor does one that was new when the record was first seen": {
			record:   since(native(), "11:00:00"),
			observed: seen(nodes(Node{Name: "n1", Created: at("09:00:01"), Ready: ConditionTrue})),
			want: Verdict{
				Quarantine, NodeReplaced, "E6",
				`Pod default/web-0 (uid u1) does not exist, and node "n1" is so new that another machine may have borne its name`, false,
			},
		},
		"E10 one that was not new then does": {
			record:   since(native(), "11:00:00"),
			observed: seen(nodes(Node{Name: "n1", Created: at("09:00:00"), Ready: ConditionTrue})),
			want:     Verdict{Orphan, OwnerGone, "E10", "Pod default/web-0 (uid u1) does not exist", false},
		},
		"E6 a record without a node is in quarantine, since its node may be gone": {
			record:   whereabouts(),
			observed: seen(nodes(ready("n1"), Node{Name: "n2", Ready: ConditionUnknown, OutOfService: true})),
			want: Verdict{
				Quarantine, OwnerGone, "E10",
				"Pod default/web-0 does not exist, the record does not tell its node, and that may be gone", false,
			},
		},
		"E10 it is an orphan once no node has gone for long": {
			record:   whereabouts(),
			observed: settled(seen(nodes(ready("n1")))),
			want: Verdict{
				Orphan, OwnerGone, "E10", "Pod default/web-0 does not exist, and every node that it can have been on is ready", false,
			},
		},
		"E10b a record without a node is kept while any node cannot be asked": {
			record:   whereabouts(),
			observed: settled(seen(nodes(ready("n0"), Node{Name: "n2", Ready: ConditionUnknown}, Node{Name: "n1"}))),
			want: Verdict{
				Keep, NodeNotReady, "E10b",
				`Pod default/web-0 does not exist, the record does not tell its node, and node "n1" is not ready: the sandbox may still run there`, false,
			},
		},
		"E10 a node that has not been ready yet runs nothing": {
			record:   whereabouts(),
			observed: settled(seen(nodes(ready("n1"), Node{Name: "n2", Ready: ConditionFalse, Joining: true}))),
			want: Verdict{
				Orphan, OwnerGone, "E10", "Pod default/web-0 does not exist, and every node that it can have been on is ready", false,
			},
		},
		"E7 a deleted pod on a ready node holds until the kubelet reports": {
			record:   native(),
			observed: seen(nodes(ready("n1")), web(deleted)),
			want: Verdict{
				Keep, Ending, "E7",
				`Pod default/web-0 (uid u1) is going, and the kubelet of node "n1" has not reported its end`, false,
			},
		},
		"E8 a deleted pod on a node that is not ready holds": {
			record:   native(),
			observed: seen(nodes(lost()), web(deleted)),
			want: Verdict{
				Keep, NodeNotReady, "E8",
				`Pod default/web-0 (uid u1) is going, and node "n1" is not ready: the sandbox may still run`, false,
			},
		},
		"E9 an end that PodGC wrote is none": {
			record:   native(),
			observed: seen(nodes(lost()), web(ended, func(p *Pod) { p.Phase, p.Disrupted = PhaseFailed, true })),
			want: Verdict{
				Keep, NodeNotReady, "E8",
				`Pod default/web-0 (uid u1) is going, and node "n1" is not ready: the sandbox may still run`, false,
			},
		},
		"E10 a pod that is gone from a ready node leaves an orphan": {
			record:   native(),
			observed: seen(nodes(ready("n1"))),
			want:     Verdict{Orphan, OwnerGone, "E10", "Pod default/web-0 (uid u1) does not exist", false},
		},
		"E10b a pod that is gone from a node that is not ready may still run": {
			record:   calico(),
			observed: seen(nodes(lost())),
			want:     Verdict{Keep, NodeNotReady, "E10b", `Pod default/web-0 does not exist, and node "n1" is not ready: the sandbox may still run`, false},
		},
		"E10b a pod that is gone from a node that says nothing may still run": {
			record:   native(),
			observed: seen(nodes(Node{Name: "n1"})),
			want:     Verdict{Keep, NodeUnknown, "E10b", `Pod default/web-0 (uid u1) does not exist, and nothing is known about node "n1"`, false},
		},
		"E11 a pod that is alive has its address": {
			record:   native(),
			observed: seen(nodes(ready("n1")), web()),
			want:     Verdict{Keep, InUse, "E11", "Pod default/web-0 (uid u1) is alive", false},
		},
		"E11 a pod is alive whatever became of its node": {
			record:   native(),
			observed: fenced(seen(nil, web()), "n1", time.Hour),
			want:     Verdict{Keep, InUse, "E11", "Pod default/web-0 (uid u1) is alive", false},
		},
		"E11 a pod on another node than recorded is drift": {
			record:   native(),
			observed: seen(nodes(ready("n1"), ready("n2")), web(on("n2"))),
			want:     Verdict{Keep, InUse, "E11", "Pod default/web-0 (uid u1) is alive", true},
		},
		"E11 another pod that names the address has it": {
			record:   native(),
			observed: seen(nodes(ready("n1")), web(func(p *Pod) { p.Name, p.UID = "db-0", "u2" })),
			want:     Verdict{Keep, InUse, "E11", "10.0.0.7 is in use by Pod default/db-0 (uid u2)", true},
		},
		"E11 a namesake that names the address has it": {
			record:   native(),
			observed: seen(nodes(ready("n1")), web(func(p *Pod) { p.UID = "u2" })),
			want:     Verdict{Keep, InUse, "E11", "10.0.0.7 is in use by Pod default/web-0 (uid u2)", true},
		},
		"E11 a node that names the address has it": {
			record:   native(),
			observed: seen(nodes(Node{Name: "n1", UID: "n1-uid", Ready: ConditionTrue, Addresses: addrs("10.0.0.7")})),
			want:     Verdict{Keep, InUse, "E11", "10.0.0.7 is in use by Node n1 (uid n1-uid)", true},
		},
		"E11 a record that tells no owner keeps what somebody names": {
			record:   Allocation{Places: native().Places},
			observed: seen(nodes(ready("n1")), web()),
			want:     Verdict{Keep, InUse, "E11", "10.0.0.7 is in use by Pod default/web-0 (uid u1)", true},
		},
		"E11 a node that exists has its address, whatever its state": {
			record:   tunnel(),
			observed: seen(nodes(Node{Name: "n1", UID: "n1-uid", Ready: ConditionUnknown, OutOfService: true, Terminating: true})),
			want:     Verdict{Keep, InUse, "E11", "Node n1 (uid n1-uid) exists", false},
		},
		"E11 a pod that is going and names the address keeps it from its recorded owner": {
			record:   native(),
			observed: seen(nodes(ready("n1"), ready("n2")), web(deleted, on("n2"), func(p *Pod) { p.Name, p.UID = "db-0", "u2" })),
			want: Verdict{
				Keep, Ending, "E7",
				`Pod default/db-0 (uid u2) is going, and the kubelet of node "n2" has not reported its end`, true,
			},
		},
		"E11 an ended pod that names the address of a gone pod adds nothing": {
			record:   native(),
			observed: seen(nodes(ready("n1")), web(ended, func(p *Pod) { p.Name, p.UID = "db-0", "u2" })),
			want:     Verdict{Orphan, OwnerGone, "E10", "Pod default/web-0 (uid u1) does not exist", false},
		},
		"E11 a pod on a vanished node that names the address of a gone pod lengthens the wait": {
			record:   native(),
			observed: seen(nodes(ready("n1")), web(deleted, on("n2"), func(p *Pod) { p.Name, p.UID = "db-0", "u2" })),
			want:     Verdict{Quarantine, NodeGone, "E6", `node "n2" is gone, and nobody says that the machine is off`, false},
		},
		"E12 a namesake with another UID and other addresses leaves an orphan": {
			record:   native(),
			observed: seen(nodes(ready("n1")), web(naming("10.0.0.8"), func(p *Pod) { p.UID = "u2" })),
			want:     Verdict{Orphan, OwnerReplaced, "E12", "Pod default/web-0 (uid u1) was replaced by uid u2", false},
		},
		"E12 a namesake elsewhere does not stop what runs on a node that is not ready": {
			record:   native(),
			observed: seen(nodes(lost(), ready("n2")), web(naming("10.0.0.8"), on("n2"), func(p *Pod) { p.UID = "u2" })),
			want: Verdict{
				Keep, NodeNotReady, "E10b",
				`Pod default/web-0 (uid u1) was replaced by uid u2, and node "n1" is not ready: the sandbox may still run`, false,
			},
		},
		"E12 a pod with another sandbox and other addresses leaves an orphan": {
			record:   calico(),
			observed: seen(nodes(ready("n1")), web(naming("10.0.0.8"), renewed)),
			want:     Verdict{Orphan, OwnerReplaced, "E12", "Pod default/web-0 has sandbox c2 now, not c1", false},
		},
		"E12 a pod with its recorded UID and another sandbox is not called another pod": {
			record:   inSandbox(native(), "c1"),
			observed: seen(nodes(ready("n1")), web(naming("10.0.0.8"), renewed)),
			want:     Verdict{Orphan, OwnerReplaced, "E12", "Pod default/web-0 (uid u1) has sandbox c2 now, not c1", false},
		},
		"E12 a pod with other addresses leaves an orphan of a record without UID": {
			record:   calico(),
			observed: seen(nodes(ready("n1")), web(naming("10.0.0.8"))),
			want:     Verdict{Orphan, OwnerReplaced, "E12", "Pod default/web-0 was replaced: the pod of that name has other addresses", false},
		},
		"E12 a pod with other addresses leaves an orphan of a record that tells its name alone": {
			record:   inSandbox(calico(), ""),
			observed: seen(nodes(ready("n1")), web(naming("10.0.0.8"))),
			want:     Verdict{Orphan, OwnerReplaced, "E12", "Pod default/web-0 was replaced: the pod of that name has other addresses", false},
		},
		"E12 an ended pod with other addresses leaves an orphan of a record without UID": {
			record:   calico(),
			observed: seen(nodes(ready("n1")), web(ended, naming("10.0.0.8"))),
			want: Verdict{
				Orphan, OwnerReplaced, "E12",
				"Pod default/web-0 was replaced: the pod of that name has ended and had other addresses", false,
			},
		},
		"E12 a pod whose addresses cannot be read may have any": {
			record:   whereabouts(),
			observed: seen(nodes(ready("n1")), web(naming(), unreadable)),
			want: Verdict{
				Keep, EvidenceUnreadable, "E11",
				"Pod default/web-0 exists, and what it says about its addresses cannot be read", false,
			},
		},
		"E13 a pod that does not run yet has its address": {
			record:   native(),
			observed: seen(nodes(ready("n1")), web(pending, naming())),
			want:     Verdict{Keep, Starting, "E13", "Pod default/web-0 (uid u1) is starting", false},
		},
		"E13 a record without UID may be the starting pod's": {
			record:   since(whereabouts(), "10:00:05"),
			observed: seen(nodes(ready("n1")), web(pending, naming())),
			want:     Verdict{Keep, Starting, "E13", "Pod default/web-0 is starting, and the record may be its own", false},
		},
		"E13 a record that was there when the pod was looked for may be its own": {
			record:   after("u1", calico()),
			observed: seen(nodes(ready("n1")), web(pending, naming())),
			want:     Verdict{Keep, Starting, "E13", "Pod default/web-0 is starting, and the record may be its own", false},
		},
		"E13 a record that was there before the pod was created is its predecessor's": {
			record:   after("", calico()),
			observed: seen(nodes(ready("n1")), web(pending, naming(), unreadable)),
			want: Verdict{
				Orphan, OwnerReplaced, "E13",
				"Pod default/web-0 was replaced: the pod of that name (uid u1) was created when the record was there already", false,
			},
		},
		"E13 a pod that was not scheduled yet has no sandbox that a record could be of": {
			record:   whereabouts(),
			observed: settled(seen(nodes(ready("n1")), web(pending, naming(), on("")))),
			want: Verdict{
				Orphan, OwnerReplaced, "E13",
				"Pod default/web-0 was replaced: the pod of that name has no node yet, and every node that it can have been on is ready", false,
			},
		},
		"E13 nor has one that goes without having been": {
			record:   calico(),
			observed: seen(nodes(ready("n1")), web(pending, deleted, naming(), on(""))),
			want:     Verdict{Orphan, OwnerReplaced, "E13", "Pod default/web-0 was replaced: the pod of that name has no node yet", false},
		},
		"E13 it is the pod's all the same if the pod says so": {
			record:   after("u0", calico()),
			observed: seen(nodes(ready("n1")), web()),
			want:     Verdict{Keep, InUse, "E11", "Pod default/web-0 is alive", false},
		},
		"E13 a record before the pod on a node that is not ready may still be of a sandbox": {
			record:   after("u0", calico()),
			observed: seen(nodes(lost()), web(pending, naming())),
			want: Verdict{
				Keep, NodeNotReady, "E10b",
				"Pod default/web-0 was replaced: the pod of that name (uid u1) was created when the record was there already, and node \"n1\" is not ready: the sandbox may still run", false,
			},
		},
		"E12 an ended pod whose addresses cannot be read holds none": {
			record:   calico(),
			observed: seen(nodes(ready("n1")), web(ended, naming(), unreadable)),
			want: Verdict{
				Orphan, OwnerReplaced, "E12", "Pod default/web-0 was replaced: the pod of that name has ended and had other addresses", false,
			},
		},
		"a record that lacks a part is completed while its pod has the address": {
			record:   lacking(whereabouts()),
			observed: seen(nodes(ready("n1")), web()),
			want:     Verdict{Repair, RecordIncomplete, "E11", "Pod default/web-0 is alive, but its record lacks a part: no entry", false},
		},
		"a record that lacks a part is left alone while its pod starts": {
			record:   lacking(whereabouts()),
			observed: seen(nodes(ready("n1")), web(pending, naming())),
			want:     Verdict{Keep, Starting, "E13", "Pod default/web-0 is starting, and the record may be its own", false},
		},
		"a record that lacks a part is left alone while another pod has the address": {
			record:   lacking(whereabouts()),
			observed: seen(nodes(ready("n1")), web(func(p *Pod) { p.Name = "db-0" })),
			want:     Verdict{Keep, InUse, "E11", "10.0.0.7 is in use by Pod default/db-0 (uid u1)", true},
		},
		"E11 a node that names its tunnel's address has it": {
			record:   named(tunnel()),
			observed: seen(nodes(Node{Name: "n1", UID: "n1-uid", Addresses: addrs("10.0.0.9", "10.0.0.7")})),
			want:     Verdict{Keep, InUse, "E11", "Node n1 (uid n1-uid) names it as its own", false},
		},
		"E10 a tunnel's address that its node does not name any more is an orphan": {
			record:   named(tunnel()),
			observed: seen(nodes(Node{Name: "n1", UID: "n1-uid"})),
			want:     Verdict{Orphan, Unnamed, "E10", "Node n1 (uid n1-uid) exists, and does not name it as its own any more", false},
		},
		"an address of which nobody says whose it is may be the node's": {
			record:   guessed(tunnel()),
			observed: seen(nodes(Node{Name: "n1", UID: "n1-uid"})),
			want:     Verdict{Keep, OwnerUnknown, "", "nobody says whose it is, and it lies in a block of Node n1 (uid n1-uid), which may have it", false},
		},
		"E6 it is not once the node names others": {
			record:   guessed(tunnel()),
			observed: seen(nodes(Node{Name: "n1", UID: "n1-uid", Addresses: addrs("10.0.0.9")})),
			want: Verdict{
				Quarantine, Unnamed, "E6", "nobody says whose it is, and Node n1 (uid n1-uid), in whose block it lies, names other addresses", false,
			},
		},
		"E11 it is somebody's who names it": {
			record:   guessed(tunnel()),
			observed: seen(nodes(Node{Name: "n1", UID: "n1-uid", Addresses: addrs("10.0.0.9")}, ready("n2")), web(on("n2"))),
			want:     Verdict{Keep, InUse, "E11", "10.0.0.7 is in use by Pod default/web-0 (uid u1)", true},
		},
		"E6 it goes with the node": {
			record:   guessed(tunnel()),
			observed: seen(nodes(ready("n2"))),
			want:     Verdict{Quarantine, NodeGone, "E6", "Node n1 (uid n1-uid) is gone", false},
		},
		"a tunnel's address of which the record says nothing is completed": {
			record:   lacking(guessed(tunnel())),
			observed: seen(nodes(Node{Name: "n1", UID: "n1-uid", Addresses: addrs("10.0.0.7")})),
			want: Verdict{
				Repair, RecordIncomplete, "E11", "Node n1 (uid n1-uid) names it as its own, but its record lacks a part: no entry", false,
			},
		},
		"E6 a block goes with its node": {
			record:   agents(),
			observed: seen(nodes(ready("n2"))),
			want:     Verdict{Quarantine, NodeGone, "E6", `node "n1" is gone, and nobody says that the machine is off`, false},
		},
		"E10 a block that nobody uses is stranded": {
			record:   agents(),
			observed: seen(nodes(ready("n1")), web(naming("10.0.0.9")), web(pending, naming(), on("n2"), func(p *Pod) { p.Name = "db-0" })),
			want:     Verdict{Stranded, Unused, "E10", `no pod has an address of it, and none on node "n1" waits for one`, false},
		},
		"E11 a block is in use by every pod that names an address of it": {
			record:   agents(),
			observed: seen(nodes(ready("n1")), web()),
			want:     Verdict{Keep, InUse, "E11", "10.0.0.7 is in use by Pod default/web-0 (uid u1)", false},
		},
		"E11 a pod on another node than the block's is drift": {
			record:   agents(),
			observed: seen(nodes(ready("n1"), ready("n2")), web(on("n2"))),
			want:     Verdict{Keep, InUse, "E11", "10.0.0.7 is in use by Pod default/web-0 (uid u1)", true},
		},
		"E7 a pod that is going has its block": {
			record:   agents(),
			observed: seen(nodes(ready("n1")), web(deleted)),
			want: Verdict{
				Keep, Ending, "E7", `Pod default/web-0 (uid u1) is going, and the kubelet of node "n1" has not reported its end`, false,
			},
		},
		"E2 a pod that has ended has no block": {
			record:   agents(),
			observed: seen(nodes(ready("n1")), web(ended)),
			want:     Verdict{Stranded, Unused, "E10", `no pod has an address of it, and none on node "n1" waits for one`, false},
		},
		"E6 a pod on a vanished node does not make a living node's block Oakum's to delete": {
			record:   agents(),
			observed: seen(nodes(ready("n1")), web(deleted, on("n2"))),
			want:     Verdict{Stranded, Unused, "E10", `no pod has an address of it, and none on node "n1" waits for one`, false},
		},
		"E13 a block may be for a pod that waits on its node": {
			record:   agents(),
			observed: seen(nodes(ready("n1")), web(pending, naming())),
			want:     Verdict{Keep, PodWaits, "E13", `pod default/web-0 on node "n1" has no address yet, and may get one of these`, false},
		},
		"E13 a block that was just asked for is in use": {
			record:   asked(agents()),
			observed: seen(nodes(ready("n1"))),
			want:     Verdict{Keep, Starting, "E13", `node "n1" asked for it a moment ago`, false},
		},
		"a block is kept where nodes were not looked for": {
			record:   agents(),
			observed: Observation{PodsKnown: true},
			want:     Verdict{Keep, OwnerUnknown, "", "nobody here can tell about Agent n1", false},
		},
		"E14 an end without a word about the sandbox is no proof": {
			record:   native(),
			observed: seen(nodes(ready("n1")), web(ended, func(p *Pod) { p.Sandbox = "" })),
			want: Verdict{
				Keep, Ending, "E7",
				`Pod default/web-0 (uid u1) is going, and the kubelet of node "n1" has not reported its end`, false,
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, Judge(tt.record, NewWorld(tt.observed))); diff != "" {
				t.Errorf("verdict (-want +got):\n%s", diff)
			}
		})
	}
}

// native is a hand-out as it is recorded with all that identifies its owner.
func native() Allocation {
	return Allocation{
		Handle: "h1",
		Owner:  Owner{Kind: OwnerPod, Namespace: "default", Name: "web-0", UID: "u1", Node: "n1"},
		Places: []Place{{Addresses: addrs("10.0.0.7")}},
	}
}

// whereabouts is the same hand-out in a record that tells neither UID nor node.
func whereabouts() Allocation {
	a := native()
	a.Owner = Owner{Kind: OwnerPod, Namespace: "default", Name: "web-0", ContainerID: "c1"}
	return a
}

// calico is the same hand-out in a record that tells the node but no UID.
func calico() Allocation {
	a := whereabouts()
	a.Owner.Node = "n1"
	return a
}

// agents is a block, of which the program on its node hands the addresses out.
func agents() Allocation {
	a := handout(native(), "10.0.0.6", "10.0.0.7")
	a.Owner = Owner{Kind: OwnerAgent, Name: "n1", Node: "n1"}
	return a
}

func named(a Allocation) Allocation {
	a.Named = true
	return a
}

func guessed(a Allocation) Allocation {
	a.Guessed = true
	return a
}

func asked(a Allocation) Allocation {
	a.Pending = true
	return a
}

// tunnel is a hand-out to the node itself.
func tunnel() Allocation {
	a := native()
	a.Owner = Owner{Kind: OwnerNode, Name: "n1", UID: "n1-uid", Node: "n1"}
	return a
}

func since(a Allocation, clock string) Allocation {
	a.Seen = at(clock)
	return a
}

// web is the pod that the records are about: alive, with the address that they tell.
func web(changes ...func(*Pod)) Pod {
	p := Pod{
		Namespace: "default", Name: "web-0", UID: "u1", Node: "n1", Created: at("10:00:00"),
		Phase: "Running", Sandbox: ConditionTrue, Addresses: addrs("10.0.0.7"),
	}
	for _, change := range changes {
		change(&p)
	}
	return p
}

func deleted(p *Pod)     { p.Deleted = at("11:00:00") }
func ended(p *Pod)       { p.Phase, p.ContainersTerminated, p.Sandbox = PhaseSucceeded, true, ConditionFalse }
func pending(p *Pod)     { p.Phase, p.Sandbox = PhasePending, ConditionFalse }
func hostNetwork(p *Pod) { p.HostNetwork = true }
func unreadable(p *Pod)  { p.AddressesUnknown = true }
func renewed(p *Pod)     { p.ContainerID = "c2" }

func on(node string) func(*Pod)         { return func(p *Pod) { p.Node = node } }
func naming(texts ...string) func(*Pod) { return func(p *Pod) { p.Addresses = addrs(texts...) } }
func nodes(ns ...Node) []Node           { return ns }
func ready(name string) Node            { return Node{Name: name, Ready: ConditionTrue} }
func lost() Node                        { return Node{Name: "n1", Ready: ConditionUnknown} }
func seen(ns []Node, pods ...Pod) Observation {
	return Observation{Nodes: ns, NodesKnown: true, Pods: pods, PodsKnown: true}
}

// settled: no node has gone for long.
func settled(o Observation) Observation {
	o.NodesSettled = true
	return o
}

// after: when the hand-out was recorded already, the pod of its owner's name was the one with that UID.
func after(uid string, a Allocation) Allocation {
	a.Namesake = &Namesake{UID: uid}
	return a
}

func lacking(a Allocation) Allocation {
	a.Gap = "no entry"
	return a
}

func fenced(o Observation, node string, gone time.Duration) Observation {
	o.NodeDeletionMeansFenced, o.NodesGoneFor = true, map[string]time.Duration{node: gone}
	return o
}

// L03: the plugin may call a node by another name than Kubernetes does.
func TestDoubts(t *testing.T) {
	inUse, leaked, elsewhere := onNode(calico(), "worker-1"), onNode(calico(), "worker-1"), onNode(calico(), "worker-2")
	leaked.Handle, leaked.Owner.Name, leaked.Places = "h2", "gone", []Place{{Addresses: addrs("10.0.0.8")}}
	elsewhere.Handle, elsewhere.Owner.Name, elsewhere.Places = "h3", "gone", []Place{{Addresses: addrs("10.0.0.9")}}
	w := NewWorld(seen(nodes(ready("n1")), web()))
	judge := func(w World) (judged []Judgement) {
		for _, a := range []Allocation{inUse, leaked, elsewhere} {
			judged = append(judged, Consider(a, w))
		}
		return judged
	}
	doubts := w.Doubts(judge(w))
	if diff := cmp.Diff(map[string]bool{"worker-1": true}, doubts); diff != "" {
		t.Errorf("doubts (-want +got):\n%s", diff)
	}
	var got []Reason
	for _, j := range judge(w.Doubting(doubts)) {
		got = append(got, j.Verdict.Reason)
	}
	if diff := cmp.Diff([]Reason{InUse, NodeUnknown, NodeGone}, got); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
	if known := (World{}).Doubts(judge(w)); len(known) > 0 {
		t.Errorf("who has not looked for nodes doubts %v", known)
	}
}
