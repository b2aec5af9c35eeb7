//go:build e2e

package e2e

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
)

// frame is one version of an object, as a watcher saw it.
type frame[T client.Object] struct {
	event  watch.EventType
	object T
	at     time.Time
}

// film is what a watcher sees of all objects of a kind.
type film[T client.Object] struct {
	mu   sync.Mutex
	seen map[types.NamespacedName][]frame[T]
}

// shoot films the objects of a list from now until the test ends, beginning with what they are now. Whoever looks on is
// shown each frame as it comes, after the one before it of the same object.
func shoot[T client.Object, L client.ObjectList](w *town, list L, onlooker func(before, now frame[T]), options ...client.ListOption) *film[T] {
	w.t.Helper()
	c, err := client.NewWithWatch(w.Admin, client.Options{Scheme: w.records.Scheme()})
	w.must(err)
	w.must(c.List(w.t.Context(), list, options...))
	f := &film[T]{seen: map[types.NamespacedName][]frame[T]{}}
	w.must(meta.EachListItem(list, func(o runtime.Object) error {
		f.add(frame[T]{watch.Added, o.DeepCopyObject().(T), time.Now()})
		return nil
	}))
	watcher, err := toolswatch.NewRetryWatcherWithContext(w.t.Context(), list.GetResourceVersion(), &toolscache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			all := append(slices.Clone(options), &client.ListOptions{Raw: &o})
			return c.Watch(ctx, list.DeepCopyObject().(client.ObjectList), all...)
		},
	})
	w.must(err)
	done := make(chan struct{})
	w.t.Cleanup(func() { watcher.Stop(); <-done })
	go func() {
		defer close(done)
		for e := range watcher.ResultChan() {
			if o, ok := e.Object.(T); ok {
				now := frame[T]{e.Type, o, time.Now()}
				if before := f.add(now); onlooker != nil {
					onlooker(before, now)
				}
			}
		}
	}()
	return f
}

// add appends a frame and returns the one before it.
func (f *film[T]) add(now frame[T]) (before frame[T]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := client.ObjectKeyFromObject(now.object)
	if all := f.seen[name]; len(all) > 0 {
		before = all[len(all)-1]
	}
	f.seen[name] = append(f.seen[name], now)
	return before
}

// of returns what was seen of an object until now.
func (f *film[T]) of(o client.Object) []frame[T] {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.seen[client.ObjectKeyFromObject(o)])
}

// first returns the first frame that is as wanted; false if there is none yet.
func first[T client.Object](frames []frame[T], is func(frame[T]) bool) (frame[T], bool) {
	if i := slices.IndexFunc(frames, is); i >= 0 {
		return frames[i], true
	}
	return frame[T]{}, false
}

// held tells whether Oakum has its finalizer on an object.
func held(o client.Object) bool {
	return slices.Contains(o.GetFinalizers(), v1alpha1.AddressesFinalizer)
}
