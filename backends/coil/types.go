package coil

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is that of the types in this package.
var GroupVersion = schema.GroupVersion{Group: "coil.cybozu.com", Version: "v2"} //nolint:gochecknoglobals // a struct cannot be a constant

// AddToScheme teaches a scheme the types of this package. It never fails; the error makes it fit where clients collect
// such functions.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&AddressPool{}, &AddressPoolList{},
		&AddressBlock{}, &AddressBlockList{},
		&BlockRequest{}, &BlockRequestList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

// AddressPool is what blocks are cut from. Like all types here it has only the fields that are read, so an object must
// not be written back.
//
// +kubebuilder:object:root=true
type AddressPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Spec AddressPoolSpec `json:"spec"`
}

// AddressPoolSpec is what an AddressPool says.
//
// +kubebuilder:object:generate=true
type AddressPoolSpec struct {
	// BlockSizeBits is the size of a block: 2^BlockSizeBits addresses, or pairs.
	BlockSizeBits int `json:"blockSizeBits"`
	// Subnets in the order in which blocks are counted.
	Subnets []Subnet `json:"subnets"`
}

// Subnet is a CIDR, or a pair with as many host bits each.
type Subnet struct {
	IPv4 string `json:"ipv4,omitempty"`
	IPv6 string `json:"ipv6,omitempty"`
}

// AddressPoolList is a list of AddressPools.
//
// +kubebuilder:object:root=true
type AddressPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []AddressPool `json:"items"`
}

// AddressBlock is a part of a pool that a node has. Its labels tell which, and for which request it was made.
//
// +kubebuilder:object:root=true
type AddressBlock struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Subnet `json:",inline"`
}

// AddressBlockList is a list of AddressBlocks.
//
// +kubebuilder:object:root=true
type AddressBlockList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []AddressBlock `json:"items"`
}

// BlockRequest is how coild asks for a block. It stays when it has its answer, until coild makes the next one.
//
// +kubebuilder:object:root=true
type BlockRequest struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Spec   BlockRequestSpec   `json:"spec"`
	Status BlockRequestStatus `json:"status,omitzero"`
}

// BlockRequestSpec is what a BlockRequest asks for.
type BlockRequestSpec struct {
	NodeName string `json:"nodeName"`
}

// BlockRequestStatus is the answer. It has a condition as soon as there is one.
//
// +kubebuilder:object:generate=true
type BlockRequestStatus struct {
	Conditions []Condition `json:"conditions,omitempty"`
}

// Condition is Complete, or Failed.
type Condition struct {
	Type string `json:"type"`
}

// BlockRequestList is a list of BlockRequests.
//
// +kubebuilder:object:root=true
type BlockRequestList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []BlockRequest `json:"items"`
}
