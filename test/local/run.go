package main

import (
	"context"
	"fmt"
	"path/filepath"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/allocator"
	"github.com/oakum-dev/oakum/test/fixture"
)

// run leaves a small cluster for a person to try until the context ends.
func run(ctx context.Context, s stage) error {
	if err := s.plane.Apply(ctx, filepath.Join(s.root, "config", "samples")); err != nil {
		return err
	}
	node, pod := fixture.Node("worker-1"), fixture.Pod("web-0", "worker-1", fixture.Running())
	for _, object := range []client.Object{node, pod} {
		if err := s.create(ctx, object); err != nil {
			return err
		}
	}
	grant, err := allocator.Allocator{Client: s.plane.Client}.Take(ctx, allocator.Request{
		Pool: "default", Node: node.Name, Handle: string(pod.UID) + "-eth0", Attributes: fixture.OfPod(pod),
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, `
Node worker-1 and pod default/web-0 are made up: nothing runs. The pod was given %v from block %s.

  export KUBECONFIG=%s

Three commands to try:

  kubectl get addresspools,addressblocks -o wide
  kubectl get pod web-0 -o jsonpath='{.metadata.finalizers}'
  kubectl create -f - <<< '{"apiVersion": "ipam.oakum.dev/v1alpha1", "kind": "AddressBlock", "metadata": {"name": "default-7"}, "spec": {"pool": "default", "index": 7, "node": "worker-1"}}'

The manager logs to %s. Ctrl-C ends everything.
`, grant.Addresses, grant.Block, s.plane.Kubeconfig, s.manager.Log)
	select {
	case <-ctx.Done():
		return nil
	case err := <-s.manager.Ended():
		return fmt.Errorf("the manager ended: %w", err)
	}
}

// create makes an object with its status, as if a kubelet had reported it.
func (s stage) create(ctx context.Context, object client.Object) error {
	reported := object.DeepCopyObject().(client.Object)
	if err := s.plane.Client.Create(ctx, object); err != nil {
		return err
	}
	reported.SetResourceVersion(object.GetResourceVersion())
	reported.SetUID(object.GetUID())
	if err := s.plane.Client.Status().Update(ctx, reported); err != nil {
		return fmt.Errorf("reporting the status of %s: %w", object.GetName(), err)
	}
	return nil
}
