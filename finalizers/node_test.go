package finalizers

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

// What is sent for node n1 and its blocks.
const (
	puttingOnNode = `PATCH nodes n1 {"metadata":{"uid":"n1-uid","finalizers":["ipam.oakum.dev/addresses"]}}`
	takingOffNode = `PATCH nodes n1 {"metadata":{"uid":"n1-uid","$deleteFromPrimitiveList/finalizers":["ipam.oakum.dev/addresses"]}}`
)

// deleting is what is sent to reclaim a block.
func deleting(name string) string {
	return `DELETE addressblocks ` + name + ` {"preconditions":{"uid":"` + name + `-uid","resourceVersion":"<current>"}}`
}

func TestNode(t *testing.T) {
	broken := errors.New("the API server is on fire")
	tests := map[string]struct {
		node   []func(*corev1.Node)
		blocks []client.Object
		set    func(*Reconcilers)
		unseen func(*stage)
		fails  map[string]error
		want   outcome
		// left are the blocks that are not being deleted afterwards.
		left []string
	}{
		"a node is held as soon as it is seen": {
			blocks: []client.Object{block("default", 0, "n1")},
			want:   outcome{Calls: []string{puttingOnNode}},
			left:   []string{"default-0"},
		},
		"a node that is held already needs no more": {
			node: []func(*corev1.Node){heldNode},
		},
		"a node that is going is not held any more": {
			node: []func(*corev1.Node){guardedNode, goingNode(0)},
		},
		"a node that is deleted goes at once, its empty blocks with it, the others not": {
			node: []func(*corev1.Node){heldNode, goingNode(0)},
			blocks: []client.Object{
				block("default", 0, "n1"), block("default", 1, "n1", entry(0, "h1", "web-0", "u1")),
				block("default", 2, "n1", cooling(0, time.Second)), block("default", 3, "n1", cooling(0, 0)),
				block("default", 4, "n2"),
			},
			want: outcome{Calls: []string{deleting("default-0"), deleting("default-3"), takingOffNode}, Recorded: "h1"},
			left: []string{"default-1", "default-2", "default-4"},
		},
		"a block from which somebody takes an address at that moment stays": {
			node: []func(*corev1.Node){heldNode, goingNode(0)}, blocks: []client.Object{block("default", 0, "n1")},
			unseen: func(s *stage) {
				s.fault = func(c call) (error, bool) {
					if c.verb == "DELETE" {
						change(s.store, block("default", 0, "n1"), entry(0, "h1", "web-0", "u1"))
					}
					return nil, false
				}
			},
			want: outcome{Calls: []string{deleting("default-0"), takingOffNode}, Recorded: "h1"},
			left: []string{"default-0"},
		},
		"an API server that fails keeps the node": {
			node: []func(*corev1.Node){heldNode, goingNode(30*time.Second - 1)}, fails: map[string]error{"LIST addressblocks": broken},
			want: outcome{Err: "the API server is on fire"},
		},
		"a block that cannot be deleted keeps the node, and does not keep the other blocks": {
			node:   []func(*corev1.Node){heldNode, goingNode(0)},
			blocks: []client.Object{block("default", 0, "n1"), block("default", 1, "n1")},
			fails:  map[string]error{"DELETE addressblocks default-0": broken},
			want:   outcome{Calls: []string{deleting("default-0"), deleting("default-1")}, Err: "the API server is on fire"},
			left:   []string{"default-0"},
		},
		"an API server that fails until the deadline lets it go": {
			node: []func(*corev1.Node){heldNode, goingNode(30 * time.Second)}, blocks: []client.Object{block("default", 0, "n1")},
			fails: map[string]error{"LIST addressblocks": broken},
			want:  outcome{Calls: []string{takingOffNode}},
			left:  []string{"default-0"},
		},
		"where nodes are not to be held the finalizer comes off, even of one that lives": {
			node: []func(*corev1.Node){heldNode}, blocks: []client.Object{block("default", 0, "n1")},
			set:  func(r *Reconcilers) { r.Node.Wanted = false },
			want: outcome{Calls: []string{takingOffNode}},
			left: []string{"default-0"},
		},
		"where nodes are not to be held none is": {
			set: func(r *Reconcilers) { r.Node.Wanted = false },
		},
		"a node of the same name that came unseen inherits nothing and loses nothing": {
			node: []func(*corev1.Node){heldNode, goingNode(0)}, blocks: []client.Object{block("default", 0, "n1")},
			unseen: func(s *stage) {
				change(s.store, fixture.Node("n1"), func(n *corev1.Node) { n.Finalizers = nil })
				s.put(fixture.Node("n1", heldNode))
			},
			want: outcome{Calls: []string{takingOffNode}},
			left: []string{"default-0"},
		},
		"a node that went unseen needs nothing any more": {
			node: []func(*corev1.Node){heldNode, goingNode(0)}, blocks: []client.Object{block("default", 0, "n1")},
			unseen: func(s *stage) {
				change(s.store, fixture.Node("n1"), func(n *corev1.Node) { n.Finalizers = nil })
			},
			want: outcome{Calls: []string{takingOffNode}},
			left: []string{"default-0"},
		},
		"a node that cannot be read is not known to be the one": {
			node: []func(*corev1.Node){heldNode, goingNode(0)}, blocks: []client.Object{block("default", 0, "n1")},
			fails: map[string]error{"GET nodes": broken},
			want:  outcome{Err: "reading node n1: the API server is on fire"},
			left:  []string{"default-0"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			node := fixture.Node("n1", tt.node...)
			s := newStage(t, append([]client.Object{node, pool()}, tt.blocks...)...)
			if tt.set != nil {
				s.settings = append(s.settings, tt.set)
			}
			s.start()
			if tt.unseen != nil {
				tt.unseen(s)
			}
			if tt.fails != nil {
				s.fault = failing(tt.fails)
			}
			if diff := cmp.Diff(tt.want, s.outcome(node, "n1")); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
			var left []string
			for _, b := range all(s.store, &v1alpha1.AddressBlock{}) {
				if b.DeletionTimestamp == nil {
					left = append(left, b.Name)
				}
			}
			if diff := cmp.Diff(tt.left, left); diff != "" {
				t.Errorf("blocks that stay (-want +got):\n%s", diff)
			}
		})
	}
}

func heldNode(n *corev1.Node) {
	n.Finalizers = []string{"example.org/guard", v1alpha1.AddressesFinalizer}
}

func guardedNode(n *corev1.Node) { n.Finalizers = []string{"example.org/guard"} }

// goingNode lets the node have been deleted so long ago.
func goingNode(since time.Duration) func(*corev1.Node) {
	return func(n *corev1.Node) { n.DeletionTimestamp = ago(since) }
}
