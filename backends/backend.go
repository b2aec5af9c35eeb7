// Package backends is the port between the law and the records of one IPAM. An adapter translates in and out; it
// never decides whether something leaked.
package backends

import (
	"context"
	"errors"
	"net/netip"

	"github.com/oakum-dev/oakum/ipam"
)

var (
	// ErrStale says that a record no longer holds what the caller saw, and that nothing was changed. Look again.
	ErrStale = errors.New("the record has changed")
	// ErrNotFound says that there is no such object.
	ErrNotFound = errors.New("not found")
)

// Backend gives one IPAM's records a common shape.
//
// Lists come from a cache that may lag, so whoever compares them with owners must read the owners afterwards: then an
// owner that was born in between is seen.
type Backend interface {
	// Name is the backend's name in settings, metrics and reports, such as "native".
	Name() string
	// Allocations lists every hand-out that is recorded. Addresses that cool down are no hand-outs.
	Allocations(ctx context.Context) ([]ipam.Allocation, error)
	// AllocationsOf lists the hand-outs of one owner: by UID where the owner has one, else by kind and name.
	AllocationsOf(ctx context.Context, owner ipam.Owner) ([]ipam.Allocation, error)
	// LiveAllocationsOf answers as AllocationsOf does, without a cache. It is for the last look before something
	// irrevocable, and costs accordingly.
	LiveAllocationsOf(ctx context.Context, owner ipam.Owner) ([]ipam.Allocation, error)
	// Release gives back exactly this hand-out, all of its addresses. It is a compare-and-swap: if a record holds
	// another hand-out there by now, the answer is ErrStale and nothing of the others is touched. Releasing what is
	// already free is no error.
	Release(ctx context.Context, a ipam.Allocation) error
	// Record returns the object that holds the record of a place, for Events about it. The answer is ErrNotFound if it
	// is gone.
	Record(ctx context.Context, p ipam.Place) (Object, error)
}

// Repairer is a backend whose records can lose a part of a hand-out that is in use, and can be completed.
type Repairer interface {
	// Repair records what Allocation.Gap says is missing. It is a compare-and-swap: ErrStale if somebody else is
	// recorded there by now, or what is recorded is no longer what the caller saw. Repairing what is whole is no error.
	Repair(ctx context.Context, a ipam.Allocation) error
}

// Inspector is a backend of another program's records, in which there may be things that no hand-out shows.
type Inspector interface {
	// Problems lists them, from a cache that may lag.
	Problems(ctx context.Context) ([]Problem, error)
}

// Problem is something wrong in a record.
type Problem struct {
	Record Object
	// Rule is the one that the record breaks.
	Rule ipam.Rule
	// Field is the path of what is wrong, such as spec.range.
	Field string
	// Message says what is wrong, what follows from it, and what to do.
	Message string
}

// Claimer is a backend that records what nodes name as their own.
type Claimer interface {
	// Unrecorded returns, of the addresses that nodes name, those that could be recorded here and are nobody's: each as a
	// hand-out with a Gap, which Repair closes.
	Unrecorded(ctx context.Context, named map[netip.Addr]ipam.Owner) ([]ipam.Allocation, error)
}

// Keeper is a backend with records beside the hand-outs that fall into disorder.
type Keeper interface {
	// Holders returns the names of the nodes that have blocks, from a cache that may lag.
	Holders(ctx context.Context) ([]string, error)
	// Abandon takes the blocks of a node from it. It must only be called for a name that no Node has borne for as long as a
	// quarantine, and under which nothing is recorded any more.
	Abandon(ctx context.Context, node string) error
	// Tidy puts in order what was in the same disorder at an earlier call, a grace ago or more, and says what that was.
	// Addresses are neither taken nor given back by it.
	Tidy(ctx context.Context) ([]Problem, error)
}

// Restarter is a backend whose hand-outs are given back by programs that do so when they start.
type Restarter interface {
	// Restart restarts the program that has a hand-out, or says why it does not: a program is not restarted often. The error
	// is ErrStale if the hand-out is gone or is another one by now.
	Restart(ctx context.Context, a ipam.Allocation) (refusal string, err error)
}

// Pools is a backend whose hand-outs are from pools.
type Pools interface {
	// Pools lists the pools, from a cache that may lag.
	Pools(ctx context.Context) ([]ipam.Pool, error)
}

// Object names an object of the API.
type Object struct {
	APIVersion, Kind, Namespace, Name, UID string
}

// Problem returns something that is wrong in the object.
func (o Object) Problem(rule ipam.Rule, field, message string) Problem {
	return Problem{Record: o, Rule: rule, Field: field, Message: message}
}

// Query selects blocks. Empty fields select everything.
type Query struct {
	Pool, Node string
	// Handle selects blocks in which an allocation has that handle.
	Handle string
}

// Blocks is a backend that carves pools into blocks.
type Blocks interface {
	Pools
	// Pool returns a pool from the cache, or live if the cache does not have it. The answer is ErrNotFound if there
	// is none.
	Pool(ctx context.Context, name string) (ipam.Pool, error)
	// Blocks lists blocks from a cache that may lag.
	Blocks(ctx context.Context, q Query) ([]ipam.Block, error)
	// Block returns a block from a cache that may lag. The answer is ErrNotFound if the cache has none.
	Block(ctx context.Context, name string) (ipam.Block, error)
	// LiveBlocks lists blocks without a cache. Query.Handle must be empty.
	LiveBlocks(ctx context.Context, q Query) ([]ipam.Block, error)
	// LiveBlock reads one block without a cache. The answer is ErrNotFound if there is none.
	LiveBlock(ctx context.Context, name string) (ipam.Block, error)
	// Reclaim deletes a block that is empty. It is a compare-and-swap on UID and Revision: ErrStale if the block is
	// not the one that the caller saw. Reclaiming what is gone is no error.
	Reclaim(ctx context.Context, b ipam.Block) error
}
