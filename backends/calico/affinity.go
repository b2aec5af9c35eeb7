package calico

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/backends/foreign"
)

// affinities lists the claims to blocks.
func (b *Backend) affinities(ctx context.Context, live bool) ([]*BlockAffinity, error) {
	pages, err := foreign.Lists[BlockAffinityList](ctx, b.source(), live)
	if err != nil {
		return nil, fmt.Errorf("listing BlockAffinities: %w", err)
	}
	var found []*BlockAffinity
	for p := range pages {
		for i := range pages[p].Items {
			found = append(found, &pages[p].Items[i])
		}
	}
	return found, nil
}

// host returns the node that claims the block; empty if it is no node.
func (a *BlockAffinity) host() string {
	if a.Spec.Type != "" && a.Spec.Type != "host" {
		return ""
	}
	return a.Spec.Node
}

// block returns the name of the block; empty if its CIDR cannot be read.
func (a *BlockAffinity) block() string {
	cidr, err := netip.ParsePrefix(a.Spec.CIDR)
	if err != nil {
		return ""
	}
	return blockName(cidr.Masked())
}

// Holders implements backends.Keeper.
func (b *Backend) Holders(ctx context.Context) ([]string, error) {
	claims, err := b.affinities(ctx, false)
	if err != nil {
		return nil, err
	}
	blocks, err := b.blocks(ctx, false)
	if err != nil {
		return nil, err
	}
	holders := map[string]bool{}
	for _, c := range claims {
		holders[c.host()] = true
	}
	for _, r := range blocks {
		holders[r.node()] = true
	}
	delete(holders, "")
	return slices.Sorted(maps.Keys(holders)), nil
}

// Tidy implements backends.Keeper: records are mended, and empty blocks of nodes that have another trimmed.
func (b *Backend) Tidy(ctx context.Context) ([]backends.Problem, error) {
	mended, err := b.Mend(ctx)
	return mended, errors.Join(err, b.Trim(ctx))
}

// Abandon takes a node's blocks from it, those that are empty for good: others stay, and anybody may take addresses from
// them. It must only be called for a name that no Node has borne for as long as a quarantine, and in whose blocks nothing
// is in use that its pods name. It gives back no address: what leaked must be released before, since of an entry without a
// handle nobody can tell any more in whose block it lay. What fails is tried again by calling it again; what has been done
// is not an error.
func (b *Backend) Abandon(ctx context.Context, node string) error {
	if node == "" {
		return errors.New("abandoning blocks: the node must be named")
	}
	claims, err := b.affinities(ctx, true)
	if err != nil {
		return err
	}
	blocks, err := b.blocks(ctx, true)
	if err != nil {
		return err
	}
	var failures []error
	for _, c := range claims {
		if c.host() == node {
			failures = append(failures, b.giveUp(ctx, c))
		}
	}
	for _, r := range blocks {
		if r.node() == node {
			failures = append(failures, b.vacate(ctx, r.Name, node))
		}
	}
	return errors.Join(failures...)
}

// giveUp ends a node's claim to a block, in the order in which Calico does.
func (b *Backend) giveUp(ctx context.Context, c *BlockAffinity) error {
	name := c.block()
	if name == "" {
		return fmt.Errorf("ending BlockAffinity %q: %q is no CIDR: correct it by hand", c.Name, c.Spec.CIDR)
	}
	c = c.DeepCopy()
	if !bool(c.Spec.Deleted) && c.Spec.State != PendingDeletion {
		err := b.patch(ctx, c, []jsonpatch.Operation{jsonpatch.NewOperation("add", "/spec/state", PendingDeletion)})
		if err != nil {
			return fmt.Errorf("ending BlockAffinity %q: %w", c.Name, client.IgnoreNotFound(err))
		}
	}
	if err := b.vacate(ctx, name, c.Spec.Node); err != nil {
		return err
	}
	return b.forget(ctx, c)
}

// forget deletes a claim as it was read.
func (b *Backend) forget(ctx context.Context, c *BlockAffinity) error {
	err := b.remove(ctx, c, b.deletedAffinity())
	if err != nil {
		return fmt.Errorf("deleting BlockAffinity %q: %w", c.Name, err)
	}
	return nil
}

// deletedAffinity marks a BlockAffinity as deleted. One group wants a string there.
func (b *Backend) deletedAffinity() jsonpatch.Operation {
	if b.served == V3 {
		return deleted()
	}
	return jsonpatch.NewOperation("add", "/spec/deleted", "true")
}

// vacate takes a block from its node, if it is still that one's: deletes it if it is empty, and else lets it be nobody's.
func (b *Backend) vacate(ctx context.Context, name, node string) error {
	for attempt := 1; ; attempt++ {
		r, err := b.block(ctx, name)
		switch {
		case errors.Is(err, backends.ErrNotFound), err == nil && r.node() != node:
			return nil
		case err != nil:
			return err
		}
		if before := blockOf(r.Spec); before.vacant() {
			err = b.remove(ctx, r.IPAMBlock, deleted())
		} else {
			err = b.patch(ctx, r.IPAMBlock, r.patch(before.abandoned()))
		}
		if err != nil && (!foreign.Refused(err) || attempt == attempts) {
			return fmt.Errorf("taking IPAMBlock %q from node %q: %w", name, node, err)
		}
		if err == nil {
			return nil
		}
	}
}

// Trim takes from each node the blocks that are empty, and have been for a grace, while the node has another one of the
// same pool. It finds that out by being called again and again, and looks again without a cache before it takes one. A node
// keeps one block of each pool.
func (b *Backend) Trim(ctx context.Context) error {
	found, err := b.spare(ctx, false)
	if err != nil {
		return err
	}
	confirmed := b.spares.confirm(b.now(), b.grace, slices.Sorted(maps.Keys(found)))
	maps.DeleteFunc(found, func(state string, _ spare) bool { return !confirmed[state] })
	if len(found) == 0 {
		return nil
	}
	again, err := b.spare(ctx, true)
	if err != nil {
		return err
	}
	var failures []error
	for _, state := range slices.Sorted(maps.Keys(again)) {
		if _, ok := found[state]; ok {
			failures = append(failures, b.drop(ctx, again[state].claim, again[state].block))
		}
	}
	return errors.Join(failures...)
}

// spare is an empty block that its node need not have.
type spare struct {
	claim *BlockAffinity
	block record
}

// spare returns the blocks that could go now, by the state in which they are.
func (b *Backend) spare(ctx context.Context, live bool) (map[string]spare, error) {
	pools, err := b.pools(ctx, live)
	if err != nil {
		return nil, err
	}
	claims, err := b.affinities(ctx, live)
	if err != nil {
		return nil, err
	}
	blocks, err := b.blocks(ctx, live)
	if err != nil {
		return nil, err
	}
	claimed := map[string]*BlockAffinity{}
	for _, c := range claims {
		if !bool(c.Spec.Deleted) && (c.Spec.State == Confirmed || c.Spec.State == "") {
			claimed[c.host()+" "+c.block()] = c
		}
	}
	type group struct{ node, pool string }
	kept, empty := map[group]int{}, map[group][]record{}
	for _, r := range blocks {
		g := group{r.node(), poolOf(pools, r.cidr)}
		switch {
		case r.Spec.Deleted, g.node == "", g.pool == "", claimed[g.node+" "+r.Name] == nil:
		case blockOf(r.Spec).vacant():
			empty[g] = append(empty[g], r)
		default:
			kept[g]++
		}
	}
	found := map[string]spare{}
	for g, several := range empty {
		slices.SortFunc(several, func(a, b record) int { return strings.Compare(a.Name, b.Name) })
		if kept[g] == 0 {
			several = several[1:]
		}
		for _, r := range several {
			found[string(r.UID)+" "+r.ResourceVersion] = spare{claimed[g.node+" "+r.Name], r}
		}
	}
	return found, nil
}

// drop takes an empty block from its node. If somebody took an address from it meanwhile, it stays the node's: the claim
// is put back as it was.
func (b *Backend) drop(ctx context.Context, c *BlockAffinity, r record) error {
	c = c.DeepCopy()
	if err := b.patch(ctx, c, []jsonpatch.Operation{jsonpatch.NewOperation("add", "/spec/state", PendingDeletion)}); err != nil {
		return ignoreRefused(client.IgnoreNotFound(err))
	}
	if err := b.remove(ctx, r.IPAMBlock, deleted()); err != nil {
		back := b.patch(ctx, c, []jsonpatch.Operation{jsonpatch.NewOperation("add", "/spec/state", Confirmed)})
		return errors.Join(ignoreRefused(err), ignoreRefused(client.IgnoreNotFound(back)))
	}
	return b.forget(ctx, c)
}

// ignoreRefused takes no offence at somebody else having been faster.
func ignoreRefused(err error) error {
	if foreign.Refused(err) {
		return nil
	}
	return err
}

// settle brings a claim that got stuck half-way to an end: the node keeps a block that is its own, unless that is empty and
// was being given up.
func (b *Backend) settle(ctx context.Context, c *BlockAffinity) error {
	c = c.DeepCopy()
	r, err := b.block(ctx, c.block())
	switch {
	case errors.Is(err, backends.ErrNotFound), err == nil && r.node() != c.host():
		return b.forget(ctx, c)
	case err != nil:
		return err
	case c.Spec.State == PendingDeletion && blockOf(r.Spec).vacant():
		return b.giveUp(ctx, c)
	}
	return b.patch(ctx, c, []jsonpatch.Operation{jsonpatch.NewOperation("add", "/spec/state", Confirmed)})
}
