package v1alpha1

// EventReason is the reason of an Event that Oakum writes.
type EventReason string

const (
	// EventAddressReleased (Normal, on a Pod): an address was given back for its owner. The note names the evidence.
	EventAddressReleased EventReason = "AddressReleased"
	// EventAddressReleaseFailed (Warning, on a Pod): giving an address back failed, and is tried again.
	EventAddressReleaseFailed EventReason = "AddressReleaseFailed"
	// EventAddressesHeld (Normal, on a Pod): its deletion waits, because nothing proves yet that its sandbox is down. The
	// note says for what, and until when at the latest.
	EventAddressesHeld EventReason = "AddressesHeld"
	// EventAddressesLeft (Warning, on a Pod): it was let go although its addresses are not proven free. They stay
	// allocated until they are.
	EventAddressesLeft EventReason = "AddressesLeft"
	// EventFinalizerStuck (Warning, on a Pod): the API server refuses to take the finalizer off. The note has its words,
	// which name the webhook that is in the way, if one is.
	EventFinalizerStuck EventReason = "FinalizerStuck"
	// EventPoolDraining (Normal, on an AddressPool): its deletion waits for the blocks that the note counts.
	EventPoolDraining EventReason = "PoolDraining"
	// EventIPAddressGarbageCollected (Normal, on the Pod, or on the block if there is none): the audit gave a leaked
	// address back. The name is one that network plugins use, and that people alert on.
	EventIPAddressGarbageCollected EventReason = "IPAddressGarbageCollected"
	// EventIPAddressGarbageCollectionFailed (Warning, likewise): it could not.
	EventIPAddressGarbageCollectionFailed EventReason = "IPAddressGarbageCollectionFailed"
	// EventRecordRepaired (Normal, likewise): the record of an address in use lacked a part, and was completed.
	EventRecordRepaired EventReason = "RecordRepaired"
	// EventRecordRepairFailed (Warning, likewise): it could not be.
	EventRecordRepairFailed EventReason = "RecordRepairFailed"
	// EventAgentRestarted (Normal, on the block): the program on its node was restarted, because it has a block that nobody
	// uses.
	EventAgentRestarted EventReason = "AgentRestarted"
	// EventPodStartsLate (Warning, on the Pod, or on the object with its record): it has an address, and has been Pending for
	// over an hour.
	EventPodStartsLate EventReason = "PodStartsLate"
	// EventAuditStopped (Warning, on the LeakReport): the evidence collapsed. The note says how.
	EventAuditStopped EventReason = "AuditStopped"
	// EventAdmissionWarning (Warning): a write was admitted that breaks a rule.
	EventAdmissionWarning EventReason = "AdmissionWarning"
)
