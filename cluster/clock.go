package cluster

import (
	"time"

	"github.com/oakum-dev/oakum/ipam"
)

// Clock tells the time. Tests bring their own.
type Clock func() ipam.Moment

// SystemClock returns a clock whose Steady part starts at zero and never jumps.
func SystemClock() Clock {
	start := time.Now()
	return func() ipam.Moment {
		now := time.Now()
		return ipam.Moment{Wall: now.Round(0), Steady: now.Sub(start)}
	}
}
