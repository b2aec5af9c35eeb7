// Package v1alpha1 is the native API: pools of addresses, the blocks that nodes take from them, and the words that
// Oakum's conditions, events and finalizers use.
//
// The markers on the types become the schema of the custom resource definitions. It refuses what one object and its
// predecessor can tell, so that this much holds while no Oakum runs. A rule sits as deep in the object as it can: the API
// server forgives what an update leaves unchanged, and the deeper the rule, the less counts as changed. It does not
// forgive rules that compare with the old object (oldSelf), so these pass over fields that the old object lacks.
//
// +kubebuilder:object:generate=true
// +groupName=ipam.oakum.dev
package v1alpha1
