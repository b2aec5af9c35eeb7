package audit

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/ipam"
)

// model is the audit at work in a small cluster.
type model struct {
	variant
	truth   *truth
	caches  *caches
	journal *journal
	reports *reports
	metrics Metrics
	auditor *Auditor
	// due is when the audit runs next.
	due     time.Duration
	running bool
	// writes is how many writes the audit's process does before it dies; less than 0 if it lives.
	writes int
	// fails is the call that fails next; calls if none does.
	fails call
	// meanwhile happens at the next call of that kind.
	meanwhile map[call]step
	// touched are the hand-outs of which the audit took a place out; given those that it gave back.
	touched, given map[string]bool
	// broken says which invariant was broken, and how.
	broken string
}

// call is a point in a run of the audit at which something can happen.
type call int

const (
	listing call = iota
	witnessing
	looking
	releasing
	calls
)

// variant breaks the audit by what it is given; the zero variant does not.
type variant struct {
	// blur changes what is seen of a pod.
	blur func(*ipam.Pod)
	// hasty: suspicions need not last, and the audit runs twice each time.
	hasty bool
	// careless: the backend releases whatever stands at the place.
	careless bool
	// distort changes what is seen of nodes as a whole.
	distort func(*ipam.Observation)
	// lagging: the last look takes every node from the cache.
	lagging bool
	// naive: a machine is thought to be off when its Node is gone.
	naive bool
	// hearsay: whom the cache shows when a record is first seen counts as who bore its owner's name then.
	hearsay bool
}

// blindToPodGC takes what PodGC wrote for the kubelet's word.
func blindToPodGC(p *ipam.Pod) { p.Disrupted = false }

func sound() config.Audit {
	return config.Audit{
		Interval:    metav1.Duration{Duration: 5 * time.Minute},
		GracePeriod: metav1.Duration{Duration: 5 * time.Minute},
		Quarantine:  metav1.Duration{Duration: 15 * time.Minute},
		Pace:        config.Pace{Fraction: 0.1, Minimum: 2},
	}
}

func newModel(fenced, byName bool, v variant) *model {
	m := &model{
		variant: v, truth: newTruth(fenced, byName), journal: newJournal(), fails: calls, writes: -1,
		touched: map[string]bool{}, given: map[string]bool{}, meanwhile: map[call]step{},
	}
	m.caches = &caches{truth: m.truth, watch: watch{naive: v.naive}}
	m.reports = &reports{truth: m.truth}
	m.metrics = newTestMetrics()
	m.restart(config.ModeEnforce)
	return m
}

func newTestMetrics() Metrics {
	// The only errors would be names that are taken, and the registry is new.
	m, _ := NewMetrics(prometheus.NewRegistry(),
		prometheus.NewCounterVec(prometheus.CounterOpts{Name: "releases"}, []string{"backend", "reason"}),
		prometheus.NewCounterVec(prometheus.CounterOpts{Name: "errors"}, []string{"backend"}))
	return m
}

// restart puts a new process in the place of the old one: it remembers nothing, and its caches are new.
func (m *model) restart(mode config.Mode) {
	m.caches.anew()
	m.truth.deletions = nil
	m.auditor = &Auditor{
		Backend: store{m}, Witness: witness{m}, Clock: m.truth.clock, Mode: mode, Settings: sound(),
		Client: m.reports, Live: m.reports, Log: logr.New(line{m.journal}), Recorder: m.journal, Metrics: m.metrics,
	}
	if m.careless {
		m.auditor.Backend = careless{store{m}}
	}
	if m.hasty {
		m.auditor.Settings.GracePeriod, m.auditor.Settings.Quarantine = metav1.Duration{}, metav1.Duration{}
	}
	m.due = m.truth.steady
}

// died is what a process panics with that dies.
type died struct{}

// audit runs the audit, which dies before it writes more than that.
func (m *model) audit(writes int) {
	m.running, m.writes = true, writes
	func() {
		defer func() {
			if r := recover(); r != nil && r != (died{}) {
				panic(r)
			}
		}()
		m.due = m.truth.steady + m.auditor.Run(context.Background())
		if m.hasty {
			m.auditor.Run(context.Background())
		}
	}()
	m.running, m.writes = false, -1
	if writes >= 0 {
		m.restart(m.auditor.Mode)
	}
	m.check()
}

// reach lets happen what happens at that call.
func (m *model) reach(c call) error {
	if s, planned := m.meanwhile[c]; planned {
		delete(m.meanwhile, c)
		m.do(s)
	}
	if m.fails == c {
		m.fails = calls
		return errors.New("the API server does not answer")
	}
	return nil
}

// takeOut takes whatever stands at the places of a hand-out out of the records.
func (m *model) takeOut(a ipam.Allocation) {
	if m.auditor.Mode != config.ModeEnforce {
		m.fail("%s was released in mode %s", a.Handle, m.auditor.Mode)
	}
	for _, p := range a.Places {
		e, held := m.truth.records[p.Offset]
		if !held {
			continue
		}
		if m.writes == 0 {
			panic(died{})
		}
		m.writes--
		if e.handle != a.Handle || e.owner != a.Owner {
			m.fail("I6: the release of %s took out %s of %s", a.Handle, e.handle, e.owner)
		}
		delete(m.truth.records, p.Offset)
		m.touched[a.Handle] = true
	}
	m.given[a.Handle] = m.touched[a.Handle]
}

func (m *model) fail(format string, args ...any) {
	if m.broken == "" {
		m.broken = fmt.Sprintf("after %s: ", m.truth.steady) + fmt.Sprintf(format, args...)
	}
}

// check looks at the invariants that hold at any time.
func (m *model) check() {
	for _, s := range m.truth.sandboxes {
		for _, o := range s.offsets {
			e := m.truth.records[o]
			switch {
			case e.handle == s.handle, s.lost:
			case m.truth.writtenOff(s, sound().Quarantine.Duration):
				s.lost = true
			default:
				m.fail("I1: %s is that of %s, which runs on %s, and its record is %q", address(o), s.handle, s.machine.name, e.handle)
			}
		}
	}
	if m.running {
		return
	}
	for handle, given := range m.given {
		if missing := m.journal.unexplained(handle); given && missing != "" {
			m.fail("I9: %s", missing)
		}
	}
	for handle, events := range m.journal.events {
		if len(events) > 1 {
			m.fail("I9: %s", m.journal.unexplained(handle))
		}
	}
}

// pass lets time pass.
func (m *model) pass(d time.Duration) {
	for end := m.truth.steady + d; m.truth.steady < end && m.broken == ""; {
		m.truth.pass()
		m.caches.notice()
		if m.truth.steady >= m.due {
			m.audit(-1)
		}
		m.check()
	}
}

// settle ends all faults and waits for as long as a leak may last. I2.
func (m *model) settle() {
	m.truth.heal()
	for i := range nodeNames {
		m.truth.tidy(i)
	}
	for i := range podNames {
		m.truth.bind(i, i%nodeNames)
		if p := m.truth.exists(i); p != nil && p.Alive() {
			p.slow = false
			m.truth.start(i, i)
		}
		m.truth.report(i)
		if p := m.truth.exists(i); p != nil && !p.Deleted.IsZero() {
			m.truth.remove(i)
		}
	}
	m.caches.thaw()
	m.fails, m.auditor.Mode = calls, config.ModeEnforce
	clear(m.meanwhile)
	m.audit(-1) // A list that shrinks too much is believed the second time.
	leaked, all := map[string]bool{}, map[string]bool{}
	for _, e := range m.truth.records {
		all[e.handle] = true
		leaked[e.handle] = m.ownerless(e)
	}
	for o, e := range m.truth.records {
		if m.named(address(o)) {
			leaked[e.handle] = false
		}
	}
	s := sound()
	paced := max(0, (len(all)+s.Pace.Minimum-1)/s.Pace.Minimum-1)
	m.pass(s.Quarantine.Duration + s.GracePeriod.Duration + time.Duration(1+paced)*s.Interval.Duration + time.Minute)
	for o, e := range m.truth.records {
		if leaked[e.handle] {
			m.fail("I2: %s of %s is still recorded for %s", address(o), e.handle, e.owner)
		}
	}
}

// ownerless tells whether no object has the owner's UID; or, where a record tells the sandbox, whether that does not run.
func (m *model) ownerless(e entry) bool {
	if e.owner.ContainerID != "" {
		// What may be that of a pod that starts is kept.
		for i := range podNames {
			if p := m.truth.exists(i); p != nil && p.Name == e.owner.Name && p.Phase == ipam.PhasePending {
				return false
			}
		}
		return !slices.ContainsFunc(m.truth.sandboxes, func(s *sandbox) bool { return s.handle == e.handle })
	}
	for i := range podNames {
		if p := m.truth.exists(i); p != nil && p.UID == e.by && !p.Ended() {
			return false
		}
	}
	return !slices.ContainsFunc(m.truth.nodes[:], func(n *ipam.Node) bool { return n != nil && n.UID == e.by })
}

// named tells whether a pod that may still run names the address.
func (m *model) named(a netip.Addr) bool {
	for i := range podNames {
		if p := m.truth.exists(i); p != nil && !p.Ended() && slices.Contains(p.Addresses, a) {
			return true
		}
	}
	return false
}

// history is what happens, step by step.
type history struct {
	Fenced bool
	// ByName: records tell pods by name and sandbox.
	ByName bool
	Steps  []step
}

// play lets a history happen, and then all faults end. It returns how many steps it took and the first invariant that
// was broken; and the history without the steps that did nothing.
func (h history) play(v variant) (n int, broken string, told history) {
	m := newModel(h.Fenced, h.ByName, v)
	told = history{Fenced: h.Fenced, ByName: h.ByName}
	for i, s := range h.Steps {
		if m.do(s) {
			told.Steps = append(told.Steps, s)
		}
		m.check()
		if m.broken != "" {
			return i + 1, m.broken, told
		}
	}
	m.settle()
	return len(h.Steps), m.broken, told
}

// String returns the history as Go has it.
func (h history) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "history{Fenced: %t, ByName: %t, Steps: []step{\n", h.Fenced, h.ByName)
	for _, s := range h.Steps {
		fmt.Fprintf(&b, "\t{%q, %d, %d},\n", s.Do, s.A, s.B)
	}
	b.WriteString("}}")
	return b.String()
}

const enough = 100_000

func TestNoHistoryBreaksAnInvariant(t *testing.T) {
	steps := 0
	for steps < enough && !t.Failed() {
		rapid.Check(t, func(t *rapid.T) {
			h := anyHistory().Draw(t, "history")
			n, broken, told := h.play(variant{})
			if steps += n; broken != "" {
				t.Fatalf("%s\n%s", broken, told)
			}
		})
	}
	t.Logf("%d steps", steps)
}

func TestABrokenAuditIsCaught(t *testing.T) {
	tests := map[string]struct {
		variant variant
		want    string
	}{
		"that takes PodGC's word for the kubelet's": {
			variant: variant{blur: blindToPodGC},
			want:    "I1",
		},
		"for which one sighting is enough": {
			variant: variant{hasty: true},
			want:    "I1",
		},
		"whose release does not compare": {
			variant: variant{careless: true},
			want:    "I6",
		},
		"that takes the pod in its cache for the one that was there when a record was": {
			variant: variant{hearsay: true},
			want:    "I1",
		},
		"that does not ask where a pod may have run that is gone": {
			variant: variant{distort: func(o *ipam.Observation) {
				for i := range o.Nodes {
					o.Nodes[i].Joining = true
				}
			}},
			want: "I1",
		},
		"that forgets nodes when they go": {
			variant: variant{distort: func(o *ipam.Observation) { o.NodesSettled = true }},
			want:    "I1",
		},
		"that does not notice that a node was away": {
			variant: variant{distort: func(o *ipam.Observation) { o.NodeReturns = 0 }},
			want:    "I1",
		},
		"that takes a machine without a Node for one that is off": {
			variant: variant{naive: true},
			want:    "I1",
		},
		"that looks at nodes in its cache alone": {
			variant: variant{lagging: true},
			want:    "I1",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			steps := 0
			for seed := 0; steps < enough; seed++ {
				n, broken, told := anyHistory().Example(seed).play(tt.variant)
				if steps += n; strings.Contains(broken, tt.want) {
					least := told.shrunk(tt.variant, tt.want)
					if _, broken, _ = least.play(tt.variant); !strings.Contains(broken, tt.want) {
						t.Errorf("what the history tells of itself shows %q", broken)
					}
					t.Logf("caught after %d steps: %s\n%s", steps, broken, least)
					return
				}
			}
			t.Errorf("not caught in %d steps", steps)
		})
	}
}

// shrunk leaves out every step that the failure does not need.
func (h history) shrunk(v variant, want string) history {
	for i := range slices.Backward(h.Steps) {
		less := history{h.Fenced, h.ByName, slices.Delete(slices.Clone(h.Steps), i, i+1)}
		if _, broken, _ := less.play(v); strings.Contains(broken, want) {
			h = less
		}
	}
	return h
}

func anyHistory() *rapid.Generator[history] {
	return rapid.Custom(func(t *rapid.T) history {
		byName := rapid.Bool().Draw(t, "by name")
		return history{
			Fenced: rapid.IntRange(0, 4).Draw(t, "fenced") == 4,
			ByName: byName,
			Steps:  rapid.SliceOfN(anyStep(byName), 60, 160).Draw(t, "steps"),
		}
	})
}
