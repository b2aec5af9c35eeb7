package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/oakum-dev/oakum/test/controlplane"
)

const (
	// profiled is for how long processor time is sampled.
	profiled = 15 * time.Second
	// profiler is where the manager can be asked for a profile.
	profiler = "127.0.0.1:16060"
)

// profile writes to one API server after the other while it samples where its processor time goes: labels, and addresses
// that are taken and given back. The profiles are called label-with.pprof and so on, and those of Oakum's manager
// label-manager.pprof and so on.
func (p *planes) profile(ctx context.Context, folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	for name, plane := range map[string]*controlplane.ControlPlane{"with": p.with, "without": p.without, "empty": p.empty} {
		t, err := newTarget(ctx, plane, "profiled", "10.0.0.0/16")
		if err != nil {
			return err
		}
		clients, err := kubernetes.NewForConfig(plane.Admin)
		if err != nil {
			return fmt.Errorf("making a client: %w", err)
		}
		for way, kinds := range map[string][]int{"label": {0}, "take-and-give": {1, 2}} {
			samplers := map[string]rest.Interface{name: clients.RESTClient()}
			if plane == p.with {
				manager, err := rest.UnversionedRESTClientFor(&rest.Config{Host: profiler, ContentConfig: rest.ContentConfig{NegotiatedSerializer: scheme.Codecs}})
				if err != nil {
					return fmt.Errorf("making a client: %w", err)
				}
				samplers["manager"] = manager
			}
			if err := sample(ctx, filepath.Join(folder, way), samplers, func() error {
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

// sample writes as often as it can while servers sample themselves. Their profiles are in prefix-<name>.pprof.
func sample(ctx context.Context, prefix string, servers map[string]rest.Interface, write func() error) error {
	sampled := make(chan error, len(servers))
	for name, server := range servers {
		go func() {
			data, err := server.Get().AbsPath("/debug/pprof/profile").Param("seconds", strconv.Itoa(int(profiled.Seconds()))).DoRaw(ctx)
			if err == nil {
				err = os.WriteFile(prefix+"-"+name+".pprof", data, 0o600)
			}
			sampled <- err
		}()
	}
	writes, left := 0, len(servers)
	for ; left > 0; writes++ {
		select {
		case err := <-sampled:
			if err != nil {
				return fmt.Errorf("profiling: %w", err)
			}
			left--
		default:
			if err := write(); err != nil {
				return err
			}
		}
	}
	fmt.Fprintf(os.Stderr, "%s of %s: %d rounds\n", filepath.Base(prefix), slices.Sorted(maps.Keys(servers)), writes)
	return nil
}
