package v1alpha1

// The finalizers. Each holds an object until what depends on it is gone.
const (
	// PoolFinalizer holds an AddressPool until its last block is gone.
	PoolFinalizer = "ipam.oakum.dev/blocks"
	// BlockFinalizer holds an AddressBlock until nothing in it is allocated or cooling down.
	BlockFinalizer = "ipam.oakum.dev/allocations"
	// AddressesFinalizer holds a Pod or a Node until its addresses are free, or until its deadline.
	AddressesFinalizer = "ipam.oakum.dev/addresses"
)

// The annotations by which a person overrides Oakum. The value is the UID of the annotated object, so that a copied
// manifest overrides nothing.
const (
	// ForceReleaseAnnotation lets somebody who may release addresses remove one of the finalizers.
	ForceReleaseAnnotation = "ipam.oakum.dev/force-release"
	// ForceDeleteAnnotation lets an AddressBlock be deleted while it has allocations.
	ForceDeleteAnnotation = "ipam.oakum.dev/force-delete"
)
