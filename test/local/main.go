// Command local shows Oakum on this machine: "run" starts a control plane with Oakum for a person to try, "demo" plays
// acts against one and checks every answer, "cluster" starts a node as well.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/oakum-dev/oakum/test/controlplane"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := play(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func play(ctx context.Context, args []string, out io.Writer) (err error) {
	acts := map[string]func(ctx context.Context, dir string, out io.Writer) error{
		"run": onStage(run), "demo": onStage(demo), "cluster": onNode,
	}
	if len(args) != 1 || acts[args[0]] == nil {
		return errors.New("usage: local run|demo|cluster")
	}
	dir, err := os.MkdirTemp("", "oakum-")
	if err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	return acts[args[0]](ctx, dir, out)
}

// onStage lets an act be played on a control plane with Oakum beside it.
func onStage(act func(context.Context, stage) error) func(ctx context.Context, dir string, out io.Writer) error {
	return func(ctx context.Context, dir string, out io.Writer) (err error) {
		began := time.Now()
		plane, err := controlplane.Start(dir)
		defer func() { err = errors.Join(err, plane.Stop()) }()
		if err != nil {
			return err
		}
		root, err := controlplane.Root()
		if err != nil {
			return err
		}
		binary := filepath.Join(root, "bin", "oakum")
		manager, err := plane.StartManager(ctx, binary, settings)
		if err != nil {
			return err
		}
		defer manager.Kill()
		fmt.Fprintf(out, "etcd, kube-apiserver and Oakum are up after %.1f s.\n", time.Since(began).Seconds())
		return act(ctx, stage{plane, manager, root, binary, out})
	}
}

// stage is where acts are played.
type stage struct {
	plane   *controlplane.ControlPlane
	manager *controlplane.Manager
	root    string
	binary  string
	out     io.Writer
}

// settings make the audit's waits short enough to watch.
const settings = `
backends: {native: {mode: Enforce}}
audit: {interval: 2s, gracePeriod: 5s, quarantine: 15s}
`
