package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// DefaultNetwork is the network of a pool that names none.
const DefaultNetwork = "default"

// AddressPool is a set of address ranges from which nodes take blocks.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=opool
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Blocks",type=integer,JSONPath=`.status.blocks`
// +kubebuilder:printcolumn:name="Allocated",type=integer,JSONPath=`.status.allocated`
// +kubebuilder:printcolumn:name="Capacity",type=integer,JSONPath=`.status.capacity`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Subnets",type=string,JSONPath=`.spec.subnets`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AddressPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Spec   AddressPoolSpec   `json:"spec"`
	Status AddressPoolStatus `json:"status,omitzero"`
}

// AddressPoolList is a list of pools.
//
// +kubebuilder:object:root=true
type AddressPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []AddressPool `json:"items"`
}

// AddressPoolSpec is what an administrator writes.
//
// +kubebuilder:validation:XValidation:rule="oldSelf.hasValue() && self.subnets == oldSelf.value().subnets || !self.subnets.exists(s, has(s.ipv4) && isCIDR(s.ipv4) && cidr(s.ipv4).prefixLength() <= 32 && cidr(s.ipv4).prefixLength() + self.blockSizeBits > 32 || has(s.ipv6) && isCIDR(s.ipv6) && cidr(s.ipv6).prefixLength() + self.blockSizeBits > 128)",optionalOldSelf=true,fieldPath=.subnets,messageExpression="'%s must not be narrower than a block of 2^%d addresses: widen it or lower spec.blockSizeBits'.format([self.subnets.filter(s, has(s.ipv4) && isCIDR(s.ipv4) && cidr(s.ipv4).prefixLength() <= 32 && cidr(s.ipv4).prefixLength() + self.blockSizeBits > 32 || has(s.ipv6) && isCIDR(s.ipv6) && cidr(s.ipv6).prefixLength() + self.blockSizeBits > 128).map(s, has(s.ipv4) ? s.ipv4 : s.ipv6)[0], self.blockSizeBits])"
type AddressPoolSpec struct {
	// Network is the routing domain: pools of one network must not overlap. It cannot be changed.
	//
	// +default="default"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",reason=FieldValueForbidden,messageExpression="'must stay ' + oldSelf + ': create another pool for another network'"
	Network string `json:"network,omitempty"`

	// BlockSizeBits is the size of a block: 2^blockSizeBits addresses, or pairs of an IPv4 and an IPv6 address. It
	// cannot be changed. It is never nil in an object that the API server returned.
	//
	// +default=5
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=8
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",reason=FieldValueForbidden,messageExpression="'must stay %d, since blocks are counted by it: create another pool for another size'.format([oldSelf])"
	BlockSizeBits *int32 `json:"blockSizeBits,omitempty"`

	// Subnets are the addresses of the pool, all of the same families. Blocks are counted across them in their order,
	// so that they can be appended, but neither changed nor removed.
	//
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="size(self) >= size(oldSelf) && oldSelf.all(i, s, self[i] == s)",reason=FieldValueForbidden,messageExpression="'must keep ' + oldSelf.transformList(i, s, !(i < size(self) && self[i] == s), has(s.ipv4) ? s.ipv4 : s.ipv6)[0] + ' in its place: append, never change or remove'"
	// +kubebuilder:validation:XValidation:rule="self.all(s, has(s.ipv4) == has(self[0].ipv4) && has(s.ipv6) == has(self[0].ipv6))",message="must all have the same families: ipv4, ipv6, or both"
	// +kubebuilder:validation:XValidation:rule="self.all(i, s, !has(s.ipv4) || !isCIDR(s.ipv4) || self.all(j, t, j >= i || !has(t.ipv4) || !isCIDR(t.ipv4) || !(cidr(s.ipv4).containsCIDR(t.ipv4) || cidr(t.ipv4).containsCIDR(s.ipv4))))",messageExpression="self.transformList(i, s, has(s.ipv4) && isCIDR(s.ipv4), self.transformList(j, t, j < i && has(t.ipv4) && isCIDR(t.ipv4) && (cidr(s.ipv4).containsCIDR(t.ipv4) || cidr(t.ipv4).containsCIDR(s.ipv4)), '%s must not overlap %s'.format([s.ipv4, t.ipv4]))).filter(l, size(l) > 0)[0][0]"
	// +kubebuilder:validation:XValidation:rule="self.all(i, s, !has(s.ipv6) || !isCIDR(s.ipv6) || self.all(j, t, j >= i || !has(t.ipv6) || !isCIDR(t.ipv6) || !(cidr(s.ipv6).containsCIDR(t.ipv6) || cidr(t.ipv6).containsCIDR(s.ipv6))))",messageExpression="self.transformList(i, s, has(s.ipv6) && isCIDR(s.ipv6), self.transformList(j, t, j < i && has(t.ipv6) && isCIDR(t.ipv6) && (cidr(s.ipv6).containsCIDR(t.ipv6) || cidr(t.ipv6).containsCIDR(s.ipv6)), '%s must not overlap %s'.format([s.ipv6, t.ipv6]))).filter(l, size(l) > 0)[0][0]"
	Subnets []Subnet `json:"subnets"`

	// Reserved addresses are never handed out. An entry is an address, a CIDR or "first-last".
	//
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=79
	// +kubebuilder:validation:items:XValidation:rule="isIP(self) || isCIDR(self) || (self.split('-').size() == 2 && self.split('-').all(a, isIP(a)))",message="must be an address, a CIDR or first-last"
	// +kubebuilder:validation:items:XValidation:rule="!isCIDR(self) || cidr(self) == cidr(self).masked()",messageExpression="'must have no host bits set: did you mean %s?'.format([string(cidr(self).masked())])"
	// +kubebuilder:validation:items:XValidation:rule="!(self.split('-').size() == 2 && self.split('-').all(a, isIP(a))) || ip(self.split('-')[0]).family() == ip(self.split('-')[1]).family()",message="must not mix IPv4 and IPv6"
	Reserved []string `json:"reserved,omitempty"`

	// Cooldown is how long an address that was given back waits before it may be handed out again: 0s or more. It is
	// never nil in an object that the API server returned.
	//
	// +default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]+)?(ms|s|m|h))+$')",message="must be a duration of 0s or more, such as 30s or 1m30s"
	Cooldown *metav1.Duration `json:"cooldown,omitempty"`
}

// Subnet is a range of addresses of one family, or a pair of ranges whose addresses are handed out together.
//
// +kubebuilder:validation:XValidation:rule="has(self.ipv4) || has(self.ipv6)",reason=FieldValueRequired,message="must have ipv4, ipv6 or both"
// +kubebuilder:validation:XValidation:rule="!has(self.ipv4) || !has(self.ipv6) || !isCIDR(self.ipv4) || !isCIDR(self.ipv6) || cidr(self.ipv4).prefixLength() + 96 == cidr(self.ipv6).prefixLength()",fieldPath=.ipv6,messageExpression="'%s must have as many host bits as %s, so that addresses come in pairs: use /%d'.format([self.ipv6, self.ipv4, cidr(self.ipv4).prefixLength() + 96])"
type Subnet struct {
	// IPv4 is a CIDR without host bits, such as 10.100.0.0/16.
	//
	// +kubebuilder:validation:MaxLength=18
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self).ip().family() == 4",message="must be an IPv4 CIDR such as 10.100.0.0/16"
	// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || string(cidr(self).masked()) == self",messageExpression="'must be canonical, with no host bits set: did you mean %s?'.format([string(cidr(self).masked())])"
	IPv4 string `json:"ipv4,omitempty"`

	// IPv6 is a CIDR without host bits, such as fd00:100::/112. Beside IPv4 it has the same number of host bits.
	//
	// +kubebuilder:validation:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self).ip().family() == 6",message="must be an IPv6 CIDR such as fd00:100::/112"
	// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || string(cidr(self).masked()) == self",messageExpression="'must be canonical, with no host bits set: did you mean %s?'.format([string(cidr(self).masked())])"
	IPv6 string `json:"ipv6,omitempty"`
}

// AddressPoolStatus is what Oakum observed. A pair of addresses counts once.
type AddressPoolStatus struct {
	// ObservedGeneration is the generation of the spec that this status is about.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration"`

	// Blocks is the number of blocks that nodes have taken.
	//
	// +optional
	Blocks int64 `json:"blocks"`

	// Capacity is the number of addresses of the pool, reserved ones included.
	//
	// +optional
	Capacity int64 `json:"capacity"`

	// Allocated is the number of addresses that are handed out.
	//
	// +optional
	Allocated int64 `json:"allocated"`

	// Conditions are Ready, Exhausted and Draining.
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
