package whereabouts

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// The groups and versions of the types in this package.
var (
	GroupVersion           = schema.GroupVersion{Group: "whereabouts.cni.cncf.io", Version: "v1alpha1"} //nolint:gochecknoglobals // a struct cannot be a constant
	AttachmentGroupVersion = schema.GroupVersion{Group: "k8s.cni.cncf.io", Version: "v1"}               //nolint:gochecknoglobals // a struct cannot be a constant
)

// AddToScheme teaches a scheme the types of this package. It never fails; the error makes it fit where clients collect
// such functions.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&IPPool{}, &IPPoolList{},
		&OverlappingRangeIPReservation{}, &OverlappingRangeIPReservationList{},
		&NodeSlicePool{}, &NodeSlicePoolList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	scheme.AddKnownTypes(AttachmentGroupVersion, &NetworkAttachmentDefinition{}, &NetworkAttachmentDefinitionList{})
	metav1.AddToGroupVersion(scheme, AttachmentGroupVersion)
	return nil
}

// IPPool records who has which address of a range. Like all types here it has only the fields that are read, so an
// object must not be written back.
//
// +kubebuilder:object:root=true
type IPPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Spec IPPoolSpec `json:"spec"`
}

// IPPoolSpec is what an IPPool says.
//
// +kubebuilder:object:generate=true
type IPPoolSpec struct {
	// Range is a CIDR.
	Range string `json:"range"`
	// Allocations are the entries, by how many addresses after the first of the range theirs is, in decimal.
	Allocations map[string]Entry `json:"allocations"`
}

// Entry says who has an address.
type Entry struct {
	// ID is the container id of the sandbox; in an entry that Repair made, the pod's UID.
	ID string `json:"id"`
	// PodRef is the pod's namespace/name.
	PodRef string `json:"podref"`
	// IfName is the interface's name in the pod; empty if an older release wrote the entry.
	IfName string `json:"ifname,omitempty"`
}

// IPPoolList is a list of IPPools.
//
// +kubebuilder:object:root=true
type IPPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []IPPool `json:"items"`
}

// OverlappingRangeIPReservation reserves an address in all ranges of a network. Its name tells which.
//
// +kubebuilder:object:root=true
type OverlappingRangeIPReservation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Spec ReservationSpec `json:"spec"`
}

// ReservationSpec is what an OverlappingRangeIPReservation says.
type ReservationSpec struct {
	// PodRef is the pod's namespace/name.
	PodRef string `json:"podref"`
	// IfName is the interface's name in the pod; empty if an older release wrote the reservation.
	IfName string `json:"ifname,omitempty"`
}

// OverlappingRangeIPReservationList is a list of reservations.
//
// +kubebuilder:object:root=true
type OverlappingRangeIPReservationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []OverlappingRangeIPReservation `json:"items"`
}

// NodeSlicePool cuts a range into slices and gives them to nodes. Each slice has an IPPool of its own.
//
// +kubebuilder:object:root=true
type NodeSlicePool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Status NodeSlicePoolStatus `json:"status,omitzero"`
}

// NodeSlicePoolStatus is who has which slice.
//
// +kubebuilder:object:generate=true
type NodeSlicePoolStatus struct {
	Allocations []NodeSlice `json:"allocations"`
}

// NodeSlice is a slice and the node that has it.
type NodeSlice struct {
	// NodeName is empty if no node has the slice.
	NodeName string `json:"nodeName"`
	// SliceRange is a CIDR.
	SliceRange string `json:"sliceRange"`
}

// NodeSlicePoolList is a list of NodeSlicePools.
//
// +kubebuilder:object:root=true
type NodeSlicePoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []NodeSlicePool `json:"items"`
}

// NetworkAttachmentDefinition configures a network that pods can ask for.
//
// +kubebuilder:object:root=true
type NetworkAttachmentDefinition struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Spec AttachmentSpec `json:"spec,omitzero"`
}

// AttachmentSpec is what a NetworkAttachmentDefinition says.
type AttachmentSpec struct {
	// Config is a CNI configuration, or a list of them, in JSON.
	Config string `json:"config,omitempty"`
}

// NetworkAttachmentDefinitionList is a list of NetworkAttachmentDefinitions.
//
// +kubebuilder:object:root=true
type NetworkAttachmentDefinitionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []NetworkAttachmentDefinition `json:"items"`
}

// Pods returns the pods that the entries of a pool name, each once and in order; entries whose podref cannot be read
// name none.
func Pods(pool *IPPool) []types.NamespacedName {
	var pods []types.NamespacedName
	for _, ref := range podRefs(pool) {
		if pod, ok := podOf(ref); ok {
			pods = append(pods, pod)
		}
	}
	return pods
}

// podRefs returns the different podrefs of a pool's entries, in order.
func podRefs(pool *IPPool) []string {
	refs := make([]string, 0, len(pool.Spec.Allocations))
	for _, e := range pool.Spec.Allocations {
		refs = append(refs, e.PodRef)
	}
	slices.Sort(refs)
	return slices.Compact(refs)
}
