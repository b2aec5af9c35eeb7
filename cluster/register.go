package cluster

import (
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// register remembers how Nodes came and went while this process watched, in steady time.
type register struct {
	mu sync.Mutex
	// began is when the watching began, and quarantine for how long a machine may run on without its Node.
	began, quarantine time.Duration
	// settled is when the last Node went or came back, or when the watching began.
	settled time.Duration
	// known are the Nodes that there are, as they were seen last, by name.
	known map[string]sight
	// missing tells since when a Node that was there, or that somebody asked for, has been known not to exist.
	missing map[string]time.Duration
	// former tells of each name that was missing when it was last found to be. Whoever bears it again may be a machine that
	// went on all the time.
	former map[string]time.Duration
	// returns is how often a Node went, came back or became ready again.
	returns int
}

// sight is how a Node was seen.
type sight struct {
	uid        types.UID
	ready      bool
	readySince metav1.Time
	// joining: it appeared and has not been ready since.
	joining bool
}

func newRegister(now, quarantine time.Duration) register {
	return register{
		began: now, quarantine: quarantine, settled: now,
		known: map[string]sight{}, missing: map[string]time.Duration{}, former: map[string]time.Duration{},
	}
}

// sees notes a Node as a watch or a list has it. One whose condition Ready is True again, or of which nobody saw that it was
// not in between, has returned. One that was not there joins, unless it may be a machine whose Node went: while somebody
// watched, or before that, as far back as is remembered.
func (r *register) sees(n *Node, now time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.missing, n.Name)
	before, known := r.known[n.Name]
	if known && before.uid != n.UID {
		r.goes(n.Name, now)
		known = false
	}
	s := sight{uid: n.UID, ready: n.ready == corev1.ConditionTrue, readySince: n.readySince}
	_, former := r.former[n.Name]
	switch {
	case !known && (former || now-r.began < memory):
		r.settled = now
		r.returns++
	case !known:
		s.joining = !s.ready
	case !s.ready:
		s.joining = before.joining
	case before.joining, before.ready && before.readySince.Equal(&s.readySince):
	default:
		r.returns++
	}
	r.known[n.Name] = s
}

// lists notes that these, read without a cache, are all the Nodes that there are.
func (r *register) lists(nodes []*Node, now time.Duration) {
	names := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		r.sees(n, now)
		names[n.Name] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.known {
		if !names[name] {
			r.goes(name, now)
		}
	}
}

// leaves notes that a Node is gone.
func (r *register) leaves(n *Node, now time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// It has been there until now: what was noted before was about an earlier node of that name, or came late.
	if s, known := r.known[n.Name]; !known || s.uid == n.UID {
		r.goes(n.Name, now)
	}
}

// memory is how long it is remembered that a node is missing, and how long a machine without its Node may come back. One that is asked for after that begins to be missing anew.
const memory = 24 * time.Hour

func (r *register) goes(name string, now time.Duration) {
	old := func(_ string, since time.Duration) bool { return now-since > memory }
	maps.DeleteFunc(r.missing, old)
	maps.DeleteFunc(r.former, old)
	delete(r.known, name)
	r.missing[name], r.former[name], r.settled = now, now, now
	r.returns++
}

// note remembers since when a node has been missing.
func (r *register) note(name string, exists bool, now time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	since, known := r.missing[name]
	switch {
	case exists:
		delete(r.missing, name)
	case !known, now-since > memory:
		r.goes(name, now)
	}
}

// goneFor returns for how long each Node has been missing.
func (r *register) goneFor(now time.Duration) map[string]time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	gone := maps.Clone(r.missing)
	for name, since := range gone {
		gone[name] = now - since
	}
	return gone
}

// calm tells whether no Node has gone or come back for a quarantine, and how often one did, or became ready again.
func (r *register) calm(now time.Duration) (settled bool, returns int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return now-r.settled >= r.quarantine, r.returns
}

// joins tells whether a Node appeared while somebody watched and has not been ready since.
func (r *register) joins(n *Node) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.known[n.Name]
	return s.uid == n.UID && s.joining
}
