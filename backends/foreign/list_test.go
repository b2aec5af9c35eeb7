package foreign_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/backends/foreign"
)

// shelf is a reader with three pages of a list.
type shelf struct {
	client.Reader
	asked  []client.ListOptions
	broken int
}

func (s *shelf) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(options)
	s.asked = append(s.asked, o)
	if len(s.asked) == s.broken {
		return errors.New("torn")
	}
	pods := list.(*corev1.PodList)
	n, _ := strconv.Atoi(o.Continue)
	pods.Items = []corev1.Pod{{}}
	pods.Items[0].Name = strconv.Itoa(n)
	if n < 2 {
		pods.Continue = strconv.Itoa(n + 1)
	}
	return nil
}

func TestLists(t *testing.T) {
	tests := map[string]struct {
		live    bool
		alone   bool
		broken  int
		want    []string
		wantErr bool
	}{
		"live, page by page":             {live: true, want: []string{"0", "1", "2"}},
		"a cache has one":                {want: []string{"0"}},
		"page by page without a cache":   {alone: true, want: []string{"0", "1", "2"}},
		"a page that is torn is no list": {live: true, broken: 2, wantErr: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cached, live := &shelf{}, &shelf{broken: tt.broken}
			converted := 0
			from := foreign.Source{Live: live, As: func(l client.ObjectList) client.ObjectList { converted++; return l }}
			if !tt.alone {
				from.Cached = cached
			}
			pages, err := foreign.Lists[corev1.PodList](t.Context(), from, tt.live, client.InNamespace("a"))
			if (err != nil) != tt.wantErr {
				t.Fatal(err)
			}
			var got []string
			for _, p := range pages {
				got = append(got, p.Items[0].Name)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("pages (-want +got):\n%s", diff)
			}
			asked := slices.Concat(cached.asked, live.asked)
			if converted != len(asked) {
				t.Errorf("%d lists are filled through another one, want %d", converted, len(asked))
			}
			for _, o := range asked {
				if limited, shared := o.Limit > 0, o.UnsafeDisableDeepCopy != nil; o.Namespace != "a" || limited != (tt.live || tt.alone) || shared == limited {
					t.Errorf("asked with %+v", o)
				}
			}
		})
	}
}
