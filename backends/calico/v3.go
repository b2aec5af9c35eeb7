package calico

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A scheme tells an object's group by its Go type, so the types of group projectcalico.org are types of their own. They
// have the same fields, so that one can be had as the other without a copy.

// IPAMBlockV3 is an IPAMBlock of group projectcalico.org.
//
// +kubebuilder:object:root=true
type IPAMBlockV3 IPAMBlock

// IPAMBlockV3List is a list of IPAMBlocks of group projectcalico.org.
//
// +kubebuilder:object:root=true
type IPAMBlockV3List IPAMBlockList

// IPAMHandleV3 is an IPAMHandle of group projectcalico.org.
//
// +kubebuilder:object:root=true
type IPAMHandleV3 IPAMHandle

// IPAMHandleV3List is a list of IPAMHandles of group projectcalico.org.
//
// +kubebuilder:object:root=true
type IPAMHandleV3List IPAMHandleList

// BlockAffinityV3 is a BlockAffinity of group projectcalico.org.
//
// +kubebuilder:object:root=true
type BlockAffinityV3 BlockAffinity

// BlockAffinityV3List is a list of BlockAffinities of group projectcalico.org.
//
// +kubebuilder:object:root=true
type BlockAffinityV3List BlockAffinityList

// IPPoolV3 is an IPPool of group projectcalico.org.
//
// +kubebuilder:object:root=true
type IPPoolV3 IPPool

// IPPoolV3List is a list of IPPools of group projectcalico.org.
//
// +kubebuilder:object:root=true
type IPPoolV3List IPPoolList

// IPReservationV3 is an IPReservation of group projectcalico.org.
//
// +kubebuilder:object:root=true
type IPReservationV3 IPReservation

// IPReservationV3List is a list of IPReservations of group projectcalico.org.
//
// +kubebuilder:object:root=true
type IPReservationV3List IPReservationList

// IPAMConfiguration is what IPAMConfig is called in group projectcalico.org.
//
// +kubebuilder:object:root=true
type IPAMConfiguration IPAMConfig

// object returns an object of group V1 as what the served group takes it for, in the same memory.
func object(served schema.GroupVersion, o client.Object) client.Object {
	if served != V3 {
		return o
	}
	switch o := o.(type) {
	case *IPAMBlock:
		return (*IPAMBlockV3)(o)
	case *IPAMHandle:
		return (*IPAMHandleV3)(o)
	case *BlockAffinity:
		return (*BlockAffinityV3)(o)
	case *IPPool:
		return (*IPPoolV3)(o)
	case *IPAMConfig:
		return (*IPAMConfiguration)(o)
	}
	return o
}

// list does as object does for lists.
func list(served schema.GroupVersion, l client.ObjectList) client.ObjectList {
	if served != V3 {
		return l
	}
	switch l := l.(type) {
	case *IPAMBlockList:
		return (*IPAMBlockV3List)(l)
	case *IPAMHandleList:
		return (*IPAMHandleV3List)(l)
	case *BlockAffinityList:
		return (*BlockAffinityV3List)(l)
	case *IPPoolList:
		return (*IPPoolV3List)(l)
	case *IPReservationList:
		return (*IPReservationV3List)(l)
	}
	return l
}
