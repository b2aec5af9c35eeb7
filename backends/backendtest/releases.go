package backendtest

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/ipam"
)

// scene is a store with neighbours in it, to which a hand-out comes that is about to be released.
type scene struct {
	Fixture
	neighbours []ipam.Allocation
	// empty is what is stored without the hand-out.
	empty Objects
}

func open(t *testing.T, setup func(*testing.T) Fixture) scene {
	f := setup(t)
	neighbours := []ipam.Allocation{
		f.HandOut(t, Who{Name: 1}, Spot{0, 1}),
		f.HandOut(t, Who{Name: 1}, Spot{1, 1}),
		f.HandOut(t, Who{Name: 3}, Spot{2, 0}),
	}
	return scene{f, neighbours, f.Stored(t)}
}

// moments are when something happens to a hand-out that somebody gives, sees and releases.
func moments() map[string]func(t *testing.T, s scene, give func() ipam.Allocation, event func()) error {
	return map[string]func(*testing.T, scene, func() ipam.Allocation, func()) error{
		"before": func(t *testing.T, s scene, give func() ipam.Allocation, event func()) error {
			a := give()
			event()
			return s.Backend().Release(t.Context(), a)
		},
		"before, unseen by the cache": func(t *testing.T, s scene, give func() ipam.Allocation, event func()) error {
			a := give()
			defer s.Freeze(t)()
			event()
			return s.Backend().Release(t.Context(), a)
		},
		"before, and the cache has not seen the hand-out either": func(t *testing.T, s scene, give func() ipam.Allocation, event func()) error {
			defer s.Freeze(t)()
			a := give()
			event()
			return s.Backend().Release(t.Context(), a)
		},
		"while the first write is under way": func(t *testing.T, s scene, give func() ipam.Allocation, event func()) error {
			a := give()
			s.Before(Write, func() error {
				event()
				return nil
			})
			return s.Backend().Release(t.Context(), a)
		},
	}
}

// event changes a scene and returns who has addresses then, beside the hand-out that is released.
type event func(*testing.T, scene) []ipam.Allocation

func nothing(_ *testing.T, s scene) []ipam.Allocation { return s.neighbours }

func handOut(who Who, spots ...Spot) event {
	return func(t *testing.T, s scene) []ipam.Allocation {
		return append(slices.Clone(s.neighbours), s.HandOut(t, who, spots...))
	}
}

// leave lets the first neighbour go, whose entry may stand before the hand-out's.
func leave(t *testing.T, s scene) []ipam.Allocation {
	s.GiveBack(t, Spot{0, 1})
	return s.neighbours[1:]
}

func giveBack(t *testing.T, s scene) []ipam.Allocation {
	s.Store(t, s.empty)
	return s.neighbours
}

// remove deletes every object that the hand-out changed.
func remove(t *testing.T, s scene) []ipam.Allocation {
	s.Store(t, untouched(s.empty, s.Stored(t)))
	return nil
}

// renew deletes them too, and puts others of their names in their places.
func renew(t *testing.T, s scene) []ipam.Allocation {
	remove(t, s)
	s.Store(t, s.empty)
	return s.neighbours
}

// untouched returns those objects that are the same in both stores.
func untouched(before, after Objects) Objects {
	same := maps.Clone(after)
	maps.DeleteFunc(same, func(name string, object map[string]any) bool { return compare(before[name], object) != "" })
	return same
}

// testReleases plays what can happen to a hand-out between its sighting and its release (I6).
func testReleases(t *testing.T, setup func(*testing.T) Fixture) {
	one, pair, apart := []Spot{{0, 0}}, []Spot{{0, 0}, {0, 2}}, []Spot{{0, 0}, {1, 2}}
	const goes, stays = true, false
	stale := backends.ErrStale
	tests := map[string]struct {
		spots []Spot
		event event
		want  error
		// released: the hand-out goes. Else nothing at all is written.
		released bool
	}{
		"a single address goes":                            {one, nothing, nil, goes},
		"two addresses of one record go":                   {pair, nothing, nil, goes},
		"addresses of two records go":                      {apart, nothing, nil, goes},
		"it goes when its neighbour has gone":              {one, leave, nil, goes},
		"it goes beside a new neighbour":                   {one, handOut(Who{Name: 2}, Spot{0, 2}), nil, goes},
		"it goes beside another hand-out of its owner":     {one, handOut(Who{}, Spot{0, 2}), nil, goes},
		"what was given back is free already":              {pair, giveBack, nil, stays},
		"what is gone with its record is free already":     {one, remove, nil, stays},
		"a record that was made anew stays as it is":       {one, renew, nil, stays},
		"another owner keeps the address":                  {one, handOut(Who{Name: 2}, Spot{0, 0}), stale, stays},
		"the owner's next life keeps the address":          {one, handOut(Who{Life: 1}, Spot{0, 0}), stale, stays},
		"the owner keeps what was handed out to it anew":   {one, handOut(Who{}, Spot{0, 0}), stale, stays},
		"all addresses stay if the first one is another's": {pair, handOut(Who{Name: 2}, Spot{0, 0}), stale, stays},
		"all addresses stay if the last one is another's":  {pair, handOut(Who{Name: 2}, Spot{0, 2}), stale, stays},
		"another owner keeps what it has in a new record": {one, func(t *testing.T, s scene) []ipam.Allocation {
			renew(t, s)
			return handOut(Who{Name: 2}, Spot{0, 0})(t, s)
		}, stale, stays},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for when, play := range moments() {
				t.Run(when, func(t *testing.T) {
					s := open(t, setup)
					var others []ipam.Allocation
					var before Objects
					err := play(t, s, func() ipam.Allocation { return s.HandOut(t, Who{}, tt.spots...) }, func() {
						others = tt.event(t, s)
						before = s.Stored(t)
					})
					if !errors.Is(err, tt.want) {
						t.Errorf("the error is %v, want %v", err, tt.want)
					}
					if tt.released {
						if diff := compare(ordered(others...), all(t, s.Backend())); diff != "" {
							t.Errorf("what is left (-want +got):\n%s", diff)
						}
					} else if diff := compare(before, s.Stored(t)); diff != "" {
						t.Errorf("something was written (-before +after):\n%s", diff)
					}
				})
			}
		})
	}
	// What is spread over several objects cannot be taken back in one write, but all can be looked at before the first.
	for name, spot := range map[string]Spot{"first": {0, 0}, "last": {1, 2}} {
		t.Run("all addresses stay if the one in the "+name+" of two records is another's", func(t *testing.T) {
			s := open(t, setup)
			a := s.HandOut(t, Who{}, apart...)
			s.HandOut(t, Who{Name: 2}, spot)
			unchanged(t, s, func() error { return s.Backend().Release(t.Context(), a) }, stale)
		})
	}
	t.Run("a second release finds nothing to do", func(t *testing.T) {
		s := open(t, setup)
		a := s.HandOut(t, Who{}, apart...)
		if err := s.Backend().Release(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		unchanged(t, s, func() error { return s.Backend().Release(t.Context(), a) }, nil)
	})
	t.Run("it looks again as often as neighbours come", func(t *testing.T) {
		s := open(t, setup)
		a := s.HandOut(t, Who{}, one...)
		var others []ipam.Allocation
		var come func(neighbours int) func() error
		come = func(neighbours int) func() error {
			return func() error {
				others = handOut(Who{Name: 2}, Spot{0, 2})(t, s)
				if neighbours > 1 {
					s.Before(Write, come(neighbours-1))
				}
				return nil
			}
		}
		s.Before(Write, come(5))
		if err := s.Backend().Release(t.Context(), a); err != nil {
			t.Error(err)
		}
		if diff := compare(ordered(others...), all(t, s.Backend())); diff != "" {
			t.Errorf("what is left (-want +got):\n%s", diff)
		}
	})
}

// unchanged calls, and fails the test if the error is not the one wanted or if anything was written.
func unchanged(t *testing.T, f Fixture, call func() error, want error) {
	t.Helper()
	before := f.Stored(t)
	if err := call(); !errors.Is(err, want) {
		t.Errorf("the error is %v, want %v", err, want)
	}
	if diff := compare(before, f.Stored(t)); diff != "" {
		t.Errorf("something was written (-before +after):\n%s", diff)
	}
}

// testForeign releases from objects that others have written into, in ways that the backend knows nothing of (I7).
func testForeign(t *testing.T, setup func(*testing.T) Fixture) {
	s := open(t, setup)
	for _, object := range s.empty {
		decorate(object)
	}
	s.Store(t, s.empty)
	want := s.Stored(t)
	a := s.HandOut(t, Who{}, Spot{0, 0}, Spot{0, 2}, Spot{1, 0})
	if diff := compare(untouched(want, s.Stored(t)), want); diff == "" {
		t.Fatal("handing out changed no object")
	}
	if err := s.Backend().Release(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	got := s.Stored(t)
	for _, objects := range []Objects{want, got} {
		for _, object := range objects {
			s.Settle(object)
		}
	}
	if diff := compare(want, got); diff != "" {
		t.Errorf("what is left (-want +got):\n%s", diff)
	}
}

// decorate puts a finalizer, a label, an annotation and unknown fields of somebody else into an object.
func decorate(object map[string]any) {
	metadata, ok := object["metadata"].(map[string]any)
	if !ok {
		metadata = map[string]any{}
		object["metadata"] = metadata
	}
	metadata["finalizers"] = []any{"example.org/guard"}
	metadata["labels"] = map[string]any{"example.org/team": "network"}
	metadata["annotations"] = map[string]any{"example.org/note": "ask first"}
	unknown := map[string]any{"since": "1.2", "list": []any{int64(1), "two", nil}}
	object["unknown"] = unknown
	if spec, ok := object["spec"].(map[string]any); ok {
		spec["unknown"] = unknown
	}
}
