// Package scale lets many nodes and pods come and go on a real control plane, where kwok plays the kubelets, the test
// their network plugin, and both break now and then.
package scale

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/fixture"
)

//nolint:gochecknoglobals // Flags of a test have no other place.
var (
	nodes = flag.Int("nodes", 50, "how many `nodes` there are")
	pods  = flag.Int("pods", 100, "how many `pods` there are at a time")
	rate  = flag.Int("rate", 3, "how many pods come, and go, a `second`")
	span  = flag.Duration("span", time.Minute, "for how `long`")
	files = flag.String("plot", "", "the `prefix` of the files for the pictures")
)

// settings are those of a cluster in which little is waited for.
const settings = `audit: {interval: 10s, gracePeriod: 10s, quarantine: 30s}
leaderElection: {enabled: false}
`

// I1, I2, I3: pods come and go while the manager dies, the API server restarts and nodes are lost. No address of a pod that
// runs is released, and when everything has gone nothing is left.
func TestChurn(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	dir := t.TempDir()
	plane, err := controlplane.Start(dir)
	t.Cleanup(func() {
		if err := plane.Stop(); err != nil {
			t.Error(err)
		}
	})
	must(t, err)
	binary, err := plane.Build(t.Context())
	must(t, err)
	c := &cluster{plane: plane, binary: binary, lives: map[string]*life{}, lost: map[string]bool{}, reminded: map[types.UID]time.Time{}}
	must(t, c.startKwok(dir))
	t.Cleanup(c.kwok.kill)
	must(t, c.startManager(t.Context()))
	t.Cleanup(func() { c.manager.Kill() })
	must(t, plane.Client.Create(t.Context(), fixture.Pool("scale", fixture.Subnet("10.0.0.0/12", ""), fixture.BlockSize(5), fixture.Cooldown(5*time.Second))))
	for i := range *nodes {
		must(t, plane.Client.Create(t.Context(), c.node(i)))
	}
	figures := c.sample(t.Context())

	must(t, c.fill(t.Context(), *pods))
	began := time.Now()
	c.churn(t, began.Add(*span))
	t.Logf("%d pods came and %d went in %s; %d addresses were given back by their plugin, %d were left to Oakum",
		c.came, c.went, time.Since(began).Round(time.Second), c.given, c.forgotten)

	c.leave(t)
	released, again := c.released(t)
	if released == 0 {
		t.Error("Oakum released nothing, and plugins forgot some")
	}
	// Bolt and watch may both find a hand-out free. The second release changes nothing, and is told all the same.
	t.Logf("Oakum released %d hand-outs, and told of %d of them once more", released, again)
	seen := figures()
	t.Log(summary(seen))
	if *files != "" {
		must(t, os.WriteFile(*files+"-memory.svg", draw("Memory of the manager (MB)", seen, func(s figure) float64 { return s.megabytes }), 0o644))
		must(t, os.WriteFile(*files+"-cpu.svg", draw("Processor time of the manager (cores)", seen, func(s figure) float64 { return s.cores }), 0o644))
	}
}

// churn lets pods come and go until then, and everything break in turn.
func (c *cluster) churn(t *testing.T, until time.Time) {
	ctx, stop := context.WithDeadline(t.Context(), until)
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.turnOver(ctx, *rate)
	}()
	pause := time.Until(until) / 7
	for _, fault := range []struct {
		what string
		does func(context.Context) error
	}{
		{"the manager dies", c.replaceManager},
		{"nodes are lost", c.loseNodes},
		{"the API server restarts", func(context.Context) error { return plainly(c.plane.RestartAPIServer()) }},
		{"half of the lost nodes come back, and the others are switched off", c.findNodes},
		{"the manager dies again", c.replaceManager},
		{"etcd restarts", func(context.Context) error { return plainly(c.plane.RestartEtcd()) }},
	} {
		c.watchOver(t, ctx, pause)
		t.Log(fault.what)
		must(t, fault.does(t.Context()))
	}
	c.watchOver(t, ctx, time.Until(until))
	<-done
}

func plainly(err error) error {
	if err != nil {
		return fmt.Errorf("breaking something: %w", err)
	}
	return nil
}

// watchOver compares what is recorded with what runs, again and again.
func (c *cluster) watchOver(t *testing.T, ctx context.Context, d time.Duration) {
	ctx, stop := context.WithTimeout(ctx, d)
	defer stop()
	_ = wait.PollUntilContextCancel(ctx, time.Second, false, func(ctx context.Context) (bool, error) {
		for _, missing := range c.compare(ctx) {
			t.Error(missing)
		}
		return t.Failed(), nil
	})
}

// leave deletes everything, and waits until it is gone.
func (c *cluster) leave(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
	defer stop()
	must(t, c.endAll(ctx))
	c.awaitNone(t, ctx, "pods", &corev1.PodList{}, c.remind)
	must(t, wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		var blocks v1alpha1.AddressBlockList
		if err := c.plane.Client.List(ctx, &blocks); err != nil {
			return false, nil //nolint:nilerr // It is asked again.
		}
		left := 0
		for _, b := range blocks.Items {
			left += len(b.Spec.Allocations)
		}
		return left == 0, nil
	}))
	must(t, c.plane.Client.DeleteAllOf(ctx, &corev1.Node{}))
	must(t, c.plane.Client.DeleteAllOf(ctx, &v1alpha1.AddressPool{}))
	nothing := func(context.Context) {}
	c.awaitNone(t, ctx, "nodes", &corev1.NodeList{}, nothing)
	c.awaitNone(t, ctx, "blocks", &v1alpha1.AddressBlockList{}, nothing)
	c.awaitNone(t, ctx, "pools", &v1alpha1.AddressPoolList{}, nothing)
}

// released counts the hand-outs that Oakum released, by its Events, and the Events beyond the first of each.
func (c *cluster) released(t *testing.T) (released, again int) {
	var list eventsv1.EventList
	must(t, c.plane.Client.List(t.Context(), &list))
	told := map[string]bool{}
	for _, e := range list.Items {
		switch v1alpha1.EventReason(e.Reason) {
		case v1alpha1.EventAddressReleased, v1alpha1.EventIPAddressGarbageCollected:
			_, rest, _ := strings.Cut(e.Note, "handle ")
			if handle, _, _ := strings.Cut(rest, ")"); told[handle] {
				again++
			} else {
				told[handle] = true
			}
		default:
		}
	}
	return len(told), again
}

// awaitNone waits until nothing is listed, and does something meanwhile.
func (c *cluster) awaitNone(t *testing.T, ctx context.Context, what string, list client.ObjectList, meanwhile func(context.Context)) {
	t.Helper()
	left := -1
	err := wait.PollUntilContextCancel(ctx, 2*time.Second, true, func(ctx context.Context) (bool, error) {
		meanwhile(ctx)
		if err := c.plane.Client.List(ctx, list); err != nil {
			return false, nil //nolint:nilerr // It is asked again.
		}
		left = lengthOf(list)
		return left == 0, nil
	})
	if err != nil {
		t.Fatalf("%d %s are stuck: %v", left, what, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) node(i int) *corev1.Node {
	n := fixture.Node(fmt.Sprintf("node-%03d", i))
	n.Labels = map[string]string{kubelet: "runs"}
	return n
}

// startKwok starts kwok with our Stages.
func (c *cluster) startKwok(dir string) error {
	root, err := controlplane.Root()
	if err != nil {
		return err
	}
	c.kwok, err = launch(filepath.Join(dir, "kwok.log"), filepath.Join(root, "bin", "kwok"),
		"--kubeconfig", c.plane.Kubeconfig, "--config", filepath.Join(root, "test", "scale", "testdata", "stages.yaml"),
		"--manage-nodes-with-label-selector", kubelet+"=runs", "--node-lease-duration-seconds", "0")
	return err
}

func (c *cluster) startManager(ctx context.Context) (err error) {
	m, err := c.plane.StartManager(ctx, c.binary, settings)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.manager = m
	return nil
}

func (c *cluster) replaceManager(ctx context.Context) error {
	c.manager.Kill()
	return c.startManager(ctx)
}

// anyNode returns a node that is not lost.
func (c *cluster) anyNode() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if name := fmt.Sprintf("node-%03d", rand.IntN(*nodes)); !c.lost[name] {
			return name
		}
	}
}
