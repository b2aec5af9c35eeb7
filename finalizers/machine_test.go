package finalizers

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/oakum-dev/oakum/test/fixture"
)

// machine is what stands behind a Node, if there is one. The code under test cannot see it.
type machine struct {
	name string
	// on: it runs, and with it what runs on it. Cut off: its kubelet neither hears nor is heard.
	on, cutOff bool
}

// sandbox is a pod's network on a machine: the truth about whether an address is in use.
type sandbox struct {
	machine *machine
	pod     types.NamespacedName
	uid     types.UID
	handle  string
	block   string
	offset  int32
	up      bool
}

// machines is a cluster that lives by itself.
type machines struct {
	*stage
	all       []*machine
	sandboxes []*sandbox
	// recorded are the entries of blocks that the cluster wrote itself, by block and offset.
	recorded map[string]map[int32]string
	handles  int
}

// sandboxOf returns what runs, or ran, under a handle.
func (m *machines) sandboxOf(handle string) *sandbox {
	i := slices.IndexFunc(m.sandboxes, func(s *sandbox) bool { return s.handle == handle })
	return m.sandboxes[i]
}

// upOf returns the sandbox of a pod that is up.
func (m *machines) upOf(uid types.UID) *sandbox {
	for _, s := range m.sandboxes {
		if s.uid == uid && s.up {
			return s
		}
	}
	return nil
}

func pick[T any](t *rapid.T, label string, from []T) (T, bool) {
	if len(from) == 0 {
		var none T
		return none, false
	}
	return from[rapid.IntRange(0, len(from)-1).Draw(t, label)], true
}

func (m *machines) pick(t *rapid.T, fits func(*machine) bool) (*machine, bool) {
	return pick(t, "machine", slices.DeleteFunc(slices.Clone(m.all), func(x *machine) bool { return !fits(x) }))
}

// pods returns the pods that fit, by name.
func (m *machines) pods(fits func(*corev1.Pod) bool) []*corev1.Pod {
	pods := slices.DeleteFunc(all(m.store, &corev1.Pod{}), func(p *corev1.Pod) bool { return !fits(p) })
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods
}

func (m *machines) machine(name string) *machine {
	i := slices.IndexFunc(m.all, func(x *machine) bool { return x.name == name })
	return m.all[i]
}

// heard tells whether the kubelet of a pod's machine can act on it and tell about it.
func (m *machines) heard(p *corev1.Pod) bool {
	if p.Spec.NodeName == "" {
		return false
	}
	x := m.machine(p.Spec.NodeName)
	return x.on && !x.cutOff
}

func alive(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// actions are what may happen to the cluster at any time. Rapid prefers those whose names come first.
func (m *machines) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"kubelets work":         m.work,
		"kubelets work hard":    func(t *rapid.T) { m.work(t); m.work(t); m.work(t) },
		"kubelets work, pods":   func(t *rapid.T) { m.makePod(t); m.work(t); m.work(t) },
		"pod is deleted":        m.deletePod,
		"pod is made":           m.makePod,
		"machine recovers":      m.recover,
		"node is registered":    m.register,
		"somebody collects":     m.collectAddress,
		"trouble: PodGC":        m.collectPods,
		"trouble: machine":      m.fail,
		"trouble: taint":        m.taint,
		"trouble: node deleted": m.deleteNode,
	}
}

func (m *machines) makePod(t *rapid.T) {
	name := rapid.SampledFrom([]string{"web-0", "web-1", "web-2", "db-0", "db-1"}).Draw(t, "name")
	if _, exists := look(m.store, fixture.Pod(name, "")); exists {
		return
	}
	node := m.all[rapid.IntRange(0, len(m.all)-1).Draw(t, "machine")].name
	p := fixture.Pod(name, node)
	if rapid.IntRange(0, 9).Draw(t, "unscheduled") == 0 {
		p.Spec.NodeName = ""
	}
	p.Finalizers = []string{kubelet}
	p.Status.Phase = corev1.PodPending
	m.put(p)
}

func (m *machines) deletePod(t *rapid.T) {
	p, ok := pick(t, "pod", m.pods(func(p *corev1.Pod) bool { return slices.Contains(p.Finalizers, kubelet) }))
	if !ok {
		return
	}
	m.store.remove(p)
	if p.Spec.NodeName == "" || rapid.IntRange(0, 3).Draw(t, "by force") == 0 {
		m.unkubelet(p)
	}
}

func (m *machines) fail(t *rapid.T) {
	x, ok := m.pick(t, func(x *machine) bool { return x.on && !x.cutOff })
	if !ok {
		return
	}
	if rapid.Bool().Draw(t, "it is off") {
		m.switchOff(x)
	} else {
		x.cutOff = true
	}
	m.setReady(x, corev1.ConditionUnknown)
	if rapid.Bool().Draw(t, "its pods are evicted") {
		m.evict(x)
	}
}

// evict deletes the pods of a machine.
func (m *machines) evict(x *machine) {
	for _, p := range m.pods(func(p *corev1.Pod) bool { return p.Spec.NodeName == x.name }) {
		m.store.remove(p)
	}
}

func (m *machines) switchOff(x *machine) {
	x.on, x.cutOff = false, false
	for _, s := range m.sandboxes {
		s.up = s.up && s.machine != x
	}
}

func (m *machines) setReady(x *machine, ready corev1.ConditionStatus) {
	if n, ok := look(m.store, fixture.Node(x.name)); ok {
		change(m.store, n, func(n *corev1.Node) { n.Status.Conditions[0].Status = ready })
	}
}

// recover lets a machine come back, after the taint that says that it is off. One of which the deletion of its Node says
// so stays off.
func (m *machines) recover(t *rapid.T) {
	x, ok := m.pick(t, func(x *machine) bool { return !x.on || x.cutOff })
	if !ok {
		return
	}
	n, ok := look(m.store, fixture.Node(x.name))
	if ok && len(n.Spec.Taints) > 0 {
		change(m.store, n, func(n *corev1.Node) { n.Spec.Taints = nil })
	}
	if ok && n.DeletionTimestamp == nil || !m.fenced {
		x.on, x.cutOff = true, false
		m.setReady(x, corev1.ConditionTrue)
	}
}

// taint lets an administrator switch a machine off and say so. Nothing tolerates the taint.
func (m *machines) taint(t *rapid.T) {
	x := m.all[rapid.IntRange(0, len(m.all)-1).Draw(t, "machine")]
	if n, ok := look(m.store, fixture.Node(x.name)); ok && len(n.Spec.Taints) == 0 {
		m.switchOff(x)
		m.setReady(x, corev1.ConditionUnknown)
		change(m.store, fixture.Node(x.name), fixture.OutOfService)
		m.evict(x)
	}
}

// deleteNode deletes a Node. Where that means that the machine is off, it is switched off before.
func (m *machines) deleteNode(t *rapid.T) {
	x := m.all[rapid.IntRange(0, len(m.all)-1).Draw(t, "machine")]
	if m.fenced {
		m.switchOff(x)
		m.setReady(x, corev1.ConditionUnknown)
	}
	m.store.remove(fixture.Node(x.name))
	if rapid.Bool().Draw(t, "its pods are evicted") {
		m.evict(x)
	}
}

// register makes the Node of a machine that runs and has none.
func (m *machines) register(t *rapid.T) {
	x, ok := m.pick(t, func(x *machine) bool { _, has := look(m.store, fixture.Node(x.name)); return !has })
	if !ok {
		return
	}
	if m.fenced {
		x.on = rapid.IntRange(0, 7).Draw(t, "it is replaced") == 0
	}
	if x.on && !x.cutOff {
		m.put(fixture.Node(x.name))
	}
}

// collectPods is what PodGC does about pods whose node is gone, or is out of service.
func (m *machines) collectPods(*rapid.T) {
	for _, p := range m.pods(func(p *corev1.Pod) bool { return p.Spec.NodeName != "" && slices.Contains(p.Finalizers, kubelet) }) {
		if n, exists := look(m.store, fixture.Node(p.Spec.NodeName)); exists && (len(n.Spec.Taints) == 0 || p.DeletionTimestamp == nil) {
			continue
		}
		if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			change(m.store, p, fixture.CollectedByPodGC)
		}
		m.store.remove(p)
		m.unkubelet(p)
	}
}

// collectAddress gives back one of many addresses that nobody uses, as an audit does.
func (m *machines) collectAddress(t *rapid.T) {
	var dead []*sandbox
	for _, name := range slices.Sorted(maps.Keys(m.recorded)) {
		for _, offset := range slices.Sorted(maps.Keys(m.recorded[name])) {
			if s := m.sandboxOf(m.recorded[name][offset]); !s.up {
				dead = append(dead, s)
			}
		}
	}
	if len(dead) > 4 {
		m.giveBack(dead[rapid.IntRange(0, len(dead)-1).Draw(t, "address")])
	}
}
