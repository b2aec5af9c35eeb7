package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"
)

// Phase is a pod's phase, as the API has it.
type Phase string

// The phases that matter: before a pod runs, and after which it does not run again.
const (
	PhasePending   Phase = "Pending"
	PhaseSucceeded Phase = "Succeeded"
	PhaseFailed    Phase = "Failed"
)

// Condition is a condition's status. The zero Condition is one that the object does not have.
type Condition string

// The statuses of a condition.
const (
	ConditionTrue    Condition = "True"
	ConditionFalse   Condition = "False"
	ConditionUnknown Condition = "Unknown"
)

// Pod is what was observed about a pod.
type Pod struct {
	Namespace, Name, UID string
	// Node is where it was scheduled to; empty if it never was.
	Node    string
	Created time.Time
	// Deleted is its deletionTimestamp, which includes its grace period; zero if nobody deleted it.
	Deleted time.Time
	Phase   Phase
	// HostNetwork: it shares its node's addresses and has none of its own.
	HostNetwork bool
	// Mirror: it stands for a pod that the kubelet runs without the API server.
	Mirror bool
	// Disrupted: the condition DisruptionTarget says that PodGC wrote the phase, not the kubelet.
	Disrupted bool
	// ContainersTerminated: every container that it was given, init and ephemeral ones included, is reported as
	// terminated.
	ContainersTerminated bool
	// Sandbox is the condition PodReadyToStartContainers: False once the sandbox and its network are down.
	Sandbox Condition
	// ContainerID is the id of its sandbox; empty where no CNI tells it.
	ContainerID string
	// Addresses are all that any source names for it.
	Addresses []netip.Addr
	// AddressesUnknown: a source that should name its addresses is absent or unreadable. It may have any.
	AddressesUnknown bool
}

// Terminal tells whether the phase says that the pod does not run again. That is a claim, not a proof: PodGC makes it
// about pods whose node it cannot reach.
func (p Pod) Terminal() bool { return p.Phase == PhaseSucceeded || p.Phase == PhaseFailed }

// Alive tells whether nothing says that the pod is ending.
func (p Pod) Alive() bool { return p.Deleted.IsZero() && !p.Terminal() }

// Ended tells whether the kubelet reported the pod's end, after it took the sandbox down. This is the only proof of
// an end that a pod can carry (observed in Kubernetes 1.37: containers, then the sandbox and CNI DEL, then this
// status, then the final DELETE).
func (p Pod) Ended() bool {
	return p.Terminal() && !p.Disrupted && p.ContainersTerminated && p.Sandbox == ConditionFalse
}

// Node is what was observed about a node.
type Node struct {
	Name, UID string
	Created   time.Time
	// Terminating: somebody deleted it. That alone ends nothing.
	Terminating bool
	// Ready is its condition Ready. Only True and only an explicit False or Unknown mean anything.
	Ready Condition
	// ReadySince is when its condition Ready last changed.
	ReadySince time.Time
	// OutOfService: it has the taint node.kubernetes.io/out-of-service, an administrator's word that the machine is off.
	OutOfService bool
	// Joining: it appeared while somebody watched, and has not been ready since. It never ran anything with an address.
	Joining bool
	// Addresses are those that it holds for itself, such as tunnel endpoints.
	Addresses []netip.Addr
}

// Presence tells about an owner of another kind than Pod and Node.
type Presence struct {
	// UID of the object that bears the name.
	UID string
	// Terminating: somebody deleted it. That alone ends nothing.
	Terminating bool
	// Addresses that it names as its own.
	Addresses []netip.Addr
}

// Name is a namespaced name. The namespace of a cluster-scoped object is empty.
type Name struct{ Namespace, Name string }

// World is all that was observed. What is not in it is unknown, unless it says that a kind was looked for: then it is
// absent. Unknown keeps.
type World struct {
	pods      map[Name]*Pod
	podsKnown bool
	nodes     map[string]Node
	// bases is what a suspicion about a node's address rests on; thousands of them rest on the same.
	bases map[string]string
	// nodesKnown: a name that is not in nodes bears no Node.
	nodesKnown bool
	goneFor    map[string]time.Duration
	others     map[OwnerKind]map[Name]Presence
	claims     map[netip.Addr][]claim
	fences     bool
	settled    bool
	returns    int
	// doubted are names that no Node bears, and that somebody may bear all the same.
	doubted map[string]bool
	// waiting names a pod, by its node, that may be about to get an address there.
	waiting map[string]string
	// silent is a Node that cannot tell what runs on it; empty if there is none.
	silent string
}

// claim is what says of itself that an address is its own.
type claim struct {
	pod   *Pod
	owner Owner
}

// FenceTime is how long a Node must be gone before NodeDeletionMeansFenced makes its pods' addresses free: as long as
// Kubernetes gives a node to report before it calls it lost.
const FenceTime = 40 * time.Second

// Observation is what World is made from.
type Observation struct {
	// Pods that were found, and whether every pod that matters was looked for.
	Pods      []Pod
	PodsKnown bool
	// Nodes that were found, and whether every node that matters was looked for.
	Nodes      []Node
	NodesKnown bool
	// NodesGoneFor tells for how long a Node has been missing, in time that no clock adjustment shortens.
	NodesGoneFor map[string]time.Duration
	// Others that were found. A kind that is not a key was not looked for.
	Others map[OwnerKind]map[Name]Presence
	// NodeDeletionMeansFenced: whoever deletes a Node has made sure that the machine is off.
	NodeDeletionMeansFenced bool
	// NodesSettled: Nodes is every Node, and for as long as a quarantine lasts none has gone while somebody watched. So
	// whatever runs, runs on one of them.
	NodesSettled bool
	// NodeReturns is how often a Node went, came back or became ready again while somebody watched.
	NodeReturns int
}

// NewWorld indexes an observation. It keeps the slices: the caller must not change them afterwards.
func NewWorld(o Observation) World {
	w := World{
		pods:       make(map[Name]*Pod, len(o.Pods)),
		podsKnown:  o.PodsKnown,
		nodes:      make(map[string]Node, len(o.Nodes)),
		bases:      make(map[string]string, len(o.Nodes)),
		nodesKnown: o.NodesKnown,
		goneFor:    o.NodesGoneFor,
		others:     o.Others,
		claims:     make(map[netip.Addr][]claim, len(o.Pods)),
		fences:     o.NodeDeletionMeansFenced,
		waiting:    map[string]string{},
		settled:    o.NodesSettled,
		returns:    o.NodeReturns,
	}
	for i := range o.Pods {
		p := &o.Pods[i]
		w.pods[Name{p.Namespace, p.Name}] = p
		if p.Node != "" && !p.Terminal() && !p.HostNetwork && !p.Mirror && (len(p.Addresses) == 0 || p.AddressesUnknown) {
			w.waiting[p.Node] = fmt.Sprintf("pod %s/%s", p.Namespace, p.Name)
		}
		for _, a := range p.Addresses {
			w.claims[a] = append(w.claims[a], claim{pod: p, owner: Owner{Kind: OwnerPod, Namespace: p.Namespace, Name: p.Name, UID: p.UID, Node: p.Node}})
		}
	}
	for _, n := range o.Nodes {
		w.nodes[n.Name] = n
		w.bases[n.Name] = fmt.Sprintf("%s ready since %d", n.UID, n.ReadySince.Unix())
		if state := w.nodeState(n.Name); (state == nodeNotReady || state == nodeUnknown) && !n.Joining && (w.silent == "" || n.Name < w.silent) {
			w.silent = n.Name
		}
		for _, a := range n.Addresses {
			w.claims[a] = append(w.claims[a], claim{owner: Owner{Kind: OwnerNode, Name: n.Name, UID: n.UID, Node: n.Name}})
		}
	}
	for kind, named := range o.Others {
		for name, p := range named {
			for _, a := range p.Addresses {
				w.claims[a] = append(w.claims[a], claim{owner: Owner{Kind: kind, Namespace: name.Namespace, Name: name.Name, UID: p.UID}})
			}
		}
	}
	return w
}

// nodeState is what a node's condition proves about what ran on it.
type nodeState int

const (
	nodeUnknown nodeState = iota
	nodeReady
	nodeNotReady
	nodeOutOfService
	nodeGone
	nodeFencing
	nodeFenced
)

func (w World) nodeState(name string) nodeState {
	n, ok := w.nodes[name]
	switch {
	case name == "":
		return nodeUnknown
	case !ok && (!w.nodesKnown || w.doubted[name]):
		return nodeUnknown
	case !ok && w.fences && w.goneFor[name] >= FenceTime:
		return nodeFenced
	case !ok && w.fences:
		return nodeFencing
	case !ok:
		return nodeGone
	case n.Ready == ConditionTrue:
		return nodeReady
	case n.Ready == "":
		return nodeUnknown
	case n.OutOfService:
		return nodeOutOfService
	}
	return nodeNotReady
}

// NamedByNodes returns the addresses that nodes name as their own.
func (w World) NamedByNodes() map[netip.Addr]Owner {
	named := map[netip.Addr]Owner{}
	for _, n := range w.nodes {
		for _, addr := range n.Addresses {
			named[addr] = Owner{Kind: OwnerNode, Name: n.Name, UID: n.UID, Node: n.Name}
		}
	}
	return named
}

// Doubts returns the names of nodes that no Node bears, and under which something is recorded that is in use on another: the
// plugin has names of its own for nodes.
func (w World) Doubts(judged []Judgement) map[string]bool {
	doubts := map[string]bool{}
	for _, j := range judged {
		name := j.Allocation.Owner.Node
		if _, ok := w.nodes[name]; !ok && name != "" && w.nodesKnown && j.Verdict.Reason == InUse && j.Verdict.Drift {
			doubts[name] = true
		}
	}
	return doubts
}

// Doubting returns the world in which nothing is known about nodes of these names, unless a Node bears one.
func (w World) Doubting(names map[string]bool) World {
	w.doubted = names
	return w
}

// Namesake returns the pod that bears the owner's name; nil if the owner is no pod or nobody looked.
func (w World) Namesake(o Owner) *Namesake {
	if o.Kind != OwnerPod || !w.podsKnown {
		return nil
	}
	if p, ok := w.pods[Name{o.Namespace, o.Name}]; ok {
		return &Namesake{UID: p.UID}
	}
	return &Namesake{}
}

// NodeGoneFor returns for how long a Node has been missing; false if it is not known to be.
func (w World) NodeGoneFor(name string) (time.Duration, bool) {
	gone, missing := w.goneFor[name]
	return gone, missing
}

// Seen says, in sentences, everything that was observed about a hand-out: its owner, whoever else names one of its
// addresses, and the owner's node.
func (w World) Seen(a Allocation) []string {
	o := a.Owner
	var seen []string
	note := func(format string, args ...any) { seen = append(seen, fmt.Sprintf(format, args...)) }
	if o.Kind == OwnerPod {
		switch p, ok := w.pods[Name{o.Namespace, o.Name}]; {
		case ok:
			note("%s", p.describe())
		case w.podsKnown:
			note("no pod %s/%s", o.Namespace, o.Name)
		default:
			note("pods were not read")
		}
	}
	for _, addr := range a.Addresses() {
		for _, c := range w.claims[addr] {
			note("%s is named by %s", addr, c.owner)
		}
	}
	if o.Node != "" {
		switch n, ok := w.nodes[o.Node]; {
		case ok:
			note("%s", n.describe())
		case w.nodesKnown:
			note("no node %q", o.Node)
		default:
			note("nodes were not read")
		}
	}
	return seen
}

func (p Pod) describe() string {
	text := fmt.Sprintf("pod %s/%s (uid %s) is %s", p.Namespace, p.Name, p.UID, cmp.Or(p.Phase, "in no phase"))
	if !p.Deleted.IsZero() {
		text += ", deleted at " + p.Deleted.UTC().Format(time.RFC3339)
	}
	if p.Node != "" {
		text += fmt.Sprintf(", on node %q", p.Node)
	}
	if p.Disrupted {
		text += ", given up by PodGC"
	}
	if p.ContainersTerminated {
		text += ", every container terminated"
	}
	return text + ", PodReadyToStartContainers " + string(cmp.Or(p.Sandbox, "absent"))
}

func (n Node) describe() string {
	text := fmt.Sprintf("node %q (uid %s), Ready %s", n.Name, n.UID, cmp.Or(n.Ready, "absent"))
	if n.Terminating {
		text += ", being deleted"
	}
	if n.OutOfService {
		text += ", tainted out of service"
	}
	return text
}
