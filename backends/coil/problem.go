package coil

import (
	"context"
	"fmt"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/ipam"
)

// Problems lists what is wrong in the records, from a cache that may lag: pools that make no sense by themselves, blocks
// whose addresses cannot be listed, and blocks that do not say whose they are.
func (b *Backend) Problems(ctx context.Context) ([]backends.Problem, error) {
	pools, err := b.readPools(ctx)
	if err != nil {
		return nil, err
	}
	blocks, err := b.readBlocks(ctx, false)
	if err != nil {
		return nil, err
	}
	var problems []backends.Problem
	for _, p := range pools {
		_, wrong := law(p)
		for _, w := range wrong {
			problems = append(problems, object("AddressPool", p.Name, string(p.UID)).Problem(w.Rule, w.Field, w.Message))
		}
	}
	for _, block := range blocks {
		record := object("AddressBlock", block.Name, string(block.UID))
		if _, err := block.read(); err != nil {
			problems = append(problems, record.Problem(ipam.BlockMalformed, "", fmt.Sprintf("%v: it is neither judged nor released", err)))
		}
		if block.Labels[poolLabel] == "" {
			problems = append(problems, record.Problem(ipam.BlockMalformed, "metadata.labels["+poolLabel+"]", "is missing: coild does not find the block"))
		}
		if block.owner() == (ipam.Owner{}) {
			problems = append(problems, record.Problem(ipam.AllocationUnowned, "metadata.labels["+nodeLabel+"]", "is missing: the block is kept for ever; if nobody needs it, delete it by hand"))
		}
	}
	return problems, nil
}
