package envtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

// flaky hands the requests of a manager on to the API server. When it fails, every second write is carried out and
// answered with an error all the same.
type flaky struct {
	*httptest.Server
	fails  atomic.Bool
	writes atomic.Int64
}

func (s *scene) flaky() *flaky {
	s.t.Helper()
	transport, err := rest.TransportFor(s.Oakum())
	if err != nil {
		s.t.Fatal(err)
	}
	target, err := url.Parse(s.Admin.Host)
	if err != nil {
		s.t.Fatal(err)
	}
	f := &flaky{}
	f.Server = httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:      transport,
		FlushInterval:  -1,
		ModifyResponse: f.answer,
		ErrorHandler:   func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	})
	s.t.Cleanup(f.Close)
	return f
}

// answer replaces the answer to every second write by errors, in turn one that says nothing about another try and one that
// asks for it.
func (f *flaky) answer(r *http.Response) error {
	if r.Request.Method == http.MethodGet || r.StatusCode >= http.StatusBadRequest || !f.fails.Load() {
		return nil
	}
	var failure *apierrors.StatusError
	switch f.writes.Add(1) % 4 {
	case 1:
		failure = apierrors.NewInternalError(errors.New("the answer was lost"))
	case 3:
		failure = apierrors.NewTooManyRequests("try again", 1)
		r.Header.Set("Retry-After", "1")
	default:
		return nil
	}
	status := failure.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	body, err := json.Marshal(status)
	if err != nil {
		return fmt.Errorf("encoding an error: %w", err)
	}
	if err := r.Body.Close(); err != nil {
		return fmt.Errorf("dropping an answer: %w", err)
	}
	r.StatusCode = int(status.Code)
	r.Status = fmt.Sprintf("%d %s", r.StatusCode, http.StatusText(r.StatusCode))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Content-Length", fmt.Sprint(len(body)))
	r.ContentLength = int64(len(body))
	r.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}

func errorsAfterTheWrite(s *scene) {
	t := s.t
	server := s.flaky()
	through, err := s.Through(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	m := (&plane{ControlPlane: through, binary: s.binary}).start(t, unled)
	s.create(fixture.Pool(s.name, fixture.Subnet("10.111.0.0/28", ""), fixture.BlockSize(0)))
	s.node(s.name)
	var pods []*corev1.Pod
	var starts []*v1alpha1.AddressBlock
	for i := range int32(16) {
		block := fixture.Block(s.name, i, s.name)
		s.create(block)
		pods = append(pods, s.tenant(fmt.Sprintf("%s-%d", s.name, i), block, 0))
		starts = append(starts, block)
	}

	s.known(starts...)

	server.fails.Store(true)
	var podFilms []*film[*corev1.Pod]
	var blockFilms []*film[*v1alpha1.AddressBlock]
	for i, pod := range pods {
		podFilms = append(podFilms, record(s, pod, &corev1.PodList{}))
		blockFilms = append(blockFilms, record(s, starts[i], &v1alpha1.AddressBlockList{}))
		s.force(pod)
		s.ends(pod)
	}
	for i, pod := range pods {
		podFilms[i].gone()
		blockFilms[i].until("free", func(f frame[*v1alpha1.AddressBlock]) bool { return entries(f.object) == "" })
		same(t, "the story of pod "+pod.Name, []string{"Running, grace 0, held", "Succeeded, grace 0, held", "gone"}, podStory(podFilms[i]))
	}
	quit(t, m)
	if n := server.writes.Load(); n < 3*int64(len(pods)) {
		t.Errorf("the manager wrote %d times through the proxy: too few to release %d addresses and tell of it", n, len(pods))
	}
	for i, pod := range pods {
		same(t, "the story of block "+starts[i].Name, []string{entry(0, pod), ""}, blockStory(starts[i], blockFilms[i]))
		same(t, "the events about "+pod.Name, []told{released(pod, address(starts[i], 0))}, s.events(pod))
	}
}
