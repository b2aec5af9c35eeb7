package calico

import (
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The groups in which Calico keeps its records. A cluster uses one of them: the one that is served from CRDs.
var (
	V1 = schema.GroupVersion{Group: "crd.projectcalico.org", Version: "v1"} //nolint:gochecknoglobals // a struct cannot be a constant
	V3 = schema.GroupVersion{Group: "projectcalico.org", Version: "v3"}     //nolint:gochecknoglobals // a struct cannot be a constant
)

// AddToScheme teaches a scheme the types of this package, those of both groups. It never fails; the error makes it fit
// where clients collect such functions.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(V1,
		&IPAMBlock{}, &IPAMBlockList{},
		&IPAMHandle{}, &IPAMHandleList{},
		&BlockAffinity{}, &BlockAffinityList{},
		&IPPool{}, &IPPoolList{},
		&IPReservation{}, &IPReservationList{},
		&IPAMConfig{},
	)
	metav1.AddToGroupVersion(scheme, V1)
	for kind, object := range map[string]runtime.Object{
		"IPAMBlock": &IPAMBlockV3{}, "IPAMBlockList": &IPAMBlockV3List{},
		"IPAMHandle": &IPAMHandleV3{}, "IPAMHandleList": &IPAMHandleV3List{},
		"BlockAffinity": &BlockAffinityV3{}, "BlockAffinityList": &BlockAffinityV3List{},
		"IPPool": &IPPoolV3{}, "IPPoolList": &IPPoolV3List{},
		"IPReservation": &IPReservationV3{}, "IPReservationList": &IPReservationV3List{},
		"IPAMConfiguration": &IPAMConfiguration{},
	} {
		scheme.AddKnownTypeWithName(V3.WithKind(kind), object)
	}
	metav1.AddToGroupVersion(scheme, V3)
	return nil
}

// IPAMBlock is a part of a pool: who has which of its addresses. Like all types here it has only the fields that are
// read, so an object must not be written back.
//
// +kubebuilder:object:root=true
type IPAMBlock struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Spec IPAMBlockSpec `json:"spec"`
}

// IPAMBlockSpec is what an IPAMBlock says.
//
// +kubebuilder:object:generate=true
type IPAMBlockSpec struct {
	CIDR string `json:"cidr"`
	// Affinity is "host:" and a node, or "virtual:" and a purpose; empty if the block is nobody's.
	Affinity string `json:"affinity,omitempty"`
	// AffinityClaimTime is nil if older releases wrote the block, or if it is nobody's.
	AffinityClaimTime *metav1.Time `json:"affinityClaimTime,omitempty"`
	// Allocations are indexes into Attributes, one for each address in order; nil for one that is free.
	Allocations []*int `json:"allocations"`
	// Unallocated are the addresses that are free, in the order in which they will be given out.
	Unallocated []int       `json:"unallocated"`
	Attributes  []Attribute `json:"attributes"`
	// SequenceNumber grows with every write. It begins at a time in nanoseconds, more than a float64 can tell apart.
	SequenceNumber uint64 `json:"sequenceNumber"`
	// SequenceNumberForAllocation is what SequenceNumber was when an address was given out, by the address's place in
	// the block, in decimal. Older releases do not write it.
	SequenceNumberForAllocation map[string]uint64 `json:"sequenceNumberForAllocation,omitempty"`
	// Deleted: the object is to be taken as absent.
	Deleted bool `json:"deleted,omitempty"`
}

// Attribute says whose an address is. Addresses may share one.
//
// +kubebuilder:object:generate=true
type Attribute struct {
	// HandleID is empty if nobody gave the address a handle. What follows a carriage return is not part of it.
	HandleID string `json:"handle_id,omitempty"`
	// Secondary is what else is known of the owner, such as pod, namespace and node.
	Secondary map[string]string `json:"secondary,omitempty"`
	// AlternateOwnerAttrs are the same of the pod to which a virtual machine is migrating, or from which it came.
	AlternateOwnerAttrs map[string]string `json:"alternateOwnerAttrs,omitempty"`
	// ReleasedAt is set when the address was given back and still cools down.
	ReleasedAt *metav1.Time `json:"releasedAt,omitempty"`
}

// IPAMBlockList is a list of IPAMBlocks.
//
// +kubebuilder:object:root=true
type IPAMBlockList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []IPAMBlock `json:"items"`
}

// IPAMHandle counts the addresses of one hand-out. Its name is the handle in lower case.
//
// +kubebuilder:object:root=true
type IPAMHandle struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Spec IPAMHandleSpec `json:"spec"`
}

// IPAMHandleSpec is what an IPAMHandle says.
//
// +kubebuilder:object:generate=true
type IPAMHandleSpec struct {
	HandleID string `json:"handleID"`
	// Block counts the addresses under the handle, by the CIDR of the block that has them.
	Block map[string]int `json:"block"`
	// Deleted: the object is to be taken as absent.
	Deleted bool `json:"deleted"`
}

// IPAMHandleList is a list of IPAMHandles.
//
// +kubebuilder:object:root=true
type IPAMHandleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []IPAMHandle `json:"items"`
}

// Page implements foreign.Paged.
func (*IPAMHandleList) Page() int64 { return 2000 }

// BlockAffinity is a node's claim to a block.
//
// +kubebuilder:object:root=true
type BlockAffinity struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Spec BlockAffinitySpec `json:"spec"`
}

// BlockAffinitySpec is what a BlockAffinity says.
type BlockAffinitySpec struct {
	State AffinityState `json:"state"`
	Node  string        `json:"node"`
	// Type is "host", "virtual", or empty if older releases wrote it: then it is a host's.
	Type string `json:"type,omitempty"`
	CIDR string `json:"cidr"`
	// Deleted: the object is to be taken as absent.
	Deleted Flag `json:"deleted,omitempty"`
}

// AffinityState is how far a claim to a block has got. The empty one is that of a confirmed claim in older releases.
type AffinityState string

const (
	// Pending: the block is not there yet, or not the node's.
	Pending AffinityState = "pending"
	// Confirmed: the block is the node's.
	Confirmed AffinityState = "confirmed"
	// PendingDeletion: the node gives up the block.
	PendingDeletion AffinityState = "pendingDeletion"
)

// Flag is a boolean that the group crd.projectcalico.org writes as a string.
type Flag bool

// UnmarshalJSON implements json.Unmarshaler. It reads true and "true" alike; the empty string is false.
func (f *Flag) UnmarshalJSON(data []byte) error {
	text := string(data)
	if unquoted, err := strconv.Unquote(text); err == nil {
		text = unquoted
	}
	if text == "" || text == "null" {
		*f = false
		return nil
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		return fmt.Errorf("reading %s as true or false: %w", data, err)
	}
	*f = Flag(value)
	return nil
}

// BlockAffinityList is a list of BlockAffinities.
//
// +kubebuilder:object:root=true
type BlockAffinityList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []BlockAffinity `json:"items"`
}

// IPPool is what blocks are cut from.
//
// +kubebuilder:object:root=true
type IPPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Spec IPPoolSpec `json:"spec"`
}

// IPPoolSpec is what an IPPool says.
type IPPoolSpec struct {
	CIDR string `json:"cidr"`
	// BlockSize is the length of a block's prefix; zero means 26 for IPv4 and 122 for IPv6.
	BlockSize int `json:"blockSize,omitempty"`
}

// IPPoolList is a list of IPPools.
//
// +kubebuilder:object:root=true
type IPPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []IPPool `json:"items"`
}

// IPReservation keeps addresses from being handed out.
//
// +kubebuilder:object:root=true
type IPReservation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Spec IPReservationSpec `json:"spec"`
}

// IPReservationSpec is what an IPReservation says.
//
// +kubebuilder:object:generate=true
type IPReservationSpec struct {
	ReservedCIDRs []string `json:"reservedCIDRs,omitempty"`
}

// IPReservationList is a list of IPReservations.
//
// +kubebuilder:object:root=true
type IPReservationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []IPReservation `json:"items"`
}

// IPAMConfig has the settings of all pools. The one that counts is called default.
//
// +kubebuilder:object:root=true
type IPAMConfig struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Spec IPAMConfigSpec `json:"spec"`
}

// IPAMConfigSpec is what an IPAMConfig says.
type IPAMConfigSpec struct {
	// IPCooldownSeconds is how long an address that was given back is not given out again.
	IPCooldownSeconds int `json:"ipCooldownSeconds,omitempty"`
}
