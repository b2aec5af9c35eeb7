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

// The conditions of a LeakReport.
const (
	// Healthy tells whether the last run saw everything.
	//
	//	True:  RunComplete
	//	False: RunFailed
	Healthy ConditionType = "Healthy"
	// Stopped tells whether the audit releases nothing, because its evidence collapsed: what it sees may not be what is
	// there.
	//
	//	True:  EvidenceCollapsed
	//	False: EvidencePlausible
	Stopped ConditionType = "Stopped"
	// Pacing tells whether releases wait for the next run, because one run releases only so many.
	//
	//	True:  MoreThanOneRun
	//	False: NothingWaits
	Pacing ConditionType = "Pacing"
	// FinalizersCleared tells, outside Enforce, whether a live list found none of our finalizers.
	//
	//	True:  NoneFound
	//	False: SomeRemain, StillWanted
	FinalizersCleared ConditionType = "FinalizersCleared"
	// Guarded tells, of the native backend, whether the manager has all rights that its configuration needs, and whether the
	// API server asks its webhooks. It is absent until the leader has looked.
	//
	//	True:  ChecksPassed
	//	False: RightsMissing, WebhookDead
	Guarded ConditionType = "Guarded"
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

	// ReasonRunComplete: every record was read and judged.
	ReasonRunComplete ConditionReason = "RunComplete"
	// ReasonRunFailed: something could not be read, or a release failed. The message says what.
	ReasonRunFailed ConditionReason = "RunFailed"
	// ReasonEvidenceCollapsed: pods or nodes disappeared from the list all at once.
	ReasonEvidenceCollapsed ConditionReason = "EvidenceCollapsed"
	// ReasonEvidencePlausible: the list is about what it was.
	ReasonEvidencePlausible ConditionReason = "EvidencePlausible"
	// ReasonMoreThanOneRun: more is to be released than one run may.
	ReasonMoreThanOneRun ConditionReason = "MoreThanOneRun"
	// ReasonNothingWaits: nothing waits for the next run.
	ReasonNothingWaits ConditionReason = "NothingWaits"
	// ReasonNoneFound: no object carries a finalizer of ours.
	ReasonNoneFound ConditionReason = "NoneFound"
	// ReasonSomeRemain: some objects still do.
	ReasonSomeRemain ConditionReason = "SomeRemain"
	// ReasonStillWanted: the mode is Enforce.
	ReasonStillWanted ConditionReason = "StillWanted"

	// ReasonChecksPassed: every right is there, and a write that only a webhook refuses was refused.
	ReasonChecksPassed ConditionReason = "ChecksPassed"
	// ReasonRightsMissing: the message lists what the manager may not do.
	ReasonRightsMissing ConditionReason = "RightsMissing"
	// ReasonWebhookDead: that write was admitted, or the API server could not call the webhook. The message says which.
	ReasonWebhookDead ConditionReason = "WebhookDead"
)
