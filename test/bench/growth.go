package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/oakum-dev/oakum/test/plot"
)

// kind is one cost of a cluster.
type kind struct {
	name string
	of   func(audits) float64
	text func(float64) string
}

func kinds() []kind {
	duration := func(v float64) string { return time.Duration(v).Round(10 * time.Microsecond).String() }
	memory := func(v float64) string { return fmt.Sprintf("%.0f MB", v/1e6) }
	with := func(s sides) float64 { return median(s.with) }
	return []kind{
		{"an audit", func(a audits) float64 { return with(a.run) }, duration},
		{"its processor time", func(a audits) float64 { return with(a.work) }, duration},
		{"a pod ends", func(a audits) float64 { return with(a.pod) }, duration},
		{"plain lists", func(a audits) float64 { return median(slices.Concat(a.run.without, a.run.control)) }, duration},
		{"memory", func(a audits) float64 { return a.resident }, memory},
	}
}

// growth prints what each cost is in clusters of several sizes, and by how much it is more than in the one before; and draws it, if
// a file is named, as a multiple of what it is in the smallest.
func (r *report) growth(picture string) error {
	if len(r.grown) == 0 {
		return nil
	}
	fmt.Fprint(r.out, "\n| | ")
	for _, a := range r.grown {
		fmt.Fprintf(r.out, "%d pods | ", a.pods)
	}
	fmt.Fprintf(r.out, "target |\n|---|%s---|\n", strings.Repeat("---|", len(r.grown)))
	figure := plot.Figure{
		Title: "Cost, as a multiple of what it is with the fewest pods", Logarithmic: true,
		X: func(v float64) string { return fmt.Sprintf("%.0f pods", v) },
		Y: func(v float64) string { return fmt.Sprintf("%g", v) },
	}
	for _, m := range kinds() {
		line := plot.Line{Name: m.name}
		fmt.Fprintf(r.out, "| %s | ", m.name)
		for i, a := range r.grown {
			v := m.of(a)
			fmt.Fprint(r.out, m.text(v))
			if i > 0 {
				fmt.Fprintf(r.out, " (× %.1f)", v/m.of(r.grown[i-1]))
			}
			fmt.Fprint(r.out, " | ")
			line.X, line.Y = append(line.X, float64(a.pods)), append(line.Y, v/m.of(r.grown[0]))
		}
		fmt.Fprintln(r.out, "× ≤ 12 |")
		figure.Lines = append(figure.Lines, line)
	}
	if picture == "" {
		return nil
	}
	if err := os.WriteFile(picture, figure.SVG(), 0o600); err != nil {
		return fmt.Errorf("drawing the growth: %w", err)
	}
	return nil
}
