package v1alpha1

// The marks on the Leases in which nodes claim blocks.
const (
	// ClaimLabel tells claims from other Leases.
	ClaimLabel = "ipam.oakum.dev/claim"
	// NodeUIDAnnotation is the UID of the Node that claims.
	NodeUIDAnnotation = "ipam.oakum.dev/node-uid"
)
