package plot

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

func TestFigure(t *testing.T) {
	t.Parallel()
	number := func(v float64) string { return fmt.Sprintf("<%g>", v) }
	lines := []Line{{Name: "a & b", X: []float64{1, 10, 100}, Y: []float64{2, 20, 200}}}
	for name, tt := range map[string]struct {
		figure Figure
		want   []string
	}{
		"linear": {
			Figure{Title: "Memory", X: number, Y: number, Lines: lines},
			[]string{`points="69.5,265.7 118.6,244.8 610.0,36.0 "`, ">&lt;0&gt;<", ">&lt;25&gt;<", ">&lt;200&gt;<", ">a &amp; b<", ">Memory<"},
		},
		"logarithmic": {
			Figure{Title: "Cost", Logarithmic: true, X: number, Y: number, Lines: lines},
			[]string{`points="64.0,244.7 337.0,167.4 610.0,90.1 "`, ">&lt;1&gt;<", ">&lt;1000&gt;<"},
		},
		"without points": {Figure{Title: "Nothing", X: number, Y: number, Lines: []Line{{Name: "a"}}}, []string{">Nothing<"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svg := string(tt.figure.SVG())
			for _, want := range tt.want {
				if !strings.Contains(svg, want) {
					t.Errorf("%s\nlacks %s", svg, want)
				}
			}
			for decoder := xml.NewDecoder(strings.NewReader(svg)); ; {
				if _, err := decoder.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
