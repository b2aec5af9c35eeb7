package cli

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

func TestClientsConnectAnewBeforeTheEnd(t *testing.T) {
	t.Parallel()
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2.0": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &parting{Server: webhook.NewServer(webhook.Options{WebhookMux: http.NewServeMux()})}
			p.Register("/", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Proto != name {
					w.WriteHeader(http.StatusHTTPVersionNotSupported)
				}
			}))
			server := httptest.NewUnstartedServer(p.WebhookMux())
			server.EnableHTTP2 = http2
			server.StartTLS()
			t.Cleanup(server.Close)

			if ask(t, server) {
				t.Error("the first request finds a connection")
			}
			for range 5 {
				if !ask(t, server) {
					t.Error("a later request needs another connection")
				}
			}
			p.ends.Store(true)
			// Over HTTP/2 the client may send one more before it reads what stands behind the answer.
			for asked := 0; ask(t, server); asked++ {
				if asked == 100 {
					t.Fatal("the server ends, and the connection is still used")
				}
			}
		})
	}
}

// ask sends a request and tells whether that took an earlier one's connection.
func ask(t *testing.T, server *httptest.Server) (reused bool) {
	t.Helper()
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodPost, server.URL, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // It was only read.
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("the answer is %s (%v)", resp.Status, err)
	}
	return reused
}

func TestManagerLingers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		p := &parting{}
		later := p.until(ctx, linger)
		<-time.After(time.Hour)
		synctest.Wait()
		if p.ends.Load() || later.Err() != nil {
			t.Error("it ends before it is told to")
		}
		end()
		<-time.After(linger - time.Nanosecond)
		synctest.Wait()
		if !p.ends.Load() || later.Err() != nil {
			t.Errorf("told to end: clients are told %t, and it ended: %v; want true, and it to go on", p.ends.Load(), later.Err())
		}
		<-time.After(time.Nanosecond)
		synctest.Wait()
		if later.Err() == nil {
			t.Error("it does not end")
		}
	})
}
