package alerts

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/oakum-dev/oakum/test/controlplane"
)

// read returns the repository's root and the chart's files.
func read(t *testing.T) (root string, r Rules, d Dashboard) {
	t.Helper()
	root, err := controlplane.Root()
	if err != nil {
		t.Fatal(err)
	}
	if r, err = ReadRules(root); err != nil {
		t.Fatal(err)
	}
	if d, err = ReadDashboard(root); err != nil {
		t.Fatal(err)
	}
	return root, r, d
}

// promtool runs Prometheus' tool, which must not complain.
func promtool(t *testing.T, root string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "bin", "promtool"), args...)
	cmd.Dir = root
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v: %s (make bin/promtool builds promtool)", strings.Join(args, " "), err, output)
	}
}

func TestRules(t *testing.T) {
	root, _, _ := read(t)
	promtool(t, root, "check", "rules", "--lint=all", "--lint-fatal", RulesFile)
	promtool(t, root, "test", "rules", "test/alerts/rules_test.yaml")
}

// Prometheus itself parses what the dashboard asks, as if each query were a rule.
func TestTheDashboardAsksInPromQL(t *testing.T) {
	root, _, d := read(t)
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var rules []rule
	for i, q := range Queries(Rules{}, d) {
		rules = append(rules, rule{fmt.Sprintf("query:%d", i), q.Expr})
	}
	data, err := json.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, root, "check", "rules", file)
}

// anchors are those of the headings in a Markdown file, as GitHub makes them.
func anchors(t *testing.T, file string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(string(text), -1) {
		plain := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		found[strings.ReplaceAll(plain, " ", "-")] = true
	}
	return found
}

func TestEveryAlertSaysWhatToDo(t *testing.T) {
	root, r, _ := read(t)
	known := anchors(t, filepath.Join(root, "docs", "operations.md"))
	text, err := os.ReadFile(filepath.Join(root, "test", "alerts", "rules_test.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range r.Groups {
		for _, rule := range g.Rules {
			anchor := strings.ToLower(rule.Alert)
			want := Rule{
				Alert: rule.Alert, Expr: rule.Expr, For: rule.For, Labels: map[string]string{"severity": rule.Labels["severity"]},
				Annotations: map[string]string{
					"summary": rule.Annotations["summary"], "description": rule.Annotations["description"],
					"runbook_url": "https://github.com/oakum-dev/oakum/blob/main/docs/operations.md#" + anchor,
				},
			}
			if diff := cmp.Diff(want, rule); diff != "" {
				t.Errorf("%s (-want +got):\n%s", rule.Alert, diff)
			}
			for what, value := range map[string]string{"summary": rule.Annotations["summary"], "description": rule.Annotations["description"], "for": rule.For} {
				if value == "" {
					t.Errorf("%s has no %s", rule.Alert, what)
				}
			}
			if !slices.Contains([]string{"critical", "warning", "info"}, rule.Labels["severity"]) {
				t.Errorf("%s has severity %q", rule.Alert, rule.Labels["severity"])
			}
			if !known[anchor] {
				t.Errorf("%s has no heading in docs/operations.md", rule.Alert)
			}
			if !strings.Contains(string(text), fmt.Sprintf("alertname=%q, alertstate=\"firing\"", rule.Alert)) {
				t.Errorf("%s fires in no test", rule.Alert)
			}
		}
	}
}

func TestEveryPanelCanBeRead(t *testing.T) {
	_, _, d := read(t)
	ids := map[int]bool{}
	for i, p := range d.Panels {
		if ids[p.ID] || p.Title == "" {
			t.Errorf("panel %d has id %d and title %q", i, p.ID, p.Title)
		}
		ids[p.ID] = true
		if g := p.GridPos; g.W <= 0 || g.H <= 0 || g.X < 0 || g.X+g.W > 24 {
			t.Errorf("%s is at %+v", p.Title, g)
		}
		for _, other := range d.Panels[:i] {
			if a, b := p.GridPos, other.GridPos; a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("%s lies over %s", p.Title, other.Title)
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
			t.Errorf("%s wants a description, a unit and a query", p.Title)
		}
		for _, target := range p.Targets {
			if target.Legend == "" && p.Type != "table" {
				t.Errorf("query %s of %s has no legend", target.RefID, p.Title)
			}
		}
	}
}

func TestNames(t *testing.T) {
	tests := map[string]struct {
		expr            string
		metrics, labels []string
	}{
		"a metric by itself":              {"oakum_leak_candidates", []string{"oakum_leak_candidates"}, nil},
		"one of functions and groupings":  {`sum by (name, le) (rate(a_bucket{x=~".+[.]dev", y!=""}[10m] offset 5m))`, []string{"a_bucket"}, []string{"le", "name", "x", "y"}},
		"several with operators":          {`max(a{x="b or c"}) > 0 and on (kind) min without (z) (b) == 0 unless c * 1e3`, []string{"a", "b", "c"}, []string{"kind", "x", "z"}},
		"one in a subquery":               {"predict_linear((a - b)[6h:5m], 86400) < 0", []string{"a", "b"}, nil},
		"a function of time is no metric": {"time() - a", []string{"a"}, nil},
		"a name that looks like a rule's": {"job:a:rate5m / 2", []string{"job:a:rate5m"}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			metrics, labels := Query{Expr: tt.expr}.Names()
			if diff := cmp.Diff([][]string{tt.metrics, tt.labels}, [][]string{metrics, labels}); diff != "" {
				t.Errorf("metrics and labels (-want +got):\n%s", diff)
			}
		})
	}
}
