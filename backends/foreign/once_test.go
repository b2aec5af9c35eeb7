package foreign_test

import (
	"strconv"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/backends/foreign"
)

func TestOnce(t *testing.T) {
	live := &shelf{}
	once := foreign.NewOnce(live)
	list := func(options ...client.ListOption) {
		t.Helper()
		pages, err := foreign.Lists[corev1.PodList](t.Context(), foreign.Source{Live: once}, true, options...)
		var got []string
		for _, p := range pages {
			got = append(got, p.Items[0].Name)
		}
		if diff := cmp.Diff([]string{"0", "1", "2"}, got); diff != "" || err != nil {
			t.Errorf("%v, pages (-want +got):\n%s", err, diff)
		}
	}
	var several sync.WaitGroup
	for range 4 {
		several.Go(func() { list() })
	}
	several.Wait()
	list(client.InNamespace("a"))
	list(client.InNamespace("a"))
	list(client.MatchingLabels{"a": "b"})
	var asked []string
	for _, o := range live.asked {
		page, _ := strconv.Atoi(o.Continue)
		text := o.Namespace + " " + strconv.Itoa(page)
		if o.LabelSelector != nil {
			text += " " + o.LabelSelector.String()
		}
		asked = append(asked, text)
	}
	want := []string{" 0", " 1", " 2", "a 0", "a 1", "a 2", " 0 a=b", " 1 a=b", " 2 a=b"}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

func TestOnceRemembersThatItCouldNot(t *testing.T) {
	live := &shelf{broken: 1}
	once := foreign.NewOnce(live)
	for range 2 {
		if err := once.List(t.Context(), &corev1.PodList{}); err == nil || err.Error() != "torn" {
			t.Errorf("the error is %v", err)
		}
	}
	if len(live.asked) != 1 {
		t.Errorf("asked %d times", len(live.asked))
	}
}
