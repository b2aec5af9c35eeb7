package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// Group is the API group of the native kinds.
	Group = "ipam.oakum.dev"
	// Version is the version of the types in this package.
	Version = "v1alpha1"
)

// SchemeGroupVersion is the group and version of the types in this package.
var SchemeGroupVersion = schema.GroupVersion{Group: Group, Version: Version} //nolint:gochecknoglobals // a struct cannot be a constant

// AddToScheme teaches a scheme the types of this package. It never fails; the error makes it fit where clients collect
// such functions.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion,
		&AddressPool{}, &AddressPoolList{},
		&AddressBlock{}, &AddressBlockList{},
		&LeakReport{}, &LeakReportList{},
	)
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion)
	return nil
}
