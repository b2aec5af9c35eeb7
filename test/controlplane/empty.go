package controlplane

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// Admit answers the API server's webhook calls at these paths in the manager's stead, until the context ends: it admits
// everything, and looks at nothing. What goes wrong comes through the channel.
func (c *ControlPlane) Admit(ctx context.Context, paths ...string) <-chan error {
	ended := make(chan error, 1)
	go func() {
		if err := Admit(ctx, c.webhook, c.CertDir(), paths...); err != nil {
			ended <- err
		}
		close(ended)
	}()
	return ended
}

// Admit does so on a port of this machine, with the certificate in a folder, until the context ends.
func Admit(ctx context.Context, port int, certDir string, paths ...string) error {
	server := webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: port, CertDir: certDir})
	for _, path := range paths {
		server.Register(path, &admission.Webhook{Handler: admission.HandlerFunc(func(context.Context, admission.Request) admission.Response {
			return admission.Allowed("")
		})})
	}
	if err := server.Start(ctx); err != nil {
		return fmt.Errorf("admitting everything: %w", err)
	}
	return nil
}
