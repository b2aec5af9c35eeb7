// Package audit is the watch: it finds what has leaked, says why it believes so, waits, looks again, and gives it back.
package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
)

// Witness is what the audit asks about owners. *cluster.Witness answers.
type Witness interface {
	// World returns all that is known, also about these nodes; the hand-outs must have been listed before.
	World(ctx context.Context, recorded []ipam.Allocation, nodes ...string) (ipam.World, cluster.Census, error)
	// LiveLook returns what concerns one hand-out, read without a cache.
	LiveLook(ctx context.Context, a ipam.Allocation) (ipam.World, error)
}

// Auditor audits one backend. It remembers suspicions in memory only: after a restart each of them begins anew.
type Auditor struct {
	Backend backends.Backend
	Witness Witness
	Clock   cluster.Clock
	// Mode is the backend's: only ModeEnforce releases.
	Mode     config.Mode
	Settings config.Audit
	// Looks is how many live looks go on at a time where a run begins with many; less than two is one after the other.
	Looks int
	// Restart: a program that has a stranded hand-out is restarted.
	Restart bool
	// Client reads and writes the LeakReport, and looks for finalizers that are left.
	Client client.Client
	// Live reads without a cache.
	Live     client.Reader
	Log      logr.Logger
	Recorder events.EventRecorder
	Metrics  Metrics
	// Identity is this process in the report.
	Identity string
	// PodsHeld: pods are held on behalf of another backend.
	PodsHeld bool
	// Held are the lists in which no object carries a finalizer of ours any more when the mode is not Enforce.
	Held []schema.GroupVersionKind
	// Gone tells of owners that were deleted.
	Gone <-chan ipam.Owner
	// Guarded returns the condition of that name for the report; nil if nothing is known. It may be nil itself.
	Guarded func() *metav1.Condition

	ledger ipam.Ledger
	// census is what the last run saw, whether it believed it or not.
	census *cluster.Census
	// doubted are names of nodes that may be the plugin's own for Nodes that exist.
	doubted map[string]bool
	// given are the hand-outs that were given back, for as long as they are listed.
	given map[ipam.ID]bool
	// late are the hand-outs of pods that were starting for too long in the last run.
	late map[ipam.ID]bool
	// failures counts the runs that failed in a row.
	failures int
	// released are the releases that no report tells yet, newest first.
	released []v1alpha1.LeakRelease
	cleared  bool
}

// Start runs the audit until the context ends. It implements manager.Runnable, on the leader.
func (a *Auditor) Start(ctx context.Context) error {
	a.Metrics.begin(a.Backend.Name(), a.Settings.Interval.Duration)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var due time.Duration // when the timer fires, in steady time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			wait := a.Run(ctx)
			due = a.Clock().Steady + wait
			timer.Reset(wait)
		case owner := <-a.Gone:
			again, err := a.suspect(ctx, a.batch(owner))
			if err != nil {
				a.Log.Error(err, "looking at owners that are gone")
				continue
			}
			if now := a.Clock().Steady; again > 0 && now+again < due {
				due = now + again
				timer.Reset(again)
			}
		}
	}
}

// batch returns the owner and all that wait behind it.
func (a *Auditor) batch(owner ipam.Owner) []ipam.Owner {
	owners := []ipam.Owner{owner}
	for {
		select {
		case owner := <-a.Gone:
			owners = append(owners, owner)
		default:
			return owners
		}
	}
}

// suspect judges what is recorded for owners that are gone, so that the wait begins now and not at the next run. It
// returns when that wait is over.
func (a *Auditor) suspect(ctx context.Context, owners []ipam.Owner) (time.Duration, error) {
	var found []ipam.Judgement
	for _, o := range owners {
		recorded, err := a.Backend.AllocationsOf(ctx, o)
		if err != nil {
			return 0, err
		}
		for _, r := range recorded {
			j, _, err := a.look(ctx, a.known(r))
			if err != nil {
				return 0, err
			}
			found = append(found, j)
		}
	}
	if len(found) == 0 {
		return 0, nil
	}
	var again time.Duration
	a.ledger, again = a.ledger.Add(found, a.Clock(), a.patience())
	return again, nil
}

// Run audits once and returns how long to wait until the next time.
func (a *Auditor) Run(ctx context.Context) time.Duration {
	began := a.Clock()
	r, err := a.run(ctx)
	r.began, r.ended, r.err = began, a.Clock(), err
	r.suspects = a.suspects(r)
	a.Metrics.observe(a.Backend.Name(), r)
	if err := a.report(ctx, r); err != nil {
		a.Log.Error(err, "reporting")
	}
	if err != nil {
		a.Log.Error(err, "auditing")
		a.failures++
	} else {
		a.failures = 0
	}
	return a.next(r)
}

// next is the earliest of: the next interval, the end of a suspicion's wait, and the next try after a failure.
func (a *Auditor) next(r result) time.Duration {
	wait := a.Settings.Interval.Duration
	if r.again > 0 {
		wait = min(wait, r.again)
	}
	if a.failures > 0 {
		wait = min(wait, time.Second<<min(a.failures, 10))
	}
	return wait
}

// result is what one run saw and did.
type result struct {
	began, ended ipam.Moment
	// judged is nil if the run failed before. What is looked at again is judged by what is seen then.
	judged []ipam.Judgement
	pools  []ipam.Pool
	// handOuts and addresses count what was judged before anything was looked at again.
	handOuts  map[state]int64
	addresses map[holding]int
	// stopped says why nothing is believed; empty if everything is.
	stopped string
	// waiting is how many releases the pace left for the next run.
	waiting  int
	released int
	// late is how many are kept for pods that have been starting for too long.
	late int
	// suspects are what is still suspected to have leaked.
	suspects []suspect
	again    time.Duration
	err      error
}

// run gathers, judges, remembers and acts.
func (a *Auditor) run(ctx context.Context) (r result, err error) {
	// In this order an owner that is born in between is seen.
	recorded, err := a.Backend.Allocations(ctx)
	if err != nil {
		return r, fmt.Errorf("listing the hand-outs: %w", err)
	}
	recorded = a.standing(recorded)
	keeper, keeps := a.Backend.(backends.Keeper)
	var holders []string
	if keeps {
		if holders, err = keeper.Holders(ctx); err != nil {
			return r, err
		}
	}
	world, census, err := a.Witness.World(ctx, recorded, holders...)
	if err != nil {
		return r, err
	}
	if claimer, ok := a.Backend.(backends.Claimer); ok {
		more, err := claimer.Unrecorded(ctx, unclaimed(world.NamedByNodes(), recorded))
		if err != nil {
			return r, err
		}
		recorded = append(recorded, more...)
	}
	if pools, ok := a.Backend.(backends.Pools); ok {
		if r.pools, err = pools.Pools(ctx); err != nil {
			return r, err
		}
	}
	r.judged = make([]ipam.Judgement, len(recorded))
	for i, alloc := range recorded {
		r.judged[i] = ipam.Consider(a.known(alloc), world)
	}
	if a.doubted = world.Doubts(r.judged); len(a.doubted) > 0 {
		for i, j := range r.judged {
			r.judged[i] = ipam.Consider(j.Allocation, world.Doubting(a.doubted))
		}
	}
	r.count()
	r.stopped = collapse(a.census, census, r.judged)
	a.census = &census
	if r.stopped != "" {
		return r, nil
	}
	r.late = a.startsLate(ctx, r.judged)
	postponed, failures := a.confirm(ctx, r.judged)
	var due []ipam.Judgement
	a.ledger, due, r.again = a.ledger.Next(r.judged, a.Clock(), a.patience())
	if a.Mode != config.ModeEnforce {
		return r, errors.Join(failures...)
	}
	failures = append(failures, a.act(ctx, due, &r)...)
	if keeps {
		failures = append(failures, a.keep(ctx, keeper, holders, world, r.judged)...)
	}
	if r.waiting += postponed; r.waiting > 0 {
		r.again = a.Settings.Interval.Duration
	}
	return r, errors.Join(failures...)
}

// act releases what is due, the oldest suspicions first, as long as the pace allows. What cannot be released does not use
// it up, or else it would hold up everything younger. Releases on proof are not limited.
func (a *Auditor) act(ctx context.Context, due []ipam.Judgement, r *result) (failures []error) {
	since := func(j ipam.Judgement) time.Duration {
		s, _ := a.ledger.Sighting(j.Allocation.ID())
		return s.Since.Steady
	}
	slices.SortStableFunc(due, func(x, y ipam.Judgement) int { return cmp.Compare(since(x), since(y)) })
	budget := a.budget(len(r.judged))
	for _, j := range due {
		switch j.Verdict.Disposition {
		case ipam.Repair:
			if err := a.repair(ctx, j.Allocation); err != nil {
				failures = append(failures, err)
			}
			continue
		case ipam.Stranded:
			if err := a.restart(ctx, j.Allocation); err != nil {
				failures = append(failures, err)
			}
			continue
		default:
		}
		proven := j.Verdict.Disposition == ipam.Free
		if budget == 0 && !proven {
			r.waiting++
			continue
		}
		released, err := a.release(ctx, j)
		if err != nil {
			failures = append(failures, err)
		}
		if released {
			r.released++
			if !proven {
				budget--
			}
		}
	}
	return failures
}

// unclaimed leaves out of what nodes name what is recorded.
func unclaimed(named map[netip.Addr]ipam.Owner, recorded []ipam.Allocation) map[netip.Addr]ipam.Owner {
	for _, r := range recorded {
		for _, p := range r.Places {
			for _, addr := range p.Addresses {
				delete(named, addr)
			}
		}
	}
	return named
}

// keep puts in order what is recorded beside the hand-outs: first what belongs to nodes that have been gone for a
// quarantine and have nothing recorded any more.
func (a *Auditor) keep(ctx context.Context, records backends.Keeper, holders []string, world ipam.World, judged []ipam.Judgement) (failures []error) {
	has := map[string]bool{}
	for _, j := range judged {
		has[j.Allocation.Owner.Node] = true
	}
	for _, node := range holders {
		gone, missing := world.NodeGoneFor(node)
		if !missing || gone < a.Settings.Quarantine.Duration || has[node] || a.doubted[node] {
			continue
		}
		// It may have been made anew a moment ago.
		again, _, err := a.look(ctx, ipam.Allocation{Owner: ipam.Owner{Kind: ipam.OwnerNode, Name: node, Node: node}})
		if err != nil {
			failures = append(failures, err)
			continue
		}
		if !again.Verdict.Disposition.Leaked() {
			continue
		}
		if err := records.Abandon(ctx, node); err != nil {
			failures = append(failures, fmt.Errorf("taking its blocks from node %q: %w", node, err))
			continue
		}
		a.Log.Info("took its blocks", "node", node, "gone for", gone.Truncate(time.Second).String(), "detail", again.Verdict.Detail)
	}
	tidied, err := records.Tidy(ctx)
	if err != nil {
		failures = append(failures, err)
	}
	for _, p := range tidied {
		a.Log.Info("put in order", "kind", p.Record.Kind, "name", p.Record.Name, "field", p.Field, "was", p.Message)
	}
	return failures
}

// standing leaves out what was given back and is still listed, since a list may lag.
func (a *Auditor) standing(recorded []ipam.Allocation) []ipam.Allocation {
	given := map[ipam.ID]bool{}
	if len(a.given) > 0 {
		recorded = slices.DeleteFunc(recorded, func(r ipam.Allocation) bool {
			id := r.ID()
			if a.given[id] {
				given[id] = true
			}
			return given[id]
		})
	}
	a.given = given
	return recorded
}

func (a *Auditor) patience() ipam.Patience {
	return ipam.Patience{Grace: a.Settings.GracePeriod.Duration, Quarantine: a.Settings.Quarantine.Duration}
}

// known completes a hand-out with what is remembered of it.
func (a *Auditor) known(alloc ipam.Allocation) ipam.Allocation {
	alloc.Seen = a.Clock().Wall
	if s, ok := a.ledger.Sighting(alloc.ID()); ok {
		alloc.Seen, alloc.Namesake = s.FirstSeen.Wall, s.Namesake
	}
	return alloc
}

// look judges a hand-out by what is read live. Whoever bears the owner's name now is remembered, unless somebody was
// already: the hand-out was recorded before that.
func (a *Auditor) look(ctx context.Context, alloc ipam.Allocation) (ipam.Judgement, ipam.World, error) {
	world, err := a.Witness.LiveLook(ctx, alloc)
	if err != nil {
		return ipam.Judgement{}, world, fmt.Errorf("looking at %s of %s: %w", alloc.Handle, alloc.Owner, err)
	}
	if alloc.Owner.UID == "" && alloc.Namesake == nil {
		alloc.Namesake = world.Namesake(alloc.Owner)
	}
	return ipam.Consider(alloc, world.Doubting(a.doubted)), world, nil
}

// collapse says why the lists of owners are not to be believed; empty if they are. A list that shrinks by more than half
// from one run to the next is more likely a list that failed.
func collapse(last *cluster.Census, now cluster.Census, judged []ipam.Judgement) string {
	owned := func(kinds ...ipam.OwnerKind) bool {
		return slices.ContainsFunc(judged, func(j ipam.Judgement) bool { return slices.Contains(kinds, j.Allocation.Owner.Kind) })
	}
	for _, list := range []struct {
		what      string
		now, last int
		owned     bool
	}{
		{"pods", now.Pods, lastOf(last, func(c cluster.Census) int { return c.Pods }), owned(ipam.OwnerPod)},
		{"nodes", now.Nodes, lastOf(last, func(c cluster.Census) int { return c.Nodes }), owned(ipam.OwnerPod, ipam.OwnerNode, ipam.OwnerAgent)},
	} {
		switch {
		case list.now == 0 && list.last > 0:
			return fmt.Sprintf("no %s are listed, and there were %d", list.what, list.last)
		case list.now == 0 && list.owned:
			return fmt.Sprintf("no %s are listed, and addresses of theirs are allocated", list.what)
		case list.now*2 < list.last:
			return fmt.Sprintf("%d %s are listed, and there were %d", list.now, list.what, list.last)
		}
	}
	return ""
}

func lastOf(c *cluster.Census, count func(cluster.Census) int) int {
	if c == nil {
		return 0
	}
	return count(*c)
}

// confirm looks live at what this run is the first to suspect: a list may lag for longer than a suspicion has to last,
// and then the second sighting proves no more than the first. It also looks, once, who bears the name of an owner that the
// record tells by name alone: first where nothing proves that one to be alive, and then, before that is so, where it is. It
// looks at as many as one run may release, and postpones the rest. What it sees takes the place of what was judged, and what
// it could not confirm is kept.
func (a *Auditor) confirm(ctx context.Context, judged []ipam.Judgement) (postponed int, failures []error) {
	budget := a.budget(len(judged))
	var doubtful, certain []*ipam.Judgement
	for i := range judged {
		j := &judged[i]
		switch begins := a.ledger.Begins(*j); {
		case !begins && !nameless(*j):
			continue
		case !begins && j.Verdict.Reason == ipam.InUse:
			certain = append(certain, j)
			continue
		case begins:
			j.Verdict.Disposition = ipam.Keep
			if len(doubtful) >= budget {
				postponed++
			}
		}
		if len(doubtful) < budget {
			doubtful = append(doubtful, j)
		}
	}
	certain = certain[:min(len(certain), budget-len(doubtful), a.Settings.Pace.Minimum)]
	return postponed, a.lookAt(ctx, append(doubtful, certain...))
}

// lookAt looks at all of these, some at a time, and puts what it sees in their place. It returns the failures in their order.
func (a *Auditor) lookAt(ctx context.Context, doubted []*ipam.Judgement) []error {
	failures := make([]error, len(doubted))
	// A look whose context has ended says so: none is passed over in silence.
	workqueue.ParallelizeUntil(context.WithoutCancel(ctx), max(1, a.Looks), len(doubted), func(i int) {
		if looked, _, err := a.look(ctx, doubted[i].Allocation); err != nil {
			failures[i] = err
		} else {
			*doubted[i] = looked
		}
	})
	return slices.DeleteFunc(failures, func(err error) bool { return err == nil })
}

// nameless tells whether the record may be an earlier pod's than the one that bears its owner's name, and nobody has looked
// yet which one that is.
func nameless(j ipam.Judgement) bool {
	o := j.Allocation.Owner
	return o.Kind == ipam.OwnerPod && o.UID == "" && j.Allocation.Namesake == nil && j.Verdict.Disposition == ipam.Keep
}

// late is for how long a pod may be starting before somebody should look why it does not run.
const late = time.Hour

// startsLate counts the hand-outs that are kept for pods that have been starting for too long, and says so once of each.
func (a *Auditor) startsLate(ctx context.Context, judged []ipam.Judgement) int {
	found := map[ipam.ID]bool{}
	for _, j := range judged {
		alloc, took := j.Allocation, a.Clock().Wall.Sub(j.StartingSince)
		if j.StartingSince.IsZero() || took < late {
			continue
		}
		found[alloc.ID()] = true
		if a.late[alloc.ID()] {
			continue
		}
		if n := alloc.Namesake; alloc.Owner.UID == "" && n != nil {
			alloc.Owner.UID = n.UID
		}
		a.event(ctx, alloc, v1alpha1.EventPodStartsLate, "%s (%s, handle %s) is kept for a pod that has been Pending for %s: see why it does not start",
			alloc.AddressText(), a.Backend.Name(), alloc.Handle, took.Truncate(time.Minute))
	}
	a.late = found
	return len(found)
}

// budget is how much one run may do that rests on the absence of an owner.
func (a *Auditor) budget(recorded int) int {
	return max(a.Settings.Pace.Minimum, int(a.Settings.Pace.Fraction*float64(recorded)))
}

// release looks once more, live, and gives the hand-out back if that confirms the verdict.
func (a *Auditor) release(ctx context.Context, j ipam.Judgement) (released bool, err error) {
	alloc := j.Allocation
	again, world, err := a.look(ctx, alloc)
	if err != nil {
		return false, err
	}
	verdict := again.Verdict
	gone, missing := world.NodeGoneFor(alloc.Owner.Node)
	wasBack := verdict.Reason == ipam.NodeGone && missing && gone < a.Settings.Quarantine.Duration
	another := verdict.Disposition != j.Verdict.Disposition || again.Basis != j.Basis || wasBack
	if verdict.Disposition != ipam.Free && another {
		a.Log.Info("kept", fields(alloc, verdict)...)
		return false, nil
	}
	switch err := a.Backend.Release(ctx, alloc); {
	case errors.Is(err, backends.ErrStale):
		a.Log.Info("kept: another hand-out is there by now", fields(alloc, verdict)...)
		return false, nil
	case err != nil:
		a.Metrics.ReleaseErrors.WithLabelValues(a.Backend.Name()).Inc()
		a.event(ctx, alloc, v1alpha1.EventIPAddressGarbageCollectionFailed, "giving back %s (%s, handle %s): %v", alloc.AddressText(), a.Backend.Name(), alloc.Handle, err)
		return false, fmt.Errorf("giving back %s of %s: %w", alloc.Handle, alloc.Owner, err)
	}
	a.given[alloc.ID()] = true
	a.Log.Info("released", fields(alloc, verdict)...)
	a.Metrics.Releases.WithLabelValues(a.Backend.Name(), string(verdict.Reason)).Inc()
	a.event(ctx, alloc, v1alpha1.EventIPAddressGarbageCollected, "gave back %s (%s, handle %s): %s", alloc.AddressText(), a.Backend.Name(), alloc.Handle, verdict.Detail)
	a.remember(alloc, verdict)
	return true, nil
}

// repair looks once more, live, and completes the record of a hand-out if that confirms that its pod has it.
func (a *Auditor) repair(ctx context.Context, alloc ipam.Allocation) error {
	records, ok := a.Backend.(backends.Repairer)
	if !ok {
		return fmt.Errorf("completing the record of %s: backend %q cannot", alloc.Handle, a.Backend.Name())
	}
	again, world, err := a.look(ctx, alloc)
	if err != nil {
		return err
	}
	if again.Verdict.Disposition != ipam.Repair {
		a.Log.Info("left incomplete", fields(alloc, again.Verdict)...)
		return nil
	}
	if n := world.Namesake(alloc.Owner); n != nil {
		alloc.Owner.UID = n.UID
	}
	switch err := records.Repair(ctx, alloc); {
	case errors.Is(err, backends.ErrStale):
		a.Log.Info("left incomplete: the record has changed", fields(alloc, again.Verdict)...)
		return nil
	case err != nil:
		a.event(ctx, alloc, v1alpha1.EventRecordRepairFailed, "completing the record of %s (%s, handle %s): %v", alloc.AddressText(), a.Backend.Name(), alloc.Handle, err)
		return fmt.Errorf("completing the record of %s of %s: %w", alloc.Handle, alloc.Owner, err)
	}
	a.Log.Info("repaired", fields(alloc, again.Verdict)...)
	a.event(ctx, alloc, v1alpha1.EventRecordRepaired, "completed the record of %s (%s, handle %s): %s", alloc.AddressText(), a.Backend.Name(), alloc.Handle, again.Verdict.Detail)
	return nil
}

// restart makes the program that has a stranded hand-out start anew, where that is asked for: it gives back what it does
// not use when it starts.
func (a *Auditor) restart(ctx context.Context, alloc ipam.Allocation) error {
	records, ok := a.Backend.(backends.Restarter)
	if !ok || !a.Restart {
		return nil
	}
	again, _, err := a.look(ctx, alloc)
	if err != nil || again.Verdict.Disposition != ipam.Stranded {
		return err
	}
	switch refusal, err := records.Restart(ctx, alloc); {
	case errors.Is(err, backends.ErrStale):
		a.Log.Info("kept: the record has changed", fields(alloc, again.Verdict)...)
		return nil
	case err != nil:
		return fmt.Errorf("restarting what has %s on node %q: %w", alloc.Handle, alloc.Owner.Node, err)
	case refusal != "":
		a.Log.V(1).Info("not restarted", append(fields(alloc, again.Verdict), "why", refusal)...)
		return nil
	}
	a.Log.Info("restarted its program", fields(alloc, again.Verdict)...)
	a.event(ctx, alloc, v1alpha1.EventAgentRestarted, "restarted the program on node %q that has it: %s", alloc.Owner.Node, again.Verdict.Detail)
	return nil
}
