package calico

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/backends/foreign"
	"github.com/oakum-dev/oakum/ipam"
)

// fault is a problem and what ends it; nil if that is for people to do.
type fault struct {
	backends.Problem
	// revision is that of the record, if the fault is no longer the same once that has changed.
	revision string
	mend     func(context.Context) error
}

// state names a fault in the state in which it was seen.
func (f fault) state() string {
	return strings.Join([]string{f.Record.Kind, f.Record.UID, f.revision, f.Field, f.Message}, " ")
}

// Problems lists what is wrong in the records, from a cache that may lag: what cannot be read, entries that do not say
// whose they are, handles that disagree with the blocks, and what was begun and not brought to an end.
func (b *Backend) Problems(ctx context.Context) ([]backends.Problem, error) {
	faults, err := b.survey(ctx, false)
	if err != nil {
		return nil, err
	}
	problems := make([]backends.Problem, len(faults))
	for i, f := range faults {
		problems[i] = f.Problem
	}
	return problems, nil
}

// Mend puts in order what Problems lists and needs nobody's judgement, and returns what it mended: handles, and what was
// begun and not brought to an end. It reads without a cache, and changes only what it has seen in the same state each time
// it was called, for a grace at least: so call it again and again. Addresses are neither taken nor given back by it.
func (b *Backend) Mend(ctx context.Context) ([]backends.Problem, error) {
	faults, err := b.survey(ctx, true)
	if err != nil {
		return nil, err
	}
	faults = slices.DeleteFunc(faults, func(f fault) bool { return f.mend == nil })
	states := make([]string, len(faults))
	for i, f := range faults {
		states[i] = f.state()
	}
	confirmed := b.faults.confirm(b.now(), b.grace, states)
	var mended []backends.Problem
	var failures []error
	for _, f := range faults {
		if !confirmed[f.state()] {
			continue
		}
		switch err := f.mend(ctx); {
		case err == nil:
			mended = append(mended, f.Problem)
		case !foreign.Refused(err):
			failures = append(failures, fmt.Errorf("mending %s %q: %w", f.Record.Kind, f.Record.Name, err))
		}
	}
	return mended, errors.Join(failures...)
}

// survey looks for faults. Handles and claims are read before blocks: who takes an address writes the block last.
func (b *Backend) survey(ctx context.Context, live bool) ([]fault, error) {
	pages, err := foreign.Lists[IPAMHandleList](ctx, b.source(), live)
	if err != nil {
		return nil, fmt.Errorf("listing IPAMHandles: %w", err)
	}
	claims, err := b.affinities(ctx, live)
	if err != nil {
		return nil, err
	}
	blocks, err := b.blocks(ctx, live)
	if err != nil {
		return nil, err
	}
	var faults []fault
	recorded, places, owners := map[string]map[string]int{}, map[string]record{}, map[string]ipam.Owner{}
	for _, r := range blocks {
		faults = append(faults, b.wrongIn(r)...)
		for e := range r.entries() {
			if e.handle == "" || isWindows(e.handle) {
				continue
			}
			if recorded[e.handle] == nil {
				recorded[e.handle], places[e.handle], owners[e.handle] = map[string]int{}, r, e.owner
			}
			recorded[e.handle][r.cidr.String()]++
			if o := owners[e.handle]; key(o) != key(e.owner) {
				faults = append(faults, fault{Problem: b.object("IPAMBlock", r).Problem(ipam.AllocationConflict, field(e.ordinal), fmt.Sprintf("is of %s, and handle %s is of %s elsewhere: they are given back together or not at all", e.owner, e.handle, o))})
			}
		}
	}
	objects := map[string]bool{}
	for p := range pages {
		for i := range pages[p].Items {
			h := &pages[p].Items[i]
			objects[h.Name] = true
			faults = append(faults, b.wrongWith(h, recorded[h.Spec.HandleID])...)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(recorded)) {
		if !objects[strings.ToLower(id)] {
			faults = append(faults, b.lacking(id, recorded[id], places[id]))
		}
	}
	for _, c := range claims {
		faults = append(faults, b.stuck(c)...)
	}
	return faults, nil
}

func field(ordinal int) string { return "spec.allocations[" + strconv.Itoa(ordinal) + "]" }

// wrongIn returns what is wrong in a block.
func (b *Backend) wrongIn(r record) []fault {
	record := b.object("IPAMBlock", r)
	if r.Spec.Deleted {
		return b.left(record, r.IPAMBlock)
	}
	var faults []fault
	wrong := func(rule ipam.Rule, field, format string, args ...any) {
		faults = append(faults, fault{Problem: record.Problem(rule, field, fmt.Sprintf(format, args...))})
	}
	if !r.cidr.IsValid() {
		wrong(ipam.BlockMalformed, "spec.cidr", "%q is no CIDR without host bits: its addresses are neither judged nor released", r.Spec.CIDR)
		return faults
	}
	if len(r.Spec.Allocations) != r.size() {
		wrong(ipam.BlockMalformed, "spec.allocations", "has %d addresses, and %s has %d", len(r.Spec.Allocations), r.cidr, r.size())
	}
	for o, i := range r.Spec.Allocations {
		if i == nil {
			continue
		}
		if *i < 0 || *i >= len(r.Spec.Attributes) {
			wrong(ipam.BlockMalformed, field(o), "points to attribute %d of %d: it is neither judged nor released, and kube-controllers may crash on it; correct it by hand", *i, len(r.Spec.Attributes))
		}
		if slices.Contains(r.Spec.Unallocated, o) {
			wrong(ipam.AllocationConflict, field(o), "is handed out, and in spec.unallocated too: it may be handed out twice; take it out there by hand")
		}
	}
	for e := range r.entries() {
		switch {
		case e.owner == (ipam.Owner{}):
			wrong(ipam.AllocationUnowned, field(e.ordinal), "%s, handle %q: neither handle nor attributes tell whose it is, or they contradict each other: it is kept until somebody gives it back by hand", e.addr, e.handle)
		case e.guessed:
			wrong(ipam.AllocationUnowned, field(e.ordinal), "%s: neither handle nor attributes tell whose it is: that is settled when node %s, in whose block it lies, names its tunnel's address, or is gone", e.addr, e.owner.Node)
		}
	}
	return faults
}

// wrongWith returns what is wrong with a handle, if blocks record so many addresses under it.
func (b *Backend) wrongWith(h *IPAMHandle, recorded map[string]int) []fault {
	record := b.object("IPAMHandle", h)
	if h.Spec.Deleted {
		return b.left(record, h)
	}
	counts := map[string]int{}
	for text, n := range h.Spec.Block {
		if cidr, err := netip.ParsePrefix(text); err == nil {
			text = cidr.Masked().String()
		}
		counts[text] += n
	}
	if b.younger(h, b.grace) || len(recorded) > 0 && maps.Equal(counts, recorded) {
		return nil
	}
	f := fault{
		Problem:  record.Problem(ipam.AllocationConflict, "spec.block", fmt.Sprintf("counts %s, and the blocks have %s: Oakum counts again", counted(counts), counted(recorded))),
		revision: h.ResourceVersion,
		mend:     func(ctx context.Context) error { return b.setCounts(ctx, h.DeepCopy(), recorded) },
	}
	if len(recorded) == 0 {
		f.Message = fmt.Sprintf("counts %s, and no block has an address under it: Oakum deletes it", counted(counts))
	}
	return []fault{f}
}

// counted writes counts for people.
func counted(counts map[string]int) string {
	var parts []string
	for _, cidr := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d in %s", counts[cidr], cidr))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// lacking returns the fault that addresses in blocks, first of all in r, have a handle that no object counts.
func (b *Backend) lacking(id string, recorded map[string]int, r record) fault {
	return fault{
		Problem: b.object("IPAMBlock", r).Problem(ipam.AllocationConflict, "spec.attributes", fmt.Sprintf("handle %s has %s, and there is no such IPAMHandle: Calico would not give it back; Oakum makes one", id, counted(recorded))),
		mend:    func(ctx context.Context) error { return b.restore(ctx, id, recorded) },
	}
}

// restore makes a handle that is missing, with what its blocks have of it now.
func (b *Backend) restore(ctx context.Context, id string, recorded map[string]int) error {
	h := &IPAMHandle{Spec: IPAMHandleSpec{HandleID: id, Block: map[string]int{}}}
	h.Name = strings.ToLower(id)
	for text := range recorded {
		cidr, err := netip.ParsePrefix(text)
		if err != nil {
			return err
		}
		r, err := b.block(ctx, blockName(cidr))
		if errors.Is(err, backends.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		for e := range r.entries() {
			if e.handle == id {
				h.Spec.Block[text]++
			}
		}
	}
	if len(h.Spec.Block) == 0 {
		return nil
	}
	err := b.writer.Create(ctx, object(b.served, h))
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// left returns the fault that an object was marked as deleted and is still there.
func (b *Backend) left(record backends.Object, o client.Object) []fault {
	if b.younger(o, b.grace) {
		return nil
	}
	return []fault{{
		Problem:  record.Problem(ipam.BlockMalformed, "spec.deleted", "is true, and the object is still there: Oakum deletes it"),
		revision: o.GetResourceVersion(),
		mend:     func(ctx context.Context) error { return b.delete(ctx, o) },
	}}
}

// stuck returns the fault that a claim to a block has been neither confirmed nor ended.
func (b *Backend) stuck(c *BlockAffinity) []fault {
	record := b.object("BlockAffinity", c)
	switch {
	case bool(c.Spec.Deleted):
		return b.left(record, c)
	case b.younger(c, b.grace), c.Spec.State != Pending && c.Spec.State != PendingDeletion:
		return nil
	case c.host() == "" || c.block() == "":
		return []fault{{Problem: record.Problem(ipam.BlockMalformed, "spec", fmt.Sprintf("is %s for %q, and not a node's claim to a block: look at it by hand", c.Spec.State, c.Spec.CIDR))}}
	}
	return []fault{{
		Problem:  record.Problem(ipam.BlockMalformed, "spec.state", fmt.Sprintf("is %s, and stays so: Oakum confirms it if block %s is of node %s, and else deletes it", c.Spec.State, c.Spec.CIDR, c.Spec.Node)),
		revision: c.ResourceVersion,
		mend:     func(ctx context.Context) error { return b.settle(ctx, c) },
	}}
}
