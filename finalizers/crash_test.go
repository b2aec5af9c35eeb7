package finalizers

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

// busy returns a stage on which everything that the reconcilers do is to be done: pods that ended, by the kubelet's word
// and by an administrator's, a pod to be held, one whose node is gone, a node, a pool, blocks and a claim to be let go.
// Beside them are addresses that are nobody's business.
func busy(t tester) *stage {
	gone := func(p *corev1.Pod) { p.Finalizers = []string{v1alpha1.AddressesFinalizer} }
	old := pool(goingPool(0))
	old.Name = "old"
	objects := []client.Object{
		pool(), old,
		fixture.Node("n1", heldNode), fixture.Node("n2", fixture.NotReady, fixture.OutOfService), fixture.Node("n3", goingNode(0), func(n *corev1.Node) {
			n.Finalizers = []string{v1alpha1.AddressesFinalizer}
		}),
		fixture.Pod("web-0", "n1", fixture.UID("u0"), fixture.Running("10.0.0.0"), gone, deleted(0), fixture.Ended),
		fixture.Pod("web-1", "n1", fixture.UID("u1"), fixture.Running("10.0.0.1", "10.0.0.2"), held, fixture.Ended),
		fixture.Pod("web-2", "n1", fixture.UID("u2"), fixture.Running("10.0.0.3")),
		fixture.Pod("db-0", "n2", fixture.UID("u3"), fixture.Running("10.0.0.4"), gone, deleted(0)),
		fixture.Pod("db-1", "n3", fixture.UID("u4"), fixture.Running("10.0.0.8"), gone, deleted(0)),
		block("default", 0, "n1", entry(0, "h0", "web-0", "u0"), entry(1, "h1", "web-1", "u1"), entry(2, "h1b", "web-1", "u1"), entry(3, "h2", "web-2", "u2")),
		block("default", 1, "n2", entry(0, "h3", "db-0", "u3"), entry(1, "h3-before", "db-0", "u3-before"), fixture.Entry(2, "h-router", fixture.External("router"))),
		block("default", 2, "n3", entry(0, "h4", "db-1", "u4")),
		block("default", 3, "n3"), block("default", 4, "n1"), block("old", 5, "n1"), claim("default-0/of-another-node", 0),
	}
	for _, o := range objects {
		if b, ok := o.(*v1alpha1.AddressBlock); ok {
			told(b)
		}
	}
	return play(t, objects...)
}

// finish looks at everything until there is nothing left to do, and again each time when time has brought something. A
// process that has died is followed by another one.
func (s *stage) finish() {
	s.Helper()
	for range 3 {
		for rounds := 0; s.round(); rounds++ {
			if s.died {
				s.died, s.fault = false, nil
				s.start()
			}
			if rounds == 20 {
				s.Fatalf("there is no end of it: %v", s.calls)
			}
		}
		s.pass(5 * time.Minute)
	}
}

// round looks at everything once, and tells whether that wrote anything or failed. What failed is looked at again, before
// the process learns what became of it.
func (s *stage) round() (busy bool) {
	s.catchUp()
	before := len(s.calls)
	for _, of := range kinds() {
		for _, name := range slices.Sorted(slices.Values(s.informers[s.kind(of)].GetIndexer().ListKeys())) {
			if _, err := s.reconcile(of, name); err != nil {
				busy = true
				_, _ = s.reconcile(of, name)
			}
		}
	}
	return busy || len(s.calls) > before
}

// A crash between any two writes, and a write whose answer is lost, end as if nothing had happened.
func TestEveryWriteMayBeTheLast(t *testing.T) {
	t.Parallel()
	undisturbed := busy(t)
	undisturbed.finish()
	writes, released := len(undisturbed.calls), releases(undisturbed.events)
	want := undisturbed.dump()
	if len(released) != 4 || writes < 20 {
		t.Fatalf("%d writes gave back %v: too little happens", writes, released)
	}
	dead := errors.New("the process is dead")
	tests := map[string]struct {
		// answer is that of the write after k others, which is carried out or not. A process that dies gets no further.
		answer           error
		carriedOut, dies bool
	}{
		"a crash before a write":          {dead, false, true},
		"a crash after a write":           {dead, true, true},
		"a write whose answer is lost":    {context.DeadlineExceeded, true, false},
		"a write that answers with a 500": {apierrors.NewInternalError(errors.New("etcd is slow")), true, false},
		"a write that answers with a 429": {apierrors.NewTooManyRequests("slow down", 1), true, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for k := range writes {
				s := busy(t)
				sent := 0
				s.fault = func(c call) (error, bool) {
					if s.died {
						return dead, false
					}
					if c.verb != "PATCH" && c.verb != "DELETE" {
						return nil, false
					}
					if sent++; sent != k+1 {
						return nil, false
					}
					s.died = tt.dies
					return tt.answer, tt.carriedOut
				}
				s.finish()
				if diff := cmp.Diff(want, s.dump()); diff != "" {
					t.Errorf("with write %d, %s (-want +got):\n%s", k, s.calls[k], diff)
				}
				for handle, n := range releases(s.events) {
					if n > 1 || released[handle] == 0 {
						t.Errorf("with write %d, %s: the release of %s was told %d times", k, s.calls[k], handle, n)
					}
				}
				if told := releases(s.events); !tt.dies && len(told) != len(released) {
					t.Errorf("with write %d, %s: told of %v, want %v", k, s.calls[k], told, released)
				}
			}
		})
	}
}

// releases counts how often the release of each hand-out was told.
func releases(events []string) map[string]int {
	told := map[string]int{}
	for _, e := range events {
		if _, rest, ok := strings.Cut(e, "(Release) on Pod "); ok && strings.HasPrefix(e, "Normal AddressReleased ") {
			_, rest, _ = strings.Cut(rest, "handle ")
			handle, _, _ := strings.Cut(rest, ")")
			told[handle]++
		}
	}
	return told
}
