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
	// handle is the name of the IPAMHandle that it is about, and object that one, if there is any.
	handle string
	object *IPAMHandle
	mend   func(context.Context) error
}

// state names a fault in the state in which it was seen.
func (f fault) state() string {
	return strings.Join([]string{f.Record.Kind, f.Record.UID, f.revision, f.Field, f.Message}, " ")
}

// Problems lists what is wrong in the records, from a cache that may lag: what cannot be read, entries that do not say
// whose they are, handles that disagree with the blocks, and what was begun and not brought to an end.
func (b *Backend) Problems(ctx context.Context) ([]backends.Problem, error) {
	// Handles and claims are read before blocks: who takes an address writes the block last.
	pages, err := foreign.Lists[IPAMHandleList](ctx, b.source(), false)
	if err != nil {
		return nil, fmt.Errorf("listing IPAMHandles: %w", err)
	}
	faults, err := b.survey(ctx, false, every, func(visit func(*IPAMHandle)) error {
		for p := range pages {
			visitAll(&pages[p], visit)
		}
		return nil
	})
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
// begun and not brought to an end. It changes only what it has seen in the same state each time that it looked, for a grace
// at least, and sees again without a cache: so call it again and again. It looks once in a grace. Addresses are neither taken
// nor given back by it.
func (b *Backend) Mend(ctx context.Context) ([]backends.Problem, error) {
	if !b.due() {
		return nil, nil
	}
	// Handles are many, and nobody else asks for all of them: they are read page by page and in no cache.
	suspected, err := b.mendable(b.survey(ctx, false, every, func(visit func(*IPAMHandle)) error {
		return foreign.Each[IPAMHandleList](ctx, b.source(), func(page *IPAMHandleList) { visitAll(page, visit) })
	}))
	if err != nil {
		return nil, err
	}
	states := make([]string, len(suspected))
	for i, f := range suspected {
		states[i] = f.state()
	}
	confirmed := b.faults.confirm(b.now(), b.grace, states)
	suspected = slices.DeleteFunc(suspected, func(f fault) bool { return !confirmed[f.state()] })
	if len(suspected) == 0 {
		return nil, nil
	}
	faults, err := b.seenAgain(ctx, suspected)
	if err != nil {
		return nil, err
	}
	var mended []backends.Problem
	var failures []error
	for _, f := range faults {
		switch err := f.mend(ctx); {
		case err == nil:
			mended = append(mended, f.Problem)
		case !foreign.Refused(err):
			failures = append(failures, fmt.Errorf("mending %s %q: %w", f.Record.Kind, f.Record.Name, err))
		}
	}
	return mended, errors.Join(failures...)
}

// due tells whether it is a grace since Mend last looked: nothing is confirmed before that.
func (b *Backend) due() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	if !b.surveyed.IsZero() && now.Sub(b.surveyed) < b.grace && !now.Before(b.surveyed) {
		return false
	}
	b.surveyed = now
	return true
}

// mendable returns the faults that need nobody's judgement.
func (b *Backend) mendable(faults []fault, err error) ([]fault, error) {
	return slices.DeleteFunc(faults, func(f fault) bool { return f.mend == nil }), err
}

// seenAgain returns those of the faults that are still there, in the same state, when every claim and block is read without a
// cache. The handles were read a moment before, without one too, and a change of theirs would be a conflict.
func (b *Backend) seenAgain(ctx context.Context, suspected []fault) ([]fault, error) {
	states, concerned := map[string]bool{}, map[string]bool{}
	for _, f := range suspected {
		states[f.state()], concerned[f.handle] = true, true
	}
	faults, err := b.mendable(b.survey(ctx, true, func(name string) bool { return concerned[name] }, func(visit func(*IPAMHandle)) error {
		for _, f := range suspected {
			if f.object != nil {
				visit(f.object)
			}
		}
		return nil
	}))
	return slices.DeleteFunc(faults, func(f fault) bool { return !states[f.state()] }), err
}

// every handle is concerned.
func every(string) bool { return true }

func visitAll(page *IPAMHandleList, visit func(*IPAMHandle)) {
	for i := range page.Items {
		visit(&page.Items[i])
	}
}

// survey looks for faults. Of the handles, which somebody lets it visit, it misses those whose names are concerned.
func (b *Backend) survey(ctx context.Context, live bool, concerned func(name string) bool, handles func(visit func(*IPAMHandle)) error) ([]fault, error) {
	claims, err := b.affinities(ctx, live)
	if err != nil {
		return nil, err
	}
	blocks, err := b.blocks(ctx, live)
	if err != nil {
		return nil, err
	}
	faults, tallies := b.tally(blocks)
	objects := map[string]bool{}
	err = handles(func(h *IPAMHandle) {
		objects[h.Name] = true
		faults = append(faults, b.wrongWith(h, tallies[h.Spec.HandleID].counts())...)
	})
	if err != nil {
		return nil, fmt.Errorf("listing IPAMHandles: %w", err)
	}
	for _, id := range slices.Sorted(maps.Keys(tallies)) {
		if name := strings.ToLower(id); !objects[name] && concerned(name) {
			faults = append(faults, b.lacking(id, tallies[id].counts(), tallies[id].first))
		}
	}
	for _, c := range claims {
		faults = append(faults, b.stuck(c)...)
	}
	return faults, nil
}

// tally is what blocks have of a handle: so many addresses in the first block, of which one is at that place, and so many in
// others, by their CIDRs. Nearly every handle has one address.
type tally struct {
	first     record
	ordinal   int
	addresses int
	others    map[string]int
}

// counts returns the addresses by their blocks' CIDRs. A nil tally has none.
func (t *tally) counts() map[string]int {
	if t == nil {
		return nil
	}
	counts := map[string]int{t.first.cidr.String(): t.addresses}
	for cidr, n := range t.others {
		counts[cidr] += n
	}
	return counts
}

// tally counts what blocks have of each handle, and returns what is wrong in them.
func (b *Backend) tally(blocks []record) ([]fault, map[string]*tally) {
	var faults []fault
	tallies := map[string]*tally{}
	for _, r := range blocks {
		faults = append(faults, b.wrongIn(r)...)
		for e := range r.entries() {
			if e.handle == "" || isWindows(e.handle) {
				continue
			}
			t := tallies[e.handle]
			switch {
			case t == nil:
				t = &tally{first: r, ordinal: e.ordinal, addresses: 1}
				tallies[e.handle] = t
				continue
			case t.first.Name == r.Name:
				t.addresses++
			case t.others == nil:
				t.others = map[string]int{r.cidr.String(): 1}
			default:
				t.others[r.cidr.String()]++
			}
			if first, _ := t.first.entry(t.ordinal); key(first.owner) != key(e.owner) {
				faults = append(faults, fault{Problem: b.object("IPAMBlock", r).Problem(ipam.AllocationConflict, field(e.ordinal), fmt.Sprintf("is of %s, and handle %s is of %s elsewhere: they are given back together or not at all", e.owner, e.handle, first.owner))})
			}
		}
	}
	return faults, tallies
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
	if b.younger(h, b.grace) {
		return nil
	}
	counts := map[string]int{}
	for text, n := range h.Spec.Block {
		if cidr, err := netip.ParsePrefix(text); err == nil {
			text = cidr.Masked().String()
		}
		counts[text] += n
	}
	if !h.Spec.Deleted && len(recorded) > 0 && maps.Equal(counts, recorded) {
		return nil
	}
	h = h.DeepCopy() // What else is in its list may go.
	record := b.object("IPAMHandle", h)
	if h.Spec.Deleted {
		faults := b.left(record, h)
		for i := range faults {
			faults[i].handle, faults[i].object = h.Name, h
		}
		return faults
	}
	f := fault{
		Problem:  record.Problem(ipam.AllocationConflict, "spec.block", fmt.Sprintf("counts %s, and the blocks have %s: Oakum counts again", counted(counts), counted(recorded))),
		revision: h.ResourceVersion, handle: h.Name, object: h,
		mend: func(ctx context.Context) error { return b.setCounts(ctx, h.DeepCopy(), recorded) },
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
		handle:  strings.ToLower(id),
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
