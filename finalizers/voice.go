package finalizers

import (
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
)

// The reasons for which a finalizer comes off, beside those of the law.
const (
	// Unwanted: the mode, the settings or the pod itself do not ask for the finalizer.
	Unwanted ipam.Reason = "Unwanted"
	// NeverScheduled: the pod never reached a node, and no address is recorded for it (E1).
	NeverScheduled ipam.Reason = "NeverScheduled"
	// NothingRecorded: the pod has ended, nobody tells about its sandbox, and no address is recorded for it (E14).
	NothingRecorded ipam.Reason = "NothingRecorded"
	// DeadlineExceeded: the object has waited as long as it may.
	DeadlineExceeded ipam.Reason = "DeadlineExceeded"
	// Drained: what the object waited for is gone.
	Drained ipam.Reason = "Drained"
)

// The kinds in the metric oakum_finalizer_held_seconds.
const (
	podKind   = "Pod"
	nodeKind  = "Node"
	poolKind  = "AddressPool"
	blockKind = "AddressBlock"
)

// Voice tells people what was done and why, after it was done.
type Voice struct {
	log           logr.Logger
	recorder      events.EventRecorder
	clock         cluster.Clock
	held          *prometheus.HistogramVec
	releases      *prometheus.CounterVec
	releaseErrors *prometheus.CounterVec
}

// NewVoice makes a voice and registers its metric. The counters of releases are shared with the audit.
func NewVoice(log logr.Logger, recorder events.EventRecorder, clock cluster.Clock, r prometheus.Registerer, releases, releaseErrors *prometheus.CounterVec) (Voice, error) {
	v := Voice{
		log: log, recorder: recorder, clock: clock, releases: releases, releaseErrors: releaseErrors,
		held: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "oakum_finalizer_held_seconds",
			Help:    "Time from an object's deletionTimestamp until Oakum took its finalizer off, by kind and reason.",
			Buckets: []float64{0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 600, 1800},
		}, []string{"kind", "reason"}),
	}
	return v, r.Register(v.held)
}

// patience is how long a pod may outlive its deletionTimestamp, on a node that is ready, before its Events say so.
const patience = 10 * time.Second

// waits tells for what a pod that is being deleted waits, once that is more than the usual.
func (v Voice) waits(pod *cluster.Pod, s podState, step podStep) {
	if s.pod.Deleted.IsZero() || step.reason == ipam.Ending && s.now.Sub(s.pod.Deleted) < patience {
		return
	}
	v.event(podReference(pod), nil, corev1.EventTypeNormal, v1alpha1.EventAddressesHeld, string(step.reason),
		"waits to be proven gone: %s. Let go at %s at the latest", s.end.Detail, s.pod.Deleted.Add(s.deadline).UTC().Format(time.RFC3339))
}

// released tells of a hand-out that was given back.
func (v Voice) released(pod *cluster.Pod, a ipam.Allocation, record *corev1.ObjectReference, verdict ipam.Verdict) {
	v.releases.WithLabelValues(a.Backend, string(verdict.Reason)).Inc()
	v.log.Info("released", "backend", a.Backend, "pod", klog.KObj(pod), "handle", a.Handle, "address", a.AddressText(), "block", a.Places[0].Block,
		"pool", a.Places[0].Pool, "node", a.Owner.Node, "verdict", verdict.Disposition, "reason", verdict.Reason, "evidence", verdict.Evidence, "detail", verdict.Detail)
	v.event(podReference(pod), record, corev1.EventTypeNormal, v1alpha1.EventAddressReleased, "Release",
		"released %s (%s, handle %s): %s", a.AddressText(), a.Backend, a.Handle, verdict.Detail)
}

// failed tells of a hand-out that could not be given back.
func (v Voice) failed(pod *cluster.Pod, a ipam.Allocation, record *corev1.ObjectReference, err error) {
	v.releaseErrors.WithLabelValues(a.Backend).Inc()
	v.event(podReference(pod), record, corev1.EventTypeWarning, v1alpha1.EventAddressReleaseFailed, "Release",
		"releasing %s (%s, handle %s): %v", a.AddressText(), a.Backend, a.Handle, err)
}

// keeps tells of a hand-out that is left alone although its pod has ended.
func (v Voice) keeps(a ipam.Allocation, verdict ipam.Verdict) {
	v.log.Info("kept", "backend", a.Backend, "handle", a.Handle, "address", a.AddressText(), "verdict", verdict.Disposition, "reason", verdict.Reason, "detail", verdict.Detail)
}

// leaves tells of an address that stays allocated although its pod was let go.
func (v Voice) leaves(pod *cluster.Pod, a ipam.Allocation, record *corev1.ObjectReference, s podState, step podStep) {
	v.log.Info("left allocated", "backend", a.Backend, "pod", klog.KObj(pod), "handle", a.Handle, "address", a.AddressText(), "node", a.Owner.Node,
		"reason", step.reason, "evidence", s.end.Evidence, "detail", s.end.Detail)
	v.event(podReference(pod), record, corev1.EventTypeWarning, v1alpha1.EventAddressesLeft, "LetGo",
		"let go (%s), and %s stays allocated: %s", step.reason, a.AddressText(), s.end.Detail)
}

// stuck tells of a finalizer that cannot be taken off.
func (v Voice) stuck(pod *cluster.Pod, err error) {
	v.event(podReference(pod), nil, corev1.EventTypeWarning, v1alpha1.EventFinalizerStuck, "LetGo",
		"taking finalizer %s off: %v", v1alpha1.AddressesFinalizer, err)
}

// letGo counts how long an object was held.
func (v Voice) letGo(kind string, deleted *metav1.Time, reason ipam.Reason) {
	if deleted != nil {
		v.held.WithLabelValues(kind, string(reason)).Observe(max(0, v.clock().Wall.Sub(deleted.Time).Seconds()))
	}
}

// event writes an Event. The API limits a note to 1024 characters. The recorder counts Events that differ in nothing but
// their notes as one and keeps the first note, so what deserves a note of its own must differ in related or action.
func (v Voice) event(about *corev1.ObjectReference, related runtime.Object, kind string, reason v1alpha1.EventReason, action, note string, args ...any) {
	text := fmt.Sprintf(note, args...)
	if len(text) > 1024 {
		text = text[:1021] + "..."
	}
	v.recorder.Eventf(about, related, kind, string(reason), action, "%s", text)
}

func podReference(p *cluster.Pod) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: podKind, Namespace: p.Namespace, Name: p.Name, UID: p.UID}
}

func nativeReference(o client.Object, kind string) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: kind, Name: o.GetName(), UID: o.GetUID()}
}
