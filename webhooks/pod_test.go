package webhooks

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

func TestPodsAreHeldFromTheirCreation(t *testing.T) {
	annotated := func(key, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations = map[string]string{key: value} }
	}
	with := func(finalizers ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Finalizers = finalizers }
	}
	inHostNetwork := func(p *corev1.Pod) { p.Spec.HostNetwork = true }
	multus, all := Pod{Named: true, ExcludedNamespaces: []string{"kube-system"}}, Pod{All: true, ExcludedNamespaces: []string{"kube-system"}}
	first := []jsonpatch.Operation{jsonpatch.NewOperation("add", "/metadata/finalizers", []string{v1alpha1.AddressesFinalizer})}
	another := []jsonpatch.Operation{jsonpatch.NewOperation("add", "/metadata/finalizers/-", v1alpha1.AddressesFinalizer)}
	tests := map[string]struct {
		handler   Pod
		namespace string
		pod       []func(*corev1.Pod)
		want      []jsonpatch.Operation
	}{
		"a pod that names networks":                               {multus, "default", []func(*corev1.Pod){annotated("k8s.v1.cni.cncf.io/networks", "net1")}, first},
		"a pod that names its default network":                    {multus, "default", []func(*corev1.Pod){annotated("v1.multus-cni.io/default-network", "net0")}, first},
		"a pod that names networks that nobody guards":            {Pod{}, "default", []func(*corev1.Pod){annotated("k8s.v1.cni.cncf.io/networks", "net1")}, nil},
		"a pod that names none":                                   {multus, "default", nil, nil},
		"any pod where the default network is served":             {all, "default", nil, first},
		"a pod that has a finalizer keeps it":                     {all, "default", []func(*corev1.Pod){with("example.org/guard")}, another},
		"a pod that has ours has it once":                         {all, "default", []func(*corev1.Pod){with(v1alpha1.AddressesFinalizer)}, nil},
		"a pod in its node's network has no address":              {all, "default", []func(*corev1.Pod){inHostNetwork}, nil},
		"a mirror pod cannot be held":                             {all, "default", []func(*corev1.Pod){annotated(corev1.MirrorPodAnnotationKey, "static")}, nil},
		"a pod in an excluded namespace, which its request tells": {all, "kube-system", nil, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			pod := fixture.Pod("web-0", "", tt.pod...)
			pod.Namespace = ""
			raw, err := json.Marshal(pod)
			if err != nil {
				t.Fatal(err)
			}
			answer := tt.handler.Default(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
				Namespace: tt.namespace, Object: runtime.RawExtension{Raw: raw},
			}})
			if diff := cmp.Diff(tt.want, answer.Patches); diff != "" || !answer.Allowed {
				t.Errorf("allowed: %t; patches (-want +got):\n%s", answer.Allowed, diff)
			}
		})
	}
}

func TestAPodThatCannotBeReadIsAdmitted(t *testing.T) {
	answer := Pod{All: true}.Default(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Object: runtime.RawExtension{Raw: []byte(`{"metadata":3}`)},
	}})
	if !answer.Allowed || len(answer.Patches) != 0 || len(answer.Warnings) != 1 {
		t.Errorf("the answer is %+v, want an admission with one warning", answer)
	}
}
