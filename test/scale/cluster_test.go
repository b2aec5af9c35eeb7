package scale

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/allocator"
	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/fixture"
)

const (
	// kubelet is the label of nodes whose kubelet runs.
	kubelet = "scale.example.org/kubelet"
	// address is the annotation with which the network plugin tells the kubelet what a pod got.
	address = "scale.example.org/address"
)

// cluster is what runs, and what the test knows of it.
type cluster struct {
	plane  *controlplane.ControlPlane
	binary string
	kwok   *process

	mu      sync.Mutex
	manager *controlplane.Manager
	// lives are the pods that have an address, by UID, whose sandbox runs.
	lives map[string]*life
	// lost are the nodes whose kubelets are not heard.
	lost   map[string]bool
	serial int
	// reminded is when kwok was reminded of a pod last.
	reminded                     map[types.UID]time.Time
	came, went, given, forgotten int
}

// life is a pod with a sandbox.
type life struct {
	pod   *corev1.Pod
	grant allocator.Grant
}

// begin lets a pod come: it is created, gets an address and runs. What fails on the way, because somebody dies, is tried
// again, as a kubelet does.
func (c *cluster) begin(ctx context.Context) error {
	node := c.anyNode()
	c.mu.Lock()
	c.serial++
	name := fmt.Sprintf("pod-%d", c.serial)
	c.mu.Unlock()
	pod := fixture.Pod(name, node)
	if err := insist(ctx, func() error {
		pod.ResourceVersion = ""
		return client.IgnoreAlreadyExists(c.plane.Client.Create(ctx, pod))
	}); err != nil {
		return err
	}
	if pod.UID == "" { // It was created, and the answer was lost.
		if err := insist(ctx, func() error { return c.plane.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod) }); err != nil {
			return err
		}
	}
	l := &life{pod: pod}
	err := insist(ctx, func() (err error) {
		l.grant, err = allocator.Allocator{Client: c.plane.Client}.Take(ctx, allocator.Request{
			Pool: "scale", Node: node, Handle: string(pod.UID), Attributes: fixture.OfPod(pod),
		})
		return err
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.lives[string(pod.UID)] = l
	c.came++
	c.mu.Unlock()
	told := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, address, l.grant.Addresses[0])
	return insist(ctx, func() error {
		return client.IgnoreNotFound(c.plane.Client.Patch(ctx, pod.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(told))))
	})
}

// end lets a pod go. Of three network plugins one forgets to give the address back.
func (c *cluster) end(ctx context.Context, l *life) error {
	c.mu.Lock()
	stuck := c.lost[l.pod.Spec.NodeName]
	if !stuck { // A sandbox on a node that is lost goes on.
		delete(c.lives, string(l.pod.UID))
	}
	c.went++
	forgets := c.went%3 == 0
	c.mu.Unlock()
	if err := insist(ctx, func() error { return client.IgnoreNotFound(c.plane.Client.Delete(ctx, l.pod.DeepCopy())) }); err != nil || stuck {
		return err
	}
	c.mu.Lock()
	if forgets {
		c.forgotten++
	} else {
		c.given++
	}
	c.mu.Unlock()
	if forgets {
		return nil
	}
	return insist(ctx, func() error { return allocator.Allocator{Client: c.plane.Client}.Give(ctx, l.grant) })
}

// insist tries until it succeeds.
func insist(ctx context.Context, try func() error) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// fill lets so many pods come.
func (c *cluster) fill(ctx context.Context, n int) error {
	return inParallel(n, func(int) error { return c.begin(ctx) })
}

// inParallel does something so many times, a few at once.
func inParallel(n int, do func(int) error) error {
	failures := make(chan error, n)
	turn := make(chan struct{}, 16)
	var wg sync.WaitGroup
	for i := range n {
		turn <- struct{}{}
		wg.Go(func() {
			defer func() { <-turn }()
			failures <- do(i)
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

// turnOver lets so many pods a second go, and others come, until the context ends; what has begun ends.
func (c *cluster) turnOver(ctx context.Context, rate int) {
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	turn := make(chan struct{}, 64) // More than that are not under way: then the rate is not reached.
	var wg sync.WaitGroup
	for {
		select {
		case <-ctx.Done():
			wg.Wait()
			return
		case <-tick.C:
		}
		select {
		case <-ctx.Done():
			continue
		case turn <- struct{}{}:
		}
		wg.Go(func() {
			defer func() { <-turn }()
			whole, stop := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Minute)
			defer stop()
			if l := c.anyLife(); l != nil {
				_ = c.end(whole, l) // What is not ended now is ended in the end.
			}
			_ = c.begin(whole)
		})
	}
}

// anyLife returns a pod that runs on a node that is not lost.
func (c *cluster) anyLife() *life {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.lives {
		if !c.lost[l.pod.Spec.NodeName] {
			return l
		}
	}
	return nil
}

// compare returns the pods that ran, before and after it looked, and whose addresses were not recorded for them.
func (c *cluster) compare(ctx context.Context) []string {
	before := c.running()
	var blocks v1alpha1.AddressBlockList
	if err := c.plane.Client.List(ctx, &blocks); err != nil {
		return nil
	}
	recorded := map[string]bool{}
	for _, b := range blocks.Items {
		for _, a := range b.Spec.Allocations {
			recorded[fmt.Sprintf("%s/%d/%s", b.Name, a.Offset, a.Handle)] = true
		}
	}
	after := c.running()
	var missing []string
	for uid, l := range before {
		if after[uid] != nil && !recorded[fmt.Sprintf("%s/%d/%s", l.grant.Block, l.grant.Offset, l.grant.Handle)] {
			missing = append(missing, fmt.Sprintf("I1: %s on %s runs, and its address, offset %d of %s, was released", l.pod.Name, l.pod.Spec.NodeName, l.grant.Offset, l.grant.Block))
		}
	}
	return missing
}

func (c *cluster) running() map[string]*life {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.lives)
}

// loseNodes cuts a tenth of the nodes off, and has their pods deleted.
func (c *cluster) loseNodes(ctx context.Context) error {
	for i := range max(2, *nodes/10) {
		n := c.node(i)
		c.mu.Lock()
		c.lost[n.Name] = true
		c.mu.Unlock()
		if err := c.label(ctx, n, "lost"); err != nil {
			return err
		}
		if err := c.status(ctx, n, fixture.NotReady); err != nil {
			return err
		}
	}
	for _, l := range c.running() {
		if c.isLost(l.pod.Spec.NodeName) {
			if err := c.end(ctx, l); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *cluster) isLost(node string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost[node]
}

// findNodes lets every other node that was lost come back. The others are switched off, which an administrator says, so
// that somebody deletes their pods by force; then they come back empty.
func (c *cluster) findNodes(ctx context.Context) error {
	for i := range max(2, *nodes/10) {
		n := c.node(i)
		if i%2 == 1 {
			c.forget(n.Name)
			if err := c.tainted(ctx, n, fixture.OutOfService); err != nil {
				return err
			}
			if err := c.force(ctx, n.Name); err != nil {
				return err
			}
			if err := c.tainted(ctx, n, func(n *corev1.Node) { n.Spec.Taints = nil }); err != nil {
				return err
			}
		}
		c.forget(n.Name)
		if err := c.label(ctx, n, "runs"); err != nil {
			return err
		}
		c.mu.Lock()
		delete(c.lost, n.Name)
		c.mu.Unlock()
	}
	return nil
}

// forget knows no sandbox on a node any more: they have ended.
func (c *cluster) forget(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid, l := range c.lives {
		if l.pod.Spec.NodeName == node {
			delete(c.lives, uid)
		}
	}
}

// force deletes the pods of a node by force, and waits until they are gone.
func (c *cluster) force(ctx context.Context, node string) error {
	return insist(ctx, func() error {
		var list corev1.PodList
		if err := c.plane.Client.List(ctx, &list, client.MatchingFields{"spec.nodeName": node}); err != nil {
			return err
		}
		for i := range list.Items {
			if err := c.plane.Client.Delete(ctx, &list.Items[i], client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
				return err
			}
		}
		if len(list.Items) > 0 {
			return fmt.Errorf("%d pods are left on %s", len(list.Items), node)
		}
		return nil
	})
}

func (c *cluster) label(ctx context.Context, n *corev1.Node, value string) error {
	return insist(ctx, func() error {
		return c.plane.Client.Patch(ctx, n.DeepCopy(), client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, kubelet, value)))
	})
}

func (c *cluster) status(ctx context.Context, n *corev1.Node, change func(*corev1.Node)) error {
	return insist(ctx, func() error {
		if err := c.plane.Client.Get(ctx, client.ObjectKeyFromObject(n), n); err != nil {
			return err
		}
		change(n)
		return c.plane.Client.Status().Update(ctx, n)
	})
}

func (c *cluster) tainted(ctx context.Context, n *corev1.Node, change func(*corev1.Node)) error {
	return insist(ctx, func() error {
		if err := c.plane.Client.Get(ctx, client.ObjectKeyFromObject(n), n); err != nil {
			return err
		}
		change(n)
		return c.plane.Client.Update(ctx, n)
	})
}

// endAll deletes every pod.
func (c *cluster) endAll(ctx context.Context) error {
	var list corev1.PodList
	if err := c.plane.Client.List(ctx, &list); err != nil {
		return err
	}
	c.mu.Lock()
	clear(c.lives)
	c.mu.Unlock()
	return inParallel(len(list.Items), func(i int) error {
		return insist(ctx, func() error { return client.IgnoreNotFound(c.plane.Client.Delete(ctx, &list.Items[i])) })
	})
}

// remind writes something into every pod. A kubelet that comes back looks at all of its pods; kwok, when it takes a node back,
// at those that change.
func (c *cluster) remind(ctx context.Context) {
	var list corev1.PodList
	if err := c.plane.Client.List(ctx, &list); err != nil {
		return // It is asked again.
	}
	note := fmt.Appendf(nil, `{"metadata":{"annotations":{"scale.example.org/reminded":%q}}}`, time.Now().Format(time.RFC3339Nano))
	for i := range list.Items {
		if _, waits := c.reminded[list.Items[i].UID]; !waits {
			c.reminded[list.Items[i].UID] = time.Now()
		}
		if time.Since(c.reminded[list.Items[i].UID]) < 20*time.Second {
			continue
		}
		c.reminded[list.Items[i].UID] = time.Now()
		_ = c.plane.Client.Patch(ctx, &list.Items[i], client.RawPatch(types.MergePatchType, note)) // It may have gone.
	}
}

func lengthOf(list client.ObjectList) int { return meta.LenList(list) }

// process is another program that runs.
type process struct {
	cmd *exec.Cmd
}

func launch(log, program string, args ...string) (*process, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", program, err)
	}
	defer out.Close() //nolint:errcheck // The process has its own descriptor.
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", program, err)
	}
	return &process{cmd}, nil
}

// kill ends the program, and waits.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // It may have ended.
	_ = p.cmd.Wait()         // It was killed.
}
