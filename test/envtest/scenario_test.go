package envtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/fixture"
)

// The scenarios play what goes wrong in a cluster. Nothing runs: what a kubelet or a controller would write is written
// by hand, in the order in which they do. What Oakum does about it is seen by watching.

// frame is one version of an object, as a watcher saw it.
type frame[T client.Object] struct {
	event  watch.EventType
	object T
	at     time.Time
}

// film is what a watcher sees.
type film[T client.Object] struct {
	t      *testing.T
	coming <-chan frame[T]
	seen   []frame[T]
	// patience is how long until may wait.
	patience time.Duration
}

// record films one object, beginning with what follows the version that is given.
func record[T client.Object](s *scene, object T, list client.ObjectList) *film[T] {
	s.t.Helper()
	selector := fields.OneTermEqualSelector("metadata.name", object.GetName())
	return shoot[T](s, list, object.GetNamespace(), selector, object.GetResourceVersion())
}

// shoot films all objects of a list that a selector selects, beginning with what follows a version.
func shoot[T client.Object](s *scene, list client.ObjectList, namespace string, selector fields.Selector, version string) *film[T] {
	s.t.Helper()
	c, err := client.NewWithWatch(s.Admin, client.Options{Scheme: s.Client.Scheme()})
	if err != nil {
		s.t.Fatal(err)
	}
	watcher, err := toolswatch.NewRetryWatcherWithContext(s.t.Context(), version, &toolscache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, list, &client.ListOptions{Namespace: namespace, FieldSelector: selector, Raw: &o})
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	frames := make(chan frame[T], 10_000)
	go func() {
		defer close(frames)
		for e := range watcher.ResultChan() {
			object, ok := e.Object.(T)
			if !ok {
				return // An error: the film ends.
			}
			frames <- frame[T]{e.Type, object, time.Now()}
		}
	}()
	return &film[T]{t: s.t, coming: frames, patience: controlplane.Deadline}
}

// until reads on to the first frame that is as wanted.
func (f *film[T]) until(what string, is func(frame[T]) bool) frame[T] {
	f.t.Helper()
	timeout := time.After(f.patience)
	for {
		select {
		case next, ok := <-f.coming:
			if !ok {
				f.t.Fatalf("the watch ended before %s", what)
			}
			f.seen = append(f.seen, next)
			if is(next) {
				return next
			}
		case <-timeout:
			f.t.Fatalf("after %s: not %s", f.patience, what)
		}
	}
}

// gone reads on until an object does not exist any more.
func (f *film[T]) gone() frame[T] {
	f.t.Helper()
	return f.until("gone", func(next frame[T]) bool { return next.event == watch.Deleted })
}

// letGo reads on until Oakum's finalizer is off.
func (f *film[T]) letGo() frame[T] {
	f.t.Helper()
	return f.until("let go", func(next frame[T]) bool {
		return next.event == watch.Deleted || !slices.Contains(next.object.GetFinalizers(), v1alpha1.AddressesFinalizer)
	})
}

// podStory tells what the film showed of a pod: its phase, the grace period of its deletion, and whether Oakum holds it.
func podStory(f *film[*corev1.Pod]) []string {
	var story []string
	for _, next := range f.seen {
		p, now := next.object, "gone"
		if next.event != watch.Deleted {
			now = string(p.Status.Phase)
			if p.DeletionGracePeriodSeconds != nil {
				now += fmt.Sprintf(", grace %d", *p.DeletionGracePeriodSeconds)
			}
			if slices.Contains(p.Finalizers, v1alpha1.AddressesFinalizer) {
				now += ", held"
			}
		}
		story = append(story, now)
	}
	return story
}

// graceful is the story of a pod that ends as it should: it is deleted, its kubelet reports the end, Oakum lets it go,
// and its kubelet deletes it for good.
func graceful() []string {
	return []string{"Running, grace 3, held", "Succeeded, grace 3, held", "Succeeded, grace 3", "Succeeded, grace 0", "gone"}
}

// entries tells a block's allocations.
func entries(b *v1alpha1.AddressBlock) string {
	var texts []string
	for _, a := range b.Spec.Allocations {
		texts = append(texts, fmt.Sprintf("%d %s", a.Offset, a.Handle))
	}
	return strings.Join(texts, ", ")
}

// blockStory tells how the allocations of a block changed since the version that is given.
func blockStory(first *v1alpha1.AddressBlock, f *film[*v1alpha1.AddressBlock]) []string {
	story := []string{entries(first)}
	for _, next := range f.seen {
		now := entries(next.object)
		if next.event == watch.Deleted {
			now = "gone"
		}
		if now != story[len(story)-1] {
			story = append(story, now)
		}
	}
	return story
}

// inOrder checks that versions of objects were written one after the other: etcd numbers all writes.
func (s *scene) inOrder(versions ...client.Object) {
	s.t.Helper()
	for i := range len(versions) - 1 {
		before, after := versions[i], versions[i+1]
		order, err := resourceversion.CompareResourceVersion(before.GetResourceVersion(), after.GetResourceVersion())
		if err != nil {
			s.t.Fatal(err)
		}
		if order >= 0 {
			s.t.Errorf("write %d, %T at version %s, is not before write %d, %T at version %s",
				i+1, before, before.GetResourceVersion(), i+2, after, after.GetResourceVersion())
		}
	}
}

// same compares two values of which one is wanted.
func same[T any](t *testing.T, what string, want, got T) {
	t.Helper()
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// within checks that something took no longer than it may.
func within(t *testing.T, what string, limit, took time.Duration) {
	t.Helper()
	t.Logf("%s after %s", what, took.Round(time.Millisecond))
	if took > limit {
		t.Errorf("%s after %s, want %s at the latest", what, took, limit)
	}
}

// tenant creates a pod, gives it an address from a block of its node, and lets the kubelet report that it runs.
func (s *scene) tenant(name string, b *v1alpha1.AddressBlock, offset int32) *corev1.Pod {
	s.t.Helper()
	p := fixture.Pod(name, b.Spec.Node)
	s.create(p)
	s.lend(b, offset, p)
	fixture.Running(address(b, offset))(p)
	s.report(p)
	return p
}

// lend gives a pod an address of a block, and reads both as they are then.
func (s *scene) lend(b *v1alpha1.AddressBlock, offset int32, p *corev1.Pod) {
	s.t.Helper()
	s.read(b)
	s.wants(answer{}, s.take(b, fixture.Entry(offset, handle(p), fixture.OfPod(p))))
	s.read(b)
	s.held(p)
}

// known waits until Oakum has seen what blocks hold, and reads them as they are then. A pod that ended sooner could be let
// go with nothing known to be recorded for it.
func (s *scene) known(blocks ...*v1alpha1.AddressBlock) {
	s.t.Helper()
	for _, b := range blocks {
		eventually(s.t, func() error {
			s.read(b)
			if b.Status.ObservedGeneration != b.Generation || int(b.Status.Allocated) != len(b.Spec.Allocations) {
				return fmt.Errorf("block %s holds %s, and its status is %v", b.Name, entries(b), b.Status)
			}
			return nil
		})
	}
}

// handle is the name of the hand-out to a pod.
func handle(p *corev1.Pod) string { return string(p.UID) + "-eth0" }

// entry is how a block's story tells of the hand-out to a pod.
func entry(offset int32, p *corev1.Pod) string { return fmt.Sprintf("%d %s", offset, handle(p)) }

// address is the address at an offset, or the first one of a pair.
func address(b *v1alpha1.AddressBlock, offset int32) string {
	return b.Law().Subnet.At(uint64(offset))[0].String()
}

// delete deletes an object.
func (s *scene) delete(object client.Object, options ...client.DeleteOption) {
	s.t.Helper()
	s.wants(answer{}, s.client.Delete(s.t.Context(), object, options...))
}

// force deletes a pod by force: the object stays only for its finalizers.
func (s *scene) force(p *corev1.Pod) {
	s.t.Helper()
	s.delete(p, client.GracePeriodSeconds(0))
}

// ends reports that a pod's sandbox is down, as its kubelet does.
func (s *scene) ends(p *corev1.Pod) {
	s.t.Helper()
	s.read(p)
	fixture.Ended(p)
	s.report(p)
}

// finish deletes a pod for good, as its kubelet does when it has cleaned up behind it.
func (s *scene) finish(p *corev1.Pod) {
	s.t.Helper()
	err := s.client.Delete(s.t.Context(), p, client.GracePeriodSeconds(0), client.Preconditions{UID: &p.UID})
	s.wants(answer{}, client.IgnoreNotFound(err))
}

// becomes reports a node's status, as its kubelet or the node controller does.
func (s *scene) becomes(n *corev1.Node, knobs ...func(*corev1.Node)) {
	s.t.Helper()
	s.report(fixture.Node(n.Name, knobs...))
}

// overtaken returns when Oakum has let a pod go whose end was written after everything before: it has had its chance to
// act on that, too.
func (s *scene) overtaken() {
	s.t.Helper()
	p := fixture.Pod(s.name+"-overtaker", s.name, fixture.Running())
	p.Finalizers = []string{v1alpha1.AddressesFinalizer}
	s.create(p)
	s.read(p)
	f := record(s, p, &corev1.PodList{})
	s.delete(p)
	s.ends(p)
	f.letGo()
	s.finish(p)
	f.gone()
}

// told is an Event as `kubectl describe` shows it.
type told struct {
	Type, Reason, Note string
	// Count is how often it was told, if more than once.
	Count int32
}

// tells waits until the Events about an object are these.
func (s *scene) tells(about client.Object, want ...told) {
	s.t.Helper()
	eventually(s.t, func() error {
		if diff := gocmp.Diff(want, s.events(about)); diff != "" {
			return fmt.Errorf("events (-want +got):\n%s", diff)
		}
		return nil
	})
}

// events lists the Events about an object, by the time at which they were first told.
func (s *scene) events(about client.Object) []told {
	s.t.Helper()
	var list corev1.EventList
	if err := s.client.List(s.t.Context(), &list, client.MatchingFields{"involvedObject.uid": string(about.GetUID())}); err != nil {
		s.t.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b corev1.Event) int { return a.EventTime.Compare(b.EventTime.Time) })
	var events []told
	for _, e := range list.Items {
		next := told{Type: e.Type, Reason: e.Reason, Note: e.Message}
		if e.Series != nil {
			next.Count = e.Series.Count
		}
		events = append(events, next)
	}
	return events
}

// called is how Events call a pod.
func called(p *corev1.Pod) string {
	return fmt.Sprintf("Pod %s/%s (uid %s)", p.Namespace, p.Name, p.UID)
}

// released is the Event about addresses that were given back because the kubelet reported the pod's end.
func released(p *corev1.Pod, addresses string) told {
	return told{
		Type: corev1.EventTypeNormal, Reason: "AddressReleased",
		Note: fmt.Sprintf("released %s (native, handle %s): the kubelet reported the end of %s: Succeeded, every container terminated, sandbox down",
			addresses, handle(p), called(p)),
	}
}
