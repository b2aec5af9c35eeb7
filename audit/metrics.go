package audit

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are what the audit counts. No label has an address, a pod or a handle.
type Metrics struct {
	// Releases and ReleaseErrors are shared with the finalizers.
	Releases, ReleaseErrors *prometheus.CounterVec

	allocations *prometheus.GaugeVec
	capacity    *prometheus.GaugeVec
	candidates  *prometheus.GaugeVec
	late        *prometheus.GaugeVec
	duration    *prometheus.HistogramVec
	interval    *prometheus.GaugeVec
	success     *prometheus.GaugeVec
	stopped     *prometheus.GaugeVec
}

// NewMetrics makes and registers the audit's own metrics.
func NewMetrics(r prometheus.Registerer, releases, releaseErrors *prometheus.CounterVec) (Metrics, error) {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, append([]string{"backend"}, labels...))
	}
	m := Metrics{
		Releases: releases, ReleaseErrors: releaseErrors,
		allocations: gauge("oakum_allocations", "Addresses that are handed out, by pool and state (in_use, unproven, orphaned); a pair counts once.", "pool", "state"),
		capacity:    gauge("oakum_pool_capacity", "Addresses of a pool, reserved ones included; a pair counts once.", "pool"),
		candidates:  gauge("oakum_leak_candidates", "Hand-outs that are suspected to have leaked."),
		late:        gauge("oakum_allocations_starting_late", "Hand-outs that are kept for pods that have been Pending for over an hour."),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "oakum_audit_duration_seconds", Help: "How long a run of the audit takes.", Buckets: prometheus.ExponentialBuckets(0.01, 4, 8),
		}, []string{"backend"}),
		interval: gauge("oakum_audit_interval_seconds", "How often an audit runs on this replica; absent where none does."),
		success:  gauge("oakum_audit_last_success_timestamp_seconds", "When a run last read and judged everything."),
		stopped:  gauge("oakum_audit_stopped", "1 while the audit releases nothing because its evidence collapsed."),
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.allocations, m.capacity, m.candidates, m.late, m.duration, m.interval, m.success, m.stopped} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

// begin tells that an audit runs from now on. A counter that is there before it counts shows also the first failure.
func (m Metrics) begin(backend string, interval time.Duration) {
	m.interval.WithLabelValues(backend).Set(interval.Seconds())
	m.ReleaseErrors.WithLabelValues(backend)
}

// observe counts a run.
func (m Metrics) observe(backend string, r result) {
	m.duration.WithLabelValues(backend).Observe((r.ended.Steady - r.began.Steady).Seconds())
	if r.judged == nil {
		return
	}
	m.success.WithLabelValues(backend).Set(float64(r.ended.Wall.UnixMilli()) / 1000)
	m.stopped.WithLabelValues(backend).Set(0)
	if r.stopped != "" {
		m.stopped.WithLabelValues(backend).Set(1)
	}
	// Whoever scrapes between here and the end of the loops misses something, so nothing else is done in between.
	m.allocations.DeletePartialMatch(prometheus.Labels{"backend": backend})
	m.capacity.DeletePartialMatch(prometheus.Labels{"backend": backend})
	for _, p := range r.pools {
		m.capacity.WithLabelValues(backend, p.Name).Set(float64(p.Capacity()))
	}
	for in, n := range r.addresses {
		m.allocations.WithLabelValues(backend, in.pool, string(in.state)).Set(float64(n))
	}
	m.candidates.WithLabelValues(backend).Set(float64(len(r.suspects)))
	m.late.WithLabelValues(backend).Set(float64(r.late))
}

// holding is a part of a pool.
type holding struct {
	pool  string
	state state
}

// count counts what was judged: hand-outs by state, and addresses of each pool in the unit of its capacity.
func (r *result) count() {
	r.handOuts, r.addresses = map[state]int64{}, map[holding]int{}
	for _, p := range r.pools {
		for _, s := range []state{inUse, unproven, orphaned} {
			r.addresses[holding{p.Name, s}] = 0
		}
	}
	for _, j := range r.judged {
		s := stateOf(j.Verdict)
		r.handOuts[s]++
		for _, p := range j.Allocation.Places {
			r.addresses[holding{p.Pool, s}] += p.Size()
		}
	}
}
