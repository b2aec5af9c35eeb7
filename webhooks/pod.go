package webhooks

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"gomodules.xyz/jsonpatch/v2"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
)

// Pod puts our finalizer on pods when they are created, on behalf of backends whose plugin gives a pod its address without
// our knowledge. It never refuses a pod.
type Pod struct {
	// All: every pod with a network of its own has an address of such a backend.
	All bool
	// Named: pods that name networks for Multus may have.
	Named bool
	// ExcludedNamespaces are those whose pods are never held.
	ExcludedNamespaces []string
}

// Default answers with the patch that puts the finalizer on.
func (p Pod) Default(_ context.Context, req admission.Request) admission.Response {
	var pod corev1.Pod
	if err := json.Unmarshal(req.Object.Raw, &pod); err != nil {
		return admission.Allowed("").WithWarnings(notJudged(fmt.Errorf("reading the pod: %w", err))...)
	}
	if !p.holds(pod, req.Namespace) {
		return admission.Allowed("")
	}
	op := jsonpatch.NewOperation("add", "/metadata/finalizers", []string{v1alpha1.AddressesFinalizer})
	if len(pod.Finalizers) > 0 {
		op = jsonpatch.NewOperation("add", "/metadata/finalizers/-", v1alpha1.AddressesFinalizer)
	}
	return admission.Patched("", op)
}

func (p Pod) holds(pod corev1.Pod, namespace string) bool {
	switch {
	case pod.Spec.HostNetwork, pod.Annotations[corev1.MirrorPodAnnotationKey] != "":
		return false
	case slices.Contains(p.ExcludedNamespaces, namespace), slices.Contains(pod.Finalizers, v1alpha1.AddressesFinalizer):
		return false
	}
	return p.All || p.Named && (pod.Annotations[networksAnnotation] != "" || pod.Annotations[defaultNetworkAnnotation] != "")
}

// The annotations in which a pod names its networks for Multus.
const (
	networksAnnotation       = "k8s.v1.cni.cncf.io/networks"
	defaultNetworkAnnotation = "v1.multus-cni.io/default-network"
)
