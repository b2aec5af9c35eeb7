package calico

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/backends/foreign"
	"github.com/oakum-dev/oakum/ipam"
)

// attempts is how often a write is tried that was refused although what it is about had not changed.
const attempts = 20

// Release implements backends.Backend. Every block is looked at before the first one is written, and the handle's count
// goes down last. A handle that is left behind, because it is too young or Oakum died, is for Mend.
func (b *Backend) Release(ctx context.Context, a ipam.Allocation) error {
	if a.Owner.Kind == ipam.OwnerExternal {
		return fmt.Errorf("releasing %s: it is reserved for %s, and goes with its block", a.Handle, a.Owner.Name)
	}
	h, err := b.handleOf(ctx, a)
	if err != nil {
		return err
	}
	held, err := b.holding(ctx, a, h)
	if err != nil || len(held) == 0 {
		return err
	}
	cooldown, err := b.cooldown(ctx)
	if err != nil {
		return err
	}
	given := map[netip.Prefix]int{}
	for _, s := range held {
		n, released := b.giveBack(ctx, a, s, cooldown)
		if n > 0 {
			given[s.cidr] = n
		}
		if released != nil {
			err = fmt.Errorf("releasing %s of %s in IPAMBlock %q: %w", a.Handle, a.Owner, s.Name, released)
			break
		}
	}
	return errors.Join(err, b.subtract(ctx, h, given, b.grace))
}

// share is what a block has of a hand-out.
type share struct {
	record
	ordinals []int
}

// handleOf reads, live, the handle of a hand-out; nil if there is none.
func (b *Backend) handleOf(ctx context.Context, a ipam.Allocation) (*IPAMHandle, error) {
	if strings.HasPrefix(a.Handle, unowned) {
		return nil, nil //nolint:nilnil // No handle is an answer.
	}
	return b.handle(ctx, a.Handle)
}

// holding reads, live, what blocks have of a hand-out: those of its places, and those that the handle counts. ErrStale if
// one of the places is another hand-out's, or if there are more.
func (b *Backend) holding(ctx context.Context, a ipam.Allocation, h *IPAMHandle) ([]share, error) {
	var names []string
	note := func(name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, p := range a.Places {
		note(p.Block)
	}
	if h != nil {
		for text := range h.Spec.Block {
			if cidr, err := netip.ParsePrefix(text); err == nil {
				note(blockName(cidr.Masked()))
			}
		}
	}
	var held []share
	for _, name := range names {
		s, err := b.shareOf(ctx, a, name)
		if err != nil {
			return nil, err
		}
		if len(s.ordinals) > 0 {
			held = append(held, s)
		}
	}
	return held, nil
}

// shareOf does as holding for one block. The record is empty if the block is gone.
func (b *Backend) shareOf(ctx context.Context, a ipam.Allocation, name string) (share, error) {
	r, err := b.block(ctx, name)
	switch {
	case errors.Is(err, backends.ErrNotFound):
		return share{}, nil
	case err != nil:
		return share{}, err
	}
	s := share{record: r}
	for _, p := range a.Places {
		if p.Block != name || r.free(p.Offset) {
			continue
		}
		e, ok := r.entry(p.Offset)
		sequence := strconv.FormatUint(e.sequence, 10)
		if !ok || r.name(e) != a.Handle || p.Revision != "" && p.Revision != sequence || !slices.Equal(p.Addresses, []netip.Addr{e.addr}) {
			return share{}, fmt.Errorf("address %d of IPAMBlock %q has handle %q and sequence number %s now: %w", p.Offset, name, e.handle, sequence, backends.ErrStale)
		}
		s.ordinals = append(s.ordinals, p.Offset)
	}
	for e := range r.entries() {
		if r.name(e) == a.Handle && !slices.Contains(s.ordinals, e.ordinal) {
			return share{}, fmt.Errorf("%s has %s too by now: %w", a.Handle, e.addr, backends.ErrStale)
		}
	}
	return s, nil
}

// giveBack takes a share out of its block, and returns how many addresses that were.
func (b *Backend) giveBack(ctx context.Context, a ipam.Allocation, s share, cooldown bool) (int, error) {
	now := b.now()
	for attempt := 1; ; attempt++ {
		after, err := blockOf(s.Spec).without(s.ordinals, now, cooldown)
		if err != nil {
			return 0, err
		}
		var written error
		if after.Deleted = after.vacant() && after.Affinity == ""; after.Deleted {
			written = b.remove(ctx, s.DeepCopy(), deleted(), s.patch(after)...)
		} else {
			written = b.patch(ctx, s.DeepCopy(), s.patch(after))
		}
		if written == nil {
			return len(s.ordinals), nil
		}
		// A write whose answer was lost may have been carried out, so look before saying that it failed.
		left, err := b.shareOf(ctx, a, s.Name)
		switch {
		case err != nil && !errors.Is(err, backends.ErrStale):
			return 0, errors.Join(written, err)
		case err != nil:
			return 0, err
		case len(left.ordinals) == 0 && left.is(after):
			return len(s.ordinals), nil
		case len(left.ordinals) == 0: // Somebody else gave it back.
			return 0, nil
		case !foreign.Refused(written), attempt == attempts:
			return 0, written
		}
		s = left
	}
}

// is tells whether the share's block is just as it was to be after a write.
func (s share) is(after block) bool {
	if s.IPAMBlock == nil {
		return after.Deleted
	}
	return equality.Semantic.DeepEqual(s.Spec, after.IPAMBlockSpec)
}

// free tells whether nobody has an address: it is not handed out, or cools down.
func (r record) free(ordinal int) bool {
	if ordinal < 0 || ordinal >= len(r.Spec.Allocations) {
		return false
	}
	i := r.Spec.Allocations[ordinal]
	return i == nil || *i >= 0 && *i < len(r.Spec.Attributes) && r.Spec.Attributes[*i].ReleasedAt != nil
}

// block reads a block, live; the answer is backends.ErrNotFound if there is none, or if it is marked as deleted.
func (b *Backend) block(ctx context.Context, name string) (record, error) {
	o := &IPAMBlock{}
	o.Name = name
	err := b.get(ctx, true, o)
	if err == nil && o.Spec.Deleted {
		err = backends.ErrNotFound
	}
	if err != nil {
		return record{}, fmt.Errorf("reading IPAMBlock %q: %w", name, err)
	}
	return read(o), nil
}

// cooldown tells, live, whether addresses cool down before they are given out again.
func (b *Backend) cooldown(ctx context.Context) (bool, error) {
	config := &IPAMConfig{}
	config.Name = "default"
	if err := b.get(ctx, true, config); err != nil && !errors.Is(err, backends.ErrNotFound) && !foreign.Unserved(err) {
		return false, fmt.Errorf("reading the settings of Calico's IPAM: %w", err)
	}
	return config.Spec.IPCooldownSeconds > 0, nil
}

// without returns the block after addresses were given back, as Calico itself gives them back: they cool down from a time
// on, or join the end of the queue of those that are free.
func (b block) without(ordinals []int, at time.Time, cooldown bool) (block, error) {
	after, touched := b.clone(), map[int]bool{}
	resting := len(b.Attributes)
	if cooldown {
		since := metav1.NewTime(at.UTC().Truncate(time.Second))
		after.Attributes = append(after.Attributes, Attribute{ReleasedAt: &since})
	}
	for _, o := range ordinals {
		if o < 0 || o >= len(b.Allocations) || b.Allocations[o] == nil || touched[o] {
			return block{}, fmt.Errorf("giving back address %d of %s: it is not handed out", o, b.CIDR)
		}
		touched[o] = true
		if cooldown {
			after.point(o, resting)
			continue
		}
		after.Allocations[o] = nil
		delete(after.SequenceNumberForAllocation, strconv.Itoa(o))
		if !slices.Contains(after.Unallocated, o) {
			after.Unallocated = append(after.Unallocated, o)
		}
	}
	return after.settled(len(b.Attributes), touched)
}
