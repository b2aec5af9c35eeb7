// Package plot draws lines as SVG.
package plot

import (
	"bytes"
	"fmt"
	"html"
	"math"
)

// Line is drawn through its points, from left to right.
type Line struct {
	// Name stands at the line's end; it may be empty.
	Name string
	X, Y []float64
}

// Figure is a picture of lines.
type Figure struct {
	Title string
	// Logarithmic scales go up tenfold from mark to mark; linear ones begin at 0.
	Logarithmic bool
	// X and Y write what stands at a mark.
	X, Y  func(float64) string
	Lines []Line
}

const (
	width, height = 720.0, 300.0
	// left, right, top and bottom are what the marks, names and the title take.
	left, right, top, bottom = 64.0, 110.0, 36.0, 32.0
	// marks is how many parts a linear scale has.
	marks = 4
)

// SVG returns the picture. It is empty but for the title where there are no points.
func (f Figure) SVG() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="11">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/><text x="%.0f" y="20" font-size="13">%s</text>`+"\n", left, html.EscapeString(f.Title))
	x := f.scale(left, width-right, func(l Line) []float64 { return l.X })
	y := f.scale(height-bottom, top, func(l Line) []float64 { return l.Y })
	for _, v := range y.marks {
		fmt.Fprintf(&b, `<line x1="%.0f" x2="%.0f" y1="%.1f" y2="%.1f" stroke="#ddd"/><text x="%.0f" y="%.1f" text-anchor="end">%s</text>`+"\n",
			left, width-right, y.at(v), y.at(v), left-6, y.at(v)+4, html.EscapeString(f.Y(v)))
	}
	for _, v := range x.marks {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.0f" text-anchor="middle">%s</text>`+"\n", x.at(v), height-bottom+18, html.EscapeString(f.X(v)))
	}
	colours := []string{"#1a6", "#26c", "#c52", "#849", "#777"}
	for i, l := range f.Lines {
		colour := colours[i%len(colours)]
		fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="1.5" points="`, colour)
		for j := range l.X {
			fmt.Fprintf(&b, "%.1f,%.1f ", x.at(l.X[j]), y.at(l.Y[j]))
		}
		b.WriteString("\"/>\n")
		if last := len(l.X) - 1; last >= 0 && l.Name != "" {
			fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" fill="%s">%s</text>`+"\n", x.at(l.X[last])+6, y.at(l.Y[last])+4, colour, html.EscapeString(l.Name))
		}
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// scale tells where a value is in the picture, and which have a mark.
type scale struct {
	at    func(float64) float64
	marks []float64
}

func (f Figure) scale(from, to float64, of func(Line) []float64) scale {
	least, most := math.Inf(1), 0.0
	for _, l := range f.Lines {
		for _, v := range of(l) {
			least, most = min(least, v), max(most, v)
		}
	}
	if most == 0 {
		return scale{at: func(float64) float64 { return from }}
	}
	if !f.Logarithmic {
		s := scale{at: func(v float64) float64 { return from + (to-from)*v/most }}
		for i := range marks + 1 {
			s.marks = append(s.marks, most*float64(i)/marks)
		}
		return s
	}
	low, high := math.Floor(math.Log10(least)), math.Ceil(math.Log10(most)-0.01) // A little more than a power of ten needs no other mark.
	s := scale{at: func(v float64) float64 { return from + (to-from)*(math.Log10(v)-low)/max(high-low, 1) }}
	for e := low; e <= high; e++ {
		s.marks = append(s.marks, math.Pow(10, e))
	}
	return s
}
