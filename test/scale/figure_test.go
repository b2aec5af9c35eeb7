package scale

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/oakum-dev/oakum/test/plot"
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

// draw draws a figure over time as SVG.
func draw(title string, seen []figure, of func(figure) float64) []byte {
	var line plot.Line
	for _, f := range seen {
		line.X, line.Y = append(line.X, f.at.Seconds()), append(line.Y, of(f))
	}
	return plot.Figure{
		Title: title,
		X:     func(v float64) string { return time.Duration(v * 1e9).Round(time.Second).String() },
		Y:     func(v float64) string { return fmt.Sprintf("%.3g", v) },
		Lines: []plot.Line{line},
	}.SVG()
}
