package v1alpha1

// ConditionType is the type of a condition of an AddressPool.
type ConditionType string

const (
	// Ready tells whether nodes can take blocks from the pool.
	//
	//	True:  Available
	//	False: Malformed, Draining
	Ready ConditionType = "Ready"
	// Exhausted tells whether the pool has no address left to give: every block is taken, and none has a free address.
	//
	//	True:  NoFreeAddress
	//	False: AddressesFree
	Exhausted ConditionType = "Exhausted"
	// Draining tells whether the pool, being deleted, still waits. The message counts what it waits for.
	//
	//	True:  BlocksRemain, Settling
	//	False: NotDeleted
	Draining ConditionType = "Draining"
)

// ConditionReason is why a condition has its status.
type ConditionReason string

const (
	// ReasonAvailable: the pool makes sense and is not being deleted.
	ReasonAvailable ConditionReason = "Available"
	// ReasonMalformed: the pool was written before a rule that it breaks. The message names field and remedy.
	ReasonMalformed ConditionReason = "Malformed"
	// ReasonDraining: the pool is being deleted.
	ReasonDraining ConditionReason = "Draining"

	// ReasonNoFreeAddress: an address can be had only after another one was given back, or the pool has grown.
	ReasonNoFreeAddress ConditionReason = "NoFreeAddress"
	// ReasonAddressesFree: an address can be had now, although it may be in another node's block.
	ReasonAddressesFree ConditionReason = "AddressesFree"

	// ReasonBlocksRemain: the pool's blocks are not all gone.
	ReasonBlocksRemain ConditionReason = "BlocksRemain"
	// ReasonSettling: no block is known, but one may have been admitted just before the deletion.
	ReasonSettling ConditionReason = "Settling"
	// ReasonNotDeleted: nobody has deleted the pool.
	ReasonNotDeleted ConditionReason = "NotDeleted"
)
