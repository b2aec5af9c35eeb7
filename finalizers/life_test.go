package finalizers

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

// I1, I3, I6, I9: whatever happens to machines, to the process, to its calls and to what it is told, no address of a
// sandbox that is up is released, no pod or node is held beyond its deadline, a release changes nothing else, and each is
// told once, with its evidence.
func TestNoLiveAddressIsEverReleased(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	for range 2 {
		rapid.Check(t, func(t *rapid.T) {
			l := begin(t, seen)
			for range 5 {
				t.Repeat(l.steps())
			}
			l.fault = nil
			l.work(15 * time.Minute)
			for _, c := range l.calls {
				if c.resource == "pods" && strings.Contains(c.body, `,"finalizers":`) {
					seen["backfill"]++
				}
			}
		})
	}
	for what, least := range map[string]int{
		"step": 20_000, "E2": 100, "E4": 20, "E5": 3, "left to the audit": 20, "backfill": 20, "crash": 50, "lost answer": 20, "failed call": 20,
	} {
		if seen[what] < least {
			t.Errorf("seen %d times, want %d: %s", seen[what], least, what)
		}
	}
}

// life is a cluster with the code under test in it, run as a manager runs it.
type life struct {
	*machines
	*schedule
	// deaf are the kinds of which the process hears little. CaughtUp is when the process knew everything last.
	deaf     map[schema.GroupVersionKind]bool
	caughtUp time.Duration
	// told counts the Events about each release. Of excused ones none may come: the process died with the write.
	told    map[string]int
	excused bool
	read    int
	seen    map[string]int
}

func begin(t *rapid.T, seen map[string]int) *life {
	m := &machines{recorded: map[string]map[int32]string{}}
	m.stage = newStage(t, pool(fixture.BlockSize(4)))
	m.fenced = rapid.Bool().Draw(t, "deleting a node means fencing it")
	for _, name := range []string{"n1", "n2", "n3"} {
		m.all = append(m.all, &machine{name: name, on: true})
		m.put(fixture.Node(name))
	}
	l := &life{machines: m, deaf: map[schema.GroupVersionKind]bool{}, told: map[string]int{}, seen: seen}
	l.boot()
	return l
}

// boot begins another process.
func (l *life) boot() {
	l.died, l.fault = false, nil
	l.start()
	l.schedule, l.caughtUp = newSchedule(l.stage), l.now.Steady
}

func (l *life) hearAll() {
	l.catchUp()
	l.caughtUp = l.now.Steady
}

// steps are what may happen, to the cluster and to the process.
func (l *life) steps() map[string]func(*rapid.T) {
	steps := l.actions()
	steps["time passes"] = func(t *rapid.T) {
		l.machines.work(t)
		l.work(rapid.SampledFrom([]time.Duration{45 * time.Second, time.Second, 5 * time.Second, 20 * time.Second, 11 * time.Minute}).Draw(t, "time"))
	}
	steps["trouble: calls"] = l.goWrong
	steps["trouble: machine is mended"] = l.mend
	for name, step := range steps {
		steps[name] = func(t *rapid.T) {
			l.seen["step"]++
			step(t)
			for _, of := range []client.Object{&corev1.Pod{}, &corev1.Node{}, &v1alpha1.AddressBlock{}} {
				l.hear(t, of)
			}
			l.work(0)
		}
	}
	return steps
}

// hear tells the process all of one kind, unless it has gone deaf for a while, or just some.
func (l *life) hear(t *rapid.T, of client.Object) {
	kind := l.kind(of)
	if rapid.IntRange(0, 3).Draw(t, "deaf from now on, or no more") == 3 {
		l.deaf[kind] = !l.deaf[kind]
	}
	news := len(l.informers[kind].feed.ResultChan())
	if l.deaf[kind] {
		news = min(news, rapid.IntRange(0, 1).Draw(t, "news"))
	}
	for range news {
		l.informers[kind].next()
	}
}

// mend lets a machine be switched off and on again, of which the process hears only the first half, and then that pods on
// some machine are deleted.
func (l *life) mend(t *rapid.T) {
	l.taint(t)
	l.hearAll()
	l.machines.recover(t)
	for range 3 {
		l.makePod(t)
		l.machines.work(t)
	}
	l.evict(l.all[rapid.IntRange(0, len(l.all)-1).Draw(t, "machine")])
	l.deaf[l.kind(&corev1.Node{})] = true
}

// goWrong lets one of the next calls fail: before or after it is carried out, and with or without the process.
func (l *life) goWrong(t *rapid.T) {
	before := rapid.IntRange(0, 4).Draw(t, "calls before")
	carriedOut, dies := rapid.Bool().Draw(t, "carried out"), rapid.Bool().Draw(t, "the process dies")
	answer := rapid.SampledFrom([]error{
		errors.New("timeout"), apierrors.NewInternalError(errors.New("etcd")), apierrors.NewTooManyRequests("slow down", 1),
	}).Draw(t, "answer")
	l.fault = func(c call) (error, bool) {
		if l.died {
			return answer, false
		}
		if before--; before >= 0 {
			return nil, false
		}
		l.fault = nil
		switch {
		case dies:
			l.died = true
			l.seen["crash"]++
			l.excused = carriedOut && c.resource == "addressblocks"
			l.fault = func(call) (error, bool) { return answer, false }
		case carriedOut:
			l.seen["lost answer"]++
		default:
			l.seen["failed call"]++
		}
		return answer, carriedOut
	}
}

// work lets time pass, and the process look at what is due by then, with what it knows. It is never more than ten seconds
// behind.
func (l *life) work(d time.Duration) {
	for end := l.now.Steady + d; ; {
		next, due, ok := l.next()
		if !ok || due > end {
			due = end
		}
		if behind := l.caughtUp + 10*time.Second; due > behind {
			l.passTo(behind)
			l.hearAll()
			continue
		}
		l.passTo(due)
		l.checkDeadlines()
		if at, ok := l.due[next]; !ok || at > end {
			return
		}
		if l.do(next); l.died {
			l.boot()
		}
		l.checkReleases()
	}
}

func (l *life) passTo(steady time.Duration) { l.pass(max(0, steady-l.now.Steady)) }

// checkReleases compares what is recorded with what the cluster itself has written. What is missing was released.
func (l *life) checkReleases() {
	released := map[string]bool{}
	for name, entries := range l.recorded {
		left := map[int32]string{}
		if b, ok := look(l.store, &v1alpha1.AddressBlock{ObjectMeta: metav1.ObjectMeta{Name: name}}); ok {
			for _, a := range b.Spec.Allocations {
				left[a.Offset] = a.Handle
			}
		}
		for offset, handle := range entries {
			if _, ok := left[offset]; ok {
				continue
			}
			released[handle] = true
			l.write(name, offset, "")
			if s := l.sandboxOf(handle); s.up {
				l.Fatalf("I1: the address of %s (uid %s), which is up, was released", s.pod, s.uid)
			}
		}
		if diff := cmp.Diff(l.recorded[name], left); diff != "" {
			l.Fatalf("I6: a release changed something else in %s (-want +got):\n%s", name, diff)
		}
	}
	for _, e := range l.events[l.read:] {
		l.understand(e)
	}
	l.read = len(l.events)
	for handle := range released {
		if l.told[handle] != 1 && !l.excused {
			l.Fatalf("I9: the release of %s was told %d times: %v", handle, l.told[handle], l.events)
		}
	}
	l.excused = false
}

// understand checks what an Event tells.
func (l *life) understand(e string) {
	if strings.HasPrefix(e, "Warning AddressesLeft ") {
		l.seen["left to the audit"]++
	}
	for handle := range releases([]string{e}) {
		if l.told[handle]++; l.told[handle] > 1 {
			l.Fatalf("I9: told again: %s", e)
		}
		s := l.sandboxOf(handle)
		evidence := map[string]string{
			"E2": "the kubelet reported the end of Pod " + s.pod.String() + " (uid " + string(s.uid) + "): ",
			"E4": `node "` + s.machine.name + `" is not ready and has the taint node.kubernetes.io/out-of-service`,
			"E5": `node "` + s.machine.name + `" has been gone for `,
		}
		found := false
		for row, words := range evidence {
			if strings.Contains(e, "released "+l.addressOf(s)+" (double, handle "+handle+"): "+words) {
				l.seen[row]++
				found = true
			}
		}
		if !found {
			l.Fatalf("I9: no evidence of %+v: %s", s, e)
		}
	}
}

// checkDeadlines fails if somebody is held for too long: the deadline, and the time that it takes to hear of it and to
// try again.
func (l *life) checkDeadlines() {
	late := func(o client.Object, deadline time.Duration) {
		if slices.Contains(o.GetFinalizers(), v1alpha1.AddressesFinalizer) && o.GetDeletionTimestamp() != nil &&
			l.now.Wall.Sub(o.GetDeletionTimestamp().Time) > deadline+15*time.Second {
			l.Fatalf("I3: %s %s is held since %s", l.resource(o).Resource, o.GetName(), o.GetDeletionTimestamp())
		}
	}
	for _, p := range all(l.store, &corev1.Pod{}) {
		late(p, l.Pod.Deadline)
	}
	for _, n := range all(l.store, &corev1.Node{}) {
		late(n, l.Node.Deadline)
	}
}
