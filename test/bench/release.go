package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/fixture"
)

const (
	// released is how many pods end in a round.
	released = 400
	// patchers is the concurrency of the bare patches: that of Oakum's own workers.
	patchers = 16
)

// releases compares how fast Oakum lets pods go, whose addresses are given back already, with how fast a client that
// decides nothing takes their finalizers off.
func (r *report) releases(ctx context.Context, plane *controlplane.ControlPlane, binary string) error {
	// The bare patches are sent with Oakum's rights, so that they pass the same policies.
	bare, err := client.New(plane.Oakum(), client.Options{Scheme: plane.Client.Scheme()})
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	var s sides
	for round := range r.rounds + 1 {
		for _, side := range []struct {
			into  *[]float64
			oakum bool
		}{{&s.with, true}, {&s.without, false}, {&s.control, false}} {
			pods, err := endedPods(ctx, plane.Client)
			if err != nil {
				return err
			}
			watch := watchGone(ctx, plane)
			var manager *controlplane.Manager
			if side.oakum {
				manager, err = plane.StartManager(ctx, binary, "")
			} else {
				err = strip(ctx, bare, pods)
			}
			if err != nil {
				return err
			}
			took, err := watch()
			if manager != nil {
				manager.Kill()
			}
			if err != nil {
				return err
			}
			if round > 0 {
				*side.into = append(*side.into, float64(took.Nanoseconds())/(released-1))
			}
		}
	}
	r.row("LetPodGo", "≤ 1.11 (≥ 0.9 of the rate)", s)
	return nil
}

// endedPods makes pods that are being deleted, have ended, and have our finalizer.
func endedPods(ctx context.Context, c client.Client) ([]*corev1.Pod, error) {
	pods := make([]*corev1.Pod, released)
	for i := range pods {
		p := fixture.Pod(fmt.Sprintf("ended-%d", i), "bench-0")
		p.Finalizers = []string{v1alpha1.AddressesFinalizer}
		if err := c.Create(ctx, p); err != nil {
			return nil, err
		}
		fixture.Ended(p)
		if err := c.Status().Update(ctx, p); err != nil {
			return nil, err
		}
		if err := c.Delete(ctx, p, client.GracePeriodSeconds(0)); err != nil {
			return nil, err
		}
		pods[i] = p
	}
	return pods, nil
}

// strip takes the finalizers off.
func strip(ctx context.Context, c client.Client, pods []*corev1.Pod) error {
	queue := make(chan *corev1.Pod, len(pods))
	for _, p := range pods {
		queue <- p
	}
	close(queue)
	var wg sync.WaitGroup
	failures := make(chan error, patchers)
	for range patchers {
		wg.Go(func() {
			for p := range queue {
				patch := fmt.Sprintf(`{"metadata":{"uid":%q,"$deleteFromPrimitiveList/finalizers":[%q]}}`, p.UID, v1alpha1.AddressesFinalizer)
				if err := c.Patch(ctx, p.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(patch))); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(failures)
	return <-failures
}

// watchGone begins to watch pods. The function that it returns waits until all of a round's pods are gone, and tells
// the time from the first to the last of them.
func watchGone(ctx context.Context, plane *controlplane.ControlPlane) func() (time.Duration, error) {
	type result struct {
		took time.Duration
		err  error
	}
	done := make(chan result, 1)
	started := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(ctx, 2*controlplane.Deadline)
		defer cancel()
		clients, err := kubernetes.NewForConfig(plane.Admin)
		if err != nil {
			started <- err
			return
		}
		list, err := clients.CoreV1().Pods("default").List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			started <- err
			return
		}
		w, err := clients.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
		started <- err
		if err != nil {
			return
		}
		defer w.Stop()
		var first time.Time
		gone := 0
		for e := range w.ResultChan() {
			if e.Type != "DELETED" {
				continue
			}
			if gone++; gone == 1 {
				first = time.Now()
			}
			if gone == released {
				done <- result{took: time.Since(first)}
				return
			}
		}
		done <- result{err: fmt.Errorf("only %d of %d pods went", gone, released)}
	}()
	err := <-started
	return func() (time.Duration, error) {
		if err != nil {
			return 0, fmt.Errorf("watching the pods: %w", err)
		}
		r := <-done
		return r.took, r.err
	}
}
