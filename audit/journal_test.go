package audit

import (
	"context"
	"fmt"
	"strings"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/ipam"
)

// journal keeps what the audit says of releases: by handle, the evidence that its Events and its log lines name.
type journal struct {
	events, lines map[string][]string
}

func newJournal() *journal {
	return &journal{events: map[string][]string{}, lines: map[string][]string{}}
}

// Eventf implements events.EventRecorder.
func (j *journal) Eventf(_, _ runtime.Object, _, reason, _, note string, args ...any) {
	if reason != string(v1alpha1.EventIPAddressGarbageCollected) {
		return
	}
	_, text, _ := strings.Cut(fmt.Sprintf(note, args...), "handle ")
	handle, evidence, _ := strings.Cut(text, "): ")
	j.events[handle] = append(j.events[handle], evidence)
}

// line is a logr.LogSink.
type line struct {
	*journal
}

// Init implements logr.LogSink.
func (line) Init(logr.RuntimeInfo) {}

// Enabled implements logr.LogSink.
func (line) Enabled(int) bool { return true }

// Error implements logr.LogSink.
func (line) Error(error, string, ...any) {}

// WithValues implements logr.LogSink.
func (l line) WithValues(...any) logr.LogSink { return l }

// WithName implements logr.LogSink.
func (l line) WithName(string) logr.LogSink { return l }

// Info implements logr.LogSink.
func (l line) Info(_ int, message string, pairs ...any) {
	if message != "released" {
		return
	}
	said := map[string]string{}
	for i := 0; i+1 < len(pairs); i += 2 {
		said[fmt.Sprint(pairs[i])] = fmt.Sprint(pairs[i+1])
	}
	evidence := said["detail"]
	if said["reason"] == "" || said["verdict"] == string(ipam.Keep) {
		evidence = ""
	}
	l.lines[said["handle"]] = append(l.lines[said["handle"]], evidence)
}

// unexplained says what the journal lacks about a hand-out that was given back; empty if it has one Event and one line
// with the same evidence.
func (j *journal) unexplained(handle string) string {
	events, lines := j.events[handle], j.lines[handle]
	if len(events) != 1 || len(lines) != 1 || events[0] == "" || events[0] != lines[0] {
		return fmt.Sprintf("the release of %s has Events %q and log lines %q", handle, events, lines)
	}
	return ""
}

// reports keeps the LeakReport, and finds nothing else but the pods of a truth.
type reports struct {
	client.Client
	truth  *truth
	report *v1alpha1.LeakReport
}

// Get implements client.Reader.
func (r *reports) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	switch into := into.(type) {
	case *v1alpha1.LeakReport:
		if r.report != nil {
			r.report.DeepCopyInto(into)
			return nil
		}
	case *metav1.PartialObjectMetadata:
		for i := range podNames {
			if p := r.truth.exists(i); p != nil && p.Name == key.Name {
				into.UID = types.UID(p.UID)
				return nil
			}
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

// List implements client.Reader.
func (*reports) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// Create implements client.Writer.
func (r *reports) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	r.report, _ = o.DeepCopyObject().(*v1alpha1.LeakReport)
	return nil
}

// Status implements client.StatusClient.
func (r *reports) Status() client.SubResourceWriter { return reportStatus{reports: r} }

type reportStatus struct {
	client.SubResourceWriter
	reports *reports
}

// Patch implements client.SubResourceWriter.
func (s reportStatus) Patch(ctx context.Context, o client.Object, _ client.Patch, _ ...client.SubResourcePatchOption) error {
	return s.reports.Create(ctx, o)
}
