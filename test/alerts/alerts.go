// Package alerts reads what the chart has for Prometheus and Grafana, for the tests of it.
package alerts

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// RulesFile and DashboardFile are where the chart has them, below the repository's root.
const (
	RulesFile     = "charts/oakum/files/alerts.yaml"
	DashboardFile = "charts/oakum/files/dashboard.json"
)

// Rules is the file of rules.
type Rules struct {
	Groups []struct {
		Name  string `yaml:"name"`
		Rules []Rule `yaml:"rules"`
	} `yaml:"groups"`
}

// Rule is one alert.
type Rule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// Dashboard is the file of Grafana's, as far as tests look at it.
type Dashboard struct {
	Templating struct {
		List []Variable `json:"list"`
	} `json:"templating"`
	Panels []Panel `json:"panels"`
}

// Variable is one that a person chooses a value of.
type Variable struct {
	Name       string `json:"name"`
	Type       string `json:"type"`
	Definition string `json:"definition"`
}

// Panel is one picture, or the title of a row.
type Panel struct {
	ID          int      `json:"id"`
	Type        string   `json:"type"`
	Title       string   `json:"title"`
	Description string   `json:"description"`
	GridPos     Grid     `json:"gridPos"`
	Targets     []Target `json:"targets"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
}

// Grid is a panel's place, in 24 columns.
type Grid struct{ X, Y, W, H int }

// Target is what a panel asks.
type Target struct {
	RefID  string `json:"refId"`
	Expr   string `json:"expr"`
	Legend string `json:"legendFormat"`
}

// ReadRules reads the rules strictly, below the repository's root.
func ReadRules(root string) (Rules, error) {
	var r Rules
	file, err := os.Open(filepath.Join(root, RulesFile))
	if err != nil {
		return r, fmt.Errorf("reading the alerts: %w", err)
	}
	defer file.Close() //nolint:errcheck // It was only read.
	decoder := yaml.NewDecoder(file)
	decoder.KnownFields(true)
	if err := decoder.Decode(&r); err != nil {
		return r, fmt.Errorf("reading %s: %w", RulesFile, err)
	}
	return r, nil
}

// ReadDashboard reads the dashboard, below the repository's root.
func ReadDashboard(root string) (Dashboard, error) {
	var d Dashboard
	data, err := os.ReadFile(filepath.Join(root, DashboardFile))
	if err != nil {
		return d, fmt.Errorf("reading the dashboard: %w", err)
	}
	if err := json.Unmarshal(data, &d); err != nil {
		return d, fmt.Errorf("reading %s: %w", DashboardFile, err)
	}
	return d, nil
}

// Query is an expression in PromQL, and what asks it.
type Query struct{ Of, Expr string }

// Queries are all that alerts and dashboard ask. What Grafana fills in has an example's value.
func Queries(r Rules, d Dashboard) []Query {
	var queries []Query
	for _, g := range r.Groups {
		for _, rule := range g.Rules {
			queries = append(queries, Query{"alert " + rule.Alert, rule.Expr})
		}
	}
	fill := strings.NewReplacer("$__rate_interval", "5m", "$__range", "6h", "$backend", ".*", "$job", ".*")
	for _, p := range d.Panels {
		for _, t := range p.Targets {
			queries = append(queries, Query{fmt.Sprintf("panel %q, %s", p.Title, t.RefID), fill.Replace(t.Expr)})
		}
	}
	for _, v := range d.Templating.List {
		if of, ok := strings.CutPrefix(v.Definition, "label_values("); ok {
			metric, label, _ := strings.Cut(strings.TrimSuffix(of, ")"), ", ")
			queries = append(queries, Query{"variable " + v.Name, fmt.Sprintf("count by (%s) (%s)", label, metric)})
		}
	}
	return queries
}

// Names are the metrics that a query reads, and the labels that it knows them by; both sorted. It looks at words, which does
// for what is written here: nothing else but numbers is left beside metrics once selectors, ranges, groupings, functions
// and operators are gone.
func (q Query) Names() (metrics, labels []string) {
	text := regexp.MustCompile(`"[^"]*"`).ReplaceAllString(q.Expr, `""`)
	text = regexp.MustCompile(`\[[^\]]*\]`).ReplaceAllString(text, " ")
	word := regexp.MustCompile(`\b[a-zA-Z_:][a-zA-Z0-9_:]*`)
	take := func(what string) {
		pattern := regexp.MustCompile(what)
		for _, found := range pattern.FindAllStringSubmatch(text, -1) {
			labels = append(labels, word.FindAllString(found[1], -1)...)
		}
		text = pattern.ReplaceAllString(text, " ")
	}
	take(`\{([^}]*)\}`)
	take(`\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)`)
	text = regexp.MustCompile(`\b[a-z_]+\s*\(`).ReplaceAllString(text, "(")
	for _, w := range word.FindAllString(text, -1) {
		if !slices.Contains([]string{"and", "or", "unless", "offset", "bool"}, w) {
			metrics = append(metrics, w)
		}
	}
	slices.Sort(metrics)
	slices.Sort(labels)
	return slices.Compact(metrics), slices.Compact(labels)
}
