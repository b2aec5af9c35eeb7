package webhooks

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

// serve posts a body to one of the webhooks, as the API server does.
func (d *door) serve(t testing.TB, path string, body []byte) *admissionv1.AdmissionResponse {
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	d.hooks[path].ServeHTTP(w, r)
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &review); err != nil || review.Response == nil {
		t.Fatalf("%s answers %q to %.200q: %v", path, w.Body, body, err)
	}
	return review.Response
}

// review is the body that the API server sends about a write.
func review(t testing.TB, verb admissionv1.Operation, old, object kruntime.Object) []byte {
	request := &admissionv1.AdmissionRequest{UID: "r1", Name: "p-0", Operation: verb}
	for into, o := range map[*kruntime.RawExtension]kruntime.Object{&request.OldObject: old, &request.Object: object} {
		if o == nil {
			continue
		}
		raw, err := json.Marshal(o)
		check(t, err)
		into.Raw = raw
	}
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: request,
	})
	check(t, err)
	return body
}

func TestRegister(t *testing.T) {
	want := []string{
		"/mutate--v1-pod",
		"/mutate-ipam-oakum-dev-v1alpha1-addressblock", "/mutate-ipam-oakum-dev-v1alpha1-addresspool",
		"/validate-ipam-oakum-dev-v1alpha1-addressblock", "/validate-ipam-oakum-dev-v1alpha1-addresspool",
	}
	expect(t, "paths", want, slices.Sorted(maps.Keys(newDoor(t, enforce()).hooks)))
}

// A block with more entries than any block has addresses is refused before they are decoded: beside what it takes to
// read the review, which is a few times its length and not ours to change, that needs no memory. The limit in time is for
// a machine that reads the review in less; with the race detector, or on a busy one, it is twice that.
func TestABlockWithTenThousandEntriesIsRefusedAtOnce(t *testing.T) {
	b := block(0, "n1", "b0")
	for i := range int32(10_000) {
		fixture.Entry(i, fmt.Sprintf("router-%d", i), fixture.External("router"))(b)
	}
	body := review(t, admissionv1.Create, nil, b)
	d := newDoor(t, enforce(), both(node("n1-uid")), both(pool()))
	d.hooks["/read"] = &admission.Webhook{Handler: admission.HandlerFunc(func(context.Context, admission.Request) admission.Response {
		return admission.Allowed("")
	})}
	const why = "spec.allocations: Too many: 10000: must have at most 256 items"
	for _, path := range []string{MutateBlockPath, ValidateBlockPath} {
		t.Run(path, func(t *testing.T) {
			response := d.serve(t, path, body)
			want := metav1.Status{
				Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
				Message: `AddressBlock.ipam.oakum.dev "p-0" is invalid: ` + why,
				Details: &metav1.StatusDetails{Group: "ipam.oakum.dev", Kind: "AddressBlock", Name: "p-0", Causes: []metav1.StatusCause{
					{Type: metav1.CauseType(field.ErrorTypeTooMany), Field: "spec.allocations", Message: "Too many: 10000: must have at most 256 items"},
				}},
			}
			expect(t, "status", want, *response.Result)
			expect(t, "writes", nil, d.writes)

			d.compare(t, path, body)
		})
	}
}

// compare lets the webhooks at a path and at /read answer in turn, until that at the path has been fast enough once.
func (d *door) compare(t *testing.T, path string, body []byte) {
	const tries, limit = 40, 50 * time.Millisecond
	reading, refusing := cost{time: time.Hour}, cost{time: time.Hour}
	for range tries {
		reading, refusing = reading.least(d.cost(t, "/read", body)), refusing.least(d.cost(t, path, body))
		if refusing.time < max(limit, 2*reading.time) {
			break
		}
	}
	if refusing.time >= max(limit, 2*reading.time) {
		t.Errorf("it takes %s, where reading the review takes %s", refusing.time, reading.time)
	}
	if refusing.bytes > reading.bytes+reading.bytes/10 {
		t.Errorf("it takes %d bytes, where reading the review takes %d", refusing.bytes, reading.bytes)
	}
	if refusing.held > 1<<20 {
		t.Errorf("%d bytes are held after it", refusing.held)
	}
}

// cost is what an answer takes and allocates, and by how much the heap has grown after it.
type cost struct {
	time        time.Duration
	bytes, held int64
}

// least returns the smaller time, with the other costs of the later answer.
func (c cost) least(later cost) cost {
	later.time = min(c.time, later.time)
	return later
}

func (d *door) cost(t *testing.T, path string, body []byte) cost {
	var before, after, settled runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := time.Now()
	d.serve(t, path, body)
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	runtime.GC()
	runtime.ReadMemStats(&settled)
	return cost{took, int64(after.TotalAlloc - before.TotalAlloc), int64(settled.HeapAlloc) - int64(before.HeapAlloc)}
}

func TestWhatIsNoReviewIsABadRequest(t *testing.T) {
	const header = `"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"`
	d := newDoor(t, enforce())
	for name, body := range map[string]string{
		"nothing":                         ``,
		"half an object":                  `{`,
		"a null":                          `null`,
		"a list":                          `[]`,
		"a number":                        `7`,
		"text":                            `AdmissionReview`,
		"another kind":                    `{"kind":"Pod","apiVersion":"v1"}`,
		"another version":                 `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v9","request":{}}`,
		"a review without a request":      `{` + header + `}`,
		"a review of null":                `{` + header + `,"request":null}`,
		"a review of an unknown verb":     `{` + header + `,"request":{"uid":"r1","operation":"PATCH"}}`,
		"a creation of nothing":           `{` + header + `,"request":{"uid":"r1","operation":"CREATE"}}`,
		"a creation of a list":            `{` + header + `,"request":{"uid":"r1","operation":"CREATE","object":[]}}`,
		"a creation of something else":    `{` + header + `,"request":{"uid":"r1","operation":"CREATE","object":{"kind":"AddressBlock","apiVersion":"ipam.oakum.dev/v1alpha1","spec":{"allocations":7,"subnets":7}}}}`,
		"an update of nothing":            `{` + header + `,"request":{"uid":"r1","operation":"UPDATE"}}`,
		"an update without an old object": `{` + header + `,"request":{"uid":"r1","operation":"UPDATE","object":{"kind":"AddressBlock","apiVersion":"ipam.oakum.dev/v1alpha1","spec":{"subnets":7}}}}`,
	} {
		for _, path := range []string{MutatePoolPath, ValidatePoolPath, MutateBlockPath, ValidateBlockPath} {
			t.Run(name+" to "+path, func(t *testing.T) {
				if got := d.serve(t, path, []byte(body)); got.Allowed || got.Result.Code != http.StatusBadRequest {
					t.Errorf("the answer is %t, %+v", got.Allowed, got.Result)
				}
			})
		}
	}
}

// FuzzAdmissionReview holds each webhook to its form: whatever it is sent, it answers, with a code, and without a panic.
// What is inserted into the review may well break it.
func FuzzAdmissionReview(f *testing.F) {
	text := func(o client.Object) string {
		raw, err := json.Marshal(o)
		check(f, err)
		return string(raw)
	}
	full := text(block(0, "n1", "b0", cooling(3, time.Hour),
		fixture.Entry(1, "h1", fixture.OfPod(pod("web-0", "n1", "u1"))), fixture.Entry(2, "h2", fixture.OfNode(node("n1-uid")))))
	for _, seed := range []struct{ verb, old, object string }{
		{"CREATE", "null", full},
		{"CREATE", "null", text(block(1, "n9", "b1", subnet("10.0.0.0/33")))},
		{"CREATE", "null", `{"spec":{"index":-1,"pool":"p","node":"n1"}}`},
		{"UPDATE", text(block(0, "n1", "b0")), full},
		{"UPDATE", full, text(block(0, "n1", "b0", fixture.Entry(300, "", v1alpha1.Attributes{})))},
		{"UPDATE", `{}`, `{"spec":{"allocations":[null],"cooling":[{}]}}`},
		{"DELETE", full, "null"},
		{"CREATE", "null", text(pool(fixture.Reserved("10.0.0.1-10.0.0.9", "::", "x"), fixture.BlockSize(9)))},
		{"UPDATE", text(pool()), text(fixture.Pool("p", fixture.Subnet("fd00::/120", "10.0.0.0/24"), fixture.BlockSize(-1)))},
		{"DELETE", text(pool()), "null"},
		{"CONNECT", "", "{"},
		{`"`, "", `}}`},
	} {
		f.Add(seed.verb, seed.old, seed.object)
	}
	objects := []known{both(node("n1-uid")), both(pool()), both(pod("web-0", "n1", "u1"))}
	doors := []*door{newDoor(f, enforce(), objects...), newDoor(f, config.Backend{Mode: config.ModeWarn}, objects...)}
	f.Fuzz(func(t *testing.T, verb, old, object string) {
		body := `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"r1","operation":"` + verb + `","oldObject":` + old + `,"object":` + object + `}}`
		for _, d := range doors {
			for path := range d.hooks {
				got := d.serve(t, path, []byte(body))
				switch {
				case got.Result == nil || got.Result.Code < http.StatusOK, got.Allowed != (got.Result.Code == http.StatusOK):
					t.Errorf("%s answers %t, %+v to %q", path, got.Allowed, got.Result, body)
				case strings.HasPrefix(got.Result.Message, "panic"):
					t.Errorf("%s panics over %q: %s", path, body, got.Result.Message)
				}
				d.heard()
				d.writes = nil
			}
		}
	})
}

func TestValidatePath(t *testing.T) {
	expect(t, "path", "/validate-crd-projectcalico-org-v1-ippool", ValidatePath(schema.GroupVersionKind{Group: "crd.projectcalico.org", Version: "v1", Kind: "IPPool"}))
}
