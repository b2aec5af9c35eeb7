package ipam

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOwnerString(t *testing.T) {
	tests := map[string]struct {
		owner Owner
		want  string
	}{
		"a pod is told by namespace, name and UID":  {Owner{Kind: OwnerPod, Namespace: "default", Name: "web-0", UID: "u1", Node: "n1"}, "Pod default/web-0 (uid u1)"},
		"a pod without UID is told by its name":     {Owner{Kind: OwnerPod, Namespace: "default", Name: "web-0", ContainerID: "c1"}, "Pod default/web-0"},
		"a node has no namespace":                   {Owner{Kind: OwnerNode, Name: "n1", UID: "u1", Node: "n1"}, "Node n1 (uid u1)"},
		"a reservation is told by what it is for":   {Owner{Kind: OwnerExternal, Name: "border router"}, "External border router"},
		"a record that tells nothing has no owner":  {Owner{}, "an unknown owner"},
		"a record that tells a node alone has none": {Owner{Node: "n1"}, "an unknown owner"},
		"a name without a kind stands alone":        {Owner{Namespace: "default", Name: "web-0"}, "default/web-0"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tt.owner.String(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// A record whose owner cannot be the one observed has drifted.
func TestOwnerIs(t *testing.T) {
	seen := Owner{Kind: OwnerPod, Namespace: "default", Name: "web-0", UID: "u1", Node: "n1"}
	tests := map[string]struct {
		recorded Owner
		seen     Owner
		want     bool
	}{
		"told in full":            {Owner{Kind: OwnerPod, Namespace: "default", Name: "web-0", UID: "u1", Node: "n1"}, seen, true},
		"told by name":            {Owner{Kind: OwnerPod, Namespace: "default", Name: "web-0"}, seen, true},
		"told by name and node":   {Owner{Kind: OwnerPod, Namespace: "default", Name: "web-0", Node: "n1"}, seen, true},
		"told with a sandbox":     {Owner{Kind: OwnerPod, Namespace: "default", Name: "web-0", ContainerID: "c1"}, seen, true},
		"seen on no node":         {Owner{Kind: OwnerPod, Namespace: "default", Name: "web-0", Node: "n1"}, Owner{Kind: OwnerPod, Namespace: "default", Name: "web-0"}, true},
		"not of another kind":     {Owner{Kind: OwnerService, Namespace: "default", Name: "web-0"}, seen, false},
		"not in another place":    {Owner{Kind: OwnerPod, Namespace: "other", Name: "web-0"}, seen, false},
		"not of another name":     {Owner{Kind: OwnerPod, Namespace: "default", Name: "web-1"}, seen, false},
		"not with another UID":    {Owner{Kind: OwnerPod, Namespace: "default", Name: "web-0", UID: "u2"}, seen, false},
		"not on another node":     {Owner{Kind: OwnerPod, Namespace: "default", Name: "web-0", UID: "u1", Node: "n2"}, seen, false},
		"not told at all":         {Owner{}, seen, false},
		"not told but for a node": {Owner{Node: "n1"}, seen, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tt.recorded.has(tt.seen); got != tt.want {
				t.Errorf("got %t, want %t", got, tt.want)
			}
		})
	}
}

func TestAllocationOwner(t *testing.T) {
	added := func(o Owner) Added { return Added{Entry{Offset: 3, Handle: "h1", Owner: o}, "spec.allocations[2]"} }
	wrong := func(field, value, text string) []Problem {
		return []Problem{{AllocationOwner, Wrong, "spec.allocations[2].attributes." + field, value, text}}
	}
	untimely := func(field, value, text string) []Problem {
		return []Problem{{AllocationOwner, Untimely, "spec.allocations[2].attributes." + field, value, text}}
	}
	pod := added(Owner{Kind: OwnerPod, Namespace: "default", Name: "web-0", UID: "u1", Node: "n1"})
	node := added(Owner{Kind: OwnerNode, Name: "n1", UID: "u1", Node: "n1"})
	service := added(Owner{Kind: OwnerService, Namespace: "default", Name: "web", UID: "u1"})

	tests := map[string]struct {
		got, want []Problem
	}{
		"a pod that is starting on the block's node may have an address": {
			got: pod.CheckPod(&Pod{UID: "u1", Node: "n1", Phase: PhasePending}),
		},
		"a pod that runs on the block's node may have an address": {
			got: pod.CheckPod(&Pod{UID: "u1", Node: "n1", Phase: "Running"}),
		},
		"a pod that does not exist may not": {
			got:  pod.CheckPod(nil),
			want: wrong("name", "web-0", "Pod default/web-0 does not exist"),
		},
		"a pod's namesake may not": {
			got:  pod.CheckPod(&Pod{UID: "u2", Node: "n1", Phase: "Running"}),
			want: wrong("uid", "u1", "Pod default/web-0 has uid u2: a pod of the same name is another owner"),
		},
		"a pod in its node's network may not": {
			got:  pod.CheckPod(&Pod{UID: "u1", Node: "n1", Phase: "Running", HostNetwork: true}),
			want: wrong("name", "web-0", "Pod default/web-0 shares its node's network and has no address of its own"),
		},
		"a mirror pod may not": {
			got:  pod.CheckPod(&Pod{UID: "u1", Node: "n1", Phase: "Running", Mirror: true}),
			want: wrong("name", "web-0", "Pod default/web-0 shares its node's network and has no address of its own"),
		},
		"a pod that is being deleted may not": {
			got:  pod.CheckPod(&Pod{UID: "u1", Node: "n1", Phase: "Running", Deleted: at("12:00:00")}),
			want: untimely("name", "web-0", "Pod default/web-0 is being deleted"),
		},
		"a pod that has succeeded may not": {
			got:  pod.CheckPod(&Pod{UID: "u1", Node: "n1", Phase: PhaseSucceeded}),
			want: untimely("name", "web-0", "Pod default/web-0 is finished (Succeeded)"),
		},
		"a pod that has failed may not": {
			got:  pod.CheckPod(&Pod{UID: "u1", Node: "n1", Phase: PhaseFailed}),
			want: untimely("name", "web-0", "Pod default/web-0 is finished (Failed)"),
		},
		"a pod that is not scheduled may not": {
			got:  pod.CheckPod(&Pod{UID: "u1", Phase: PhasePending}),
			want: untimely("node", "n1", "Pod default/web-0 is not scheduled yet"),
		},
		"a pod that runs on another node may not": {
			got:  pod.CheckPod(&Pod{UID: "u1", Node: "n2", Phase: "Running"}),
			want: wrong("node", "n1", `Pod default/web-0 runs on node "n2": take an address from a block of that node`),
		},
		"a node may have an address, ready or not": {
			got: node.CheckNode(&Node{UID: "u1", Ready: ConditionFalse}),
		},
		"a node that does not exist may not": {
			got:  node.CheckNode(nil),
			want: wrong("name", "n1", "Node n1 does not exist"),
		},
		"a node's namesake may not": {
			got:  node.CheckNode(&Node{UID: "u2", Ready: ConditionTrue}),
			want: wrong("uid", "u1", "Node n1 has uid u2: a node of the same name is another owner"),
		},
		"a node that is being deleted may not": {
			got:  node.CheckNode(&Node{UID: "u1", Ready: ConditionTrue, Terminating: true}),
			want: untimely("name", "n1", "Node n1 is being deleted"),
		},
		"a service that exists may have an address": {
			got: service.CheckOther(&Presence{UID: "u1"}),
		},
		"a service that does not exist may not": {
			got:  service.CheckOther(nil),
			want: wrong("name", "web", "Service default/web does not exist"),
		},
		"a service's namesake may not": {
			got:  service.CheckOther(&Presence{UID: "u2"}),
			want: wrong("uid", "u1", "Service default/web has uid u2: an object of the same name is another owner"),
		},
		"a service that is being deleted may not": {
			got:  service.CheckOther(&Presence{UID: "u1", Terminating: true}),
			want: untimely("name", "web", "Service default/web is being deleted"),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, tt.got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAllocationUnowned(t *testing.T) {
	const field = "spec.allocations[0]"
	missing := func(path, text string) Problem {
		return Problem{AllocationUnowned, Missing, field + path, "", text}
	}
	wrong := func(path, value, text string) Problem {
		return Problem{AllocationUnowned, Wrong, field + path, value, text}
	}
	tests := map[string]struct {
		entry Entry
		want  []Problem
	}{
		"a pod's": {
			entry: Entry{Handle: "h1", Owner: Owner{Kind: OwnerPod, Namespace: "default", Name: "web-0", UID: "u1", Node: "n1"}},
		},
		"a node's": {
			entry: Entry{Handle: "h1", Owner: Owner{Kind: OwnerNode, Name: "n1", UID: "u1", Node: "n1"}},
		},
		"a virtual machine's, wherever it runs": {
			entry: Entry{Handle: "h1", Owner: Owner{Kind: OwnerVirtualMachine, Namespace: "default", Name: "db", UID: "u1"}},
		},
		"a service's": {
			entry: Entry{Handle: "h1", Owner: Owner{Kind: OwnerService, Namespace: "default", Name: "web", UID: "u1"}},
		},
		"a reservation by hand needs no more than a purpose": {
			entry: Entry{Handle: "h1", Owner: Owner{Kind: OwnerExternal, Name: "border router"}},
		},
		"a handle of 253 characters": {
			entry: Entry{Handle: strings.Repeat("~", 253), Owner: Owner{Kind: OwnerExternal, Name: "border router"}},
		},
		"a handle of the first and the last printable character": {
			entry: Entry{Handle: "!~", Owner: Owner{Kind: OwnerExternal, Name: "border router"}},
		},
		"an entry that says nothing lacks handle and attributes": {
			want: []Problem{
				missing(".handle", "name this hand-out, so that exactly it can be given back"),
				missing(".attributes", "say whose the address is, or it can never be proven free"),
			},
		},
		"a handle of 254 characters is refused": {
			entry: Entry{Handle: strings.Repeat("x", 254), Owner: Owner{Kind: OwnerExternal, Name: "border router"}},
			want:  []Problem{wrong(".handle", strings.Repeat("x", 254), "must be 1 to 253 printable ASCII characters without spaces")},
		},
		"a handle with a space is refused": {
			entry: Entry{Handle: "h 1", Owner: Owner{Kind: OwnerExternal, Name: "border router"}},
			want:  []Problem{wrong(".handle", "h 1", "must be 1 to 253 printable ASCII characters without spaces")},
		},
		"a handle with a control character is refused": {
			entry: Entry{Handle: "h1\r\neth0", Owner: Owner{Kind: OwnerExternal, Name: "border router"}},
			want:  []Problem{wrong(".handle", "h1\r\neth0", "must be 1 to 253 printable ASCII characters without spaces")},
		},
		"a handle beyond ASCII is refused": {
			entry: Entry{Handle: "hé", Owner: Owner{Kind: OwnerExternal, Name: "border router"}},
			want:  []Problem{wrong(".handle", "hé", "must be 1 to 253 printable ASCII characters without spaces")},
		},
		"an owner without a type is asked for it": {
			entry: Entry{Handle: "h1", Owner: Owner{Namespace: "default", Name: "web-0"}},
			want:  []Problem{missing(".attributes.type", "one of Pod, Node, VirtualMachine, Service and External")},
		},
		"an owner of an unknown type is refused": {
			entry: Entry{Handle: "h1", Owner: Owner{Kind: "Deployment", Namespace: "default", Name: "web"}},
			want:  []Problem{wrong(".attributes.type", "Deployment", "must be one of Pod, Node, VirtualMachine, Service and External")},
		},
		"a pod of which the type alone is told lacks the rest": {
			entry: Entry{Handle: "h1", Owner: Owner{Kind: OwnerPod}},
			want: []Problem{
				missing(".attributes.name", "name the owner; for External say what the address is for"),
				missing(".attributes.namespace", "required for type Pod, VirtualMachine and Service"),
				missing(".attributes.uid", "required for type Pod, Node, VirtualMachine and Service: a name alone is no identity"),
				missing(".attributes.node", "required for type Pod and Node"),
			},
		},
		"a node of which the type alone is told lacks the rest": {
			entry: Entry{Handle: "h1", Owner: Owner{Kind: OwnerNode}},
			want: []Problem{
				missing(".attributes.name", "name the owner; for External say what the address is for"),
				missing(".attributes.uid", "required for type Pod, Node, VirtualMachine and Service: a name alone is no identity"),
				missing(".attributes.node", "required for type Pod and Node"),
			},
		},
		"a virtual machine of which the type alone is told lacks the rest": {
			entry: Entry{Handle: "h1", Owner: Owner{Kind: OwnerVirtualMachine}},
			want: []Problem{
				missing(".attributes.name", "name the owner; for External say what the address is for"),
				missing(".attributes.namespace", "required for type Pod, VirtualMachine and Service"),
				missing(".attributes.uid", "required for type Pod, Node, VirtualMachine and Service: a name alone is no identity"),
			},
		},
		"a reservation by hand without a purpose is asked for it": {
			entry: Entry{Handle: "h1", Owner: Owner{Kind: OwnerExternal}},
			want:  []Problem{missing(".attributes.name", "name the owner; for External say what the address is for")},
		},
		"a pod on another node than the block's is refused": {
			entry: Entry{Handle: "h1", Owner: Owner{Kind: OwnerPod, Namespace: "default", Name: "web-0", UID: "u1", Node: "n2"}},
			want:  []Problem{wrong(".attributes.node", "n2", "must be the block's spec.node (n1)")},
		},
		"another node than the block's is refused": {
			entry: Entry{Handle: "h1", Owner: Owner{Kind: OwnerNode, Name: "n2", UID: "u1", Node: "n1"}},
			want:  []Problem{wrong(".attributes.name", "n2", "must be the block's spec.node (n1)")},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, tt.entry.unowned(field, "n1")); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}
