// Package cluster starts a real Kubernetes of one node, without Docker: beside the control plane run
// kube-controller-manager, kube-scheduler, containerd and a kubelet, and pods get their addresses from Whereabouts. It needs
// Linux, root, runc, and what make builds into bin/node.
//
//	c, err := cluster.Start(ctx, dir, cluster.Options{})
//	if err != nil { ... } // nothing is left
//	defer c.Stop()
//
// A Cluster is a controlplane.ControlPlane too: Client is an admin's, Kubeconfig is a path for kubectl, and StartManager
// starts Oakum. While no manager runs, what needs its webhooks is answered as config/webhook says. Pods run
// [Image] with ImagePullPolicy Never, or [Pod] makes one; what its arguments are is in the package payload. Other images are
// made by [Cluster.Import].
//
// Pods get addresses and no links: nothing can be sent to them, unless [Options].Services says otherwise.
// [Cluster.SetNetwork] says from which ranges, from the next pod on. Plugin is the CNI plugin between containerd and
// Whereabouts: it logs each call with times, and fails on request (package cni). [Cluster.Sandboxes] tells what runs, whatever the API server believes and also while containerd is down.
// Kubelet, Containerd, ControllerManager and Scheduler can be stopped, killed and started again, and all at once by
// [Cluster.PowerOff] and [Cluster.PowerOn].
//
// However the process that started a cluster ends, the cluster ends with it: the package sweeper sees to that.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/e2e/cluster/cni"
)

const (
	// Node is the name of the only node.
	Node = "node-1"
	// Image is the only image that the node has from the start.
	Image = "oakum.dev/payload:test"
)

// Options are how a cluster is started. The zero value has Oakum's manifests and a network of 10.244.0.0/24.
type Options struct {
	// Bare leaves the API server without Oakum's manifests.
	Bare bool
	// Components are folders of config/ that guard another program's records.
	Components []string
	// Network is where pods get their addresses from.
	Network Network
	// Services gives pods links, so that they and Services are reached, the API server's too, from pods and from this
	// process. It has to be in a network namespace of its own: TestMain calls [Apart]. Addresses are from 10.244.0.0/24 and
	// not from Whereabouts, so that Network and Plugin mean nothing.
	Services bool
}

// Cluster is a Kubernetes that runs.
type Cluster struct {
	*controlplane.ControlPlane

	// Kubelet, Containerd, ControllerManager and Scheduler run. A kubelet that is stopped leaves its pods running,
	// and so does containerd.
	Kubelet, Containerd, ControllerManager, Scheduler *Process
	// Proxy is kube-proxy, where there are Services; nil elsewhere.
	Proxy *Process
	// Plugin is where the CNI plugin logs its calls and is told what to do wrong.
	Plugin cni.Folder

	root, dir string
	services  bool
	sweeper   *exec.Cmd
	watch     io.Closer // While it is open the sweeper waits.

	mu        sync.Mutex
	processes []*Process // those that end with the cluster
}

// Start starts a cluster in a folder that it may fill, whose path has to be absolute and of 70 characters at most. What
// an earlier one left in the folder, or running, is removed before. An error leaves nothing behind but files in the folder. It
// takes about ten seconds.
func Start(ctx context.Context, dir string, options Options) (_ *Cluster, err error) {
	c := &Cluster{dir: dir, services: options.Services, Plugin: cni.Folder(filepath.Join(dir, "cni", "plugin"))}
	if c.root, err = controlplane.Root(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(context.Cause(ctx), err, c.Stop()) // A program that was killed does not say why.
		}
	}()
	runc, err := c.check()
	if err != nil {
		return nil, err
	}
	if err := c.build(ctx); err != nil {
		return nil, err
	}
	if err := c.startSweeper(ctx); err != nil {
		return nil, err
	}
	if err := c.connect(options.Network); err != nil {
		return nil, err
	}
	err = together(
		func() (err error) {
			c.ControlPlane, err = controlplane.StartWith(dir, controlplane.Options{
				Bare: options.Bare, Components: options.Components, Nodes: true, Address: c.address(),
			})
			return err
		},
		func() error { return c.startContainerd(ctx, runc) },
	)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	err = errors.Join( // Not together: envtest makes one certificate at a time.
		c.AddUser(c.kubeconfig("kubelet"), "system:node:"+Node, "system:nodes"),
		c.AddUser(c.kubeconfig("kube-controller-manager"), "system:kube-controller-manager"),
		c.AddUser(c.kubeconfig("kube-scheduler"), "system:kube-scheduler"),
		c.AddUser(c.kubeconfig("kube-proxy"), "system:kube-proxy"),
	)
	if err != nil {
		return nil, err
	}
	return c, together(
		func() error { return c.startControllers(ctx) },
		func() error { return c.startKubelet(ctx) },
		func() error {
			if c.services {
				return c.startProxy(ctx)
			}
			return c.installWhereabouts(ctx)
		},
	)
}

// connect tells containerd which plugins give pods their network.
func (c *Cluster) connect(n Network) error {
	if c.services {
		return c.installLinks()
	}
	return c.installPlugin(n)
}

// address is where pods reach the API server; empty if they cannot.
func (c *Cluster) address() string {
	if c.services {
		return Address
	}
	return ""
}

// Stop ends everything and removes what is outside the folder. A second call does nothing.
func (c *Cluster) Stop() error {
	c.killAll()
	if err := errors.Join(c.killContainers(), c.ControlPlane.Stop(), c.swept()); err != nil {
		return fmt.Errorf("stopping the cluster: %w", err)
	}
	return nil
}

// killAll kills the cluster's programs, but for the control plane and what containerd started.
func (c *Cluster) killAll() {
	for _, p := range c.processes {
		p.Kill()
	}
}

// swept lets the sweeper do its work and waits for it.
func (c *Cluster) swept() error {
	if c.sweeper == nil {
		return nil
	}
	err := errors.Join(c.watch.Close(), c.sweeper.Wait())
	c.sweeper = nil
	return err
}

// check returns the path of runc, if all is there that a node needs.
func (c *Cluster) check() (runc string, err error) {
	if os.Geteuid() != 0 {
		return "", errors.New("starting a node: it needs root; run it with sudo, or in a virtual machine")
	}
	if !filepath.IsAbs(c.dir) || len(c.dir) > 70 {
		return "", fmt.Errorf("starting a node in %s: a kubelet's sockets need a path that is absolute and of 70 characters at most; give the test a shorter name", c.dir)
	}
	if _, err := os.Stat("/var/lib/kubelet/pods"); err == nil {
		return "", errors.New("starting a node: this machine is one already, or was: its kubelet has /var/lib/kubelet; use another machine")
	}
	programs := []string{"containerd", "containerd-shim-runc-v2", "ctr", "kubelet", "kube-controller-manager", "kube-scheduler"}
	if c.services {
		if err := isApart(); err != nil {
			return "", err
		}
		if _, err := installed("nft", "nftables"); err != nil {
			return "", err
		}
		programs = append(programs, "kube-proxy", "ptp", "host-local")
	} else {
		programs = append(programs, "whereabouts", "whereabouts-controlloop")
	}
	for _, program := range programs {
		if _, err := os.Stat(c.program(program)); err != nil {
			return "", fmt.Errorf("starting a node: bin/node has no %s; make bin/node/%[1]s builds it: %w", program, err)
		}
	}
	return installed("runc", "runc")
}

// installed returns the path of a program that a package of Debian's has.
func installed(program, pkg string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"} {
		path := filepath.Join(dir, program)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("starting a node: there is no %s; Debian's package %s has it", program, pkg)
}

// program is the path of a program that make builds.
func (c *Cluster) program(name string) string { return filepath.Join(c.root, "bin", "node", name) }

// kubeconfig is the path of the one that a program of the cluster's uses.
func (c *Cluster) kubeconfig(name string) string { return filepath.Join(c.dir, name+".kubeconfig") }

// build compiles the programs that are the tests' own.
func (c *Cluster) build(ctx context.Context) error {
	const packages = "github.com/oakum-dev/oakum/test/e2e/cluster/"
	bin := filepath.Join(c.dir, "bin")
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", bin+"/",
		packages+"payload", packages+"plugin", packages+"sweeper")
	cmd.Dir, cmd.Env = c.root, append(os.Environ(), "CGO_ENABLED=0")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the payload, the plugin and the sweeper: %w: %s", err, out)
	}
	return nil
}

// startSweeper removes what an earlier cluster in the folder left, and then starts the sweeper of this one.
func (c *Cluster) startSweeper(ctx context.Context) error {
	if err := c.sweep().Run(); err != nil {
		return fmt.Errorf("sweeping the folder: %w", err)
	}
	for _, name := range []string{"apiserver", "cni", "containerd", "etcd", "kubelet", "controlloop", "runc"} {
		if err := os.RemoveAll(filepath.Join(c.dir, name)); err != nil {
			return fmt.Errorf("emptying the folder: %w", err)
		}
	}
	for _, dir := range []string{
		filepath.Join(c.dir, "cni", "conf"), string(c.Plugin), filepath.Join(c.dir, "containerd"), filepath.Join(c.dir, "kubelet", "plugins"),
	} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("making a folder: %w", err)
		}
	}
	if err := c.keepSwept(); err != nil {
		return err
	}
	return ctx.Err()
}

// keepSwept starts the sweeper that waits for the end of this process, and makes the folder that it removes.
func (c *Cluster) keepSwept() error {
	if err := os.MkdirAll(c.sockets(), 0o700); err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	cmd := c.sweep()
	watch, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("starting the sweeper: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the sweeper: %w", err)
	}
	c.sweeper, c.watch = cmd, watch
	return nil
}

// sweep is the sweeper, which begins when its standard input ends.
func (c *Cluster) sweep() *exec.Cmd {
	cmd := exec.Command(filepath.Join(c.dir, "bin", "sweeper"), c.dir, c.sockets(), c.cgroup())
	cmd.Stderr, cmd.SysProcAttr = os.Stderr, &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is not for it.
	return cmd
}

// cgroup is the name of the cgroup that all containers are in.
func (c *Cluster) cgroup() string {
	hash := fnv.New32a()
	_, _ = io.WriteString(hash, c.dir) // It never fails.
	return fmt.Sprintf("oakum-%08x", hash.Sum32())
}

// sockets is the folder of containerd's sockets and its shims', whose paths are too long below the cluster's folder.
func (c *Cluster) sockets() string { return filepath.Join("/run", c.cgroup()) }

// Pod returns a pod that runs the image with these arguments until it is told to end.
func Pod(namespace, name string, args ...string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: PodSpec(args...)}
}

// PodSpec returns what such a pod is made of, for StatefulSets and the like.
func PodSpec(args ...string) corev1.PodSpec {
	return corev1.PodSpec{
		AutomountServiceAccountToken: new(false),
		EnableServiceLinks:           new(false),
		Containers: []corev1.Container{{
			Name: "payload", Image: Image, ImagePullPolicy: corev1.PullNever, Args: args,
		}},
	}
}

// Await tries until there is no error, as long as anything may take.
func Await(ctx context.Context, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, controlplane.Deadline)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err // Afterwards it would say no more than that the time is over.
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), last)
		case <-tick.C:
		}
	}
}

// together does all of it at once, and returns when all has ended.
func together(steps ...func() error) error {
	errs := make([]error, len(steps))
	var all sync.WaitGroup
	for i, step := range steps {
		all.Go(func() { errs[i] = step() })
	}
	all.Wait()
	return errors.Join(errs...)
}
