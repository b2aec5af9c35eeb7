package finalizers

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
)

// task is a look at an object.
type task struct {
	kind string
	name types.NamespacedName
}

// schedule says when, in steady time, the process looks at what. It is filled from what the process is told, as Setup
// has it.
type schedule struct {
	on  *stage
	due map[task]time.Duration
}

// newSchedule returns the schedule of the stage's process, on which everything is due that the process knows.
func newSchedule(s *stage) *schedule {
	x := &schedule{on: s, due: map[task]time.Duration{}}
	of := func(o client.Object) *informer { return s.informers[s.kind(o)] }
	pods, nodes, blocks := of(&corev1.Pod{}), of(&corev1.Node{}), of(&v1alpha1.AddressBlock{})
	tell[client.Object](s.Context(), pods, &handler.EnqueueRequestForObject{}, x.of("Pod"))
	tell(s.Context(), nodes, handler.EnqueueRequestsFromMapFunc(endingOn(s.witness)), x.of("Pod"))
	tell[client.Object](s.Context(), nodes, &handler.EnqueueRequestForObject{}, x.of("Node"))
	tell(s.Context(), blocks, handler.TypedEnqueueRequestsFromMapFunc(unheld(s.witness)), x.of("Pod"))
	tell(s.Context(), blocks, gathered(func(b *v1alpha1.AddressBlock) types.NamespacedName { return types.NamespacedName{Name: b.Name} }), x.of("AddressBlock"))
	for kind, i := range map[string]*informer{"Pod": pods, "Node": nodes, "AddressBlock": blocks} {
		for _, o := range i.GetIndexer().List() {
			x.at(task{kind, client.ObjectKeyFromObject(o.(client.Object))}, 0)
		}
	}
	return x
}

// tell passes on what an informer tells to a handler.
func tell[T client.Object](ctx context.Context, i *informer, h handler.TypedEventHandler[T, reconcile.Request], q queue) {
	passes := changed()
	i.handlers = append(i.handlers, toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { h.Create(ctx, event.TypedCreateEvent[T]{Object: o.(T)}, q) },
		UpdateFunc: func(was, now any) {
			if passes.Update(event.UpdateEvent{ObjectOld: was.(client.Object), ObjectNew: now.(client.Object)}) {
				h.Update(ctx, event.TypedUpdateEvent[T]{ObjectOld: was.(T), ObjectNew: now.(T)}, q)
			}
		},
		DeleteFunc: func(o any) { h.Delete(ctx, event.TypedDeleteEvent[T]{Object: o.(T)}, q) },
	})
}

// at makes a task due after a while, unless it is earlier.
func (x *schedule) at(t task, wait time.Duration) {
	when := x.on.now.Steady + wait
	if already, ok := x.due[t]; !ok || when < already {
		x.due[t] = when
	}
}

// next returns the task that is due first; false if there is none.
func (x *schedule) next() (first task, due time.Duration, ok bool) {
	tasks := slices.SortedFunc(maps.Keys(x.due), func(a, b task) int {
		return cmp.Or(cmp.Compare(x.due[a], x.due[b]), cmp.Compare(a.kind, b.kind), cmp.Compare(a.name.String(), b.name.String()))
	})
	if len(tasks) == 0 {
		return first, 0, false
	}
	return tasks[0], x.due[tasks[0]], true
}

// do carries a task out, and makes it due again if that is asked for.
func (x *schedule) do(t task) {
	delete(x.due, t)
	of := map[string]reconcile.Reconciler{"Pod": x.on.Pod, "Node": x.on.Node, "AddressBlock": x.on.Block}[t.kind]
	result, err := of.Reconcile(x.on.Context(), reconcile.Request{NamespacedName: t.name})
	switch {
	case err != nil:
		x.at(t, time.Second)
	case result.RequeueAfter > 0:
		x.at(t, result.RequeueAfter)
	}
}

func (x *schedule) of(kind string) queue { return &queueOf{schedule: x, kind: kind} }

// queueOf is a queue for tasks of one kind.
type queueOf struct {
	queue
	schedule *schedule
	kind     string
}

func (q *queueOf) Add(r reconcile.Request) { q.AddAfter(r, 0) }

func (q *queueOf) AddAfter(r reconcile.Request, wait time.Duration) {
	q.schedule.at(task{q.kind, r.NamespacedName}, wait)
}
