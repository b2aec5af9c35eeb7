package calico

import (
	"sync"
	"time"
)

// memory is what was seen lately, and since when.
type memory struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// confirm remembers just what is seen now, and returns what of that has been seen every time for a grace.
func (m *memory) confirm(now time.Time, grace time.Duration, seen []string) map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	since, confirmed := make(map[string]time.Time, len(seen)), map[string]bool{}
	for _, s := range seen {
		first, known := m.since[s]
		if !known {
			first = now
		}
		since[s] = first
		confirmed[s] = known && now.Sub(first) >= grace
	}
	m.since = since
	return confirmed
}
