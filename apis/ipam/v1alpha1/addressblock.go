package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// AddressBlock is a slice of an AddressPool that one node owns, with the addresses in it that are handed out. Its name is
// <spec.pool>-<spec.index> and thereby a lock on the slice, since a name can exist only once.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=oblock
// +kubebuilder:subresource:status
// +kubebuilder:selectablefield:JSONPath=`.spec.node`
// +kubebuilder:selectablefield:JSONPath=`.spec.pool`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.pool`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="IPv4",type=string,JSONPath=`.spec.ipv4`
// +kubebuilder:printcolumn:name="IPv6",type=string,JSONPath=`.spec.ipv6`
// +kubebuilder:printcolumn:name="Allocated",type=integer,JSONPath=`.status.allocated`
// +kubebuilder:printcolumn:name="Free",type=integer,JSONPath=`.status.free`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="oldSelf.hasValue() || self.metadata.name == '%s-%d'.format([self.spec.pool, self.spec.index])",optionalOldSelf=true,fieldPath=.metadata,messageExpression="'name must be %s-%d: <spec.pool>-<spec.index>'.format([self.spec.pool, self.spec.index])"
type AddressBlock struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Spec   AddressBlockSpec   `json:"spec"`
	Status AddressBlockStatus `json:"status,omitzero"`
}

// AddressBlockList is a list of blocks.
//
// +kubebuilder:object:root=true
type AddressBlockList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []AddressBlock `json:"items"`
}

// AddressBlockSpec is the record of a block.
//
// +kubebuilder:validation:XValidation:rule="has(self.ipv4) == has(oldSelf.ipv4)",reason=FieldValueForbidden,fieldPath=.ipv4,message="must not change: it follows from pool and index"
// +kubebuilder:validation:XValidation:rule="has(self.ipv6) == has(oldSelf.ipv6)",reason=FieldValueForbidden,fieldPath=.ipv6,message="must not change: it follows from pool and index"
type AddressBlockSpec struct {
	// Pool is the name of the AddressPool. It cannot be changed.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=242
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",reason=FieldValueForbidden,messageExpression="'must stay ' + oldSelf + ': create another block'"
	Pool string `json:"pool"`

	// Index counts the blocks of the pool across all of its subnets in their order. It cannot be changed.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",reason=FieldValueForbidden,messageExpression="'must stay %d: create another block'.format([oldSelf])"
	Index int32 `json:"index"`

	// Node is the name of the Node that owns the block. It cannot be changed.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",reason=FieldValueForbidden,messageExpression="'must stay ' + oldSelf + ': create another block'"
	Node string `json:"node"`

	// IPv4 is the CIDR of the block's IPv4 addresses. Oakum fills it in from pool and index. It cannot be changed.
	//
	// +kubebuilder:validation:MaxLength=18
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",reason=FieldValueForbidden,message="must not change: it follows from pool and index"
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self).ip().family() == 4",message="must be an IPv4 CIDR such as 10.100.2.32/27, or left out"
	// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || string(cidr(self).masked()) == self",messageExpression="'must be canonical, with no host bits set: did you mean %s?'.format([string(cidr(self).masked())])"
	IPv4 string `json:"ipv4,omitempty"`

	// IPv6 is the CIDR of the block's IPv6 addresses. Oakum fills it in from pool and index. It cannot be changed.
	//
	// +kubebuilder:validation:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",reason=FieldValueForbidden,message="must not change: it follows from pool and index"
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self).ip().family() == 6",message="must be an IPv6 CIDR such as fd00:100::220/123, or left out"
	// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || string(cidr(self).masked()) == self",messageExpression="'must be canonical, with no host bits set: did you mean %s?'.format([string(cidr(self).masked())])"
	IPv6 string `json:"ipv6,omitempty"`

	// Allocations are the addresses of the block that are handed out. Removing an entry gives its address back.
	//
	// +listType=map
	// +listMapKey=offset
	// +kubebuilder:validation:MaxItems=256
	Allocations []Allocation `json:"allocations,omitempty"`

	// Cooling are the addresses that were given back and wait for the pool's cooldown. Oakum computes them, whatever a
	// client writes.
	//
	// +listType=map
	// +listMapKey=offset
	// +kubebuilder:validation:MaxItems=256
	Cooling []Cooling `json:"cooling,omitempty"`
}

// Allocation is one address, or one pair, that is handed out. Nothing of it but attributes.extra can be changed: give the
// address back and take it again. An entry that was written before these rules may lack what is required now.
//
// +kubebuilder:validation:XValidation:rule="has(self.handle) && size(self.handle) > 0",reason=FieldValueRequired,fieldPath=.handle,message="name this hand-out, so that exactly it can be given back"
// +kubebuilder:validation:XValidation:rule="has(self.attributes)",reason=FieldValueRequired,fieldPath=.attributes,message="say whose the address is, or it can never be proven free"
type Allocation struct {
	// Offset counts from the first address of the block, below 2^blockSizeBits of the pool.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=255
	Offset int32 `json:"offset"`

	// Handle is the name of this hand-out: 1 to 253 printable ASCII characters without spaces. Required.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf || size(oldSelf) == 0",reason=FieldValueForbidden,message="must not change while the address is allocated: remove the entry first"
	// +kubebuilder:validation:XValidation:rule="self.matches('^[!-~]*$')",message="must be 1 to 253 printable ASCII characters without spaces"
	Handle string `json:"handle,omitempty"`

	// Attributes say whose the address is. Required.
	Attributes Attributes `json:"attributes,omitzero"`
}

// Attributes say whose an address is.
//
// +kubebuilder:validation:XValidation:rule="has(self.type)",reason=FieldValueRequired,fieldPath=.type,message="one of Pod, Node, VirtualMachine, Service and External"
// +kubebuilder:validation:XValidation:rule="has(self.name)",reason=FieldValueRequired,fieldPath=.name,message="name the owner; for External say what the address is for"
// +kubebuilder:validation:XValidation:rule="has(self.__namespace__) || !has(self.type) || self.type in ['Node', 'External']",reason=FieldValueRequired,fieldPath=.namespace,message="required for type Pod, VirtualMachine and Service"
// +kubebuilder:validation:XValidation:rule="has(self.uid) || !has(self.type) || self.type == 'External'",reason=FieldValueRequired,fieldPath=.uid,message="required for type Pod, Node, VirtualMachine and Service: a name alone is no identity"
// +kubebuilder:validation:XValidation:rule="has(self.node) || !has(self.type) || !(self.type in ['Pod', 'Node'])",reason=FieldValueRequired,fieldPath=.node,message="required for type Pod and Node"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.__namespace__) || (has(self.__namespace__) && self.__namespace__ == oldSelf.__namespace__)",reason=FieldValueForbidden,fieldPath=.namespace,message="must not change while the address is allocated: remove the entry first"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.uid) || (has(self.uid) && self.uid == oldSelf.uid)",reason=FieldValueForbidden,fieldPath=.uid,message="must not change while the address is allocated: remove the entry first"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.node) || (has(self.node) && self.node == oldSelf.node)",reason=FieldValueForbidden,fieldPath=.node,message="must not change while the address is allocated: remove the entry first"
type Attributes struct {
	// Type is the kind of the owner. Required.
	//
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",reason=FieldValueForbidden,message="must not change while the address is allocated: remove the entry first"
	Type OwnerType `json:"type,omitempty"`

	// Namespace is that of a Pod, VirtualMachine or Service. Required for these.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`

	// Name is that of the owner; for External it says what the address is for. Required.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",reason=FieldValueForbidden,message="must not change while the address is allocated: remove the entry first"
	Name string `json:"name,omitempty"`

	// UID is that of the owner. Required for all but External.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	UID types.UID `json:"uid,omitempty"`

	// Node is the block's node, on which a Pod runs, or which is the owner itself. Required for Pod and Node.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`

	// Extra is whatever else the client wants to note. It can be changed at any time.
	//
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 63 && size(self[k]) <= 256)",message="must have keys of at most 63 and values of at most 256 characters"
	Extra map[string]string `json:"extra,omitempty"`
}

// OwnerType is the kind of thing that has an address.
//
// +kubebuilder:validation:Enum=Pod;Node;VirtualMachine;Service;External
type OwnerType string

// The types of owner.
const (
	OwnerPod            OwnerType = "Pod"
	OwnerNode           OwnerType = "Node"
	OwnerVirtualMachine OwnerType = "VirtualMachine"
	OwnerService        OwnerType = "Service"
	// OwnerExternal is a reservation by hand: its entry is never judged, and only whoever wrote it removes it.
	OwnerExternal OwnerType = "External"
)

// Cooling is an address that was given back and may not be handed out yet.
type Cooling struct {
	// Offset counts from the first address of the block.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=255
	Offset int32 `json:"offset"`

	// Until is when the address may be handed out again.
	Until metav1.Time `json:"until"`
}

// AddressBlockStatus is what Oakum observed. A pair of addresses counts once.
type AddressBlockStatus struct {
	// ObservedGeneration is the generation of the spec that this status is about.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration"`

	// Allocated is the number of addresses that are handed out.
	//
	// +optional
	Allocated int32 `json:"allocated"`

	// Free is the number of addresses that could be handed out: not allocated, not reserved, not cooling down.
	//
	// +optional
	Free int32 `json:"free"`
}
