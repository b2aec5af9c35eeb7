package audit

import (
	"slices"
	"time"

	"github.com/oakum-dev/oakum/ipam"
)

// machineOf returns which machine has the name of the node that the pod, or the last one of that name, was bound to; -1 if
// none has.
func (t *truth) machineOf(i int) int {
	return slices.IndexFunc(t.machines[:], func(m *machine) bool { return t.pods[i] != nil && t.pods[i].Node == m.name })
}

// tidy has the kubelet take down what it must not run.
func (t *truth) tidy(i int) bool {
	m := t.machines[i]
	return m.heard() && t.stop(func(s *sandbox) bool { return s.machine == m && s.pod != nil && !s.pod.Alive() })
}

// heartbeat has the kubelet report that its node is ready.
func (t *truth) heartbeat(i int) bool {
	n := t.nodes[i]
	if n == nil || !t.machines[i].heard() || n.Ready == ipam.ConditionTrue {
		return false
	}
	n.Ready, n.ReadySince, t.machines[i].joined = ipam.ConditionTrue, t.stamp(), true
	return true
}

// link cuts a machine off from the API server, or ends that.
func (t *truth) link(i int, linked bool) bool {
	m := t.machines[i]
	if !m.on || m.linked == linked {
		return false
	}
	m.linked = linked
	return true
}

// power switches a machine on or off. Nobody switches one on before its taint is off, and its kubelet makes a Node if there
// is none.
func (t *truth) power(i int, on bool) bool {
	m := t.machines[i]
	if m.on == on || on && t.nodes[i] != nil && t.nodes[i].OutOfService {
		return false
	}
	m.on, m.linked = on, on
	t.stop(func(s *sandbox) bool { return s.machine == m })
	for _, p := range t.pods {
		if p != nil && p.machine == m {
			p.ended = -1 // A kubelet that starts knows which pods have ended.
		}
	}
	t.register(i, true)
	return true
}

// taint has an administrator say that a node is off, which is true, or take that back.
func (t *truth) taint(i int, off bool) bool {
	n := t.nodes[i]
	if n == nil || n.OutOfService == off || off && (t.machines[i].on || t.runsOn(n.Name)) {
		return false
	}
	n.OutOfService = off
	return true
}

// runsOn tells whether anything runs on a machine that ever bore the name.
func (t *truth) runsOn(name string) bool {
	for _, s := range t.sandboxes {
		if s.machine.name == name {
			return true
		}
	}
	return false
}

// unregister deletes a Node.
func (t *truth) unregister(i int) bool {
	n := t.nodes[i]
	if n == nil {
		return false
	}
	t.nodes[i], t.left[n.UID] = nil, t.steady
	t.deletions = append(t.deletions, ipam.Owner{Kind: ipam.OwnerNode, Name: n.Name, UID: n.UID, Node: n.Name})
	if t.fenced {
		t.power(i, false)
	}
	return true
}

// register has a kubelet that was restarted make a Node anew. It finds its sandboxes as they were.
func (t *truth) register(i int, ready bool) bool {
	m := t.machines[i]
	if t.nodes[i] != nil || !m.heard() {
		return false
	}
	t.nodes[i] = &ipam.Node{Name: m.name, UID: t.name("n"), Created: t.stamp(), Ready: ipam.ConditionFalse, ReadySince: t.stamp()}
	if ready {
		t.heartbeat(i)
	}
	m.registration = t.nodes[i].UID
	for _, s := range t.sandboxes {
		if s.machine == m && s.pod != nil {
			s.registration = m.registration
		}
	}
	return true
}

// replace has another machine register under the name. The old one, if it is on, goes on for ever, cut off.
func (t *truth) replace(i int, ready bool) bool {
	if t.nodes[i] != nil {
		return false
	}
	t.machines[i].linked = false
	t.machines[i] = &machine{name: t.machines[i].name, on: true, linked: true}
	return t.register(i, ready)
}

// tunnel records an address that the node has for itself.
func (t *truth) tunnel(i, first int) bool {
	n, m := t.nodes[i], t.machines[i]
	if n == nil || !m.heard() || t.byName {
		return false
	}
	for _, s := range t.sandboxes {
		if s.machine == m && s.pod == nil {
			return false
		}
	}
	handle, offsets := t.record(ipam.Owner{Kind: ipam.OwnerNode, Name: n.Name, UID: n.UID, Node: n.Name}, n.UID, first)
	if offsets == nil {
		return false
	}
	t.sandboxes = append(t.sandboxes, &sandbox{machine: m, registration: n.UID, handle: handle, offsets: offsets})
	return true
}

// heal ends every fault: machines that were replaced go off, the others come back.
func (t *truth) heal() {
	t.stop(func(s *sandbox) bool {
		for _, m := range t.machines {
			if m == s.machine {
				return false
			}
		}
		return true
	})
	for i, p := range t.pods {
		if at := t.machineOf(i); at >= 0 {
			p.machine = t.machines[at] // Whoever bears the name runs it.
		}
	}
	for i := range t.machines {
		t.taint(i, false)
		t.power(i, true)
		t.link(i, true)
		t.register(i, true)
		t.heartbeat(i)
	}
}

// writtenOff tells whether an assertion stands for the sandbox's end: its Node has been gone for the whole quarantine.
func (t *truth) writtenOff(s *sandbox, quarantine time.Duration) bool {
	at, left := t.left[s.registration]
	return left && t.steady-at >= quarantine
}
