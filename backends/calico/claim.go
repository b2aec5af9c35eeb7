package calico

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/ipam"
)

// ReadPool returns the pool in an IPPool of either group as it is sent over the wire. One whose CIDR cannot be read has no
// subnets.
func (b *Backend) ReadPool(_ context.Context, raw []byte) (ipam.Pool, error) {
	var object IPPool
	if err := json.Unmarshal(raw, &object); err != nil {
		return ipam.Pool{}, fmt.Errorf("decoding the IPPool: %w", err)
	}
	return object.law(), nil
}

// ReadAffinity returns the claim in a BlockAffinity of either group as it is sent over the wire.
func (b *Backend) ReadAffinity(ctx context.Context, raw []byte) (ipam.Affinity, error) {
	var object BlockAffinity
	if err := json.Unmarshal(raw, &object); err != nil {
		return ipam.Affinity{}, fmt.Errorf("decoding the BlockAffinity: %w", err)
	}
	cidr, err := netip.ParsePrefix(object.Spec.CIDR)
	if err != nil {
		return ipam.Affinity{}, fmt.Errorf("decoding the BlockAffinity's spec.cidr: %w", err)
	}
	pools, err := b.pools(ctx, false)
	if err != nil {
		return ipam.Affinity{}, err
	}
	return ipam.Affinity{Holder: object.holder(), Block: cidr.Masked(), Pool: onlyPoolOf(pools, cidr.Masked())}, nil
}

// KnowsAffinity tells whether there is a claim of that name, from a cache that may lag.
func (b *Backend) KnowsAffinity(ctx context.Context, name string) (bool, error) {
	var object BlockAffinity
	object.Name = name
	err := b.get(ctx, false, &object)
	if errors.Is(err, backends.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// AffineBlocks lists the blocks and whose they are, from a cache that may lag.
func (b *Backend) AffineBlocks(ctx context.Context) ([]ipam.AffineBlock, error) {
	blocks, err := b.blocks(ctx, false)
	if err != nil {
		return nil, err
	}
	claims, err := b.affinities(ctx, false)
	if err != nil {
		return nil, err
	}
	return b.affine(ctx, blocks, claims)
}

// AffineBlock reads one block and whose it is, without a cache; nil if there is none of that name.
func (b *Backend) AffineBlock(ctx context.Context, name string) (*ipam.AffineBlock, error) {
	r, err := b.block(ctx, name)
	switch {
	case errors.Is(err, backends.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	claims, err := b.affinities(ctx, true)
	if err != nil {
		return nil, err
	}
	found, err := b.affine(ctx, []record{r}, claims)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// affine tells whose blocks are. Those that are deleted, or cannot be read, are left out.
func (b *Backend) affine(ctx context.Context, blocks []record, claims []*BlockAffinity) ([]ipam.AffineBlock, error) {
	pools, err := b.Pools(ctx)
	if err != nil {
		return nil, err
	}
	type claim struct {
		holder ipam.Holder
		block  string
	}
	confirmed := map[claim]bool{}
	for _, c := range claims {
		confirmed[claim{c.holder(), c.block()}] = !bool(c.Spec.Deleted) && (c.Spec.State == Confirmed || c.Spec.State == "")
	}
	var found []ipam.AffineBlock
	for _, r := range blocks {
		if r.Spec.Deleted || !r.cidr.IsValid() {
			continue
		}
		block := ipam.AffineBlock{
			Name: r.Name, Prefix: r.cidr, Pool: onlyPoolOf(pools, r.cidr),
			Holder: r.holder(), Confirmed: confirmed[claim{r.holder(), blockName(r.cidr)}],
		}
		for o := range min(len(r.Spec.Allocations), r.size()) {
			if addr := r.addr(o); r.untaken(o) && !slices.ContainsFunc(pools, func(p ipam.Pool) bool { return reserves(p, addr) }) {
				block.Free++
			}
		}
		found = append(found, block)
	}
	return found, nil
}

// holder returns who claims a block.
func (a *BlockAffinity) holder() ipam.Holder {
	return ipam.Holder{Name: a.Spec.Node, Virtual: a.host() == ""}
}

// holder returns whose a block is; zero if it is nobody's.
func (r record) holder() ipam.Holder {
	kind, name, _ := strings.Cut(r.Spec.Affinity, ":")
	return ipam.Holder{Name: name, Virtual: name != "" && kind+":" != hosts}
}

func reserves(p ipam.Pool, addr netip.Addr) bool {
	return slices.ContainsFunc(p.Reserved, func(r ipam.Range) bool { return r.Contains(addr) })
}

// onlyPoolOf returns the name of the one pool that has the addresses of a block; empty if none has, or more than one.
func onlyPoolOf(pools []ipam.Pool, block netip.Prefix) string {
	name := ""
	for _, p := range pools {
		if !overlaps(p, block) {
			continue
		}
		if name != "" {
			return ""
		}
		name = p.Name
	}
	return name
}
