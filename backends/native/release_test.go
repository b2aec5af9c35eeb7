package native

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	kube "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/fixture"
)

// counter is a block whose hand-outs are given back by many at a time. Whoever writes first waits until all others are in the
// queue.
type counter struct {
	*Backend
	store   client.WithWatch
	patches []string
	// refuses is a handle whose release the API server refuses, by a patch with it alone or with others.
	refuses string
}

func newCounter(t *testing.T, handOuts, together int) (*counter, []ipam.Allocation) {
	t.Helper()
	block := fixture.Block("p", 0, "n1", func(b *v1alpha1.AddressBlock) { b.Spec.IPv4 = "10.0.0.0/26" })
	for i := range handOuts {
		fixture.Entry(int32(i), fmt.Sprintf("h%d", i), fixture.OfPod(fixture.Pod(fmt.Sprintf("web-%d", i), "n1", func(p *corev1.Pod) { p.UID = "u" })))(block)
	}
	c := &counter{}
	scheme := kube.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	var first sync.Once
	c.store = fake.NewClientBuilder().WithScheme(scheme).WithObjects(fixture.Pool("p", fixture.Subnet("10.0.0.0/24", "")), block).
		WithInterceptorFuncs(interceptor.Funcs{Patch: func(ctx context.Context, w client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			first.Do(func() { c.awaitQueue(together - 1) })
			text, err := p.Data(o)
			if err != nil {
				return err
			}
			c.patches = append(c.patches, string(text)) // One writes at a time.
			before := &v1alpha1.AddressBlock{}
			if err := w.Get(ctx, client.ObjectKeyFromObject(o), before); err != nil {
				return err
			}
			if !strings.Contains(string(text), `"value":"`+before.ResourceVersion+`"`) {
				return apierrors.NewConflict(schema.GroupResource{Resource: "addressblocks"}, o.GetName(), errors.New("it has changed"))
			}
			for i, e := range before.Spec.Allocations {
				if e.Handle == c.refuses && strings.Contains(string(text), fmt.Sprintf(`"/spec/allocations/%d"`, i)) {
					return apierrors.NewForbidden(schema.GroupResource{Resource: "addressblocks"}, o.GetName(), errors.New("not this one"))
				}
			}
			return w.Patch(ctx, o, p, opts...)
		}}).Build()
	c.Backend = New(c.store, c.store, c.store)
	blocks := []ipam.Block{block.Law()}
	return c, Allocations(blocks, func(pool string) string { return pool })
}

// awaitQueue returns when so many releases wait.
func (c *counter) awaitQueue(n int) {
	for {
		waiting := 0
		for i := range c.desks {
			d := &c.desks[i]
			d.mu.Lock()
			waiting += len(d.queue["p-0"])
			d.mu.Unlock()
		}
		if waiting >= n {
			return
		}
		runtime.Gosched()
	}
}

// release gives all of them back at once, and returns what came of each, by handle.
func (c *counter) release(t *testing.T, all ...ipam.Allocation) map[string]error {
	t.Helper()
	var mu sync.Mutex
	var group sync.WaitGroup
	answers := map[string]error{}
	for _, a := range all {
		group.Go(func() {
			err := c.Release(t.Context(), a)
			mu.Lock()
			defer mu.Unlock()
			answers[a.Handle] = errors.Join(answers[a.Handle], err)
		})
	}
	group.Wait()
	return answers
}

// left are the handles that the block still has.
func (c *counter) left(t *testing.T) (handles []string) {
	t.Helper()
	block := &v1alpha1.AddressBlock{}
	if err := c.store.Get(t.Context(), client.ObjectKey{Name: "p-0"}, block); err != nil {
		t.Fatal(err)
	}
	for _, e := range block.Spec.Allocations {
		handles = append(handles, e.Handle)
	}
	return handles
}

func TestOneWritesForAllThatWait(t *testing.T) {
	t.Parallel()
	c, all := newCounter(t, 20, 16)
	for handle, err := range c.release(t, all[:16]...) {
		if err != nil {
			t.Errorf("%s: %v", handle, err)
		}
	}
	if got := c.left(t); !slices.Equal(got, []string{"h16", "h17", "h18", "h19"}) {
		t.Errorf("the block still has %q", got)
	}
	// The one that writes first knows of itself alone. The others see what that one left, not what they had read before.
	if len(c.patches) != 2 {
		t.Errorf("16 releases took %d writes, want 2: %q", len(c.patches), c.patches)
	}
}

func TestReleaseThatIsRefusedHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	c, all := newCounter(t, 6, 6)
	c.refuses = "h3"
	for handle, err := range c.release(t, all...) {
		if refused := apierrors.IsForbidden(err); refused != (handle == "h3") || err != nil && !refused {
			t.Errorf("%s: %v", handle, err)
		}
	}
	if got := c.left(t); !slices.Equal(got, []string{"h3"}) {
		t.Errorf("the block still has %q, want h3", got)
	}
}

func TestWhatIsNotThereAnyMoreHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	c, all := newCounter(t, 4, 4)
	another := all[1]
	another.Handle = "before" // Its place is another hand-out's by now.
	for handle, err := range c.release(t, all[0], another, all[2], all[2], all[3]) {
		if stale := errors.Is(err, backends.ErrStale); stale != (handle == "before") || err != nil && !stale {
			t.Errorf("%s: %v", handle, err)
		}
	}
	if got := c.left(t); !slices.Equal(got, []string{"h1"}) {
		t.Errorf("the block still has %q, want h1", got)
	}
}

// Whoever writes may have read the block before an address was taken that another release is about.
func TestWhatIsNewerThanTheWriterReadIsReleased(t *testing.T) {
	t.Parallel()
	c, all := newCounter(t, 2, 1)
	now := &v1alpha1.AddressBlock{}
	if err := c.store.Get(t.Context(), client.ObjectKey{Name: "p-0"}, now); err != nil {
		t.Fatal(err)
	}
	before := now.DeepCopy()
	before.ResourceVersion, before.Spec.Allocations = "1", before.Spec.Allocations[:1]
	other := &release{allocation: all[1], seen: *now}
	c.deskOf("p-0").enter("p-0", other)
	if err := c.releaseIn(t.Context(), all[0], *before); err != nil {
		t.Error(err)
	}
	if left := c.left(t); len(left) > 0 || !other.done || other.err != nil {
		t.Errorf("the block still has %q, and the other release is done: %t (%v)", left, other.done, other.err)
	}
}
