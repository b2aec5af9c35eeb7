package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/e2e/cluster"
)

// onNode leaves a cluster with a real node for a person to try until the context ends.
func onNode(ctx context.Context, dir string, out io.Writer) (err error) {
	began := time.Now()
	c, err := cluster.Start(ctx, dir, cluster.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	root, err := controlplane.Root()
	if err != nil {
		return err
	}
	manager, err := c.StartManager(ctx, filepath.Join(root, "bin", "oakum"), settings)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, `A cluster of one node with Oakum and Whereabouts is up after %.1f s.

  export KUBECONFIG=%s

Pods really run, have addresses, and no network. The node has one image:

  kubectl create deployment web --image %s --replicas 3
  kubectl get pods -o wide
  kubectl get ippools,overlappingrangeipreservations --namespace kube-system -o yaml
  kubectl delete deployment web

The manager logs to %s, and the cluster's programs beside it. Ctrl-C ends everything.
`, time.Since(began).Seconds(), c.Kubeconfig, cluster.Image, manager.Log)
	select {
	case <-ctx.Done():
		return nil
	case err := <-manager.Ended():
		return fmt.Errorf("the manager ended: %w", err)
	}
}
