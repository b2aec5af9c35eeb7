package cluster

import (
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// register remembers how Nodes came and went while this process watched, in steady time.
type register struct {
	mu sync.Mutex
	// settled is when the last Node went, or when the watching began.
	settled time.Duration
	// missing tells since when a Node that was there, or that somebody asked for, has been known not to exist.
	missing map[string]time.Duration
	// joining are the Nodes that appeared and have not been ready since.
	joining map[types.UID]bool
	// returns is how often a Node became ready again.
	returns int
}

func newRegister(now time.Duration) register {
	return register{settled: now, missing: map[string]time.Duration{}, joining: map[types.UID]bool{}}
}

// arrives notes that a Node is there. It is new if it was not when the watching began.
func (r *register) arrives(n *Node, isNew bool, now time.Duration) {
	r.note(n.Name, true, now)
	r.mu.Lock()
	defer r.mu.Unlock()
	if isNew && n.ready != corev1.ConditionTrue {
		r.joining[n.UID] = true
	}
}

// changes notes what became of a Node. One whose condition Ready is True again, or of which nobody saw that it was not in
// between, has returned.
func (r *register) changes(before, after *Node, now time.Duration) {
	if before.UID != after.UID {
		r.leaves(before, now)
		r.arrives(after, true, now)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case after.ready != corev1.ConditionTrue, before.ready == corev1.ConditionTrue && before.readySince.Equal(&after.readySince):
	case r.joining[after.UID]:
		delete(r.joining, after.UID)
	default:
		r.returns++
	}
}

// leaves notes that a Node is gone.
func (r *register) leaves(n *Node, now time.Duration) {
	// It has been there until now: what was noted before was about an earlier node of that name, or came late.
	r.note(n.Name, true, now)
	r.note(n.Name, false, now)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.joining, n.UID)
}

// memory is how long it is remembered that a node is missing. One that is asked for after that begins to be missing anew.
const memory = 24 * time.Hour

// note remembers since when a node has been missing.
func (r *register) note(name string, exists bool, now time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if exists {
		delete(r.missing, name)
		return
	}
	maps.DeleteFunc(r.missing, func(_ string, since time.Duration) bool { return now-since > memory })
	if _, known := r.missing[name]; !known {
		r.missing[name], r.settled = now, now
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

// settledFor returns for how long no Node has gone while somebody watched.
func (r *register) settledFor(now time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return now - r.settled
}

// count returns how often a Node became ready again.
func (r *register) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.returns
}

// joins tells whether a Node appeared while somebody watched and has not been ready since.
func (r *register) joins(n *Node) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.joining[n.UID]
}
