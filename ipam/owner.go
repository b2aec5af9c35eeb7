package ipam

import (
	"fmt"
	"strings"
)

// OwnerKind is the kind of thing that an address is handed out to.
type OwnerKind string

// The kinds of owner. The zero kind is an owner that the record does not tell.
const (
	OwnerPod            OwnerKind = "Pod"
	OwnerNode           OwnerKind = "Node"
	OwnerVirtualMachine OwnerKind = "VirtualMachine"
	OwnerService        OwnerKind = "Service"
	// OwnerAgent is the program on a node that hands out the addresses of its block by itself. It is known by its node.
	OwnerAgent OwnerKind = "Agent"
	// OwnerExternal is a reservation by hand. It is never judged and never released.
	OwnerExternal OwnerKind = "External"
)

// Owner is whom an address was handed out to, as far as the record tells. A name alone is no identity: where UID or
// ContainerID is known, an object of the same name with another one is another owner.
type Owner struct {
	Kind      OwnerKind
	Namespace string
	Name      string
	UID       string
	// Node is the node that the owner runs on, or is.
	Node string
	// ContainerID is the id of the pod's sandbox; only backends that record it set it.
	ContainerID string
}

// String returns the owner as people write it: Pod default/web-0 (uid 6f0c…).
func (o Owner) String() string {
	if o.Kind == "" && o.Name == "" {
		return "an unknown owner"
	}
	var b strings.Builder
	b.Grow(len(o.Kind) + len(o.Namespace) + len(o.Name) + len(o.UID) + len(" / (uid )"))
	if o.Kind != "" {
		b.WriteString(string(o.Kind))
		b.WriteByte(' ')
	}
	if o.Namespace != "" {
		b.WriteString(o.Namespace)
		b.WriteByte('/')
	}
	b.WriteString(o.Name)
	if o.UID != "" {
		b.WriteString(" (uid ")
		b.WriteString(o.UID)
		b.WriteByte(')')
	}
	return b.String()
}

// unowned returns the problems of an entry that does not say whose it is, for a block of the given node.
func (e Entry) unowned(path, node string) []Problem {
	var problems []Problem
	missing := func(field, message string) {
		problems = append(problems, Problem{AllocationUnowned, Missing, path + field, "", message})
	}
	wrong := func(field, value, message string) {
		problems = append(problems, Problem{AllocationUnowned, Wrong, path + field, value, message})
	}
	switch {
	case e.Handle == "":
		missing(".handle", "name this hand-out, so that exactly it can be given back")
	case len(e.Handle) > 253 || strings.ContainsFunc(e.Handle, func(r rune) bool { return r < '!' || r > '~' }):
		wrong(".handle", e.Handle, "must be 1 to 253 printable ASCII characters without spaces")
	}
	o := e.Owner
	if o == (Owner{}) {
		missing(".attributes", "say whose the address is, or it can never be proven free")
		return problems
	}
	if o.Name == "" {
		missing(".attributes.name", "name the owner; for External say what the address is for")
	}
	need := func(field, value, message string) {
		if value == "" {
			missing(".attributes."+field, message)
		}
	}
	switch o.Kind {
	case OwnerPod, OwnerVirtualMachine, OwnerService:
		need("namespace", o.Namespace, "required for type Pod, VirtualMachine and Service")
	case OwnerNode, OwnerExternal:
	case "":
		missing(".attributes.type", "one of Pod, Node, VirtualMachine, Service and External")
		return problems
	default:
		wrong(".attributes.type", string(o.Kind), "must be one of Pod, Node, VirtualMachine, Service and External")
		return problems
	}
	if o.Kind != OwnerExternal {
		need("uid", o.UID, "required for type Pod, Node, VirtualMachine and Service: a name alone is no identity")
	}
	if o.Kind == OwnerPod || o.Kind == OwnerNode {
		switch o.Node {
		case "":
			missing(".attributes.node", "required for type Pod and Node")
		case node:
		default:
			wrong(".attributes.node", o.Node, "must be the block's spec.node ("+node+")")
		}
	}
	if o.Kind == OwnerNode && o.Name != "" && o.Name != node {
		wrong(".attributes.name", o.Name, "must be the block's spec.node ("+node+")")
	}
	return problems
}

// CheckPod returns an AllocationOwner problem if the pod cannot have an address: it is not the recorded one, is
// ending, has no network of its own, or runs elsewhere. The pod is nil if none bears the name.
func (a Added) CheckPod(p *Pod) []Problem {
	o := a.Owner
	o.UID = ""
	switch {
	case p == nil:
		return a.ownerProblem(Wrong, "name", o.Name, "%s does not exist", o)
	case p.UID != a.Owner.UID:
		return a.ownerProblem(Wrong, "uid", a.Owner.UID, "%s has uid %s: a pod of the same name is another owner", o, p.UID)
	case p.HostNetwork, p.Mirror:
		return a.ownerProblem(Wrong, "name", o.Name, "%s shares its node's network and has no address of its own", o)
	case !p.Deleted.IsZero():
		return a.ownerProblem(Untimely, "name", o.Name, "%s is being deleted", o)
	case p.Terminal():
		return a.ownerProblem(Untimely, "name", o.Name, "%s is finished (%s)", o, p.Phase)
	case p.Node == "":
		return a.ownerProblem(Untimely, "node", a.Owner.Node, "%s is not scheduled yet", o)
	case p.Node != a.Owner.Node:
		return a.ownerProblem(Wrong, "node", a.Owner.Node, "%s runs on node %q: take an address from a block of that node", o, p.Node)
	}
	return nil
}

// CheckNode does as CheckPod for an address that a node holds itself.
func (a Added) CheckNode(n *Node) []Problem {
	o := a.Owner
	o.UID = ""
	switch {
	case n == nil:
		return a.ownerProblem(Wrong, "name", o.Name, "%s does not exist", o)
	case n.UID != a.Owner.UID:
		return a.ownerProblem(Wrong, "uid", a.Owner.UID, "%s has uid %s: a node of the same name is another owner", o, n.UID)
	case n.Terminating:
		return a.ownerProblem(Untimely, "name", o.Name, "%s is being deleted", o)
	}
	return nil
}

// CheckOther does as CheckPod for any other owner.
func (a Added) CheckOther(p *Presence) []Problem {
	o := a.Owner
	o.UID = ""
	switch {
	case p == nil:
		return a.ownerProblem(Wrong, "name", o.Name, "%s does not exist", o)
	case p.UID != a.Owner.UID:
		return a.ownerProblem(Wrong, "uid", a.Owner.UID, "%s has uid %s: an object of the same name is another owner", o, p.UID)
	case p.Terminating:
		return a.ownerProblem(Untimely, "name", o.Name, "%s is being deleted", o)
	}
	return nil
}

func (a Added) ownerProblem(f Fault, field, value, format string, args ...any) []Problem {
	return []Problem{{AllocationOwner, f, a.Field + ".attributes." + field, value, fmt.Sprintf(format, args...)}}
}
