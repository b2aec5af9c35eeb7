package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Disposition is what may be done with an allocation.
type Disposition string

const (
	// Keep: it is in use, or nothing proves that it is not.
	Keep Disposition = "Keep"
	// Free: its owner's end is proven. It may be released at once.
	Free Disposition = "Free"
	// Orphan: its owner is gone and a node that would know does not run it. Free after a grace.
	Orphan Disposition = "Orphan"
	// Quarantine: its owner is gone as far as anyone can tell. Free after the quarantine.
	Quarantine Disposition = "Quarantine"
	// Stranded: nobody uses it, and only the program that has it can give it back. Reported after a grace.
	Stranded Disposition = "Stranded"
	// Repair: it is in use, and its record lacks a part. Completed after a grace.
	Repair Disposition = "Repair"
)

// Leaked tells whether the hand-out is, or may be, held by nobody.
func (d Disposition) Leaked() bool {
	return d == Free || d == Orphan || d == Quarantine || d == Stranded
}

// Reason says why, in one word. It is used in Events, metrics, conditions and on the command line.
type Reason string

// The reasons, with the evidence that each rests on.
const (
	// InUse: an owner that exists says that the address is its own, or is the recorded owner itself (E11).
	InUse Reason = "InUse"
	// Starting: the recorded owner is a pod that does not run yet (E13).
	Starting Reason = "Starting"
	// Reserved: the address was reserved by hand. It is not judged.
	Reserved Reason = "Reserved"
	// OwnerUnknown: the record does not tell an owner that could be looked for, or nobody could look.
	OwnerUnknown Reason = "OwnerUnknown"
	// EvidenceUnreadable: a pod of that name exists, and what it says about its addresses is missing or unreadable.
	EvidenceUnreadable Reason = "EvidenceUnreadable"
	// EndReported: the kubelet reported the pod's end after it took the sandbox down (E2).
	EndReported Reason = "EndReported"
	// NodeOutOfService: an administrator says that the node is off (E4).
	NodeOutOfService Reason = "NodeOutOfService"
	// NodeFenced: the Node is gone, and here that means that the machine is off (E5).
	NodeFenced Reason = "NodeFenced"
	// NodeFencing: the Node is gone, and has not been for long enough to mean that the machine is off (E5).
	NodeFencing Reason = "NodeFencing"
	// NodeGone: the Node is gone (E6).
	NodeGone Reason = "NodeGone"
	// NodeReplaced: the Node is gone, or may be, and another one bears its name, which knows nothing of the old one's pods
	// (E6).
	NodeReplaced Reason = "NodeReplaced"
	// Ending: the pod is going and its node is ready: the kubelet will report the end (E7).
	Ending Reason = "Ending"
	// NodeNotReady: the pod is going, or gone, and its node cannot be asked (E8, E10b).
	NodeNotReady Reason = "NodeNotReady"
	// NodeUnknown: the pod is going, or gone, and nothing is known about its node.
	NodeUnknown Reason = "NodeUnknown"
	// OwnerGone: the owner does not exist (E10).
	OwnerGone Reason = "OwnerGone"
	// OwnerReplaced: an object of that name exists, is another one, and does not have the address (E12).
	OwnerReplaced Reason = "OwnerReplaced"
	// RecordIncomplete: it is in use, and its record lacks a part.
	RecordIncomplete Reason = "RecordIncomplete"
	// Unused: no pod names an address of it, and none on its node waits for one.
	Unused Reason = "Unused"
	// Unnamed: the node exists, and does not name the address as its own.
	Unnamed Reason = "Unnamed"
	// PodWaits: no pod names an address of it, and one on its node waits for an address.
	PodWaits Reason = "PodWaits"
	// NoAddress: the pod has no address of its own: it shares its node's (E0).
	NoAddress Reason = "NoAddress"
)

// Verdict is what the law says about one allocation or one pod.
type Verdict struct {
	Disposition Disposition
	Reason      Reason
	// Evidence is the row of the table in docs/invariants.md, such as E2; empty where no row speaks.
	Evidence string
	// Detail names what was seen, for people.
	Detail string
	// Drift tells that the address is used by another owner, or on another node, than the record says.
	Drift bool
}

// Unproven tells whether the hand-out is kept only because nothing proves that it is not in use.
func (v Verdict) Unproven() bool {
	switch v.Reason {
	case InUse, Starting, Reserved, NoAddress:
		return false
	default:
		return v.Disposition == Keep
	}
}

func verdict(d Disposition, r Reason, evidence, format string, args ...any) Verdict {
	return Verdict{Disposition: d, Reason: r, Evidence: evidence, Detail: fmt.Sprintf(format, args...)}
}

// skew is by how much the clocks of Oakum and of the API server may differ before "seen earlier" means nothing.
const skew = time.Minute

// youth is for how long a Node's word counts for little about what was recorded under its name: another machine may
// have borne it before, and nothing says how old a record was when it was first seen. It is an hour, and another one by
// which Oakum's clock may be wrong.
const youth = 2 * time.Hour

// Judge says whether an allocation is in use. Doubt keeps.
//
// Whoever says that one of the addresses is its own has it, whatever the record says. Only if nobody does, or only
// pods that have ended, does it matter what became of the recorded owner.
func Judge(a Allocation, w World) Verdict {
	if a.Owner.Kind == OwnerExternal {
		return verdict(Keep, Reserved, "", "reserved by hand for %q", a.Owner.Name)
	}
	v := w.ofOwner(a)
	if v.Reason == InUse && a.Gap != "" && !v.Drift {
		v.Disposition, v.Reason, v.Detail = Repair, RecordIncomplete, v.Detail+", but its record lacks a part: "+a.Gap
	}
	if !v.Disposition.Leaked() && v.Reason != OwnerUnknown {
		return v
	}
	for _, addr := range a.Addresses() {
		for _, c := range w.claims[addr] {
			switch {
			case c.pod == nil || c.pod.Alive():
				in := verdict(Keep, InUse, "E11", "%s is in use by %s", addr, c.owner)
				in.Drift = !a.Owner.has(c.owner)
				return in
			case c.pod.HostNetwork:
				// Its addresses are its node's, which speaks for itself.
			default:
				if end := w.End(*c.pod); end.Disposition == Keep {
					end.Drift = !a.Owner.has(c.owner)
					return end
				} else if end.Disposition == Quarantine && v.Disposition.Leaked() && v.Disposition != Stranded {
					v = end
				}
			}
		}
	}
	if v.Disposition.suspicion() && (!w.podsKnown || !w.nodesKnown) {
		return verdict(Keep, OwnerUnknown, "", "%s, but not every pod and node was looked for", v.Detail)
	}
	return v
}

// has tells whether the record's owner can be the one observed, or have given it the address.
func (o Owner) has(seen Owner) bool {
	if o.Kind == OwnerAgent {
		return seen.Kind == OwnerPod && seen.Node == o.Node
	}
	return o.Kind == seen.Kind && o.Namespace == seen.Namespace && o.Name == seen.Name &&
		(o.UID == "" || o.UID == seen.UID) && (o.Node == "" || seen.Node == "" || o.Node == seen.Node)
}

// ofOwner judges by the recorded owner alone.
func (w World) ofOwner(a Allocation) Verdict {
	switch o := a.Owner; o.Kind {
	case OwnerPod:
		return w.ofPod(a)
	case OwnerNode:
		return w.ofNode(a)
	case OwnerAgent:
		return w.ofAgent(a)
	case OwnerVirtualMachine, OwnerService:
		named, looked := w.others[o.Kind]
		if !looked {
			return verdict(Keep, OwnerUnknown, "", "nobody here can tell about %s", o)
		}
		switch p, ok := named[Name{o.Namespace, o.Name}]; {
		case !ok:
			return verdict(Orphan, OwnerGone, "E10", "%s does not exist", o)
		case o.UID != "" && o.UID != p.UID:
			return verdict(Orphan, OwnerReplaced, "E12", "%s does not exist: that name is uid %s now", o, p.UID)
		}
		return verdict(Keep, InUse, "E11", "%s exists", o)
	default:
		return verdict(Keep, OwnerUnknown, "", "the record names no owner that could be looked for")
	}
}

func (w World) ofNode(a Allocation) Verdict {
	o := a.Owner
	n, ok := w.nodes[o.Name]
	names := slices.ContainsFunc(a.Addresses(), func(addr netip.Addr) bool { return slices.Contains(n.Addresses, addr) })
	switch state := w.nodeState(o.Name); {
	case ok && o.UID != "" && o.UID != n.UID:
		return verdict(Quarantine, NodeReplaced, "E6", "%s is gone: that name is uid %s now", o, n.UID)
	case ok && names:
		return verdict(Keep, InUse, "E11", "%s names it as its own", o)
	case ok && a.Named:
		return verdict(Orphan, Unnamed, "E10", "%s exists, and does not name it as its own any more", o)
	case ok && a.Guessed && len(n.Addresses) > 0:
		return verdict(Quarantine, Unnamed, "E6", "nobody says whose it is, and %s, in whose block it lies, names other addresses", o)
	case ok && a.Guessed:
		return verdict(Keep, OwnerUnknown, "", "nobody says whose it is, and it lies in a block of %s, which may have it", o)
	case ok:
		return verdict(Keep, InUse, "E11", "%s exists", o)
	case state == nodeFenced:
		return verdict(Free, NodeFenced, "E5", "%s has been gone for %s, and its deletion means that the machine is off", o, w.goneFor[o.Name].Truncate(time.Second))
	case state == nodeFencing:
		return w.fencing(o.Name)
	case state == nodeGone:
		return verdict(Quarantine, NodeGone, "E6", "%s is gone", o)
	}
	return verdict(Keep, OwnerUnknown, "", "nobody here can tell about %s", o)
}

// ofAgent judges a block by its node. That a pod names an address of it is not looked for here.
func (w World) ofAgent(a Allocation) Verdict {
	node := a.Owner.Node
	_, exists := w.nodes[node]
	switch {
	case node == "" || !exists && !w.nodesKnown:
		return verdict(Keep, OwnerUnknown, "", "nobody here can tell about %s", a.Owner)
	case !exists:
		return w.byNode(a.Owner, node)
	case a.Pending:
		return verdict(Keep, Starting, "E13", "node %q asked for it a moment ago", node)
	case w.waiting[node] != "":
		return verdict(Keep, PodWaits, "E13", "%s on node %q has no address yet, and may get one of these", w.waiting[node], node)
	}
	return verdict(Stranded, Unused, "E10", "no pod has an address of it, and none on node %q waits for one", node)
}

func (w World) ofPod(a Allocation) Verdict {
	o := a.Owner
	p, ok := w.pods[Name{o.Namespace, o.Name}]
	if !ok {
		if !w.podsKnown {
			return verdict(Keep, OwnerUnknown, "", "nobody here can tell about %s", o)
		}
		return w.absent(a, OwnerGone, "E10", "does not exist")
	}
	switch same := p.isOwner(a); {
	case same == yes && p.Alive():
		if p.Phase == PhasePending {
			return verdict(Keep, Starting, "E13", "%s is starting", o)
		}
		v := verdict(Keep, InUse, "E11", "%s is alive", o)
		v.Drift = o.Node != "" && p.Node != "" && o.Node != p.Node
		return v
	case same == yes:
		return w.End(*p)
	case same == no && o.UID != "" && o.UID != p.UID:
		return w.absent(a, OwnerReplaced, "E12", "was replaced by uid "+p.UID)
	case same == no && a.Namesake != nil && a.Namesake.UID != p.UID:
		return w.absent(a, OwnerReplaced, "E13", fmt.Sprintf("was replaced: the pod of that name (uid %s) was created when the record was there already", p.UID))
	case same == no:
		return w.absent(a, OwnerReplaced, "E12", fmt.Sprintf("has sandbox %s now, not %s", p.ContainerID, o.ContainerID))
	case p.Node == "":
		return w.absent(a, OwnerReplaced, "E13", "was replaced: the pod of that name has no node yet")
	case p.Alive() && p.Phase == PhasePending:
		return verdict(Keep, Starting, "E13", "%s is starting, and the record may be its own", o)
	case p.AddressesUnknown && !p.Ended():
		return verdict(Keep, EvidenceUnreadable, "E11", "%s exists, and what it says about its addresses cannot be read", o)
	case p.Alive():
		return w.absent(a, OwnerReplaced, "E12", "was replaced: the pod of that name has other addresses")
	}
	if end := w.End(*p); end.Disposition == Keep {
		return end
	}
	return w.absent(a, OwnerReplaced, "E12", "was replaced: the pod of that name has ended and had other addresses")
}

type answer int

const (
	maybe answer = iota
	yes
	no
)

// isOwner tells whether a pod of the owner's name is the owner. UID and sandbox decide where both sides know them; an
// address in the pod's evidence decides otherwise, and then that the record is older than the pod.
func (p Pod) isOwner(a Allocation) answer {
	o := a.Owner
	if o.UID != "" && o.UID != p.UID {
		return no
	}
	if o.ContainerID != "" && p.ContainerID != "" {
		if o.ContainerID != p.ContainerID {
			return no
		}
		return yes
	}
	if o.UID != "" && o.ContainerID == "" {
		return yes
	}
	for _, addr := range a.Addresses() {
		if slices.Contains(p.Addresses, addr) {
			return yes
		}
	}
	if a.Namesake != nil && a.Namesake.UID != p.UID {
		return no
	}
	return maybe
}

// absent judges a hand-out whose pod does not exist any more, by what is known of the pod's node. That another pod
// bears its name changes nothing about it: a namesake on another node does not stop the old sandbox.
func (w World) absent(a Allocation, reason Reason, evidence, what string) Verdict {
	o := a.Owner
	switch w.nodeState(o.Node) {
	case nodeReady:
		switch n := w.nodes[o.Node]; {
		case a.Seen.IsZero():
		case a.Seen.Add(skew).Before(n.Created):
			return verdict(Quarantine, NodeReplaced, "E6", "%s %s, and node %q was replaced after that", o, what, o.Node)
		case a.Seen.Before(n.Created.Add(youth)):
			return verdict(Quarantine, NodeReplaced, "E6", "%s %s, and node %q is so new that another machine may have borne its name", o, what, o.Node)
		}
		return verdict(Orphan, reason, evidence, "%s %s", o, what)
	case nodeNotReady:
		return verdict(Keep, NodeNotReady, "E10b", "%s %s, and node %q is not ready: the sandbox may still run", o, what, o.Node)
	case nodeUnknown:
		if o.Node == "" && w.nodesKnown {
			return w.absentAnywhere(o, reason, evidence, what)
		}
		return verdict(Keep, NodeUnknown, "E10b", "%s %s, and nothing is known about node %q", o, what, o.Node)
	default:
		return w.byNode(o, o.Node)
	}
}

// absentAnywhere judges a hand-out whose pod does not exist any more and whose record does not tell its node. The sandbox
// may have been on any: on each of those that exist, and on one that is gone.
func (w World) absentAnywhere(o Owner, reason Reason, evidence, what string) Verdict {
	if w.silent != "" {
		return verdict(Keep, NodeNotReady, "E10b", "%s %s, the record does not tell its node, and node %q is not ready: the sandbox may still run there", o, what, w.silent)
	}
	if w.settled {
		return verdict(Orphan, reason, evidence, "%s %s, and every node that it can have been on is ready", o, what)
	}
	return verdict(Quarantine, reason, evidence, "%s %s, the record does not tell its node, and that may be gone", o, what)
}

// End says what may be done with the addresses of a pod that exists, is being deleted or has a terminal phase. For a
// pod that is alive it answers Keep.
func (w World) End(p Pod) Verdict {
	o := Owner{Kind: OwnerPod, Namespace: p.Namespace, Name: p.Name, UID: p.UID}
	switch {
	case p.HostNetwork, p.Mirror:
		return verdict(Keep, NoAddress, "E0", "%s has no address of its own", o)
	case p.Alive():
		return verdict(Keep, InUse, "E11", "%s is alive", o)
	case p.Ended():
		return verdict(Free, EndReported, "E2", "the kubelet reported the end of %s: %s, every container terminated, sandbox down", o, p.Phase)
	}
	return w.byNode(o, p.Node)
}

func (w World) fencing(node string) Verdict {
	return verdict(Keep, NodeFencing, "E5", "node %q has been gone for %s, and after %s that means that the machine is off", node, w.goneFor[node].Truncate(time.Second), FenceTime)
}

// byNode judges a pod whose end nobody reported.
func (w World) byNode(o Owner, node string) Verdict {
	switch w.nodeState(node) {
	case nodeOutOfService:
		return verdict(Free, NodeOutOfService, "E4", "node %q is not ready and has the taint node.kubernetes.io/out-of-service", node)
	case nodeFenced:
		return verdict(Free, NodeFenced, "E5", "node %q has been gone for %s, and its deletion means that the machine is off", node, w.goneFor[node].Truncate(time.Second))
	case nodeFencing:
		return w.fencing(node)
	case nodeGone:
		return verdict(Quarantine, NodeGone, "E6", "node %q is gone, and nobody says that the machine is off", node)
	case nodeReady:
		return verdict(Keep, Ending, "E7", "%s is going, and the kubelet of node %q has not reported its end", o, node)
	case nodeNotReady:
		return verdict(Keep, NodeNotReady, "E8", "%s is going, and node %q is not ready: the sandbox may still run", o, node)
	default:
		return verdict(Keep, NodeUnknown, "E8", "%s is going, and nothing is known about node %q", o, node)
	}
}
