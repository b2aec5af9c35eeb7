package backends

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/oakum-dev/oakum/ipam"
)

// Several are the backends of which one owner may have addresses. A backend may be added at any time; the zero Several has
// none. It must not be copied after its first use.
type Several struct {
	mu  sync.RWMutex
	all []Backend
}

// Add adds a backend.
func (s *Several) Add(b Backend) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, b)
}

// AllocationsOf lists the owner's hand-outs in all of them, from caches that may lag.
func (s *Several) AllocationsOf(ctx context.Context, owner ipam.Owner) ([]ipam.Allocation, error) {
	return s.join(func(b Backend) ([]ipam.Allocation, error) { return b.AllocationsOf(ctx, owner) })
}

// LiveAllocationsOf answers as AllocationsOf does, without a cache.
func (s *Several) LiveAllocationsOf(ctx context.Context, owner ipam.Owner) ([]ipam.Allocation, error) {
	return s.join(func(b Backend) ([]ipam.Allocation, error) { return b.LiveAllocationsOf(ctx, owner) })
}

// Release gives a hand-out back to the backend that recorded it. See Backend.Release.
func (s *Several) Release(ctx context.Context, a ipam.Allocation) error {
	b, err := s.of(a)
	if err != nil {
		return err
	}
	return b.Release(ctx, a)
}

// Record returns the object that holds the first place of a hand-out. See Backend.Record.
func (s *Several) Record(ctx context.Context, a ipam.Allocation) (Object, error) {
	b, err := s.of(a)
	if err != nil {
		return Object{}, err
	}
	return b.Record(ctx, a.Places[0])
}

func (s *Several) of(a ipam.Allocation) (Backend, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	i := slices.IndexFunc(s.all, func(b Backend) bool { return b.Name() == a.Backend })
	if i < 0 {
		return nil, fmt.Errorf("finding the backend of %s: there is no backend %q here", a.Handle, a.Backend)
	}
	return s.all[i], nil
}

// join lists of every backend. What one lists is told although another one fails.
func (s *Several) join(list func(Backend) ([]ipam.Allocation, error)) ([]ipam.Allocation, error) {
	s.mu.RLock()
	all := s.all
	s.mu.RUnlock()
	var joined []ipam.Allocation
	var failures []error
	for _, b := range all {
		some, err := list(b)
		if err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", b.Name(), err))
			continue
		}
		joined = append(joined, some...)
	}
	return joined, errors.Join(failures...)
}
