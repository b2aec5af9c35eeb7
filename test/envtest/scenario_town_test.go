package envtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/fixture"
)

// town is many pods, each with an address, in a namespace of their own. Their blocks are full.
type town struct {
	*scene
	pods   []*corev1.Pod
	blocks []*v1alpha1.AddressBlock
	// since is a version at which every pod has its address and nothing more has happened.
	since string
}

// houses is how many addresses each block of a town has.
const houses = 32

// settle creates a town of n pods.
func (s *scene) settle(subnet string, n int) *town {
	s.t.Helper()
	s.create(
		fixture.Pool(s.name, fixture.Subnet(subnet, ""), fixture.BlockSize(5)),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name}},
	)
	w := &town{scene: s, pods: make([]*corev1.Pod, n), blocks: make([]*v1alpha1.AddressBlock, n/houses)}
	ctx := s.t.Context()
	err := each(ctx, len(w.blocks), func(i int) error {
		node := fixture.Node(fmt.Sprintf("%s-%d", s.name, i))
		if err := s.client.Create(ctx, node); err != nil {
			return err
		}
		block := fixture.Block(s.name, int32(i), node.Name)
		for house := range houses {
			pod := fixture.Pod(fmt.Sprintf("%s/web-%d", s.name, i*houses+house), node.Name)
			if err := s.client.Create(ctx, pod); err != nil {
				return err
			}
			w.pods[i*houses+house] = pod
			fixture.Entry(int32(house), handle(pod), fixture.OfPod(pod))(block)
		}
		w.blocks[i] = block
		return s.client.Create(ctx, block)
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.known(w.blocks...)
	w.since = w.list().ResourceVersion
	return w
}

// list returns the town's blocks as they are now.
func (w *town) list() v1alpha1.AddressBlockList {
	w.t.Helper()
	var blocks v1alpha1.AddressBlockList
	if err := w.client.List(w.t.Context(), &blocks, client.MatchingFields{"spec.pool": w.name}); err != nil {
		w.t.Fatal(err)
	}
	return blocks
}

// population counts what is in a town.
type population struct{ Pods, Held, Allocations int }

func (w *town) count() population {
	w.t.Helper()
	var now population
	var pods corev1.PodList
	if err := w.client.List(w.t.Context(), &pods, client.InNamespace(w.name)); err != nil {
		w.t.Fatal(err)
	}
	for _, p := range pods.Items {
		now.Pods++
		if slices.Contains(p.Finalizers, v1alpha1.AddressesFinalizer) {
			now.Held++
		}
	}
	for _, b := range w.list().Items {
		now.Allocations += len(b.Spec.Allocations)
	}
	return now
}

// end deletes a pod by force and reports its end, as often as it takes.
func (w *town) end(ctx context.Context, pod *corev1.Pod) error {
	err := insist(ctx, func() error { return w.client.Delete(ctx, pod, client.GracePeriodSeconds(0)) })
	return errors.Join(err, insist(ctx, func() error {
		ended := pod.DeepCopy()
		fixture.Ended(ended)
		return w.client.Status().Patch(ctx, ended, client.MergeFrom(pod))
	}))
}

// insist writes until it succeeds, or until the object is gone.
func insist(ctx context.Context, write func() error) error {
	ctx, cancel := context.WithTimeout(ctx, controlplane.Deadline)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := client.IgnoreNotFound(write())
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// each calls a function for 0 to n-1, several at a time, and returns all errors.
func each(ctx context.Context, n int, do func(i int) error) error {
	queue := make(chan int, n)
	for i := range n {
		queue <- i
	}
	close(queue)
	failures := make(chan error, n)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range queue {
				if err := do(i); err != nil {
					failures <- fmt.Errorf("number %d: %w", i, err)
				}
				if ctx.Err() != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	close(failures)
	var all []error
	for err := range failures {
		all = append(all, err)
	}
	return errors.Join(all...)
}
