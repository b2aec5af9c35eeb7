// Package calico adapts the records of Calico's IPAM, IPAMBlock, IPAMHandle and BlockAffinity, to the port.
//
// A hand-out is what has one handle, in all blocks. An entry without a handle is a hand-out of its own, whose handle is
// "unowned/", its address, "/" and the block's sequence number when the address was given out. What Windows reserves for
// itself in a block is a hand-out too, whose handle ends in "/" and the block's name.
//
// The network of every hand-out is empty: Calico knows only one. A place's revision is the sequence number that the block
// had when the address was given out, in decimal. It names that very hand-out, whatever else is written into the block.
package calico

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/backends/foreign"
	"github.com/oakum-dev/oakum/ipam"
)

// Name is the backend's name in settings, metrics and reports.
const Name = "calico"

// The fields by which blocks are found, in the cache alone.
const (
	byOwner  = "owner"
	byHandle = "handle"
)

// Backend implements backends.Backend, backends.Repairer and backends.Pools.
type Backend struct {
	cached client.Reader
	live   client.Reader
	writer client.Writer
	served schema.GroupVersion
	grace  time.Duration
	now    func() time.Time

	// faults are what Mend has seen, spares what Trim has.
	faults, spares memory

	mu sync.Mutex
	// surveyed is when Mend last looked for faults.
	surveyed time.Time
}

// New returns the backend for the records of one group, V1 or V3: the one that the API server serves from CRDs. The cached
// reader's cache must have been prepared with Index; without a cache it is nil. The live one must have none.
//
// An IPAMHandle that is younger than the grace is not touched: who takes an address writes the handle before the block.
// What is only put in order is seen twice, a grace apart on the clock of now.
func New(cached, live client.Reader, writer client.Writer, served schema.GroupVersion, grace time.Duration, now func() time.Time) *Backend {
	return &Backend{cached: cached, live: live, writer: writer, served: served, grace: grace, now: now}
}

// Index prepares a cache for the backend's questions about the records of one group. It must be called before the cache
// is first read.
func Index(ctx context.Context, indexer client.FieldIndexer, served schema.GroupVersion) error {
	for field, of := range map[string]func(entry) string{byOwner: entry.ownerKey, byHandle: entry.handleKey} {
		err := indexer.IndexField(ctx, object(served, &IPAMBlock{}), field, func(o client.Object) []string {
			switch o := o.(type) {
			case *IPAMBlock:
				return read(o).buckets(of)
			case *IPAMBlockV3:
				return read((*IPAMBlock)(o)).buckets(of)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("indexing IPAMBlocks by %s: %w", field, err)
		}
	}
	return nil
}

// Name implements backends.Backend.
func (b *Backend) Name() string { return Name }

func (b *Backend) source() foreign.Source {
	return foreign.Source{Cached: b.cached, Live: b.live, As: func(l client.ObjectList) client.ObjectList { return list(b.served, l) }}
}

// Allocations implements backends.Backend.
func (b *Backend) Allocations(ctx context.Context) ([]ipam.Allocation, error) {
	blocks, err := b.blocks(ctx, false)
	if err != nil {
		return nil, err
	}
	return b.handOuts(ctx, false, blocks)
}

// AllocationsOf implements backends.Backend. Records tell a UID of virtual machines alone. For every other owner the answer
// has what is recorded under its name. A node has its tunnels' addresses, and what lies in its blocks without a word of
// whose it is.
func (b *Backend) AllocationsOf(ctx context.Context, owner ipam.Owner) ([]ipam.Allocation, error) {
	name := key(owner)
	found, err := b.having(ctx, byOwner, name, entry.ownerKey)
	if err != nil {
		return nil, err
	}
	// The same hand-outs may have places in blocks that do not name the owner.
	known, looked := map[string]bool{}, map[string]bool{}
	for _, r := range found {
		known[r.Name] = true
	}
	for _, r := range slices.Clone(found) {
		for e := range r.entries() {
			if e.handle == "" || e.ownerKey() != name || looked[e.handle] {
				continue
			}
			looked[e.handle] = true
			others, err := b.having(ctx, byHandle, e.handle, entry.handleKey)
			if err != nil {
				return nil, err
			}
			for _, o := range others {
				if !known[o.Name] {
					known[o.Name] = true
					found = append(found, o)
				}
			}
		}
	}
	all, err := b.handOuts(ctx, false, found)
	return of(owner, all), err
}

// having lists, from the cache, the blocks with an entry of which the indexed key is that.
func (b *Backend) having(ctx context.Context, field, name string, of func(entry) string) ([]record, error) {
	near, err := b.blocks(ctx, false, client.MatchingFields{field: bucket(name)})
	return slices.DeleteFunc(near, func(r record) bool {
		for e := range r.entries() {
			if of(e) == name {
				return false
			}
		}
		return true
	}), err
}

// LiveAllocationsOf implements backends.Backend. It reads every block.
func (b *Backend) LiveAllocationsOf(ctx context.Context, owner ipam.Owner) ([]ipam.Allocation, error) {
	blocks, err := b.blocks(ctx, true)
	if err != nil {
		return nil, err
	}
	all, err := b.handOuts(ctx, true, blocks)
	return of(owner, all), err
}

// of returns an owner's hand-outs.
func of(owner ipam.Owner, all []ipam.Allocation) []ipam.Allocation {
	var found []ipam.Allocation
	for _, a := range all {
		if key(a.Owner) == key(owner) && (a.Owner.UID == "" || owner.UID == "" || a.Owner.UID == owner.UID) {
			found = append(found, a)
		}
	}
	return found
}

// Record implements backends.Backend.
func (b *Backend) Record(ctx context.Context, p ipam.Place) (backends.Object, error) {
	block := &IPAMBlock{}
	block.Name = p.Block
	err := b.get(ctx, false, block)
	if err == nil && block.Spec.Deleted {
		err = backends.ErrNotFound
	}
	record := b.object("IPAMBlock", block)
	if err != nil {
		return record, fmt.Errorf("reading IPAMBlock %q: %w", p.Block, err)
	}
	return record, nil
}

func (b *Backend) object(kind string, o client.Object) backends.Object {
	return backends.Object{APIVersion: b.served.String(), Kind: kind, Name: o.GetName(), UID: string(o.GetUID())}
}

// get reads the object of that name; the answer is backends.ErrNotFound if there is none.
func (b *Backend) get(ctx context.Context, live bool, o client.Object) error {
	err := b.source().Reader(live).Get(ctx, client.ObjectKey{Name: o.GetName()}, object(b.served, o))
	if apierrors.IsNotFound(err) {
		return backends.ErrNotFound
	}
	return err
}

// blocks lists the blocks that the options select.
func (b *Backend) blocks(ctx context.Context, live bool, options ...client.ListOption) ([]record, error) {
	pages, err := foreign.Lists[IPAMBlockList](ctx, b.source(), live, options...)
	if err != nil {
		return nil, fmt.Errorf("listing IPAMBlocks: %w", err)
	}
	var found []record
	for p := range pages {
		for i := range pages[p].Items {
			found = append(found, read(&pages[p].Items[i]))
		}
	}
	return found, nil
}
