package finalizers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
)

// Pod holds pods until their addresses are free, or until the deadline.
type Pod struct {
	Records *backends.Several
	Witness *cluster.Witness
	Client  client.Client
	Clock   cluster.Clock
	Voice   Voice
	// Wanted: pods are to be held. If not, the finalizers that are there come off.
	Wanted bool
	// ExcludedNamespaces are those whose pods are never held.
	ExcludedNamespaces []string
	// Deadline counts from a pod's deletionTimestamp, which includes its grace period.
	Deadline time.Duration
	// Backfill paces the finalizers that are put on pods that have an address already.
	Backfill *rate.Limiter

	// given has, by name, the ids of the hand-outs that were given back for a pod that is held as far as the cache shows:
	// it may still show them too.
	given sync.Map
}

// podAction is what to do about a pod.
type podAction string

const (
	// podLeave: nothing, until something about the pod or its node changes.
	podLeave podAction = "Leave"
	// podHold: put the finalizer on.
	podHold podAction = "Hold"
	// podWait: look again after a while.
	podWait podAction = "Wait"
	// podRelease: release what is recorded, then take the finalizer off.
	podRelease podAction = "Release"
	// podLetGo: take the finalizer off; whatever is recorded stays for the audit.
	podLetGo podAction = "LetGo"
)

// podStep is the decision about a pod.
type podStep struct {
	action podAction
	reason ipam.Reason
	// again is when to look again at the latest; 0 if an event will tell.
	again time.Duration
}

// podState is all that the decision depends on.
type podState struct {
	pod ipam.Pod
	// held: the pod has our finalizer; wanted: it should have.
	held, wanted bool
	// recorded: an address is recorded for the pod's UID.
	recorded bool
	// end is what the law says about the pod's end.
	end ipam.Verdict
	// deadline counts from the deletionTimestamp.
	deadline time.Duration
	now      time.Time
}

// recheck is how often a pod that waits is looked at, even if no event tells of a change.
const recheck = 30 * time.Second

// decide is total: for every state there is a way out. It takes no account of how a state came about.
func (s podState) decide() podStep {
	p := s.pod
	own := !p.HostNetwork && !p.Mirror
	switch {
	case !s.held && s.wanted && s.recorded && own && p.Alive():
		return podStep{action: podHold}
	case !s.held:
		return podStep{action: podLeave}
	case !s.wanted, !own:
		return podStep{action: podLetGo, reason: Unwanted}
	case p.Alive():
		return podStep{action: podLeave}
	case s.end.Disposition == ipam.Free:
		return podStep{action: podRelease, reason: s.end.Reason}
	case p.Node == "" && !s.recorded:
		return podStep{action: podLetGo, reason: NeverScheduled}
	case p.Terminal() && p.Sandbox == "" && !s.recorded:
		return podStep{action: podLetGo, reason: NothingRecorded}
	case s.end.Disposition == ipam.Quarantine:
		return podStep{action: podLetGo, reason: s.end.Reason}
	case p.Deleted.IsZero():
		return podStep{action: podWait, reason: s.end.Reason, again: recheck}
	}
	left := p.Deleted.Add(s.deadline).Sub(s.now)
	if left <= 0 {
		return podStep{action: podLetGo, reason: DeadlineExceeded}
	}
	return podStep{action: podWait, reason: s.end.Reason, again: min(left, recheck)}
}

// expired tells whether the pod has been held for as long as it may be.
func (s podState) expired() bool {
	return s.held && !s.pod.Deleted.IsZero() && !s.now.Before(s.pod.Deleted.Add(s.deadline))
}

// Reconcile implements reconcile.Reconciler.
func (r *Pod) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	pod := r.Witness.CachedPod(req.NamespacedName)
	if pod == nil || !slices.Contains(pod.Finalizers, v1alpha1.AddressesFinalizer) {
		r.given.Delete(req.NamespacedName)
	}
	if pod == nil {
		return reconcile.Result{}, nil
	}
	state := podState{
		pod:      pod.Evidence(),
		held:     slices.Contains(pod.Finalizers, v1alpha1.AddressesFinalizer),
		wanted:   r.Wanted && !slices.Contains(r.ExcludedNamespaces, pod.Namespace),
		deadline: r.Deadline,
		now:      r.Clock().Wall,
	}
	recorded, world, err := r.gather(ctx, pod, &state)
	var step podStep
	if err == nil {
		if step = state.decide(); step.action == podRelease {
			recorded, err = r.release(ctx, pod, recorded, world)
		}
	}
	if err != nil {
		if !state.expired() {
			return reconcile.Result{}, err
		}
		// Whatever is in the way, it is not the pod's to wait for any longer.
		step, state.end.Detail = podStep{action: podLetGo, reason: DeadlineExceeded}, err.Error()
	}
	switch step.action {
	case podLeave:
		return reconcile.Result{}, nil
	case podHold:
		return r.hold(ctx, pod)
	case podWait:
		r.Voice.waits(pod, state, step)
		return reconcile.Result{RequeueAfter: step.again}, nil
	case podRelease, podLetGo:
	}
	return reconcile.Result{}, r.letGo(ctx, pod, state, step, recorded)
}

// gather completes the state with what is recorded for the pod and what the law says about its end. Where the decision
// does not depend on them, the world is empty.
func (r *Pod) gather(ctx context.Context, pod *cluster.Pod, state *podState) (recorded []ipam.Allocation, world ipam.World, err error) {
	if recorded, err = r.Records.AllocationsOf(ctx, owner(pod)); err != nil {
		return nil, world, err
	}
	recorded = r.ungiven(pod, recorded)
	if p := state.pod; state.held && !p.Alive() {
		if len(recorded) == 0 && (p.Node == "" || p.Terminal() && p.Sandbox == "") {
			// Here it is a proof that nothing is recorded, so it must be read live.
			if recorded, err = r.Records.LiveAllocationsOf(ctx, owner(pod)); err != nil {
				return nil, world, err
			}
		}
		if world, err = r.look(ctx, pod, recorded); err != nil {
			return recorded, world, err
		}
		state.end = world.End(p)
	}
	state.recorded = len(recorded) > 0
	return recorded, world, nil
}

// hold puts the finalizer on a pod that has an address already, as fast as the pace allows.
func (r *Pod) hold(ctx context.Context, pod *cluster.Pod) (reconcile.Result, error) {
	turn := r.Backfill.ReserveN(r.Clock().Wall, 1)
	if wait := turn.DelayFrom(r.Clock().Wall); wait > 0 {
		turn.CancelAt(r.Clock().Wall)
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	return reconcile.Result{}, patchFinalizer(ctx, r.Client, &corev1.Pod{}, pod, add)
}

// look gathers what is known about the pod and the addresses that are recorded for it. An end that the kubelet reported
// is final, whatever the age of the cache. What frees addresses because of the state of a node is looked at live.
func (r *Pod) look(ctx context.Context, pod *cluster.Pod, recorded []ipam.Allocation) (ipam.World, error) {
	world, err := r.Witness.Around(ctx, pod, recorded)
	if err != nil {
		return ipam.World{}, err
	}
	if end := world.End(pod.Evidence()); end.Disposition == ipam.Free && end.Reason != ipam.EndReported {
		return r.Witness.LiveAround(ctx, pod, recorded)
	}
	return world, nil
}

// ungiven leaves out what this process has given back already.
func (r *Pod) ungiven(pod *cluster.Pod, recorded []ipam.Allocation) []ipam.Allocation {
	given, ok := r.given.Load(client.ObjectKeyFromObject(pod))
	if !ok {
		return recorded
	}
	return slices.DeleteFunc(recorded, func(a ipam.Allocation) bool { return slices.Contains(given.([]ipam.ID), a.ID()) })
}

// release gives back what is recorded for the pod, but for addresses that somebody else uses by now. It returns those
// that could not be given back.
func (r *Pod) release(ctx context.Context, pod *cluster.Pod, recorded []ipam.Allocation, world ipam.World) ([]ipam.Allocation, error) {
	var left []ipam.Allocation
	var failures []error
	for _, a := range recorded {
		verdict := ipam.Judge(a, world)
		if verdict.Disposition != ipam.Free {
			r.Voice.keeps(a, verdict)
			continue
		}
		switch err := r.Records.Release(ctx, a); {
		case errors.Is(err, backends.ErrStale):
			// The guard worked: another hand-out is there by now.
			r.Voice.keeps(a, verdict)
		case err != nil:
			if ctx.Err() == nil {
				r.Voice.failed(pod, a, r.record(ctx, a), err)
			}
			left, failures = append(left, a), append(failures, err)
		default:
			r.gives(pod, a)
			r.Voice.released(pod, a, r.record(ctx, a), verdict)
		}
	}
	return left, errors.Join(failures...)
}

// record names a hand-out in the object that holds the first of its places. One that is gone is named all the same.
func (r *Pod) record(ctx context.Context, a ipam.Allocation) *corev1.ObjectReference {
	o, err := r.Records.Record(ctx, a)
	if err != nil {
		o = backends.Object{Name: a.Places[0].Block}
	}
	return &corev1.ObjectReference{
		APIVersion: o.APIVersion, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, UID: types.UID(o.UID),
		FieldPath: fmt.Sprintf("spec.allocations{%s}", a.Handle),
	}
}

// gives remembers that a hand-out was given back.
func (r *Pod) gives(pod *cluster.Pod, a ipam.Allocation) {
	name := client.ObjectKeyFromObject(pod)
	var ids []ipam.ID
	if given, ok := r.given.Load(name); ok {
		ids = given.([]ipam.ID)
	}
	r.given.Store(name, append(ids, a.ID()))
}

// letGo takes the finalizer off, and tells why if addresses stay behind.
func (r *Pod) letGo(ctx context.Context, pod *cluster.Pod, state podState, step podStep, recorded []ipam.Allocation) error {
	if err := patchFinalizer(ctx, r.Client, &corev1.Pod{}, pod, remove); err != nil && r.holds(ctx, pod) {
		if ctx.Err() == nil { // The manager that ends tells of no trouble.
			r.Voice.stuck(pod, err)
		}
		return err
	}
	if step.action == podLetGo && step.reason != Unwanted && len(recorded) > 0 {
		for _, a := range recorded {
			r.Voice.leaves(pod, a, r.record(ctx, a), state, step)
		}
	}
	r.Voice.letGo(podKind, pod.DeletionTimestamp, step.reason)
	return nil
}

// holds tells whether our finalizer is still on, after a patch that should have taken it off and was answered with an
// error: one whose answer was lost may have been carried out.
func (r *Pod) holds(ctx context.Context, pod *cluster.Pod) bool {
	live, err := r.Witness.LivePod(ctx, client.ObjectKeyFromObject(pod))
	return err != nil || live != nil && live.UID == pod.UID && slices.Contains(live.Finalizers, v1alpha1.AddressesFinalizer)
}

func owner(p *cluster.Pod) ipam.Owner {
	return ipam.Owner{Kind: ipam.OwnerPod, Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Node: p.Evidence().Node}
}
