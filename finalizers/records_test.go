package finalizers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/ipam"
)

// records is the simplest backend that keeps the promises of the port, over AddressPools and AddressBlocks.
type records struct {
	// pools and blocks are what the process knows.
	pools, blocks toolscache.Indexer
	live          client.Reader
	writer        client.Client
}

var (
	_ backends.Backend = (*records)(nil)
	_ backends.Blocks  = (*records)(nil)
)

func (r *records) Name() string { return "double" }

func (r *records) Record(_ context.Context, p ipam.Place) (backends.Object, error) {
	return backends.Object{APIVersion: "ipam.oakum.dev/v1alpha1", Kind: "AddressBlock", Name: p.Block}, nil
}

func (r *records) Allocations(ctx context.Context) ([]ipam.Allocation, error) {
	blocks, err := r.Blocks(ctx, backends.Query{})
	return handOuts(blocks, ""), err
}

func (r *records) AllocationsOf(ctx context.Context, owner ipam.Owner) ([]ipam.Allocation, error) {
	blocks, err := r.Blocks(ctx, backends.Query{})
	return handOuts(blocks, owner.UID), err
}

func (r *records) LiveAllocationsOf(ctx context.Context, owner ipam.Owner) ([]ipam.Allocation, error) {
	blocks, err := r.LiveBlocks(ctx, backends.Query{})
	return handOuts(blocks, owner.UID), err
}

// handOuts are what is recorded for an owner, or for everybody. Here every entry is a hand-out of its own.
func handOuts(blocks []ipam.Block, uid string) []ipam.Allocation {
	var found []ipam.Allocation
	for _, b := range blocks {
		for _, e := range b.Entries {
			if uid != "" && e.Owner.UID != uid {
				continue
			}
			found = append(found, ipam.Allocation{Backend: "double", Handle: e.Handle, Owner: e.Owner, Places: []ipam.Place{{
				Pool: b.Pool, Block: b.Name, Offset: e.Offset, Addresses: b.Subnet.At(uint64(e.Offset)), Revision: b.Revision,
			}}})
		}
	}
	return found
}

func (r *records) Release(ctx context.Context, a ipam.Allocation) error {
	for _, p := range a.Places {
		if err := r.releaseAt(ctx, a, p); err != nil {
			return fmt.Errorf("releasing offset %d of AddressBlock %q: %w", p.Offset, p.Block, err)
		}
	}
	return nil
}

func (r *records) releaseAt(ctx context.Context, a ipam.Allocation, p ipam.Place) error {
	var sent error
	for {
		var block v1alpha1.AddressBlock
		if err := r.live.Get(ctx, types.NamespacedName{Name: p.Block}, &block); err != nil {
			return errors.Join(sent, client.IgnoreNotFound(err))
		}
		entries := block.Law().Entries
		i := slices.IndexFunc(entries, func(e ipam.Entry) bool { return e.Offset == p.Offset })
		switch {
		case i < 0:
			return nil
		case entries[i].Handle != a.Handle || entries[i].Owner != a.Owner:
			return backends.ErrStale
		case sent != nil && !apierrors.IsConflict(sent):
			return sent
		}
		patch := fmt.Sprintf(`[{"op":"replace","path":"/metadata/resourceVersion","value":%q},{"op":"remove","path":"/spec/allocations/%d"}]`, block.ResourceVersion, i)
		if sent = r.writer.Patch(ctx, &block, client.RawPatch(types.JSONPatchType, []byte(patch))); sent == nil {
			return nil
		}
	}
}

func (r *records) Pools(context.Context) ([]ipam.Pool, error) {
	var pools []ipam.Pool
	for _, o := range r.pools.List() {
		law, _ := o.(*v1alpha1.AddressPool).Law()
		pools = append(pools, law)
	}
	return pools, nil
}

func (r *records) Pool(ctx context.Context, name string) (ipam.Pool, error) {
	pool := &v1alpha1.AddressPool{}
	if known, ok, _ := r.pools.GetByKey(name); ok {
		pool = known.(*v1alpha1.AddressPool)
	} else if err := r.live.Get(ctx, types.NamespacedName{Name: name}, pool); err != nil {
		return ipam.Pool{}, absent(err)
	}
	law, _ := pool.Law()
	return law, nil
}

func absent(err error) error {
	if apierrors.IsNotFound(err) {
		return backends.ErrNotFound
	}
	return err
}

func (r *records) Blocks(_ context.Context, q backends.Query) ([]ipam.Block, error) {
	var blocks []ipam.Block
	for _, o := range r.blocks.List() {
		blocks = append(blocks, o.(*v1alpha1.AddressBlock).Law())
	}
	return selected(blocks, q), nil
}

// selected returns the blocks that a query asks for, by name.
func selected(blocks []ipam.Block, q backends.Query) []ipam.Block {
	slices.SortFunc(blocks, func(a, b ipam.Block) int { return strings.Compare(a.Name, b.Name) })
	return slices.DeleteFunc(blocks, func(b ipam.Block) bool {
		return q.Pool != "" && q.Pool != b.Pool || q.Node != "" && q.Node != b.Node
	})
}

func (r *records) Block(_ context.Context, name string) (ipam.Block, error) {
	known, ok, err := r.blocks.GetByKey(name)
	switch {
	case err != nil:
		return ipam.Block{}, err
	case !ok:
		return ipam.Block{}, backends.ErrNotFound
	}
	return known.(*v1alpha1.AddressBlock).Law(), nil
}

func (r *records) LiveBlocks(ctx context.Context, q backends.Query) ([]ipam.Block, error) {
	var list v1alpha1.AddressBlockList
	if err := r.live.List(ctx, &list); err != nil {
		return nil, err
	}
	blocks := make([]ipam.Block, len(list.Items))
	for i := range list.Items {
		blocks[i] = list.Items[i].Law()
	}
	return selected(blocks, q), nil
}

func (r *records) LiveBlock(ctx context.Context, name string) (ipam.Block, error) {
	var block v1alpha1.AddressBlock
	if err := r.live.Get(ctx, types.NamespacedName{Name: name}, &block); err != nil {
		return ipam.Block{}, absent(err)
	}
	return block.Law(), nil
}

func (r *records) Reclaim(ctx context.Context, b ipam.Block) error {
	target := v1alpha1.AddressBlock{}
	target.Name = b.Name
	err := r.writer.Delete(ctx, &target, client.Preconditions{UID: new(types.UID(b.UID)), ResourceVersion: &b.Revision})
	if apierrors.IsConflict(err) {
		return backends.ErrStale
	}
	return client.IgnoreNotFound(err)
}
