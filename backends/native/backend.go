// Package native adapts Oakum's own records, AddressPool and AddressBlock, to the port.
package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"gomodules.xyz/jsonpatch/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/ipam"
)

// Name is the backend's name in settings, metrics and reports.
const Name = "native"

// The fields by which blocks are found: the first two in the API server too, the others in the cache alone.
const (
	byNode   = "spec.node"
	byPool   = "spec.pool"
	byHandle = "spec.allocations.handle"
	byOwner  = "spec.allocations.owner"
)

// page is how many blocks are asked for at a time.
const page = 500

// Backend implements backends.Backend and backends.Blocks.
type Backend struct {
	cached client.Reader
	live   client.Reader
	writer client.Writer
	desks  [64]desk
}

// New returns the backend. The cached reader's cache must have been prepared with Index; the live one must have none.
func New(cached, live client.Reader, writer client.Writer) *Backend {
	return &Backend{cached: cached, live: live, writer: writer}
}

// Index prepares a cache for the backend's questions. It must be called before the cache is first read.
func Index(ctx context.Context, indexer client.FieldIndexer) error {
	for field, keys := range map[string]func(*v1alpha1.AddressBlock) []string{
		byNode:   func(b *v1alpha1.AddressBlock) []string { return []string{b.Spec.Node} },
		byPool:   func(b *v1alpha1.AddressBlock) []string { return []string{b.Spec.Pool} },
		byHandle: func(b *v1alpha1.AddressBlock) []string { return each(b, func(e ipam.Entry) string { return e.Handle }) },
		byOwner: func(b *v1alpha1.AddressBlock) []string {
			return each(b, func(e ipam.Entry) string { return ownerKey(e.Owner) })
		},
	} {
		err := indexer.IndexField(ctx, &v1alpha1.AddressBlock{}, field, func(o client.Object) []string {
			if b, ok := o.(*v1alpha1.AddressBlock); ok {
				return keys(b)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("indexing AddressBlocks by %s: %w", field, err)
		}
	}
	return nil
}

func each(b *v1alpha1.AddressBlock, key func(ipam.Entry) string) []string {
	var keys []string
	for _, e := range b.Law().Entries {
		keys = append(keys, key(e))
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// ownerKey is the owner's identity; where a record has none, all that tells owners apart.
func ownerKey(o ipam.Owner) string {
	if o.UID != "" {
		return o.UID
	}
	return fmt.Sprintf("%s/%s/%s", o.Kind, o.Namespace, o.Name)
}

// Name implements backends.Backend.
func (b *Backend) Name() string { return Name }

// Allocations implements backends.Backend.
func (b *Backend) Allocations(ctx context.Context) ([]ipam.Allocation, error) {
	blocks, err := b.Blocks(ctx, backends.Query{})
	if err != nil {
		return nil, err
	}
	return b.allocations(ctx, blocks, func(ipam.Owner) bool { return true })
}

// AllocationsOf implements backends.Backend.
func (b *Backend) AllocationsOf(ctx context.Context, owner ipam.Owner) ([]ipam.Allocation, error) {
	blocks, err := b.list(ctx, b.cached, false, fields.Set{byOwner: ownerKey(owner)})
	if err != nil {
		return nil, err
	}
	return b.allocations(ctx, blocks, func(o ipam.Owner) bool { return ownerKey(o) == ownerKey(owner) })
}

// LiveAllocationsOf implements backends.Backend. It reads the blocks of the owner's node, or all if it has none.
func (b *Backend) LiveAllocationsOf(ctx context.Context, owner ipam.Owner) ([]ipam.Allocation, error) {
	blocks, err := b.LiveBlocks(ctx, backends.Query{Node: owner.Node})
	if err != nil {
		return nil, err
	}
	return b.allocations(ctx, blocks, func(o ipam.Owner) bool { return ownerKey(o) == ownerKey(owner) })
}

// allocations gathers the hand-outs of some owners.
func (b *Backend) allocations(ctx context.Context, blocks []ipam.Block, of func(ipam.Owner) bool) ([]ipam.Allocation, error) {
	networks := map[string]string{}
	for i := range blocks {
		blocks[i].Entries = slices.DeleteFunc(blocks[i].Entries, func(e ipam.Entry) bool { return !of(e.Owner) })
		name := blocks[i].Pool
		if _, known := networks[name]; known {
			continue
		}
		pool, err := b.Pool(ctx, name)
		if err != nil && !errors.Is(err, backends.ErrNotFound) {
			return nil, err
		}
		networks[name] = pool.Network
	}
	return Allocations(blocks, func(pool string) string { return networks[pool] }), nil
}

// Allocations gathers the entries of each hand-out, which may lie in several blocks, under its handle. It needs to know
// the network of each pool.
func Allocations(blocks []ipam.Block, network func(pool string) string) []ipam.Allocation {
	var found []ipam.Allocation
	at := map[ipam.ID]int{}
	for _, block := range blocks {
		for _, e := range block.Entries {
			a := ipam.Allocation{Backend: Name, Network: network(block.Pool), Handle: e.Handle, Owner: e.Owner}
			i, known := at[a.ID()]
			if !known {
				i = len(found)
				at[a.ID()] = i
				found = append(found, a)
			}
			found[i].Places = append(found[i].Places, ipam.Place{
				Pool: block.Pool, Block: block.Name, Offset: e.Offset,
				Addresses: block.Subnet.At(uint64(e.Offset)), Revision: block.Revision,
			})
		}
	}
	return found
}

// Record implements backends.Backend.
func (b *Backend) Record(ctx context.Context, p ipam.Place) (backends.Object, error) {
	block, err := b.Block(ctx, p.Block)
	return backends.Object{
		APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "AddressBlock", Name: p.Block, UID: block.UID,
	}, err
}

// Pools implements backends.Blocks.
func (b *Backend) Pools(ctx context.Context) ([]ipam.Pool, error) {
	var list v1alpha1.AddressPoolList
	if err := b.cached.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("listing AddressPools: %w", err)
	}
	pools := make([]ipam.Pool, len(list.Items))
	for i := range list.Items {
		pools[i], _ = list.Items[i].Law()
	}
	return pools, nil
}

// Pool implements backends.Blocks.
func (b *Backend) Pool(ctx context.Context, name string) (ipam.Pool, error) {
	var pool v1alpha1.AddressPool
	switch err := b.read(ctx, name, &pool); {
	case apierrors.IsNotFound(err):
		return ipam.Pool{}, fmt.Errorf("AddressPool %q: %w", name, backends.ErrNotFound)
	case err != nil:
		return ipam.Pool{}, fmt.Errorf("reading AddressPool %q: %w", name, err)
	}
	law, _ := pool.Law()
	return law, nil
}

// read gets an object from the cache, or live if the cache does not have it.
func (b *Backend) read(ctx context.Context, name string, object client.Object) error {
	err := b.cached.Get(ctx, types.NamespacedName{Name: name}, object)
	if apierrors.IsNotFound(err) {
		err = b.live.Get(ctx, types.NamespacedName{Name: name}, object)
	}
	return err
}

// Blocks implements backends.Blocks.
func (b *Backend) Blocks(ctx context.Context, q backends.Query) ([]ipam.Block, error) {
	return b.list(ctx, b.cached, false, fields.Set{byPool: q.Pool, byNode: q.Node, byHandle: q.Handle})
}

// LiveBlocks implements backends.Blocks.
func (b *Backend) LiveBlocks(ctx context.Context, q backends.Query) ([]ipam.Block, error) {
	return b.list(ctx, b.live, true, fields.Set{byPool: q.Pool, byNode: q.Node})
}

// list returns the blocks whose fields have these values; an empty value selects everything. A cache has no pages.
func (b *Backend) list(ctx context.Context, reader client.Reader, paged bool, by fields.Set) ([]ipam.Block, error) {
	maps.DeleteFunc(by, func(_, value string) bool { return value == "" })
	var options []client.ListOption
	if len(by) > 0 { // A cache refuses a selector without fields.
		options = append(options, client.MatchingFieldsSelector{Selector: by.AsSelector()})
	}
	if paged {
		options = append(options, client.Limit(page))
	}
	var blocks []ipam.Block
	for next := ""; ; {
		var list v1alpha1.AddressBlockList
		if err := reader.List(ctx, &list, append(options, client.Continue(next))...); err != nil {
			return nil, fmt.Errorf("listing AddressBlocks: %w", err)
		}
		for i := range list.Items {
			blocks = append(blocks, list.Items[i].Law())
		}
		if next = list.Continue; next == "" || !paged {
			return blocks, nil
		}
	}
}

// Block implements backends.Blocks.
func (b *Backend) Block(ctx context.Context, name string) (ipam.Block, error) {
	return get(ctx, b.cached, name)
}

// LiveBlock implements backends.Blocks.
func (b *Backend) LiveBlock(ctx context.Context, name string) (ipam.Block, error) {
	return get(ctx, b.live, name)
}

func get(ctx context.Context, reader client.Reader, name string) (ipam.Block, error) {
	var block v1alpha1.AddressBlock
	switch err := reader.Get(ctx, types.NamespacedName{Name: name}, &block); {
	case apierrors.IsNotFound(err):
		return ipam.Block{}, fmt.Errorf("AddressBlock %q: %w", name, backends.ErrNotFound)
	case err != nil:
		return ipam.Block{}, fmt.Errorf("reading AddressBlock %q: %w", name, err)
	}
	return block.Law(), nil
}

// Reclaim implements backends.Blocks.
func (b *Backend) Reclaim(ctx context.Context, block ipam.Block) error {
	target := v1alpha1.AddressBlock{}
	target.Name = block.Name
	err := b.writer.Delete(ctx, &target, client.Preconditions{
		UID: new(types.UID(block.UID)), ResourceVersion: new(block.Revision),
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		return fmt.Errorf("deleting AddressBlock %q: %w", block.Name, backends.ErrStale)
	case err != nil:
		return fmt.Errorf("deleting AddressBlock %q: %w", block.Name, err)
	}
	return b.letGo(ctx, block)
}

// letGo takes our finalizer off a block that was empty when it was deleted: nothing is added to a block that is being
// deleted.
func (b *Backend) letGo(ctx context.Context, block ipam.Block) error {
	var object v1alpha1.AddressBlock
	err := b.live.Get(ctx, types.NamespacedName{Name: block.Name}, &object)
	if i := slices.Index(object.Finalizers, v1alpha1.BlockFinalizer); err == nil && i >= 0 && string(object.UID) == block.UID && object.DeletionTimestamp != nil {
		var patch []byte
		patch, err = json.Marshal([]jsonpatch.Operation{
			jsonpatch.NewOperation("replace", "/metadata/resourceVersion", object.ResourceVersion),
			jsonpatch.NewOperation("remove", fmt.Sprintf("/metadata/finalizers/%d", i), nil),
		})
		if err == nil {
			err = b.writer.Patch(ctx, &object, client.RawPatch(types.JSONPatchType, patch))
		}
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("letting AddressBlock %q go: %w", block.Name, err)
	}
	return nil
}

var (
	_ backends.Backend = (*Backend)(nil)
	_ backends.Blocks  = (*Backend)(nil)
)
