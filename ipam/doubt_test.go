package ipam

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Where the table of evidence is silent, or something was not looked for.
func TestJudgeInDoubt(t *testing.T) {
	purpose := native()
	purpose.Owner = Owner{Kind: OwnerExternal, Name: "border router"}
	nobody := native()
	nobody.Owner = Owner{}

	tests := map[string]struct {
		record   Allocation
		observed Observation
		want     Verdict
	}{
		"a reservation by hand is not judged": {
			record:   purpose,
			observed: seen(nil),
			want:     Verdict{Keep, Reserved, "", `reserved by hand for "border router"`, false},
		},
		"a reservation by hand is not drift when somebody uses it": {
			record:   purpose,
			observed: seen(nil, web()),
			want:     Verdict{Keep, Reserved, "", `reserved by hand for "border router"`, false},
		},
		"a record that tells no owner is kept": {
			record:   nobody,
			observed: seen(nil),
			want:     Verdict{Keep, OwnerUnknown, "", "the record names no owner that could be looked for", false},
		},
		"a record that tells no owner is kept when whoever names the address has ended": {
			record:   nobody,
			observed: seen(nodes(ready("n1")), web(ended)),
			want:     Verdict{Keep, OwnerUnknown, "", "the record names no owner that could be looked for", false},
		},
		"a pod that was not looked for may exist": {
			record:   native(),
			observed: Observation{Nodes: nodes(ready("n1")), NodesKnown: true},
			want:     Verdict{Keep, OwnerUnknown, "", "nobody here can tell about Pod default/web-0 (uid u1)", false},
		},
		"a pod that was not looked for has what another one names": {
			record:   native(),
			observed: Observation{Pods: []Pod{web(func(p *Pod) { p.Name = "db-0" })}},
			want:     Verdict{Keep, InUse, "E11", "10.0.0.7 is in use by Pod default/db-0 (uid u1)", true},
		},
		"a gone pod's node that was not looked for may run it": {
			record:   native(),
			observed: Observation{PodsKnown: true},
			want:     Verdict{Keep, NodeUnknown, "E10b", `Pod default/web-0 (uid u1) does not exist, and nothing is known about node "n1"`, false},
		},
		"a gone pod without a node may run on one that was not looked for": {
			record:   whereabouts(),
			observed: Observation{PodsKnown: true},
			want:     Verdict{Keep, NodeUnknown, "E10b", `Pod default/web-0 does not exist, and nothing is known about node ""`, false},
		},
		"a node that was not looked for may exist": {
			record:   tunnel(),
			observed: Observation{PodsKnown: true},
			want:     Verdict{Keep, OwnerUnknown, "", "nobody here can tell about Node n1 (uid n1-uid)", false},
		},
		"proof needs nobody else to be looked for": {
			record:   native(),
			observed: Observation{Pods: []Pod{web(ended)}},
			want: Verdict{
				Free, EndReported, "E2",
				"the kubelet reported the end of Pod default/web-0 (uid u1): Succeeded, every container terminated, sandbox down", false,
			},
		},
		"an orphan may be the address of a pod that was not looked for": {
			record: native(),
			observed: Observation{
				Nodes: nodes(ready("n1")), NodesKnown: true, Pods: []Pod{web(naming("10.0.0.8"), func(p *Pod) { p.UID = "u2" })},
			},
			want: Verdict{
				Keep, OwnerUnknown, "",
				"Pod default/web-0 (uid u1) was replaced by uid u2, but not every pod and node was looked for", false,
			},
		},
		"an orphan may be the address of a node that was not looked for": {
			record:   native(),
			observed: Observation{Nodes: nodes(ready("n1")), PodsKnown: true},
			want:     Verdict{Keep, OwnerUnknown, "", "Pod default/web-0 (uid u1) does not exist, but not every pod and node was looked for", false},
		},
		"a gone node's address may be that of a pod that was not looked for": {
			record:   tunnel(),
			observed: Observation{NodesKnown: true},
			want:     Verdict{Keep, OwnerUnknown, "", "Node n1 (uid n1-uid) is gone, but not every pod and node was looked for", false},
		},
		"one address in use keeps its whole hand-out": {
			record:   handout(native(), "10.0.0.9", "10.0.0.8"),
			observed: seen(nodes(ready("n1")), web(naming("10.0.0.8"), func(p *Pod) { p.Name, p.UID = "db-0", "u2" })),
			want:     Verdict{Keep, InUse, "E11", "10.0.0.8 is in use by Pod default/db-0 (uid u2)", true},
		},
		"a record without an address goes by its owner": {
			record:   handout(native()),
			observed: seen(nodes(ready("n1"))),
			want:     Verdict{Orphan, OwnerGone, "E10", "Pod default/web-0 (uid u1) does not exist", false},
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

func TestJudgeOtherOwners(t *testing.T) {
	owned := func(kind OwnerKind, uid string) Allocation {
		a := native()
		a.Owner = Owner{Kind: kind, Namespace: "default", Name: "db", UID: uid}
		return a
	}
	found := func(kind OwnerKind, others map[Name]Presence) Observation {
		o := seen(nodes(ready("n1")))
		o.Others = map[OwnerKind]map[Name]Presence{kind: others}
		return o
	}
	db := Name{Namespace: "default", Name: "db"}

	tests := map[string]struct {
		record   Allocation
		observed Observation
		want     Verdict
	}{
		"G33 E10 a service that is gone leaves an orphan": {
			record:   owned(OwnerService, "s1"),
			observed: found(OwnerService, nil),
			want:     Verdict{Orphan, OwnerGone, "E10", "Service default/db (uid s1) does not exist", false},
		},
		"G33 E10 a virtual machine that is gone leaves an orphan": {
			record:   owned(OwnerVirtualMachine, "v1"),
			observed: found(OwnerVirtualMachine, nil),
			want:     Verdict{Orphan, OwnerGone, "E10", "VirtualMachine default/db (uid v1) does not exist", false},
		},
		"G33 E11 a service that exists has its address": {
			record:   owned(OwnerService, "s1"),
			observed: found(OwnerService, map[Name]Presence{db: {UID: "s1"}}),
			want:     Verdict{Keep, InUse, "E11", "Service default/db (uid s1) exists", false},
		},
		"G33 E11 a record without UID is that of whoever bears the name": {
			record:   owned(OwnerService, ""),
			observed: found(OwnerService, map[Name]Presence{db: {UID: "s1"}}),
			want:     Verdict{Keep, InUse, "E11", "Service default/db exists", false},
		},
		"G33 E11 an owner of another kind that names the address has it": {
			record:   native(),
			observed: found(OwnerService, map[Name]Presence{db: {UID: "s1", Addresses: addrs("10.0.0.7")}}),
			want:     Verdict{Keep, InUse, "E11", "10.0.0.7 is in use by Service default/db (uid s1)", true},
		},
		"G33 E12 a namesake with another UID leaves an orphan": {
			record:   owned(OwnerVirtualMachine, "v1"),
			observed: found(OwnerVirtualMachine, map[Name]Presence{db: {UID: "v2"}}),
			want:     Verdict{Orphan, OwnerReplaced, "E12", "VirtualMachine default/db (uid v1) does not exist: that name is uid v2 now", false},
		},
		"a kind that was not looked for may exist": {
			record:   owned(OwnerVirtualMachine, "v1"),
			observed: found(OwnerService, nil),
			want:     Verdict{Keep, OwnerUnknown, "", "nobody here can tell about VirtualMachine default/db (uid v1)", false},
		},
		"a gone owner's address may be that of a pod that was not looked for": {
			record:   owned(OwnerService, "s1"),
			observed: Observation{NodesKnown: true, Others: map[OwnerKind]map[Name]Presence{OwnerService: {}}},
			want:     Verdict{Keep, OwnerUnknown, "", "Service default/db (uid s1) does not exist, but not every pod and node was looked for", false},
		},
		"a kind that nobody knows is kept": {
			record:   owned("Deployment", "d1"),
			observed: found("Deployment", nil),
			want:     Verdict{Keep, OwnerUnknown, "", "the record names no owner that could be looked for", false},
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

// handout returns a record of the same hand-out with one place for each address.
func handout(a Allocation, texts ...string) Allocation {
	a.Places = nil
	for _, text := range texts {
		a.Places = append(a.Places, Place{Addresses: addrs(text)})
	}
	return a
}
