// Package webhooks is the door: it decodes what is about to be written, asks the law, and answers.
//
// +kubebuilder:webhookconfiguration:mutating=true,name=oakum
// +kubebuilder:webhookconfiguration:mutating=false,name=oakum
package webhooks

import (
	"context"
	"encoding/json"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/ipam"
)

// The paths that the webhook configurations in config/webhook name.
const (
	MutatePoolPath    = "/mutate-ipam-oakum-dev-v1alpha1-addresspool"
	ValidatePoolPath  = "/validate-ipam-oakum-dev-v1alpha1-addresspool"
	MutateBlockPath   = "/mutate-ipam-oakum-dev-v1alpha1-addressblock"
	ValidateBlockPath = "/validate-ipam-oakum-dev-v1alpha1-addressblock"
	MutatePodPath     = "/mutate--v1-pod"
	// ValidateIPPoolPath is that of Whereabouts' pools.
	ValidateIPPoolPath = "/validate-whereabouts-cni-cncf-io-v1alpha1-ippool"
	// ValidateCoilPoolPath and ValidateCoilBlockPath are those of Coil's pools and blocks.
	ValidateCoilPoolPath  = "/validate-coil-cybozu-com-v2-addresspool"
	ValidateCoilBlockPath = "/validate-coil-cybozu-com-v2-addressblock"
	// DeleteCalicoPoolPath is that of the deletion of Calico's pools in the one group in which nothing else holds them.
	DeleteCalicoPoolPath = "/validate-crd-projectcalico-org-v1-ippool-deletion"
)

// ValidatePath is that of a kind which may be there in several groups, as Calico's are.
func ValidatePath(kind schema.GroupVersionKind) string {
	return "/validate-" + strings.ReplaceAll(kind.Group, ".", "-") + "-" + kind.Version + "-" + strings.ToLower(kind.Kind)
}

// Register serves the native webhooks and that of pods. The scheme must know ipam.oakum.dev/v1alpha1.
func Register(server webhook.Server, scheme *runtime.Scheme, pools AddressPool, blocks AddressBlock, pods Pod) {
	server.Register(MutatePodPath, &admission.Webhook{Handler: admission.HandlerFunc(pods.Default)})
	server.Register(MutatePoolPath, &admission.Webhook{Handler: admission.HandlerFunc(pools.Default)})
	server.Register(ValidatePoolPath, admission.WithValidator(scheme, pools))
	server.Register(MutateBlockPath, &admission.Webhook{Handler: bounded{unchanged{admission.HandlerFunc(blocks.Default)}}})
	validate := admission.WithValidator(scheme, blocks)
	validate.Handler = bounded{unchanged{validate.Handler}}
	server.Register(ValidateBlockPath, validate)
}

const (
	// maxEntries is how many allocations a block can have.
	maxEntries = 1 << ipam.MaxBlockSizeBits
	// harmless is a size up to which a block is decoded without counting first.
	harmless = 64 << 10
)

// bounded refuses a block with more allocations than any block has addresses, before anything is decoded deeply:
// mutating webhooks are called before the schema is checked.
type bounded struct{ admission.Handler }

// Handle implements admission.Handler.
func (h bounded) Handle(ctx context.Context, req admission.Request) admission.Response {
	if n := countEntries(req.Object.Raw); n > maxEntries {
		err := apierrors.NewInvalid(schema.GroupKind{Group: v1alpha1.Group, Kind: "AddressBlock"}, req.Name, field.ErrorList{
			field.TooMany(field.NewPath("spec", "allocations"), n, maxEntries),
		})
		status := err.Status()
		return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Result: &status}}
	}
	return h.Handler.Handle(ctx, req)
}

// countEntries returns how many allocations a block has, without keeping any of them; 0 where that does not matter or
// cannot be told.
func countEntries(raw []byte) int {
	if len(raw) <= harmless {
		return 0
	}
	var shape struct {
		Spec struct {
			Allocations []struct{} `json:"allocations"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(raw, &shape); err != nil {
		return 0
	}
	return len(shape.Spec.Allocations)
}
