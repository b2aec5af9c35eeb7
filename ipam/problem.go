package ipam

// Rule names one thing that a record must not do. The name is what users see in refusals, metrics and settings.
type Rule string

// The rules. Each is documented by what it refuses.
const (
	// PoolMalformed: a pool whose subnets, reservations or sizes make no sense by themselves.
	PoolMalformed Rule = "pool-malformed"
	// PoolOverlap: a pool that shares addresses with itself or with another pool of its network.
	PoolOverlap Rule = "pool-overlap"
	// PoolShrink: a pool that takes away addresses that may be in use.
	PoolShrink Rule = "pool-shrink"
	// PoolDraining: a new block in a pool that is being deleted or does not exist.
	PoolDraining Rule = "pool-draining"
	// PoolInUse: the deletion of a pool with blocks.
	PoolInUse Rule = "pool-in-use"
	// BlockMalformed: a block that does not agree with its pool, or is for no node.
	BlockMalformed Rule = "block-malformed"
	// BlockOverlap: a claim to a block that shares addresses with another block, or is another node's.
	BlockOverlap Rule = "block-overlap"
	// SecondUnfilledBlock: a new block for a node that has room in another one of that pool.
	SecondUnfilledBlock Rule = "second-unfilled-block"
	// StaleBlockRequest: a new block for a request that nobody waits for any more.
	StaleBlockRequest Rule = "stale-block-request"
	// AllocationUnowned: an allocation that does not say whose it is.
	AllocationUnowned Rule = "allocation-unowned"
	// AllocationConflict: an address that is not there to be had, or a handle that is another owner's.
	AllocationConflict Rule = "allocation-conflict"
	// AllocationOwner: an allocation for an owner that is not there, or is going.
	AllocationOwner Rule = "allocation-owner"
)

// Fault tells what is wrong with a value.
type Fault string

const (
	// Missing: a value is required and absent.
	Missing Fault = "Missing"
	// Wrong: the value can never be right here.
	Wrong Fault = "Wrong"
	// Untimely: the value is right, but not now.
	Untimely Fault = "Untimely"
)

// Problem is one breach of one rule.
type Problem struct {
	Rule  Rule
	Fault Fault
	// Field is the path of the offending value in the native API, such as spec.subnets[1].ipv4.
	Field string
	// Value is the offending value as it was written; empty if Fault is Missing.
	Value string
	// Message says what is wrong and what to do about it. It names the other object, if there is one.
	Message string
}

// Ratchet returns the problems that are there now and were not before, so that an object which became invalid under a
// newer rule can still be changed in ways that make nothing worse. Two problems are the same if they differ only in
// where in a list they stand.
func Ratchet(before, now []Problem) []Problem {
	type key struct {
		rule           Rule
		fault          Fault
		value, message string
	}
	known := make(map[key]int, len(before))
	for _, p := range before {
		known[key{p.Rule, p.Fault, p.Value, p.Message}]++
	}
	var added []Problem
	for _, p := range now {
		k := key{p.Rule, p.Fault, p.Value, p.Message}
		if known[k] > 0 {
			known[k]--
			continue
		}
		added = append(added, p)
	}
	return added
}
