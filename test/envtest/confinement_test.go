package envtest

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestOakumTakesItsFinalizersOff(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "oakum")
	oakum := s.connect(s.Oakum())
	for _, h := range s.hold() {
		ways := strips(s)
		delete(ways, "update") // It may only patch.
		if h.core {
			ways["strategic merge patch"] = coreStrips()["strategic merge patch"]
		}
		for how, strip := range ways {
			t.Run(h.resource+": "+how, func(t *testing.T) {
				s.in(t).wants(answer{}, strip(t.Context(), oakum, h))
			})
		}
	}
}

func TestConfinement(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "confined")
	node := s.node(s.name)
	pod := s.pod(s.name, node.Name)
	s.bind(s.name, "cluster-admin")
	const (
		image  = `[{"op":"replace","path":"/spec/containers/0/image","value":"example.org/app:2"}]`
		cordon = `[{"op":"add","path":"/spec/unschedulable","value":true}]`
		label  = `[{"op":"add","path":"/metadata/labels","value":{"seen":"yes"}}]`
		noSpec = "Oakum must not change the spec of a Pod or Node"
	)
	for name, tt := range map[string]struct {
		user   client.Client
		object client.Object
		patch  string
		// refused is the resource; empty if the write is admitted.
		refused string
	}{
		"Oakum may not change a pod's image":       {s.connect(s.Oakum()), pod, image, "pods"},
		"Oakum may not cordon a node":              {s.connect(s.Oakum()), node, cordon, "nodes"},
		"Oakum may change a pod's labels":          {s.connect(s.Oakum()), pod, label, ""},
		"Oakum may change a node's labels":         {s.connect(s.Oakum()), node, label, ""},
		"a cluster-admin may change a pod's image": {s.connect(s.As(s.name, nil)), pod, image, ""},
		"a cluster-admin may cordon a node":        {s.connect(s.As(s.name, nil)), node, cordon, ""},
		"system:masters may change a pod's image":  {s.client, pod, image, ""},
		"system:masters may cordon a node":         {s.client, node, cordon, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var want answer
			if tt.refused != "" {
				want = answer{
					Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
					Message: tt.refused + ` "NAME" is forbidden: ` + byPolicy("confinement") + noSpec,
				}
			}
			object := tt.object.DeepCopyObject().(client.Object)
			s.in(t).wants(want, tt.user.Patch(t.Context(), object, client.RawPatch(types.JSONPatchType, []byte(tt.patch)), client.DryRunAll))
		})
	}
}

// A mutating webhook of somebody else's writes into every update, and so into the patch that takes our finalizer off.
// Comparing more than the spec would then hold the object for ever.
func TestOakumTakesItsFinalizersOffBesideAnotherWebhook(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "beside")
	s.meddle()
	for _, h := range s.hold() {
		if !h.core {
			continue
		}
		t.Run(h.resource, func(t *testing.T) {
			s := s.in(t)
			s.patch(h.object, types.MergePatchType, `{"metadata":{"labels":{"scene":"`+s.name+`"}}}`)
			last := func() string { return h.object.GetLabels()["request"] }
			eventually(t, func() error {
				s.patch(h.object, types.MergePatchType, `{"metadata":{"annotations":{"a":"b"}}}`)
				if last() == "" {
					return errors.New("the other webhook is not called yet")
				}
				return nil
			})
			before := last()
			strip := client.RawPatch(types.StrategicMergePatchType, fmt.Appendf(nil, `{"metadata":{"uid":%q,"$deleteFromPrimitiveList/finalizers":[%q]}}`, h.object.GetUID(), h.finalizer))
			s.wants(answer{}, s.connect(s.Oakum()).Patch(t.Context(), h.object, strip, client.DryRunAll))
			if diff := gocmp.Diff([]string(nil), h.object.GetFinalizers()); diff != "" {
				t.Errorf("finalizers (-want +got):\n%s", diff)
			}
			if last() == before || h.object.GetAnnotations()["request"] != last() {
				t.Error("the other webhook has not written into the patch")
			}
		})
	}
}

// meddle starts a webhook that writes labels and an annotation into every update of a pod or node of the scene, some of
// them anew each time.
func (s *scene) meddle() {
	s.t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		var object metav1.PartialObjectMetadata
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err := json.Unmarshal(review.Request.Object.Raw, &object); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		// The object has labels, or the webhook would not be called.
		patch := fmt.Sprintf(`{"op":"add","path":"/metadata/labels/meddled","value":"yes"},`+
			`{"op":"add","path":"/metadata/labels/request","value":%[1]q},{"op":"add","path":"/metadata/annotations/request","value":%[1]q}`, review.Request.UID)
		if object.Annotations == nil {
			patch = `{"op":"add","path":"/metadata/annotations","value":{}},` + patch
		}
		review.Response = &admissionv1.AdmissionResponse{
			UID: review.Request.UID, Allowed: true,
			Patch: []byte("[" + patch + "]"), PatchType: ptr.To(admissionv1.PatchTypeJSONPatch),
		}
		review.Request = nil
		if err := json.NewEncoder(w).Encode(review); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}))
	s.t.Cleanup(server.Close)
	config := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: s.name},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "meddle.example.org",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL:      &server.URL,
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{corev1.GroupName}, APIVersions: []string{"v1"}, Resources: []string{"pods", "nodes"},
				},
			}},
			ObjectSelector:          &metav1.LabelSelector{MatchLabels: map[string]string{"scene": s.name}},
			FailurePolicy:           ptr.To(admissionregistrationv1.Fail),
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
		}},
	}
	s.create(config)
	s.t.Cleanup(func() {
		if err := s.client.Delete(context.Background(), config); err != nil {
			s.t.Error(err)
		}
	})
}
