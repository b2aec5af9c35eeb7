package finalizers

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/cluster"
)

// Node holds a node for one reconcile, in which its empty blocks go. It never waits for the node's pods: PodGC collects
// them only when the Node object is gone, and a kubelet that comes back while its Node is terminating believes itself
// registered and never creates it again.
type Node struct {
	Blocks  backends.Blocks
	Witness *cluster.Witness
	Client  client.Client
	Clock   cluster.Clock
	Voice   Voice
	// Wanted: nodes are to be held.
	Wanted bool
	// Deadline counts from a node's deletionTimestamp. It matters only while the API server answers with errors.
	Deadline time.Duration
}

// Reconcile implements reconcile.Reconciler.
func (r *Node) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	node := r.Witness.CachedNode(req.Name)
	if node == nil {
		return reconcile.Result{}, nil
	}
	held := slices.Contains(node.Finalizers, v1alpha1.AddressesFinalizer)
	reason := Unwanted
	switch {
	case !held && r.Wanted && node.DeletionTimestamp == nil:
		return reconcile.Result{}, patchFinalizer(ctx, r.Client, &corev1.Node{}, node, add)
	case !held, r.Wanted && node.DeletionTimestamp == nil:
		return reconcile.Result{}, nil
	case r.Wanted:
		reason = Drained
		if err := r.reclaim(ctx, node); err != nil {
			if r.Clock().Wall.Before(node.DeletionTimestamp.Add(r.Deadline)) {
				return reconcile.Result{}, err
			}
			reason = DeadlineExceeded
		}
	}
	if err := patchFinalizer(ctx, r.Client, &corev1.Node{}, node, remove); err != nil {
		return reconcile.Result{}, err
	}
	r.Voice.letGo(nodeKind, node.DeletionTimestamp, reason)
	return reconcile.Result{}, nil
}

// reclaim deletes the node's empty blocks. What else the node holds, and what its pods hold, is not proven free by the
// deletion of an object. Blocks know their node by name alone, so those that are found once another node bears the name
// are left to that one.
func (r *Node) reclaim(ctx context.Context, node *cluster.Node) error {
	if live, err := r.Witness.LiveNode(ctx, node.Name); err != nil || live == nil || live.UID != node.UID {
		return err
	}
	blocks, err := r.Blocks.LiveBlocks(ctx, backends.Query{Node: node.Name})
	if err != nil {
		return err
	}
	var failures []error
	for _, b := range blocks {
		if !b.Empty(r.Clock().Wall) {
			continue
		}
		// A stale block is one that somebody wrote to just now, so it may not be empty any more.
		if err := r.Blocks.Reclaim(ctx, b); err != nil && !errors.Is(err, backends.ErrStale) {
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}
