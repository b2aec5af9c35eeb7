package foreign_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/oakum-dev/oakum/backends/foreign"
)

// streams returns a client of a server that answers everything with that, and what the server was asked.
func streams(t *testing.T, code int, answer string) (c *foreign.Streams, asked *[]string) {
	t.Helper()
	asked = &[]string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked = append(*asked, r.URL.String())
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprint(w, answer)
	}))
	t.Cleanup(server.Close)
	pod := &corev1.Pod{}
	pod.Name = "cached"
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(coordinationv1.SchemeGroupVersion.WithKind("Lease"), meta.RESTScopeNamespace)
	other := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithRESTMapper(mapper).WithObjects(pod).Build()
	c, err := foreign.NewStreams(other, &rest.Config{Host: server.URL}, coordinationv1.GroupName)
	if err != nil {
		t.Fatal(err)
	}
	return c, asked
}

func TestStreams(t *testing.T) {
	tests := map[string]struct {
		code    int
		answer  string
		want    []string
		wantErr string
	}{
		"every item, and the list's revision": {
			code:   http.StatusOK,
			answer: `{"kind":"LeaseList","items":[{"metadata":{"name":"a","managedFields":[{"manager":"m"}]},"spec":{"holderIdentity":"x"}},{"metadata":{"name":"b"}}],"metadata":{"resourceVersion":"7"}}`,
			want:   []string{"7", "a of x", "b of nobody"},
		},
		"no items":              {code: http.StatusOK, answer: `{"metadata":{"resourceVersion":"7"},"items":[]}`, want: []string{"7"}},
		"items that are null":   {code: http.StatusOK, answer: `{"metadata":{"resourceVersion":"7"},"items":null}`, want: []string{"7"}},
		"a torn list":           {code: http.StatusOK, answer: `{"items":[{"metadata":{"name":"a"}},`, wantErr: "decoding a list: unexpected EOF"},
		"a list without an end": {code: http.StatusOK, answer: `{"items":[{"metadata":{"name":"a"}}]`, wantErr: "decoding a list: unexpected EOF"},
		"nothing":               {code: http.StatusOK, wantErr: "decoding a list: unexpected EOF"},
		"something else":        {code: http.StatusOK, answer: `[]`, wantErr: "decoding a list: [ stands where { should"},
		"a refusal": {
			code:    http.StatusForbidden,
			answer:  `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"leases are none of your business","reason":"Forbidden","code":403}`,
			wantErr: "leases are none of your business",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, asked := streams(t, tt.code, tt.answer)
			var list coordinationv1.LeaseList
			err := c.List(t.Context(), &list, client.InNamespace("n"), client.MatchingLabels{"a": "b"}, client.Limit(1))
			if text := fmt.Sprint(err); (err != nil || tt.wantErr != "") && text != tt.wantErr {
				t.Fatalf("the error is %s, want %s", text, tt.wantErr)
			}
			if diff := cmp.Diff([]string{"/apis/coordination.k8s.io/v1/namespaces/n/leases?labelSelector=a%3Db"}, *asked); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
			if err != nil {
				return
			}
			got := []string{list.ResourceVersion}
			for _, l := range list.Items {
				holder := "nobody"
				if l.Spec.HolderIdentity != nil {
					holder = *l.Spec.HolderIdentity
				}
				got = append(got, l.Name+" of "+holder)
				if l.ManagedFields != nil {
					t.Errorf("%s has %v", l.Name, l.ManagedFields)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("list (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOtherGroupsAreNotStreamed(t *testing.T) {
	c, asked := streams(t, http.StatusTeapot, "")
	var list corev1.PodList
	if err := c.List(t.Context(), &list); err != nil || len(list.Items) != 1 || len(*asked) > 0 {
		t.Errorf("pods: %v, %v; asked %v", list.Items, err, *asked)
	}
}
