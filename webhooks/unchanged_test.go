package webhooks

import (
	"context"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

func TestOnlyWhatChangesReachesTheHandler(t *testing.T) {
	tests := map[string]struct {
		old, next         string
		wantOld, wantNext string
	}{
		"an entry that comes, beside one that stays": {
			old:      `{"metadata":{"name":"p-0"},"spec":{"allocations":[{"handle":"h1","offset":1}],"pool":"p"}}`,
			next:     `{"metadata":{"name":"p-0"},"spec":{"allocations":[{"handle":"h1","offset":1},{"handle":"h2","offset":2}],"pool":"p"}}`,
			wantOld:  `{"metadata":{"name":"p-0"},"spec":{"allocations":[{"offset":1}],"pool":"p"}}`,
			wantNext: `{"metadata":{"name":"p-0"},"spec":{"allocations":[{"offset":1},{"handle":"h2","offset":2}],"pool":"p"}}`,
		},
		"one that goes, from before another": {
			old:      `{"spec":{"allocations":[{"offset":1,"handle":"h1"},{"offset":2,"attributes":{"offset":"x"}}]}}`,
			next:     `{"spec":{"allocations":[{"offset":2,"attributes":{"offset":"x"}}]}}`,
			wantOld:  `{"spec":{"allocations":[{"offset":1,"handle":"h1"},{"offset":2}]}}`,
			wantNext: `{"spec":{"allocations":[{"offset":2}]}}`,
		},
		"one that becomes another": {
			old:      `{"spec":{"allocations":[{"offset":1,"handle":"h1"}]}}`,
			next:     `{"spec":{"allocations":[{"offset":1,"handle":"h2"}]}}`,
			wantOld:  `{"spec":{"allocations":[{"offset":1,"handle":"h1"}]}}`,
			wantNext: `{"spec":{"allocations":[{"offset":1,"handle":"h2"}]}}`,
		},
		"space, escapes, and names that stand in texts or elsewhere": {
			old:      `{ "a" : "\"spec\":{\\", "allocations" : [ { "offset" : 9 } ], "spec" : { "x" : [ { "allocations" : [] } , 1.5e3 , null ] , "allocations" : [ { "handle" : "]},{\\\"" , "offset" : 1 } ] } }`,
			next:     `{ "spec" : { "allocations" : [ { "handle" : "]},{\\\"" , "offset" : 1 } , { "handle" : "h" } ] } }`,
			wantOld:  `{ "a" : "\"spec\":{\\", "allocations" : [ { "offset" : 9 } ], "spec" : { "x" : [ { "allocations" : [] } , 1.5e3 , null ] , "allocations" : [ {"offset":1} ] } }`,
			wantNext: `{ "spec" : { "allocations" : [ {"offset":1} , { "handle" : "h" } ] } }`,
		},
		"an entry without an offset stays whole": {
			old:      `{"spec":{"allocations":[{"handle":"h"},{"offset":null},{"offset":"1"},7,"offset"]}}`,
			next:     `{"spec":{"allocations":[{"handle":"h"},{"offset":null},{"offset":"1"},7,"offset"]}}`,
			wantOld:  `{"spec":{"allocations":[{"handle":"h"},{"offset":null},{"offset":"1"},7,"offset"]}}`,
			wantNext: `{"spec":{"allocations":[{"handle":"h"},{"offset":null},{"offset":"1"},7,"offset"]}}`,
		},
		"no allocations at all": {old: `{"spec":{}}`, next: `{"spec":{"allocations":[]}}`, wantOld: `{"spec":{}}`, wantNext: `{"spec":{"allocations":[]}}`},
		"no block at all":       {old: `[]`, next: `{"spec":{"allocations":[{"offset":1}`, wantOld: `[]`, wantNext: `{"spec":{"allocations":[{"offset":1}`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got admission.Request
			h := unchanged{admission.HandlerFunc(func(_ context.Context, req admission.Request) admission.Response {
				got = req
				return admission.Response{}
			})}
			req := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Operation: admissionv1.Update}}
			req.OldObject.Raw, req.Object.Raw = []byte(tt.old), []byte(tt.next)
			h.Handle(t.Context(), req)
			expect(t, "old object", tt.wantOld, string(got.OldObject.Raw))
			expect(t, "object", tt.wantNext, string(got.Object.Raw))
		})
	}
}
