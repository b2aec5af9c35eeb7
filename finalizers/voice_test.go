package finalizers

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/test/fixture"
)

// I9: each release is told in a line of the log, an Event and a metric.
func TestAReleaseIsExplained(t *testing.T) {
	s := endedPod(t, entry(1, "h1", "web-0", "u1"))
	var lines []string
	log := funcr.NewJSON(func(line string) { lines = append(lines, line) }, funcr.Options{})
	registry := prometheus.NewRegistry()
	voice, err := newVoice(s, log, registry)
	if err != nil {
		t.Fatal(err)
	}
	s.Pod.Voice = voice
	s.pass(3 * time.Second)
	if got := s.outcome(&corev1.Pod{}, "default/web-0"); len(got.Events) != 1 || got.Err != "" {
		t.Errorf("outcome: %+v", got)
	}
	wantLines := []string{
		`{"logger":"","level":0,"msg":"released","backend":"double","pod":{"name":"web-0","namespace":"default"},"handle":"h1","address":"10.0.0.1","block":"default-0",` +
			`"pool":"default","node":"n1","verdict":"Free","reason":"EndReported","evidence":"E2",` +
			`"detail":"the kubelet reported the end of Pod default/web-0 (uid u1): Succeeded, every container terminated, sandbox down"}`,
	}
	if diff := cmp.Diff(wantLines, lines); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	want := map[string]float64{
		`oakum_releases_total backend="double" reason="EndReported"`:           1,
		`oakum_finalizer_held_seconds kind="Pod" reason="EndReported" (count)`: 1,
		`oakum_finalizer_held_seconds kind="Pod" reason="EndReported" (sum)`:   3,
	}
	if diff := cmp.Diff(want, metrics(t, registry)); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

// metrics returns the value of each counter and gauge, and the count and sum of each histogram.
func metrics(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, label := range m.GetLabel() {
				name += " " + label.GetName() + `="` + label.GetValue() + `"`
			}
			if h := m.GetHistogram(); h != nil {
				found[name+" (count)"], found[name+" (sum)"] = float64(h.GetSampleCount()), h.GetSampleSum()
			} else {
				found[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return found
}

// A pod may end before its grace period has, from which its deletionTimestamp counts.
func TestNobodyIsHeldForLessThanNoTime(t *testing.T) {
	s := play(t, fixture.Pod("web-0", "n1", fixture.UID("u1"), running, held, deleted(-time.Minute), fixture.Ended))
	if got := s.outcome(&corev1.Pod{}, "default/web-0"); got.Err != "" {
		t.Errorf("outcome: %+v", got)
	}
	want := map[string]float64{
		`oakum_finalizer_held_seconds kind="Pod" reason="EndReported" (count)`: 1,
		`oakum_finalizer_held_seconds kind="Pod" reason="EndReported" (sum)`:   0,
	}
	if diff := cmp.Diff(want, metrics(t, s.metrics)); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

func TestWhatGoesWrongIsCounted(t *testing.T) {
	s := endedPod(t, entry(1, "h1", "web-0", "u1"))
	s.fault = failing(map[string]error{"PATCH addressblocks": errors.New("the API server is on fire")})
	for range 2 {
		if got := s.outcome(&corev1.Pod{}, "default/web-0"); got.Err == "" {
			t.Errorf("outcome: %+v", got)
		}
	}
	if diff := cmp.Diff(map[string]float64{`oakum_release_errors_total backend="double"`: 2}, metrics(t, s.metrics)); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

// The API takes no note of more than 1024 characters.
func TestALongNoteIsCut(t *testing.T) {
	s := play(t)
	about := podReference(cluster.Observe(fixture.Pod("web-0", "n1", fixture.UID("u1"))))
	s.Pod.Voice.event(about, nil, corev1.EventTypeNormal, v1alpha1.EventAddressesHeld, "Wait", "%s", strings.Repeat("x", 1025))
	want := []string{"Normal AddressesHeld (Wait) on Pod default/web-0 (uid u1): " + strings.Repeat("x", 1021) + "..."}
	if diff := cmp.Diff(want, s.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// newVoice makes a voice whose counters of releases are registered with its own metric.
func newVoice(s *stage, log logr.Logger, r prometheus.Registerer) (Voice, error) {
	counter := func(name string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: "As the manager registers it."}, labels)
	}
	releases, failures := counter("oakum_releases_total", "backend", "reason"), counter("oakum_release_errors_total", "backend")
	voice, err := NewVoice(log, s, s.clock, r, releases, failures)
	return voice, errors.Join(err, r.Register(releases), r.Register(failures))
}

func TestMetricsAreRegisteredOnce(t *testing.T) {
	s := play(t)
	if _, err := newVoice(s, logr.Discard(), s.metrics); err == nil {
		t.Error("the metrics of a second voice were registered")
	}
}
