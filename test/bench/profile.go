package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/oakum-dev/oakum/test/controlplane"
)

// profiled is for how long an API server's processor time is sampled.
const profiled = 15 * time.Second

// profile writes to one API server after the other while it samples where its processor time goes: labels, and addresses
// that are taken and given back. The profiles are called label-with.pprof and so on.
func (p *planes) profile(ctx context.Context, folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	for name, plane := range map[string]*controlplane.ControlPlane{"with": p.with, "without": p.without, "empty": p.empty} {
		t, err := newTarget(ctx, plane, "profiled", "10.0.0.0/16")
		if err != nil {
			return err
		}
		for way, kinds := range map[string][]int{"label": {0}, "take-and-give": {1, 2}} {
			if err := sample(ctx, plane, filepath.Join(folder, way+"-"+name+".pprof"), func() error {
				next := t.next()
				for _, kind := range kinds {
					if _, err := next[kind](ctx); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// sample writes as often as it can while the API server samples itself.
func sample(ctx context.Context, plane *controlplane.ControlPlane, file string, write func() error) error {
	clients, err := kubernetes.NewForConfig(plane.Admin)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	type result struct {
		data []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		data, err := clients.RESTClient().Get().AbsPath("/debug/pprof/profile").Param("seconds", strconv.Itoa(int(profiled.Seconds()))).DoRaw(ctx)
		done <- result{data, err}
	}()
	for writes := 0; ; writes++ {
		select {
		case r := <-done:
			if r.err != nil {
				return fmt.Errorf("profiling the API server: %w", r.err)
			}
			fmt.Fprintf(os.Stderr, "%s: %d rounds\n", file, writes)
			return os.WriteFile(file, r.data, 0o600)
		default:
			if err := write(); err != nil {
				return err
			}
		}
	}
}
