package scale

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// figure is what the manager took at a time since the beginning. After another took its place it begins anew.
type figure struct {
	at               time.Duration
	megabytes, cores float64
}

// sample looks at the manager every other second. The function that it returns ends that, and returns the figures.
func (c *cluster) sample(ctx context.Context) func() []figure {
	ctx, stop := context.WithCancel(ctx)
	all := make(chan []figure, 1)
	go func() {
		const every = 2 * time.Second
		began, tick := time.Now(), time.NewTicker(every)
		defer tick.Stop()
		var seen []figure
		var last float64
		for pid := 0; ; {
			select {
			case <-ctx.Done():
				all <- seen
				return
			case <-tick.C:
			}
			c.mu.Lock()
			now := c.manager.PID()
			c.mu.Unlock()
			megabytes, seconds, err := usage(now)
			if err != nil {
				continue // It has just died.
			}
			if now == pid {
				seen = append(seen, figure{time.Since(began), megabytes, (seconds - last) / every.Seconds()})
			}
			pid, last = now, seconds
		}
	}()
	return func() []figure {
		stop()
		return <-all
	}
}

// usage returns what a process has in memory and has had of processors, by proc(5).
func usage(pid int) (megabytes, seconds float64, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 22 {
		return 0, 0, fmt.Errorf("reading the usage of process %d: it tells %q", pid, stat)
	}
	var user, system, pages float64
	if _, err := fmt.Sscan(strings.Join([]string{fields[11], fields[12], fields[21]}, " "), &user, &system, &pages); err != nil {
		return 0, 0, fmt.Errorf("reading the usage of process %d: %w", pid, err)
	}
	const ticks = 100 // a second, on Linux
	return pages * float64(os.Getpagesize()) / 1e6, (user + system) / ticks, nil
}

func summary(seen []figure) string {
	var most, sum float64
	for _, f := range seen {
		most, sum = max(most, f.megabytes), sum+f.cores
	}
	return fmt.Sprintf("the manager had at most %.0f MB, and %.2f cores on average", most, sum/float64(max(1, len(seen))))
}

// chart draws a figure over time as SVG.
func chart(title string, seen []figure, of func(figure) float64) []byte {
	const width, height, margin = 720.0, 240.0, 40.0
	top, last := 0.0, time.Second
	for _, f := range seen {
		top, last = max(top, of(f)), max(last, f.at)
	}
	top = max(top*1.1, 0.1)
	x := func(at time.Duration) float64 { return margin + (width-2*margin)*float64(at)/float64(last) }
	y := func(v float64) float64 { return height - margin - (height-2*margin)*v/top }
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="11">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/><text x="%.0f" y="20" font-size="13">%s</text>`+"\n", margin, title)
	for i := range 5 {
		v := top * float64(i) / 4
		fmt.Fprintf(&b, `<line x1="%.0f" x2="%.0f" y1="%.1f" y2="%.1f" stroke="#ddd"/><text x="%.0f" y="%.1f" text-anchor="end">%.3g</text>`+"\n",
			margin, width-margin, y(v), y(v), margin-4, y(v)+4, v)
		at := last * time.Duration(i) / 4
		fmt.Fprintf(&b, `<text x="%.1f" y="%.0f" text-anchor="middle">%s</text>`+"\n", x(at), height-margin+16, at.Round(time.Second))
	}
	b.WriteString(`<polyline fill="none" stroke="#1a6" stroke-width="1.5" points="`)
	for _, f := range seen {
		fmt.Fprintf(&b, "%.1f,%.1f ", x(f.at), y(of(f)))
	}
	b.WriteString("\"/>\n</svg>\n")
	return b.Bytes()
}
