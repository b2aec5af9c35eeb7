package envtest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/fixture"
)

// In each block a successor takes the first address that is given back, at once. If an address were given back twice, the
// successor would lose it.
func etcdRestarts(s *scene) {
	t := s.t
	m := s.start(t, unled)
	w := s.settle("10.112.0.0/17", 1024)
	film := shoot[*v1alpha1.AddressBlock](s, &v1alpha1.AddressBlockList{}, "", fields.OneTermEqualSelector("spec.pool", s.name), w.since)
	film.patience = 3 * controlplane.Deadline

	began := time.Now()
	var ending atomic.Int64
	outage := make(chan struct{})
	ended, restarted := make(chan error, 1), make(chan error, 1)
	go func() {
		ended <- each(t.Context(), len(w.pods), func(i int) error {
			if ending.Add(1) == 256 {
				close(outage)
			}
			// Of each block one, then of each another one.
			return w.end(t.Context(), w.pods[i%len(w.blocks)*houses+i/len(w.blocks)])
		})
	}()
	go func() {
		<-outage
		restarted <- s.RestartEtcd()
	}()

	r := w.register()
	var successors sync.WaitGroup
	film.until("free of all pods", func(f frame[*v1alpha1.AddressBlock]) bool {
		if offset, isFirst := r.reads(f.object); isFirst {
			successors.Go(func() {
				if err := w.succeed(t.Context(), f.object.Name, offset); err != nil {
					t.Errorf("taking an address that was given back: %v", err)
				}
			})
		}
		return r.left == 0
	})
	for _, err := range []error{<-ended, <-restarted} {
		if err != nil {
			t.Fatal(err)
		}
	}
	successors.Wait()
	eventually(t, func() error {
		if now := w.count(); now.Pods > 0 {
			return fmt.Errorf("%d pods remain", now.Pods)
		}
		return nil
	})
	t.Logf("%d pods were gone after %s", len(w.pods), time.Since(began).Round(time.Millisecond))
	quit(t, m)

	once, want, got := map[string]int{}, map[string]string{}, map[string]string{}
	for _, pod := range w.pods {
		once[handle(pod)] = 1
	}
	same(t, "how often each hand-out was given back", once, r.given)
	for block, offset := range r.first {
		want[block] = fmt.Sprintf("%d %s", offset, successor(block))
	}
	for _, b := range w.list().Items {
		got[b.Name] = entries(&b)
	}
	same(t, "what the blocks hold in the end", want, got)
}

// successor is the handle of the one that takes an address in a block.
func successor(block string) string { return "successor-" + block }

// succeed takes an address that was given back, as often as it takes.
func (w *town) succeed(ctx context.Context, name string, offset int32) error {
	b := &v1alpha1.AddressBlock{ObjectMeta: metav1.ObjectMeta{Name: name}}
	return insist(ctx, func() error {
		if err := w.client.Get(ctx, client.ObjectKeyFromObject(b), b); err != nil {
			return err
		}
		if slices.ContainsFunc(b.Spec.Allocations, func(a v1alpha1.Allocation) bool { return a.Handle == successor(name) }) {
			return nil // The answer to the last try was lost.
		}
		return w.take(b, fixture.Entry(offset, successor(name), fixture.External("successor")))
	})
}

// register notes what is given back in a town.
type register struct {
	// holds tells what each block held when it was last seen: handles by offset.
	holds map[string]map[int32]string
	// given counts how often each handle was given back.
	given map[string]int
	// first is the first offset of each block that was given back.
	first map[string]int32
	// left is how many hand-outs of the beginning are not given back yet.
	left int
}

func (w *town) register() *register {
	r := &register{holds: map[string]map[int32]string{}, given: map[string]int{}, first: map[string]int32{}, left: len(w.pods)}
	for _, b := range w.blocks {
		r.holds[b.Name] = byOffset(b)
	}
	return r
}

// reads notes a version of a block, and returns the first offset that was given back in it when that happens.
func (r *register) reads(b *v1alpha1.AddressBlock) (offset int32, isFirst bool) {
	now := byOffset(b)
	for o, handle := range r.holds[b.Name] {
		if now[o] == handle {
			continue
		}
		r.given[handle]++
		r.left--
		if _, known := r.first[b.Name]; !known {
			r.first[b.Name] = o
			offset, isFirst = o, true
		}
	}
	r.holds[b.Name] = now
	return offset, isFirst
}

func byOffset(b *v1alpha1.AddressBlock) map[int32]string {
	handles := map[int32]string{}
	for _, a := range b.Spec.Allocations {
		handles[a.Offset] = a.Handle
	}
	return handles
}
