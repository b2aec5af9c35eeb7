package envtest

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/oakum-dev/oakum/test/alerts"
	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/fixture"
)

// families are metrics that were read, and the labels that each has; the empty one stands for none.
type families map[string][]string

// read adds what a text tells, as Prometheus reads it.
func (f families) read(text string) {
	line := regexp.MustCompile(`(?m)^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? \S+$`)
	label := regexp.MustCompile(`([a-zA-Z_]\w*)="(?:[^"\\]|\\.)*"`)
	for _, sample := range line.FindAllStringSubmatch(text, -1) {
		f[sample[1]] = append(f[sample[1]], "")
		for _, l := range label.FindAllStringSubmatch(sample[2], -1) {
			f[sample[1]] = append(f[sample[1]], l[1])
		}
	}
}

// elsewhere are metrics that a manager with these settings does not tell, and the labels that alerts know them by. It would
// with certificates of its own.
func elsewhere() families {
	return families{
		"oakum_webhook_ca_expiry_timestamp_seconds": {""},
	}
}

// lacks says what of a query is not there. Prometheus itself adds labels that tell the target.
func (f families) lacks(q alerts.Query) (missing []string) {
	names, labels := q.Names()
	known := []string{"instance", "job", "pod"}
	for _, name := range names {
		if f[name] == nil {
			missing = append(missing, "metric "+name)
		}
		known = append(known, f[name]...)
	}
	for _, label := range labels {
		if !slices.Contains(known, label) {
			missing = append(missing, "label "+label)
		}
	}
	return missing
}

// TestAlertsAskForWhatThereIs reads the metrics of a manager and of the API server, and compares them with what the chart's
// alerts and its dashboard ask for.
func TestAlertsAskForWhatThereIs(t *testing.T) {
	t.Parallel()
	p := own(t, controlplane.Start)
	manager := p.start(t, settings+"audit: {interval: 1s}\n")
	s := p.scene(t, "alerts")
	token, c := s.metricsReader(), insecure(t)

	// A second block is refused, a pod ends and is let go, and a pool waits for its last address.
	node, pool := s.node(s.name), fixture.Pool(s.name, fixture.Subnet("10.0.0.0/24", ""))
	s.create(pool)
	pod := s.pod(s.name, node.Name)
	block := s.block(fixture.Entry(0, "h0", fixture.OfPod(pod)), fixture.Entry(1, "h1", fixture.External("router")))
	if err := s.client.Create(t.Context(), fixture.Block(s.name, 1, node.Name)); err == nil {
		t.Fatal("a second block was admitted")
	}
	s.held(pod)
	if err := s.client.Delete(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	s.report(fixture.Pod(s.name, node.Name, fixture.Ended))
	if err := s.client.Delete(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	told := families{}
	eventually(t, func() error {
		code, text, err := request(c, fmt.Sprintf("https://127.0.0.1:%d/metrics", manager.Metrics), token)
		if err != nil || code != http.StatusOK {
			return fmt.Errorf("reading the manager's metrics: %d %w", code, err)
		}
		told = families{}
		told.read(text)
		for _, name := range []string{"oakum_finalizer_held_seconds_bucket", "oakum_pool_capacity", "oakum_terminating_oldest_timestamp_seconds"} {
			if told[name] == nil {
				return fmt.Errorf("no pod was let go, no pool audited, or none waits: there is no %s", name)
			}
		}
		return nil
	})

	// Without a manager a pool is not created, and an address is given back unseen.
	if err := manager.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.client.Create(t.Context(), fixture.Pool("refused", fixture.Subnet("10.1.0.0/24", ""))); err == nil {
		t.Fatal("a pool was created without a manager")
	}
	s.patch(block, types.JSONPatchType, `[{"op": "remove", "path": "/spec/allocations/0"}]`)
	clients, err := kubernetes.NewForConfig(p.Admin)
	if err != nil {
		t.Fatal(err)
	}
	text, err := clients.RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	told.read(string(text))

	root, err := controlplane.Root()
	if err != nil {
		t.Fatal(err)
	}
	rules, err := alerts.ReadRules(root)
	if err != nil {
		t.Fatal(err)
	}
	dashboard, err := alerts.ReadDashboard(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, labels := range elsewhere() {
		if told[name] != nil {
			t.Errorf("%s is told, so it must not be among those that are not", name)
		}
		told[name] = labels
	}
	queries := alerts.Queries(rules, dashboard)
	if len(queries) == 0 {
		t.Error("nothing is asked for")
	}
	for _, q := range queries {
		if missing := told.lacks(q); missing != nil {
			t.Errorf("%s asks for what nobody tells: %s", q.Of, strings.Join(missing, ", "))
		}
	}
	if missing := told.lacks(alerts.Query{Expr: `max by (colour) (oakum_renamed{kind="Pod"}) + oakum_terminating_objects`}); !slices.Equal(missing, []string{"metric oakum_renamed", "label colour"}) {
		t.Errorf("of a query for what is not there, these were found missing: %q", missing)
	}
}
