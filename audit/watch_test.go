package audit

import (
	"slices"
	"time"

	"github.com/oakum-dev/oakum/ipam"
)

// watch remembers how nodes came and went, as *cluster.Witness does.
type watch struct {
	// naive: it has not thought of machines that go on without their Node.
	naive bool
	// began is when the watching began; settled is since when no node has gone, or come back.
	began, settled time.Duration
	known          map[string]ipam.Node
	// former has the names of nodes that went.
	former map[string]bool
	// changes is how often a node went, came back or became ready again.
	changes int
}

// anew makes the caches those of a process that begins.
func (c *caches) anew() {
	c.pods, c.nodes, c.records = fresh, fresh, fresh
	c.missing = map[string]time.Duration{}
	c.watch = watch{naive: c.naive, began: c.truth.steady, settled: c.truth.steady, known: map[string]ipam.Node{}, former: map[string]bool{}}
	for _, n := range c.liveNodes() {
		c.known[n.Name] = n
	}
	c.notice()
}

// goes notes that there is no node of that name any more.
func (c *caches) goes(name string) {
	delete(c.known, name)
	c.former[name], c.settled = true, c.truth.steady
	if !c.naive {
		c.changes++
	}
}

// watched compares nodes that are listed with those that were, and marks those that join. One that bears the name of one
// that went, or that may have gone before the watching began, may be a machine that went on all the time.
func (c *caches) watched(listed []ipam.Node) []ipam.Node {
	now := c.truth.steady
	for name, k := range c.known {
		if slices.ContainsFunc(listed, func(n ipam.Node) bool { return n.UID == k.UID }) {
			continue
		}
		c.goes(name)
	}
	for i := range listed {
		n := &listed[i]
		k, known := c.known[n.Name]
		ready := n.Ready == ipam.ConditionTrue
		switch {
		case !known && !c.naive && (c.former[n.Name] || now-c.began < 24*time.Hour):
			c.changes, c.settled = c.changes+1, now
		case !known:
			n.Joining = !ready
		case !ready:
			n.Joining = k.Joining
		case k.Ready != ipam.ConditionTrue && !k.Joining, k.Ready == ipam.ConditionTrue && !k.ReadySince.Equal(n.ReadySince):
			c.changes++
		}
		c.known[n.Name] = *n
	}
	return listed
}
