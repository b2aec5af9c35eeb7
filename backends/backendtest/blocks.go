package backendtest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/ipam"
)

func testBlocks(t *testing.T, setup func(*testing.T) Fixture) {
	t.Run("are found by pool, node and handle", func(t *testing.T) {
		f, records := openBlocks(t, setup)
		crowd(t, f)
		every := query(t, records.Blocks, backends.Query{})
		for q, want := range answers(t, every) {
			if diff := compare(want, query(t, records.Blocks, q)); diff != "" {
				t.Errorf("Blocks(%+v) (-want +got):\n%s", q, diff)
			}
			if q.Handle != "" {
				continue
			}
			if diff := compare(want, query(t, records.LiveBlocks, q)); diff != "" {
				t.Errorf("LiveBlocks(%+v) (-want +got):\n%s", q, diff)
			}
		}
	})
	t.Run("are found by name, and so are pools", func(t *testing.T) {
		f, records := openBlocks(t, setup)
		crowd(t, f)
		pools := map[string]ipam.Pool{}
		for _, want := range query(t, records.Blocks, backends.Query{}) {
			for name, get := range map[string]func(context.Context, string) (ipam.Block, error){"Block": records.Block, "LiveBlock": records.LiveBlock} {
				if diff := compare(want, must(get(t.Context(), want.Name))(t)); diff != "" {
					t.Errorf("%s(%s) (-want +got):\n%s", name, want.Name, diff)
				}
			}
			pools[want.Pool] = must(records.Pool(t.Context(), want.Pool))(t)
		}
		got := map[string]ipam.Pool{}
		for _, p := range must(records.Pools(t.Context()))(t) {
			got[p.Name] = p
		}
		if diff := compare(pools, got); diff != "" {
			t.Errorf("Pools (-want +got):\n%s", diff)
		}
	})
	t.Run("that nobody made are not found", func(t *testing.T) {
		_, records := openBlocks(t, setup)
		_, pool := records.Pool(t.Context(), "none")
		_, block := records.Block(t.Context(), "none")
		_, live := records.LiveBlock(t.Context(), "none")
		for name, err := range map[string]error{"Pool": pool, "Block": block, "LiveBlock": live} {
			if !errors.Is(err, backends.ErrNotFound) {
				t.Errorf("%s answers %v, want %v", name, err, backends.ErrNotFound)
			}
		}
	})
	t.Run("that the cache does not know are found live", func(t *testing.T) {
		f, records := openBlocks(t, setup)
		every, stored := query(t, records.Blocks, backends.Query{}), f.Stored(t)
		f.Store(t, nil)
		f.Freeze(t)
		f.Store(t, stored)
		for _, b := range every {
			if _, err := records.Block(t.Context(), b.Name); !errors.Is(err, backends.ErrNotFound) {
				t.Errorf("Block(%s) answers %v, want %v", b.Name, err, backends.ErrNotFound)
			}
			if live := must(records.LiveBlock(t.Context(), b.Name))(t); live.Name != b.Name || live.UID == b.UID {
				t.Errorf("LiveBlock(%s) answers uid %s of %s, want another uid than before", b.Name, live.UID, live.Name)
			}
			if p := must(records.Pool(t.Context(), b.Pool))(t); p.Name != b.Pool {
				t.Errorf("Pool(%s) answers %s", b.Pool, p.Name)
			}
		}
	})
	t.Run("are not absent because the store cannot tell", func(t *testing.T) {
		f, records := openBlocks(t, setup)
		broken := errors.New("the API server is on fire")
		b := query(t, records.Blocks, backends.Query{})[0]
		for name, ask := range map[string]func() error{
			"Pools":      func() error { return failure(records.Pools(t.Context())) },
			"Pool":       func() error { return failure(records.Pool(t.Context(), b.Pool)) },
			"Blocks":     func() error { return failure(records.Blocks(t.Context(), backends.Query{})) },
			"Block":      func() error { return failure(records.Block(t.Context(), b.Name)) },
			"LiveBlocks": func() error { return failure(records.LiveBlocks(t.Context(), backends.Query{})) },
			"LiveBlock":  func() error { return failure(records.LiveBlock(t.Context(), b.Name)) },
		} {
			f.Before(Read, func() error { return broken })
			if err := ask(); !errors.Is(err, broken) || errors.Is(err, backends.ErrNotFound) {
				t.Errorf("%s answers %v, want an error that wraps the store's", name, err)
			}
		}
	})
}

// answers pairs queries about the blocks with what they must find.
func answers(t *testing.T, every []ipam.Block) map[backends.Query][]ipam.Block {
	t.Helper()
	nodes, pools := map[string]bool{}, map[string]bool{}
	queries := map[backends.Query][]ipam.Block{{}: nil, {Pool: "none"}: nil, {Node: "none"}: nil, {Handle: "none"}: nil}
	for _, b := range every {
		nodes[b.Node], pools[b.Pool] = true, true
		queries[backends.Query{Pool: b.Pool}], queries[backends.Query{Node: b.Node}] = nil, nil
		queries[backends.Query{Pool: b.Pool, Node: b.Node}] = nil
		for _, e := range b.Entries {
			queries[backends.Query{Handle: e.Handle}] = nil
		}
	}
	if len(nodes) < 2 || len(pools) < 2 {
		t.Fatalf("the blocks are of %d nodes and %d pools: too few to tell them apart", len(nodes), len(pools))
	}
	for q := range queries {
		for _, b := range every {
			if (q.Pool == "" || q.Pool == b.Pool) && (q.Node == "" || q.Node == b.Node) &&
				(q.Handle == "" || slices.ContainsFunc(b.Entries, func(e ipam.Entry) bool { return e.Handle == q.Handle })) {
				queries[q] = append(queries[q], b)
			}
		}
	}
	return queries
}

func testReclaims(t *testing.T, setup func(*testing.T) Fixture) {
	tests := map[string]struct {
		// event happens after the block was seen. The rest is all that is stored beside the block.
		event func(t *testing.T, f Fixture, rest, full Objects)
		want  error
		gone  bool
	}{
		"an empty block goes, and nothing else": {
			event: func(*testing.T, Fixture, Objects, Objects) {},
			gone:  true,
		},
		"a block that is gone needs no more": {
			event: func(t *testing.T, f Fixture, rest, _ Objects) { f.Store(t, rest) },
		},
		"a block that was made anew stays": {
			event: func(t *testing.T, f Fixture, rest, full Objects) {
				f.Store(t, rest)
				f.Store(t, full)
			},
			want: backends.ErrStale,
		},
		"a block in which an address was handed out stays": {
			event: func(t *testing.T, f Fixture, _, _ Objects) { f.HandOut(t, Who{}, Spot{0, 0}) },
			want:  backends.ErrStale,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f, records := openBlocks(t, setup)
			full := f.Stored(t)
			a := f.HandOut(t, Who{}, Spot{0, 0})
			rest := untouched(full, f.Stored(t))
			f.Store(t, full)
			seen := must(records.LiveBlock(t.Context(), a.Places[0].Block))(t)
			tt.event(t, f, rest, full)
			reclaim := func() error { return records.Reclaim(t.Context(), seen) }
			if tt.gone {
				if err := reclaim(); err != nil {
					t.Fatal(err)
				}
				if diff := compare(rest, f.Stored(t)); diff != "" {
					t.Errorf("what is left (-want +got):\n%s", diff)
				}
			}
			unchanged(t, f, reclaim, tt.want)
		})
	}
	t.Run("a deletion that fails is an error", func(t *testing.T) {
		f, records := openBlocks(t, setup)
		broken := errors.New("the API server is on fire")
		seen := query(t, records.LiveBlocks, backends.Query{})[0]
		f.Before(Write, func() error { return broken })
		unchanged(t, f, func() error { return records.Reclaim(t.Context(), seen) }, broken)
	})
}

func openBlocks(t *testing.T, setup func(*testing.T) Fixture) (Fixture, backends.Blocks) {
	t.Helper()
	f := setup(t)
	records, ok := f.Backend().(backends.Blocks)
	if !ok {
		t.Fatalf("the backend %s has no blocks", f.Backend().Name())
	}
	return f, records
}

// query lists blocks by their names.
func query(t *testing.T, list func(context.Context, backends.Query) ([]ipam.Block, error), q backends.Query) []ipam.Block {
	t.Helper()
	return slices.SortedFunc(slices.Values(must(list(t.Context(), q))(t)), func(a, b ipam.Block) int { return cmp.Compare(a.Name, b.Name) })
}

// must fails the test if there is an error.
func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func failure[T any](_ T, err error) error { return err }
