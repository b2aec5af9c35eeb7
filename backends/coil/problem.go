package coil

import (
	"context"
	"fmt"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/ipam"
)

// Problem is something wrong in a record that no hand-out shows.
type Problem struct {
	Record backends.Object
	// Rule is the one that the record breaks.
	Rule ipam.Rule
	// Field is the path of what is wrong, such as spec.subnets[0].ipv4.
	Field string
	// Message says what is wrong, what follows from it, and what to do.
	Message string
}

// Problems lists what is wrong in the records, from a cache that may lag: pools that make no sense by themselves, blocks
// whose addresses cannot be listed, and blocks that do not say whose they are.
func (b *Backend) Problems(ctx context.Context) ([]Problem, error) {
	pools, err := b.readPools(ctx)
	if err != nil {
		return nil, err
	}
	blocks, err := b.readBlocks(ctx, false)
	if err != nil {
		return nil, err
	}
	var problems []Problem
	for _, p := range pools {
		_, wrong := law(p)
		for _, w := range wrong {
			problems = append(problems, Problem{object("AddressPool", p.Name, string(p.UID)), w.Rule, w.Field, w.Message})
		}
	}
	for _, block := range blocks {
		record := object("AddressBlock", block.Name, string(block.UID))
		if _, err := block.read(); err != nil {
			problems = append(problems, Problem{record, ipam.BlockMalformed, "", fmt.Sprintf("%v: it is neither judged nor released", err)})
		}
		if block.Labels[poolLabel] == "" {
			problems = append(problems, Problem{record, ipam.BlockMalformed, "metadata.labels[" + poolLabel + "]", "is missing: coild does not find the block"})
		}
		if block.owner() == (ipam.Owner{}) {
			problems = append(problems, Problem{record, ipam.AllocationUnowned, "metadata.labels[" + nodeLabel + "]", "is missing: the block is kept for ever; if nobody needs it, delete it by hand"})
		}
	}
	return problems, nil
}
