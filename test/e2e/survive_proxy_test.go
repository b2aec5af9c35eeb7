//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// proxy stands between a manager and the API server, and answers some requests itself.
type proxy struct {
	*httptest.Server
	// fails: every request that reads is answered with an error.
	fails atomic.Bool
	// lists is what becomes of the next list of all pods.
	lists atomic.Pointer[podList]

	mu      sync.Mutex
	watches map[*http.Request]context.CancelFunc
}

// podList is an answer to who asks for all pods. Until it is given, nobody can watch them without asking for it.
type podList struct {
	// empty: it has no pods, although there are some.
	empty bool
}

// proxy starts one that hands everything on.
func (w *town) proxy() *proxy {
	w.t.Helper()
	transport, err := rest.TransportFor(w.Oakum())
	w.must(err)
	target, err := url.Parse(w.Admin.Host)
	w.must(err)
	p := &proxy{watches: map[*http.Request]context.CancelFunc{}}
	pass := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Del("Accept-Encoding") // What is compressed could not be changed.
			if isPods(r.In) {
				r.Out.Header.Set("Accept", "application/json")
			}
		},
		Transport: transport, FlushInterval: -1, ModifyResponse: p.change,
		ErrorHandler: func(rw http.ResponseWriter, _ *http.Request, _ error) { rw.WriteHeader(http.StatusBadGateway) },
	}
	p.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		watch := r.URL.Query().Get("watch") != ""
		switch list := p.lists.Load(); {
		case r.Method == http.MethodGet && p.fails.Load():
			refuse(rw, apierrors.NewInternalError(errors.New("a test asked for this error")))
			return
		case list != nil && watch && isPods(r) && r.URL.Query().Get("sendInitialEvents") != "":
			refuse(rw, apierrors.NewBadRequest("a test wants a list before the watch"))
			return
		case list != nil && watch && isPods(r):
			refuse(rw, apierrors.NewResourceExpired("a test wants a list before the watch"))
			return
		}
		if watch {
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			r = r.WithContext(ctx)
			p.mu.Lock()
			p.watches[r] = cancel
			p.mu.Unlock()
			defer func() {
				p.mu.Lock()
				delete(p.watches, r)
				p.mu.Unlock()
			}()
		}
		pass.ServeHTTP(rw, r)
	}))
	w.t.Cleanup(func() { p.cut(); p.Close() })
	return p
}

// isPods tells whether a request is about the list of all pods.
func isPods(r *http.Request) bool { return r.Method == http.MethodGet && r.URL.Path == "/api/v1/pods" }

// cut ends all watches.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, cancel := range p.watches {
		cancel()
	}
}

// relist makes the manager list all pods anew, with that answer.
func (p *proxy) relist(answer podList) {
	p.lists.Store(&answer)
	p.cut()
}

// change gives a list of all pods as it is to be.
func (p *proxy) change(r *http.Response) error {
	if !isPods(r.Request) || r.Request.URL.Query().Get("watch") != "" || r.StatusCode != http.StatusOK {
		return nil
	}
	answer := p.lists.Swap(nil)
	if answer == nil || !answer.empty {
		return nil
	}
	var list map[string]any
	err := json.NewDecoder(r.Body).Decode(&list)
	if err := errors.Join(err, r.Body.Close()); err != nil {
		return fmt.Errorf("reading the list of pods: %w", err)
	}
	list["items"] = []any{}
	body, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("encoding a list without pods: %w", err)
	}
	r.Header.Set("Content-Length", fmt.Sprint(len(body)))
	r.ContentLength, r.Body = int64(len(body)), io.NopCloser(bytes.NewReader(body))
	return nil
}

// refuse answers with an error.
func refuse(rw http.ResponseWriter, failure *apierrors.StatusError) {
	status := failure.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(int(status.Code))
	_ = json.NewEncoder(rw).Encode(status) // Who has gone needs no answer.
}
