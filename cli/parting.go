package cli

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

// linger is for how long a manager that is told to end goes on: its clients need a moment to go elsewhere.
const linger = 2 * time.Second

// parting is a webhook server that, before it ends, asks its clients to connect anew. An API server keeps its connection to a replica
// also when that is behind the Service no more, and what it sends at the moment in which the connection is closed fails.
type parting struct {
	webhook.Server
	ends atomic.Bool
}

// Register implements webhook.Server.
func (p *parting) Register(path string, hook http.Handler) {
	p.Server.Register(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.ends.Load() {
			w.Header().Set("Connection", "close") // Over HTTP/2 it becomes a GOAWAY.
		}
		hook.ServeHTTP(w, r)
	}))
}

// until returns a context that ends a while after the given one. Meanwhile the clients are asked to leave.
func (p *parting) until(ctx context.Context, linger time.Duration) context.Context {
	later, end := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		p.ends.Store(true)
		time.AfterFunc(linger, end)
	})
	return later
}
