package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"

	"gomodules.xyz/jsonpatch/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/ipam"
)

// Release implements backends.Backend. Every block is looked at before the first one is written.
func (b *Backend) Release(ctx context.Context, a ipam.Allocation) error {
	names := make([]string, 0, 1)
	for _, p := range a.Places {
		if !slices.Contains(names, p.Block) {
			names = append(names, p.Block)
		}
	}
	blocks := make([]v1alpha1.AddressBlock, 0, len(names))
	for _, name := range names {
		block, err := b.holding(ctx, a, name)
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return fmt.Errorf("reading AddressBlock %q: %w", name, err)
		}
		if _, err := entriesOf(a, block); err != nil {
			return err
		}
		blocks = append(blocks, block)
	}
	for _, block := range blocks {
		if err := b.releaseIn(ctx, a, block); err != nil {
			return fmt.Errorf("releasing %s of %s in AddressBlock %q: %w", a.Handle, a.Owner, block.Name, err)
		}
	}
	return nil
}

// holding reads a block from the cache if that shows the allocation in all of its places there. Else it reads the
// block live: the cache may lag behind whoever saw the hand-out.
func (b *Backend) holding(ctx context.Context, a ipam.Allocation, name string) (block v1alpha1.AddressBlock, err error) {
	err = b.cached.Get(ctx, types.NamespacedName{Name: name}, &block)
	if err == nil {
		places := 0
		for _, p := range a.Places {
			if p.Block == name {
				places++
			}
		}
		if indexes, err := entriesOf(a, block); err == nil && len(indexes) == places {
			return block, nil
		}
	}
	if err == nil || apierrors.IsNotFound(err) {
		block = v1alpha1.AddressBlock{}
		err = b.live.Get(ctx, types.NamespacedName{Name: name}, &block)
	}
	return block, err
}

// entriesOf returns where in the block's list the allocation's entries stand; ErrStale if the block holds another
// hand-out at one of its places.
func entriesOf(a ipam.Allocation, block v1alpha1.AddressBlock) (indexes []int, err error) {
	for i, e := range block.Law().Entries {
		if !slices.ContainsFunc(a.Places, func(p ipam.Place) bool { return p.Block == block.Name && p.Offset == e.Offset }) {
			continue
		}
		if e.Handle != a.Handle || ownerKey(e.Owner) != ownerKey(a.Owner) {
			return nil, fmt.Errorf("offset %d of AddressBlock %q is held by %s now: %w", e.Offset, block.Name, e.Owner, backends.ErrStale)
		}
		indexes = append(indexes, i)
	}
	return indexes, nil
}

// desk lets one release at a time write to a block, for all that wait for that: sixteen that compare and swap would take turns in
// failing. Blocks that share a desk wait for each other for no reason, and no longer than for a write.
type desk struct {
	writing sync.Mutex
	// last is what the last write left; nil before the first.
	last *v1alpha1.AddressBlock

	mu sync.Mutex
	// queue has those that wait, by the name of their block.
	queue map[string][]*release
}

// release is the wish that a hand-out be taken out of a block.
type release struct {
	allocation ipam.Allocation
	// seen is the block as it was read for this release.
	seen v1alpha1.AddressBlock
	done bool
	err  error
}

func (r *release) settle(err error) { r.done, r.err = true, err }

// enter puts a release into the queue of its block.
func (d *desk) enter(block string, r *release) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.queue == nil {
		d.queue = map[string][]*release{}
	}
	d.queue[block] = append(d.queue[block], r)
}

// leave takes all that wait for a block out of its queue.
func (d *desk) leave(block string) []*release {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer delete(d.queue, block)
	return d.queue[block]
}

// newest returns the latest version of a block that any of the releases has seen, or that the last write left. What an older one does
// not show may have been taken since, and is not free for that.
func (d *desk) newest(all []*release) v1alpha1.AddressBlock {
	block := all[0].seen
	for _, r := range all[1:] {
		block = newer(block, r.seen)
	}
	if d.last != nil && d.last.Name == block.Name {
		block = newer(block, *d.last)
	}
	return block
}

// newer returns the later of two versions. All that an API server stores of one kind are numbered through.
func newer(a, b v1alpha1.AddressBlock) v1alpha1.AddressBlock {
	if order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion); err == nil && order < 0 {
		return b
	}
	return a
}

func (b *Backend) deskOf(block string) *desk {
	return &b.desks[crc32.ChecksumIEEE([]byte(block))%uint32(len(b.desks))]
}

// releaseIn removes the allocation's entries from one block: with those of all other releases that wait for it, or somebody else
// does so meanwhile.
func (b *Backend) releaseIn(ctx context.Context, a ipam.Allocation, block v1alpha1.AddressBlock) error {
	d, r := b.deskOf(block.Name), &release{allocation: a, seen: block}
	d.enter(block.Name, r)
	d.writing.Lock()
	defer d.writing.Unlock()
	if !r.done {
		all := d.leave(block.Name)
		b.write(ctx, d, all, d.newest(all))
	}
	return r.err
}

// write settles releases from one block. When another write was faster, it looks again: neighbours come and go all the time. What the
// API server refuses for another reason is tried one by one, since it may be about one of them.
func (b *Backend) write(ctx context.Context, d *desk, all []*release, block v1alpha1.AddressBlock) {
	for {
		patch, left := removal(all, block)
		if len(left) == 0 {
			return
		}
		target, revision := v1alpha1.AddressBlock{}, block.ResourceVersion
		target.Name = block.Name
		written := b.writer.Patch(ctx, &target, client.RawPatch(types.JSONPatchType, patch))
		if written == nil {
			d.last = &target
		}
		if written == nil || apierrors.IsNotFound(written) {
			settle(left, nil)
			return
		}
		// A write whose answer was lost may have been carried out, so look before saying that it failed.
		block = v1alpha1.AddressBlock{}
		switch err := b.live.Get(ctx, types.NamespacedName{Name: target.Name}, &block); {
		case apierrors.IsNotFound(err):
			settle(left, nil)
			return
		case err != nil:
			settle(left, errors.Join(written, err))
			return
		}
		if _, left = removal(left, block); len(left) == 0 {
			return
		}
		// A patch that does not even fit the block any more is not a conflict, but invalid.
		stale := apierrors.IsConflict(written) || apierrors.IsInvalid(written) && block.ResourceVersion != revision
		switch {
		case stale:
		case len(left) == 1:
			settle(left, written)
			return
		default:
			for _, r := range left {
				r.seen = block
				b.write(ctx, d, []*release{r}, d.newest([]*release{r}))
			}
			return
		}
	}
}

func settle(all []*release, err error) {
	for _, r := range all {
		r.settle(err)
	}
}

// removal returns the JSON patch that takes hand-outs out of the block as it was read, and whose they are. It settles those that
// are not there, and those in whose place is another one. Replacing the resourceVersion with the one that was read makes a stale
// patch a conflict.
func removal(all []*release, block v1alpha1.AddressBlock) (patch []byte, left []*release) {
	var indexes []int
	for _, r := range all {
		found, err := entriesOf(r.allocation, block)
		switch {
		case r.done:
		case err != nil || len(found) == 0:
			r.settle(err)
		default:
			indexes, left = append(indexes, found...), append(left, r)
		}
	}
	slices.Sort(indexes)
	operations := []jsonpatch.Operation{jsonpatch.NewOperation("replace", "/metadata/resourceVersion", block.ResourceVersion)}
	for _, i := range slices.Backward(slices.Compact(indexes)) { // The same hand-out may be wished away twice.
		operations = append(operations, jsonpatch.NewOperation("remove", fmt.Sprintf("/spec/allocations/%d", i), nil))
	}
	patch, err := json.Marshal(operations)
	if err != nil {
		settle(left, err)
		return nil, nil
	}
	return patch, left
}
