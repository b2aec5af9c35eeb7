package audit

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/oakum-dev/oakum/ipam"
)

const (
	podNames  = 4
	nodeNames = 3
	poolSize  = 8

	// tick is the grain of simulated time.
	tick = 10 * time.Second
	// settling is how long a kubelet that reaches the API server runs what it must not run.
	settling = time.Minute
	// silence is how long a kubelet is not heard before its Node is no longer Ready.
	silence = 40 * time.Second
	// attaching is how long a network plugin may take from its record to a sandbox that runs: the kubelet's patience.
	attaching = 4 * time.Minute
	// reporting is how long a kubelet that reaches the API server takes to tell of a sandbox that runs.
	reporting = 30 * time.Second
)

// truth is a small cluster as it really is. The audit sees its API objects and records; it does not see which sandboxes
// run, which is what an address is about.
type truth struct {
	// byName: a record tells its pod by name and sandbox alone, and a pod takes over its namesake's.
	byName bool
	// fenced: whoever deletes a Node has switched its machine off.
	fenced bool
	// steady has passed since the beginning; the wall clock of Oakum's process is ahead of the API server's by wall.
	steady, wall time.Duration
	// pods has the last pod of each name, whether it still exists or not.
	pods [podNames]*pod
	// nodes are the Node objects that exist; machines are what answers, or answered, to their names.
	nodes     [nodeNames]*ipam.Node
	machines  [nodeNames]*machine
	sandboxes []*sandbox
	// records are the entries of the pool by offset.
	records map[int]entry
	// left tells when a Node was deleted, by UID.
	left map[string]time.Duration
	// deletions are pods and nodes that went since somebody asked.
	deletions []ipam.Owner
	serial    int
}

// pod is a pod's object, and what is true about it.
type pod struct {
	ipam.Pod
	machine *machine
	// gone: the object does not exist any more.
	gone bool
	// finished: no kubelet starts it again.
	finished bool
	// slow: it stays Pending in a sandbox that runs, until its images are there.
	slow bool
	// ended is when the API server first said that it is ending.
	ended time.Duration
}

// machine runs a kubelet.
type machine struct {
	name string
	// joined: it has been ready, so that it can run pods.
	joined bool
	// registration is the UID of the last Node that it registered as.
	registration string
	on, linked   bool
	silent       time.Duration
}

// heard tells whether the kubelet reaches the API server.
func (m *machine) heard() bool { return m.on && m.linked }

// sandbox is a network namespace that exists, or a node's tunnel. It has the addresses at its offsets.
type sandbox struct {
	pod          *pod // nil for a tunnel
	machine      *machine
	registration string
	handle       string
	offsets      []int
	// up is when it runs; before that its network plugin is at work.
	up time.Duration
	// untold is for how long its kubelet has not reported that it runs.
	untold time.Duration
	// lost: its address was given back, rightly, because it was written off; or its record was taken over.
	lost bool
	// doomed is for how long its kubelet has known that it must go.
	doomed time.Duration
}

type entry struct {
	handle string
	owner  ipam.Owner
	// by is the UID of the pod or node that it was written for.
	by string
}

// newTruth returns a cluster of three nodes. Where records tell pods by name, the last one has yet to join.
func newTruth(fenced, byName bool) *truth {
	t := &truth{fenced: fenced, byName: byName, records: map[int]entry{}, left: map[string]time.Duration{}}
	for i := range t.machines {
		there := !byName || i+1 < nodeNames
		t.machines[i] = &machine{name: fmt.Sprintf("n%d", i), on: there, linked: there}
		if t.register(i, true) {
			t.nodes[i].Created = t.stamp().Add(-24 * time.Hour)
		}
	}
	return t
}

// clock is that of Oakum's process.
func (t *truth) clock() ipam.Moment {
	return ipam.Moment{Wall: t.stamp().Add(t.wall), Steady: t.steady}
}

// stamp is what the API server writes into objects now.
func (t *truth) stamp() time.Time {
	return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC).Add(t.steady)
}

func (t *truth) name(prefix string) string {
	t.serial++
	return fmt.Sprintf("%s%d", prefix, t.serial)
}

// pass lets one tick pass for machines and the node controller.
func (t *truth) pass() {
	t.steady += tick
	for i, m := range t.machines {
		if m.silent += tick; m.heard() {
			m.silent = 0
		}
		if n := t.nodes[i]; n != nil && m.silent >= silence && n.Ready == ipam.ConditionTrue {
			n.Ready, n.ReadySince = ipam.ConditionUnknown, t.stamp()
		}
	}
	t.stop(func(s *sandbox) bool {
		switch m := s.machine; {
		case s.pod == nil, !s.pod.gone:
			return false
		case m.heard():
			s.doomed += tick
		case m.silent >= silence:
			s.doomed = 0
		}
		return s.doomed >= settling
	})
	for _, s := range t.sandboxes {
		i := slices.Index(t.pods[:], s.pod)
		if !t.byName || i < 0 || !s.machine.heard() || s.up > t.steady {
			continue
		}
		if s.untold += tick; s.untold >= reporting {
			t.tell(i)
		}
	}
}

func (t *truth) stop(which func(*sandbox) bool) bool {
	before := len(t.sandboxes)
	t.sandboxes = slices.DeleteFunc(t.sandboxes, which)
	return len(t.sandboxes) < before
}

func (t *truth) sandboxOf(p *pod) *sandbox {
	if i := slices.IndexFunc(t.sandboxes, func(s *sandbox) bool { return s.pod == p }); i >= 0 {
		return t.sandboxes[i]
	}
	return nil
}

// exists returns the pod of that name, or nil.
func (t *truth) exists(i int) *pod {
	if p := t.pods[i]; p != nil && !p.gone {
		return p
	}
	return nil
}

// create makes a pod of that name.
func (t *truth) create(i int) bool {
	if t.exists(i) != nil {
		return false
	}
	t.pods[i] = &pod{Pod: ipam.Pod{
		Namespace: "default", Name: fmt.Sprintf("p%d", i), UID: t.name("u"), Created: t.stamp(), Phase: ipam.PhasePending,
	}}
	return true
}

// bind schedules a pod to a node.
func (t *truth) bind(i, node int) bool {
	p := t.exists(i)
	if p == nil || p.Node != "" || t.nodes[node] == nil || !p.Alive() {
		return false
	}
	p.Node, p.machine = t.nodes[node].Name, t.machines[node]
	return true
}

// mayAttach tells whether a network plugin can be at work for a pod. The pod may be on its way out by then: who admits it
// looked a moment earlier.
func (t *truth) mayAttach(p *pod) bool {
	return p != nil && p.machine != nil && p.machine.joined && p.machine.heard() && !p.finished && (p.Alive() || p.ended == t.steady)
}

// admit records a hand-out of one or two free addresses for a pod.
func (t *truth) admit(i, first int) (handle string, offsets []int) {
	p := t.pods[i]
	if !t.mayAttach(p) {
		return "", nil
	}
	owner := ipam.Owner{Kind: ipam.OwnerPod, Namespace: p.Namespace, Name: p.Name, UID: p.UID, Node: p.Node}
	if t.byName {
		owner.UID, owner.Node = "", ""
	}
	return t.record(owner, p.UID, first)
}

// takeOver records for a pod's new sandbox what is recorded under the pod's name, whoever has it.
func (t *truth) takeOver(i int) (handle string, offsets []int) {
	p := t.pods[i]
	if !t.mayAttach(p) || !t.byName {
		return "", nil
	}
	var old entry
	for o := range poolSize {
		if e, held := t.records[o]; held && e.owner.Name == p.Name && (offsets == nil || e.handle == old.handle) {
			old, offsets = e, append(offsets, o)
		}
	}
	if offsets == nil {
		return "", nil
	}
	for _, s := range t.sandboxes {
		s.lost = s.lost || s.handle == old.handle
	}
	return t.write(old.owner, p.UID, offsets), offsets
}

func (t *truth) record(owner ipam.Owner, by string, first int) (handle string, offsets []int) {
	for o := range poolSize {
		at := (first + o) % poolSize
		if _, taken := t.records[at]; !taken && len(offsets) <= first%2 {
			offsets = append(offsets, at)
		}
	}
	if len(offsets) <= first%2 {
		return "", nil
	}
	return t.write(owner, by, offsets), offsets
}

// write puts a new hand-out into the records.
func (t *truth) write(owner ipam.Owner, by string, offsets []int) (handle string) {
	handle = t.name("h")
	if owner.UID == "" {
		owner.ContainerID = handle
	}
	for _, at := range offsets {
		t.records[at] = entry{handle, owner, by}
	}
	return handle
}

// start has the kubelet start the pod's sandbox with addresses of its own.
func (t *truth) start(i, first int) bool {
	return t.attach(i, 0, func() (string, []int) { return t.admit(i, first) })
}

// attach has the kubelet start the pod's sandbox, which takes that long, with the addresses that are recorded for it.
func (t *truth) attach(i int, takes time.Duration, record func() (string, []int)) bool {
	p := t.pods[i]
	if p == nil || t.sandboxOf(p) != nil {
		return false
	}
	handle, offsets := record()
	if offsets == nil {
		return false
	}
	t.sandboxes = append(t.sandboxes, &sandbox{
		pod: p, machine: p.machine, registration: p.machine.registration, handle: handle, offsets: offsets, up: t.steady + takes,
	})
	return true
}

// tell has the kubelet report as much as the pod's images allow.
func (t *truth) tell(i int) {
	if p := t.exists(i); p != nil && p.slow && p.Phase == ipam.PhasePending {
		p.Sandbox = ipam.ConditionTrue
		return
	}
	t.report(i)
}

// report has the kubelet write the pod's status.
func (t *truth) report(i int) bool {
	p := t.exists(i)
	if p == nil || p.machine == nil || !p.machine.heard() {
		return false
	}
	before := *p
	switch s := t.sandboxOf(p); {
	case s != nil && s.up <= t.steady && !p.Terminal():
		p.Phase, p.Sandbox, p.ContainersTerminated, p.Addresses = "Running", ipam.ConditionTrue, false, nil
		for _, o := range s.offsets {
			p.Addresses = append(p.Addresses, address(o))
		}
	case s != nil && (s.up <= t.steady || !p.Alive()):
		return false
	case p.finished, !p.Alive():
		p.finished = true
		p.Sandbox, p.ContainersTerminated = ipam.ConditionFalse, true
		if !p.Terminal() {
			p.Phase = ipam.PhaseSucceeded
			p.ended = t.steady
		}
	case p.Phase == "Running": // its sandbox died, and will be made anew
		p.Sandbox, p.ContainersTerminated = ipam.ConditionFalse, true
	case p.Phase == ipam.PhasePending:
		p.Sandbox = ipam.ConditionFalse
	}
	return !reflect.DeepEqual(before, *p)
}

// die ends the pod's sandbox; for good, if its containers have done their work.
func (t *truth) die(i int, finished bool) bool {
	p := t.pods[i]
	if p == nil || !t.stop(func(s *sandbox) bool { return s.pod == p }) {
		return false
	}
	p.finished = p.finished || finished
	return true
}

// detach has the network plugin give back what the pod's former sandboxes had.
func (t *truth) detach(i int) bool {
	p := t.pods[i]
	if p == nil || p.machine == nil || !p.machine.heard() {
		return false
	}
	s, before := t.sandboxOf(p), len(t.records)
	for o, e := range t.records {
		if e.by == p.UID && (s == nil || s.handle != e.handle) {
			delete(t.records, o)
		}
	}
	return len(t.records) < before
}

// reuse has the network plugin give back a hand-out that no sandbox has any more, and hand it out again at once.
func (t *truth) reuse(first, next, node int) bool {
	for o := range poolSize {
		at := (first + o) % poolSize
		e, recorded := t.records[at]
		if !recorded || slices.ContainsFunc(t.sandboxes, func(s *sandbox) bool { return s.handle == e.handle }) {
			continue
		}
		maps.DeleteFunc(t.records, func(_ int, other entry) bool { return other.handle == e.handle })
		for i := range podNames {
			name := (next + i) % podNames
			t.create(name)
			t.bind(name, node)
			if t.start(name, at) {
				break
			}
		}
		return true
	}
	return false
}

// end has somebody delete the pod.
func (t *truth) end(i int) bool {
	p := t.exists(i)
	if p == nil || !p.Deleted.IsZero() {
		return false
	}
	if p.Alive() {
		p.ended = t.steady
	}
	p.Deleted = t.stamp()
	return true
}

// forge has PodGC write that a pod failed, because its node does not answer, and delete it.
func (t *truth) forge(i int) bool {
	p := t.exists(i)
	if p == nil || p.Node == "" || p.Terminal() {
		return false
	}
	n := t.nodes[slices.IndexFunc(t.machines[:], func(m *machine) bool { return m.name == p.Node })]
	if n != nil && (!n.OutOfService || n.Ready == ipam.ConditionTrue) {
		return false
	}
	t.end(i)
	p.Phase, p.Disrupted = ipam.PhaseFailed, true
	return true
}

// remove makes the pod's object go, whatever its sandbox does: a deletion by force, or the last finalizer's removal.
func (t *truth) remove(i int) bool {
	p := t.exists(i)
	if p == nil {
		return false
	}
	if p.Alive() {
		p.ended = t.steady
	}
	p.gone, p.Deleted = true, t.stamp()
	t.deletions = append(t.deletions, ipam.Owner{Kind: ipam.OwnerPod, Namespace: p.Namespace, Name: p.Name, UID: p.UID, Node: p.Node})
	return true
}

func address(offset int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(offset)}) }
