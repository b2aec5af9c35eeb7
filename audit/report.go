package audit

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/ipam"
)

// listed is how many candidates and releases a report shows.
const listed = 100

// state is what becomes of a verdict in counts.
type state string

const (
	inUse    state = "in_use"
	unproven state = "unproven"
	orphaned state = "orphaned"
)

func stateOf(v ipam.Verdict) state {
	switch {
	case v.Disposition.Leaked():
		return orphaned
	case v.Unproven():
		return unproven
	}
	return inUse
}

// report writes the LeakReport.
func (a *Auditor) report(ctx context.Context, r result) error {
	report := v1alpha1.LeakReport{ObjectMeta: metav1.ObjectMeta{Name: a.Backend.Name()}}
	err := a.Live.Get(ctx, client.ObjectKeyFromObject(&report), &report)
	if apierrors.IsNotFound(err) {
		err = a.Client.Create(ctx, &report)
	}
	if err != nil {
		return fmt.Errorf("reading LeakReport %q: %w", report.Name, err)
	}
	before := report.DeepCopy()
	stopped := meta.IsStatusConditionTrue(before.Status.Conditions, string(v1alpha1.Stopped))
	if err := a.fill(ctx, &report.Status, r); err != nil {
		return err
	}
	if err := a.Client.Status().Patch(ctx, &report, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("writing LeakReport %q: %w", report.Name, err)
	}
	a.released = nil
	if r.stopped != "" && !stopped {
		a.Recorder.Eventf(&corev1.ObjectReference{
			APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: "LeakReport", Name: report.Name, UID: report.UID,
		}, nil, corev1.EventTypeWarning, string(v1alpha1.EventAuditStopped), "Audit", "%s: nothing is released until a list is plausible again", r.stopped)
	}
	return nil
}

// fill turns a run into the report's status. A run that failed before it judged anything leaves the counts as they were.
func (a *Auditor) fill(ctx context.Context, s *v1alpha1.LeakReportStatus, r result) error {
	s.Mode = string(a.Mode)
	if r.judged != nil {
		s.LastRun = v1alpha1.LeakReportRun{
			StartedAt: metav1.NewTime(r.began.Wall), FinishedAt: metav1.NewTime(r.ended.Wall),
			Allocations: int64(len(r.judged)), Released: int64(r.released),
			InUse: r.handOuts[inUse], Unproven: r.handOuts[unproven], Orphaned: r.handOuts[orphaned],
		}
		s.Candidates, s.Truncated = a.candidates(r), int64(max(0, len(r.suspects)-listed))
	}
	s.Released = slices.Concat(a.released, s.Released)
	s.Released = s.Released[:min(len(s.Released), listed)]
	conditions := []metav1.Condition{
		condition(v1alpha1.Healthy, r.err == nil, v1alpha1.ReasonRunComplete, v1alpha1.ReasonRunFailed, "every record was read and judged", r.err),
		condition(v1alpha1.Stopped, r.stopped != "", v1alpha1.ReasonEvidenceCollapsed, v1alpha1.ReasonEvidencePlausible, r.stopped, nil),
		condition(v1alpha1.Pacing, r.waiting > 0, v1alpha1.ReasonMoreThanOneRun, v1alpha1.ReasonNothingWaits, fmt.Sprintf("%d releases wait for the next runs", r.waiting), nil),
	}
	cleared, err := a.clearedCondition(ctx)
	if err != nil {
		return err
	}
	conditions = append(conditions, cleared)
	if a.Guarded != nil {
		if guarded := a.Guarded(); guarded != nil {
			conditions = append(conditions, *guarded)
		}
	}
	for _, c := range conditions {
		c.Message = truncated(c.Message, 1000)
		c.LastTransitionTime = metav1.NewTime(r.ended.Wall)
		meta.SetStatusCondition(&s.Conditions, c)
	}
	return nil
}

func condition(t v1alpha1.ConditionType, is bool, yes, no v1alpha1.ConditionReason, message string, err error) metav1.Condition {
	c := metav1.Condition{Type: string(t), Status: metav1.ConditionFalse, Reason: string(no)}
	if is {
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, string(yes), message
	}
	if err != nil {
		c.Message = err.Error()
	}
	if c.Message = truncated(c.Message, 1000); c.Message == "" {
		c.Message = "all is well"
	}
	return c
}

func truncated(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-3], "") + "..."
}

// suspect is a hand-out that is suspected to have leaked.
type suspect struct {
	ipam.Judgement
	ipam.Sighting
}

// suspects returns what a run leaves suspected, the oldest suspicion first. What is proven comes before that. A run that
// did not believe its evidence adds no suspicion.
func (a *Auditor) suspects(r result) []suspect {
	var found []suspect
	for _, j := range r.judged {
		if !j.Verdict.Disposition.Leaked() {
			continue
		}
		id := j.Allocation.ID()
		s, seen := a.ledger.Sighting(id)
		suspected := s.Suspicion != "" || j.Verdict.Disposition == ipam.Free
		if seen && suspected && !a.given[id] {
			found = append(found, suspect{j, s})
		}
	}
	slices.SortStableFunc(found, func(x, y suspect) int { return cmp.Compare(x.Since.Steady, y.Since.Steady) })
	return found
}

// candidates lists the first of the suspects as they are reported.
func (a *Auditor) candidates(r result) []v1alpha1.LeakCandidate {
	var list []v1alpha1.LeakCandidate
	for _, c := range r.suspects[:min(len(r.suspects), listed)] {
		candidate := v1alpha1.LeakCandidate{
			Address: c.Allocation.AddressText(), Handle: c.Allocation.Handle, Owner: c.Allocation.Owner.String(),
			Reason: string(c.Verdict.Reason), Evidence: c.Verdict.Detail, FirstSeen: metav1.NewTime(c.FirstSeen.Wall),
		}
		if a.Mode == config.ModeEnforce && r.stopped == "" && c.Suspicion != ipam.Stranded {
			candidate.ReleaseAfter = metav1.NewTime(r.ended.Wall.Add(a.left(c.Sighting, r.ended)))
		}
		list = append(list, candidate)
	}
	return list
}

// left is how much of a suspicion's wait is left.
func (a *Auditor) left(s ipam.Sighting, now ipam.Moment) time.Duration {
	var wait time.Duration
	switch s.Suspicion {
	case ipam.Orphan, ipam.Stranded:
		wait = a.Settings.GracePeriod.Duration
	case ipam.Quarantine:
		wait = a.Settings.Quarantine.Duration
	case ipam.Keep, ipam.Free, ipam.Repair:
	}
	return max(0, wait-(now.Steady-s.Since.Steady))
}

// remember puts a release on top of the list.
func (a *Auditor) remember(alloc ipam.Allocation, v ipam.Verdict) {
	a.released = slices.Insert(a.released, 0, v1alpha1.LeakRelease{
		Address: alloc.AddressText(), Handle: alloc.Handle, Owner: alloc.Owner.String(), Reason: string(v.Reason), Evidence: v.Detail,
		At: metav1.NewTime(a.Clock().Wall), By: a.Identity,
	})
}

// clearedCondition looks, outside Enforce, for objects that still carry a finalizer of ours, until there are none.
func (a *Auditor) clearedCondition(ctx context.Context) (metav1.Condition, error) {
	c := metav1.Condition{Type: string(v1alpha1.FinalizersCleared), Status: metav1.ConditionFalse}
	if a.Mode == config.ModeEnforce {
		c.Reason, c.Message = string(v1alpha1.ReasonStillWanted), "the mode is Enforce"
		return c, nil
	}
	left := 0
	if !a.cleared {
		var err error
		if left, err = finalizersLeft(ctx, a.Live, a.Held); err != nil {
			return c, err
		}
		a.cleared = left == 0
	}
	if left == 0 && a.PodsHeld {
		c.Reason, c.Message = string(v1alpha1.ReasonStillWanted), "pods are held on behalf of another backend, whose mode is Enforce"
		return c, nil
	}
	if left > 0 {
		c.Reason, c.Message = string(v1alpha1.ReasonSomeRemain), fmt.Sprintf("%d objects carry a finalizer of Oakum's", left)
		return c, nil
	}
	c.Status, c.Reason, c.Message = metav1.ConditionTrue, string(v1alpha1.ReasonNoneFound), "no object carries a finalizer of Oakum's"
	return c, nil
}

// finalizersLeft counts, live and page by page, the objects that carry a finalizer of ours.
func finalizersLeft(ctx context.Context, live client.Reader, held []schema.GroupVersionKind) (int, error) {
	left := 0
	for _, kind := range held {
		var list metav1.PartialObjectMetadataList
		list.SetGroupVersionKind(kind)
		for next := true; next; next = list.Continue != "" {
			if err := live.List(ctx, &list, client.Limit(500), client.Continue(list.Continue)); err != nil {
				return 0, fmt.Errorf("looking for finalizers: %w", err)
			}
			for _, o := range list.Items {
				if slices.ContainsFunc(o.Finalizers, func(f string) bool { return strings.HasPrefix(f, v1alpha1.Group+"/") }) {
					left++
				}
			}
		}
	}
	return left, nil
}

// event writes an Event about the owner, if it is a pod that exists, or else about the object that holds the record.
func (a *Auditor) event(ctx context.Context, alloc ipam.Allocation, reason v1alpha1.EventReason, note string, args ...any) {
	kind, action := corev1.EventTypeNormal, "Release"
	switch reason {
	case v1alpha1.EventPodStartsLate:
		kind, action = corev1.EventTypeWarning, "Keep"
	case v1alpha1.EventIPAddressGarbageCollectionFailed:
		kind = corev1.EventTypeWarning
	case v1alpha1.EventRecordRepairFailed:
		kind, action = corev1.EventTypeWarning, "Repair"
	case v1alpha1.EventRecordRepaired:
		action = "Repair"
	case v1alpha1.EventAgentRestarted:
		action = "Restart"
	default:
	}
	a.Recorder.Eventf(a.about(ctx, alloc), nil, kind, string(reason), action, "%s", truncated(fmt.Sprintf(note, args...), 1024))
}

func (a *Auditor) about(ctx context.Context, alloc ipam.Allocation) *corev1.ObjectReference {
	o := alloc.Owner
	pod := metav1.PartialObjectMetadata{}
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	if o.Kind == ipam.OwnerPod && a.Live.Get(ctx, types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, &pod) == nil && string(pod.UID) == o.UID {
		return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: o.Namespace, Name: o.Name, UID: pod.UID}
	}
	// A record that is gone by now is still what the Event is about.
	record, _ := a.Backend.Record(ctx, alloc.Places[0])
	return &corev1.ObjectReference{
		APIVersion: record.APIVersion, Kind: record.Kind, Namespace: record.Namespace, Name: record.Name, UID: types.UID(record.UID),
	}
}

// fields are the log's keys and values about a hand-out.
func fields(alloc ipam.Allocation, v ipam.Verdict) []any {
	p := alloc.Places[0]
	return []any{
		"pool", p.Pool, "block", p.Block, "address", alloc.AddressText(), "handle", alloc.Handle,
		"owner", alloc.Owner.String(), "node", alloc.Owner.Node, "verdict", v.Disposition, "reason", v.Reason, "evidence", v.Evidence, "detail", v.Detail,
	}
}
