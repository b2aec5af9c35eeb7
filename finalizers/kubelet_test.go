package finalizers

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

// kubelet is the finalizer that stands for the kubelet's last DELETE, without which a pod stays.
const kubelet = "example.org/kubelet"

// work lets every kubelet that is heard take a step with each of its pods, and end a sandbox whose pod is gone.
func (m *machines) work(t *rapid.T) {
	for _, s := range m.sandboxes {
		if p, exists := look(m.store, fixture.Pod(s.pod.Name, "")); s.up && s.machine.on && !s.machine.cutOff && (!exists || p.UID != s.uid) {
			m.tearDown(t, s)
		}
	}
	for _, p := range m.pods(m.heard) {
		switch up := m.upOf(p.UID); {
		case !alive(p):
			m.end(t, p, up)
		case up == nil && p.Status.Phase == corev1.PodPending && rapid.Bool().Draw(t, "tells first"):
			change(m.store, p, creating)
		case up == nil:
			m.raise(t, p)
		case p.Status.Phase == corev1.PodPending:
			change(m.store, p, fixture.Running(m.addressOf(up)))
		case rapid.IntRange(0, 3).Draw(t, "the work is done") == 0:
			m.tearDown(t, up)
			change(m.store, p, fixture.Ended)
		case rapid.IntRange(0, 3).Draw(t, "the sandbox dies") == 0:
			m.tearDown(t, up)
			change(m.store, p, func(p *corev1.Pod) {
				fixture.Ended(p)
				p.Status.Phase = corev1.PodRunning
			})
		}
	}
}

// raise makes a sandbox, for which a client takes an address. Whoever admits the address puts the finalizer on, but not
// for clients from before that.
func (m *machines) raise(t *rapid.T, p *corev1.Pod) {
	b := m.blockOf(p.Spec.NodeName)
	if b == nil {
		return
	}
	offset := int32(0)
	for slices.ContainsFunc(b.Spec.Allocations, func(a v1alpha1.Allocation) bool { return a.Offset == offset }) {
		offset++
	}
	if offset > 15 {
		return
	}
	if rapid.IntRange(0, 4).Draw(t, "before our time") > 0 {
		change(m.store, p, func(p *corev1.Pod) {
			if !slices.Contains(p.Finalizers, v1alpha1.AddressesFinalizer) {
				p.Finalizers = append(p.Finalizers, v1alpha1.AddressesFinalizer)
			}
		})
	}
	m.handles++
	s := &sandbox{
		machine: m.machine(p.Spec.NodeName), pod: client.ObjectKeyFromObject(p), uid: p.UID,
		handle: fmt.Sprintf("h%d", m.handles), block: b.Name, offset: offset, up: true,
	}
	m.sandboxes = append(m.sandboxes, s)
	change(m.store, b, entry(offset, s.handle, p.Name, p.UID))
	m.write(s.block, s.offset, s.handle)
}

// creating is the status of a pod in ContainerCreating.
func creating(p *corev1.Pod) {
	fixture.Ended(p)
	p.Status.Phase = corev1.PodPending
	p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
}

func (m *machines) addressOf(s *sandbox) string {
	return fmt.Sprintf("10.0.0.%d", 16*slices.Index(m.all, s.machine)+int(s.offset))
}

// tearDown ends a sandbox. The network plugin gives the address back, unless that is lost.
func (m *machines) tearDown(t *rapid.T, s *sandbox) {
	s.up = false
	if rapid.Bool().Draw(t, "the plugin's DEL is lost") {
		return
	}
	m.giveBack(s)
}

func (m *machines) giveBack(s *sandbox) {
	b, ok := look(m.store, fixture.Block("default", int32(slices.Index(m.all, s.machine)), s.machine.name))
	if !ok || m.recorded[s.block][s.offset] != s.handle {
		return
	}
	mine := func(a v1alpha1.Allocation) bool { return a.Handle == s.handle }
	if slices.ContainsFunc(b.Spec.Allocations, mine) {
		change(m.store, b, func(b *v1alpha1.AddressBlock) { b.Spec.Allocations = slices.DeleteFunc(b.Spec.Allocations, mine) })
	}
	m.write(s.block, s.offset, "")
}

// unkubelet is a DELETE without grace.
func (m *machines) unkubelet(p *corev1.Pod) {
	change(m.store, p, func(p *corev1.Pod) {
		p.Finalizers = slices.DeleteFunc(p.Finalizers, func(f string) bool { return f == kubelet })
	})
}

// end takes a step in ending a pod: the sandbox goes down, then the status tells, then the object goes.
func (m *machines) end(t *rapid.T, p *corev1.Pod, up *sandbox) {
	told := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionFalse
	}) && p.Status.Phase != corev1.PodPending && p.Status.Phase != corev1.PodRunning
	switch {
	case up != nil:
		m.tearDown(t, up)
	case !told:
		forged := p.Status.Phase == corev1.PodFailed
		change(m.store, p, func(p *corev1.Pod) {
			if fixture.Ended(p); forged {
				p.Status.Phase = corev1.PodFailed
			}
		})
	case p.DeletionTimestamp != nil && slices.Contains(p.Finalizers, kubelet):
		m.unkubelet(p)
	}
}

// write remembers who was written into a block; nobody if the handle is empty.
func (m *machines) write(block string, offset int32, handle string) {
	if m.recorded[block] == nil {
		m.recorded[block] = map[int32]string{}
	}
	m.recorded[block][offset] = handle
	if handle == "" {
		delete(m.recorded[block], offset)
	}
}

// blockOf returns the block of a node, which is made if there is none; nil if it is being deleted.
func (m *machines) blockOf(node string) *v1alpha1.AddressBlock {
	i := slices.IndexFunc(m.all, func(x *machine) bool { return x.name == node })
	b := block("default", int32(i), node)
	b.Spec.IPv4 = fmt.Sprintf("10.0.0.%d/28", 16*i)
	found, exists := look(m.store, b)
	switch {
	case !exists:
		m.put(b)
		return b
	case found.DeletionTimestamp != nil:
		return nil
	}
	return found
}
