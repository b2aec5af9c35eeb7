package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/fixture"
	"github.com/oakum-dev/oakum/webhooks"
)

const (
	// released is how many pods end in a round whose addresses Oakum gives back: one for each address that the blocks have left.
	released = blocks * entries
	// ended is how many pods end in a round whose addresses are free. So many that the manager's start does not count.
	ended = 4 * released
	// patchers is the concurrency of the bare patches: that of Oakum's own workers.
	patchers = 16
)

// releases compares how fast Oakum lets pods go with how fast a client that decides nothing takes their finalizers off: pods
// whose addresses were given back already, and pods whose addresses Oakum gives back first. It counts Oakum's writes.
func (r *report) releases(ctx context.Context, p *planes) error {
	// The bare patches are sent with Oakum's rights, so that they pass the same policies.
	bare, err := client.New(p.with.Oakum(), client.Options{Scheme: p.with.Client.Scheme()})
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	var target *target
	if err := p.judging(ctx, "", func() error {
		target, err = newTarget(ctx, p.with, "released", "10.1.0.0/16")
		return err
	}); err != nil {
		return err
	}
	strips := func(pods []*corev1.Pod) error {
		return inParallel(ctx, pods, func(p *corev1.Pod) error { return strip(ctx, bare, p) })
	}
	var manager *controlplane.Manager
	manages := func([]*corev1.Pod) (err error) {
		manager, err = p.with.StartManager(ctx, p.binary, "")
		return err
	}
	var given, taken sides
	var writes [2]float64
	trials := []struct {
		into   []*[]float64
		act    func([]*corev1.Pod) error
		pods   int
		writes *float64
	}{
		{[]*[]float64{&given.with}, manages, ended, &writes[0]},
		{[]*[]float64{&taken.with}, manages, released, &writes[1]},
		{[]*[]float64{&given.without, &taken.without}, strips, ended, nil},
		{[]*[]float64{&given.control, &taken.control}, strips, ended, nil},
	}
	for round := range r.rounds + 1 {
		for i := range trials {
			trial := trials[(round+i)%len(trials)]
			pods, err := endedPods(ctx, p.with, target.blocks, trial.pods)
			if err != nil {
				return err
			}
			before, err := written(ctx, p.with)
			if err != nil {
				return err
			}
			watch := watchGone(ctx, p.with, trial.pods)
			err = trial.act(pods)
			var took time.Duration
			if err == nil {
				took, err = watch()
			}
			if manager != nil {
				manager.Kill()
				manager = nil
			}
			if err != nil {
				return err
			}
			if round == 0 {
				continue
			}
			for _, figures := range trial.into {
				*figures = append(*figures, float64(took.Nanoseconds())/float64(trial.pods-1))
			}
			if trial.writes != nil {
				after, err := written(ctx, p.with)
				if err != nil {
					return err
				}
				*trial.writes += float64(after-before) / float64(trial.pods*r.rounds)
			}
		}
	}
	r.row("LetPodGo", fmt.Sprintf("≤ 1.05 (≥ 0.95 of the rate), %.2f writes a pod", writes[0]), given)
	r.row("ReleasePod", fmt.Sprintf("≤ 2.08 (≥ 0.48 of the rate), %.2f writes a pod", writes[1]), taken)
	return nil
}

// written is how many patches of pods and blocks the API server has served that were not refused. Their statuses do not count.
func written(ctx context.Context, plane *controlplane.ControlPlane) (n int, err error) {
	clients, err := kubernetes.NewForConfig(plane.Admin)
	if err != nil {
		return 0, fmt.Errorf("making a client: %w", err)
	}
	text, err := clients.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, fmt.Errorf("reading the API server's metrics: %w", err)
	}
	patch := regexp.MustCompile(`(?m)^apiserver_request_total\{code="200",.*resource="(?:pods|addressblocks)",.*subresource="",verb="(?:PATCH|APPLY|PUT)",.*\} (\S+)$`)
	for _, line := range patch.FindAllStringSubmatch(string(text), -1) {
		count, err := strconv.ParseFloat(line[1], 64)
		if err != nil {
			return 0, fmt.Errorf("reading the API server's metrics: %w", err)
		}
		n += int(count)
	}
	return n, nil
}

// endedPods makes pods that are being deleted, have ended, and have our finalizer. If they are as many as the blocks have addresses
// left, these are allocated to them.
func endedPods(ctx context.Context, plane *controlplane.ControlPlane, blocks []*v1alpha1.AddressBlock, n int) ([]*corev1.Pod, error) {
	c := plane.Client
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		pods[i] = fixture.Pod(fmt.Sprintf("ended-%d", i), blocks[i/entries%len(blocks)].Spec.Node)
		pods[i].Finalizers = []string{v1alpha1.AddressesFinalizer}
	}
	if err := inParallel(ctx, pods, func(p *corev1.Pod) error { return c.Create(ctx, p) }); err != nil {
		return nil, err
	}
	if n == released {
		if err := allocated(ctx, plane, blocks, pods); err != nil {
			return nil, err
		}
	}
	return pods, inParallel(ctx, pods, func(p *corev1.Pod) error {
		p = p.DeepCopy()
		fixture.Ended(p)
		if err := c.Status().Update(ctx, p); err != nil {
			return err
		}
		return c.Delete(ctx, p, client.GracePeriodSeconds(0))
	})
}

// allocated enters the pods in the blocks, past Oakum: its manager would let them go at once.
func allocated(ctx context.Context, plane *controlplane.ControlPlane, blocks []*v1alpha1.AddressBlock, pods []*corev1.Pod) error {
	ctx, stop := context.WithCancel(ctx)
	ended := plane.Admit(ctx, webhooks.ValidateBlockPath, webhooks.MutateBlockPath)
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, controlplane.Deadline, true, func(ctx context.Context) (bool, error) {
		for i, b := range blocks {
			if err := plane.Client.Get(ctx, client.ObjectKeyFromObject(b), b); err != nil {
				return false, err
			}
			b.Spec.Allocations = b.Spec.Allocations[:entries]
			for j, p := range pods[i*entries : (i+1)*entries] {
				fixture.Entry(int32(entries+j), "eth0."+string(p.UID), fixture.OfPod(p))(b)
			}
			if err := plane.Client.Update(ctx, b); apierrors.IsInternalError(err) {
				return false, nil // Nobody listens yet.
			} else if err != nil {
				return false, err
			}
		}
		return true, nil
	})
	stop()
	return errors.Join(err, <-ended)
}

// strip takes the finalizer off.
func strip(ctx context.Context, c client.Client, p *corev1.Pod) error {
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"$deleteFromPrimitiveList/finalizers":[%q]}}`, p.UID, v1alpha1.AddressesFinalizer)
	return c.Patch(ctx, p.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(patch)))
}

// inParallel does something with each pod, with so many at a time as Oakum's workers are.
func inParallel(ctx context.Context, pods []*corev1.Pod, do func(*corev1.Pod) error) error {
	failures := make([]error, len(pods))
	workqueue.ParallelizeUntil(ctx, patchers, len(pods), func(i int) { failures[i] = do(pods[i]) })
	return errors.Join(failures...)
}

// watchGone begins to watch pods. The function that it returns waits until all of a round's pods are gone, and tells
// the time from the first to the last of them.
func watchGone(ctx context.Context, plane *controlplane.ControlPlane, n int) func() (time.Duration, error) {
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
			if gone == n {
				done <- result{took: time.Since(first)}
				return
			}
		}
		done <- result{err: fmt.Errorf("only %d of %d pods went", gone, n)}
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
