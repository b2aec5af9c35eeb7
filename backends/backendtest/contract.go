// Package backendtest is what backends.Backend and backends.Blocks promise, as tests. A backend's own tests bring a
// Fixture: its kind of records, and a hand in them that is not the backend's.
package backendtest

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/ipam"
)

// Fixture is a store with the records of one IPAM in it, and the backend over it.
//
// It begins with three records in which three addresses each can be handed out and none is. Records 0 and 1 belong to
// one node and can share a hand-out; record 2 is of another node and, where there are pools, of another pool.
type Fixture interface {
	// Backend returns the backend under test, the same each time.
	Backend() backends.Backend
	// HandOut records that the spots are handed out to somebody, as the IPAM's own writers do, and takes them away from
	// whoever has them. It returns the allocation as the backend must list it; Revision may be empty. Each hand-out
	// has a handle that no other one has.
	HandOut(t *testing.T, who Who, spots ...Spot) ipam.Allocation
	// GiveBack takes out whatever is recorded at the spots, as the IPAM's own writers do.
	GiveBack(t *testing.T, spots ...Spot)
	// Stored returns a copy of what is in the store.
	Stored(t *testing.T) Objects
	// Store makes the store hold just these objects. One that is there and differs is overwritten, one that is not is
	// made anew: it has another identity and revision than the one given.
	Store(t *testing.T, objects Objects)
	// Settle takes out of an object whatever any release changes beside the entries that it takes out: revisions,
	// counters, the order of what is free.
	Settle(object map[string]any)
	// Before calls f once, right before the backend's next call of that kind reaches the store. An error of f is the
	// answer to the call.
	Before(call Call, f func() error)
	// Freeze makes the backend's cache lag: it knows of no write from now on, until thaw is called. A backend without a
	// cache is not affected.
	Freeze(t *testing.T) (thaw func())
}

// Spot is a place for one address: one of a record's.
type Spot struct{ Record, Address int }

// Who is an owner: somebody of a name, in one of the lives of that name. Two lives of one name differ in what tells
// owners apart, such as the UID or the sandbox.
type Who struct{ Name, Life int }

// Objects are stored objects, as JSON has them, by names of the fixture's choice.
type Objects map[string]map[string]any

// Call is a kind of call that a backend makes to the store.
type Call int

// The kinds of call.
const (
	Read Call = iota
	Write
)

// Run holds a backend against the contract. A fixture is set up for each test.
func Run(t *testing.T, setup func(*testing.T) Fixture) {
	t.Run("lists", func(t *testing.T) { testLists(t, setup) })
	t.Run("releases", func(t *testing.T) { testReleases(t, setup) })
	t.Run("leaves foreign fields alone", func(t *testing.T) { testForeign(t, setup) })
	t.Run("passes on the error of", func(t *testing.T) { testFailures(t, setup) })
	if _, ok := setup(t).Backend().(backends.Blocks); ok {
		t.Run("blocks", func(t *testing.T) { testBlocks(t, setup) })
		t.Run("reclaims", func(t *testing.T) { testReclaims(t, setup) })
	}
}

// all is backends.Backend.Allocations in an order that can be compared.
func all(t *testing.T, b backends.Backend) []ipam.Allocation {
	t.Helper()
	return ordered(must(b.Allocations(t.Context()))(t)...)
}

// ordered returns allocations by handle and their places by name, without revisions: every neighbour changes these.
func ordered(allocations ...ipam.Allocation) []ipam.Allocation {
	result := make([]ipam.Allocation, len(allocations))
	for i, a := range allocations {
		a.Places = slices.Clone(a.Places)
		for j := range a.Places {
			a.Places[j].Revision = ""
		}
		slices.SortFunc(a.Places, func(p, q ipam.Place) int {
			return cmp.Or(strings.Compare(p.Block, q.Block), cmp.Compare(p.Offset, q.Offset))
		})
		result[i] = a
	}
	slices.SortFunc(result, func(a, b ipam.Allocation) int { return strings.Compare(a.Handle, b.Handle) })
	return result
}

// compare is gocmp.Diff for what a backend answers.
func compare(want, got any) string {
	return gocmp.Diff(want, got,
		gocmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		gocmp.Comparer(func(a, b netip.Prefix) bool { return a == b }))
}
