package finalizers

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
)

// Terminating tells as metrics which objects are being deleted and still carry a finalizer of ours. Every replica does, from
// what its cache is told of: that there is no leader to take them off is what people must hear.
type Terminating struct {
	count, oldest, deadline *prometheus.Desc

	mu sync.Mutex
	// kinds has for each kind, by key, when the objects that wait were deleted.
	kinds map[string]map[string]time.Time
	// deadlines are of the kinds that have one.
	deadlines map[string]time.Duration
}

// NewTerminating makes the metrics and registers them.
func NewTerminating(r prometheus.Registerer) (*Terminating, error) {
	describe := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, []string{"kind"}, nil) }
	t := &Terminating{
		count:     describe("oakum_terminating_objects", "Objects that are being deleted and still carry a finalizer of Oakum's."),
		oldest:    describe("oakum_terminating_oldest_timestamp_seconds", "The earliest deletionTimestamp among these objects; absent if there is none."),
		deadline:  describe("oakum_finalizer_deadline_seconds", "How long after its deletionTimestamp an object is let go at the latest; absent for kinds that wait for their addresses."),
		kinds:     map[string]map[string]time.Time{},
		deadlines: map[string]time.Duration{},
	}
	return t, r.Register(t)
}

// Watch counts the objects of a kind that an informer tells of. A deadline of 0 is none.
func (t *Terminating) Watch(kind string, informer cache.Informer, deadline time.Duration) error {
	t.begin(kind, deadline)
	sees := func(o any) { t.sees(kind, o) }
	_, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    sees,
		UpdateFunc: func(_, after any) { sees(after) },
		DeleteFunc: func(o any) { t.leaves(kind, o) },
	})
	if err != nil {
		return fmt.Errorf("watching %ss that are being deleted: %w", kind, err)
	}
	return nil
}

func (t *Terminating) begin(kind string, deadline time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kinds[kind] = map[string]time.Time{}
	if deadline > 0 {
		t.deadlines[kind] = deadline
	}
}

// sees notes an object as it is now.
func (t *Terminating) sees(kind string, o any) {
	object, err := meta.Accessor(o)
	if err != nil {
		return // A cache holds nothing else.
	}
	key := toolscache.MetaObjectToName(object).String()
	deleted := object.GetDeletionTimestamp()
	ours := func(f string) bool { return strings.HasPrefix(f, v1alpha1.Group+"/") }
	t.mu.Lock()
	defer t.mu.Unlock()
	if deleted != nil && slices.ContainsFunc(object.GetFinalizers(), ours) {
		t.kinds[kind][key] = deleted.Time
		return
	}
	delete(t.kinds[kind], key)
}

// leaves notes that an object is gone, which the informer may only have concluded.
func (t *Terminating) leaves(kind string, o any) {
	key, err := toolscache.DeletionHandlingMetaNamespaceKeyFunc(o)
	if err != nil {
		return // As above.
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.kinds[kind], key)
}

// Describe implements prometheus.Collector.
func (t *Terminating) Describe(descriptions chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{t.count, t.oldest, t.deadline} {
		descriptions <- d
	}
}

// Collect implements prometheus.Collector.
func (t *Terminating) Collect(metrics chan<- prometheus.Metric) {
	t.mu.Lock()
	defer t.mu.Unlock()
	tell := func(d *prometheus.Desc, value float64, kind string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, kind)
	}
	for kind, waiting := range t.kinds {
		tell(t.count, float64(len(waiting)), kind)
		var oldest time.Time
		for _, deleted := range waiting {
			if oldest.IsZero() || deleted.Before(oldest) {
				oldest = deleted
			}
		}
		if !oldest.IsZero() {
			tell(t.oldest, float64(oldest.Unix()), kind)
		}
	}
	for kind, deadline := range t.deadlines {
		tell(t.deadline, deadline.Seconds(), kind)
	}
}
