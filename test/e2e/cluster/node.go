package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// containerdConfig keeps to the folders DIR and SOCKETS. With the native snapshotter no mounts of layers are needed, and without
// restrict_oom_score_adj runc fails where root lacks CAP_SYS_RESOURCE.
const containerdConfig = `version = 4
root = "DIR/containerd/root"
state = "DIR/containerd/state"
imports = []
[plugins."io.containerd.server.v1.grpc"]
address = "SOCKETS/containerd.sock"
[plugins."io.containerd.server.v1.ttrpc"]
address = "SOCKETS/containerd.sock.ttrpc"
[plugins."io.containerd.shim.v1.manager"]
socket_dir = "SOCKETS"
[plugins."io.containerd.internal.v1.opt"]
path = "DIR/containerd/opt"
[plugins."io.containerd.nri.v1.nri"]
disable = true
[plugins."io.containerd.cri.v1.images"]
snapshotter = "native"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "IMAGE"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["DIR/bin"]
conf_dir = "DIR/cni/conf"
use_internal_loopback = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "RUNC"
Root = "DIR/runc"
`

// kubeletConfig keeps to the folder DIR as far as it can, serves nobody, and hurries. Containers are in one cgroup, since a tree of them by
// quality of service needs a host that was prepared for it.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
enableServer: false
healthzPort: 0
containerRuntimeEndpoint: unix://SOCKETS/containerd.sock
podLogsDir: DIR/kubelet/logs
volumePluginDir: DIR/kubelet/plugins
resolvConf: ""
failCgroupV1: false
failSwapOn: false
cgroupDriver: cgroupfs
cgroupRoot: /CGROUP
cgroupsPerQOS: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
evictionHard: {memory.available: 10Mi, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
maxPods: 250
kubeAPIQPS: 200
kubeAPIBurst: 400
registryPullQPS: 0
syncFrequency: 10s
nodeStatusUpdateFrequency: 2s
nodeLeaseDurationSeconds: 8
`

// startContainerd starts containerd and gives it the image.
func (c *Cluster) startContainerd(ctx context.Context, runc string) error {
	config := filepath.Join(c.dir, "containerd", "config.toml")
	text := strings.NewReplacer("DIR", c.dir, "SOCKETS", c.sockets(), "IMAGE", Image, "RUNC", runc).Replace(containerdConfig)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return fmt.Errorf("writing containerd's configuration: %w", err)
	}
	listens := func(ctx context.Context, _ time.Time) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(c.sockets(), "containerd.sock"))
		if err != nil {
			return err
		}
		return conn.Close()
	}
	var err error
	if c.Containerd, err = c.start(ctx, "containerd", listens, "--config", config); err != nil {
		return err
	}
	return c.Import(ctx, Image, filepath.Join(c.dir, "bin", "payload"))
}

// startKubelet starts the kubelet and waits until the node is ready and pods can be created.
func (c *Cluster) startKubelet(ctx context.Context) error {
	config := filepath.Join(c.dir, "kubelet", "config.yaml")
	text := strings.NewReplacer("DIR", c.dir, "SOCKETS", c.sockets(), "CGROUP", c.cgroup()).Replace(kubeletConfig)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return fmt.Errorf("writing the kubelet's configuration: %w", err)
	}
	args := []string{
		"--config", config, "--kubeconfig", c.kubeconfig("kubelet"), "--hostname-override", Node,
		"--root-dir", filepath.Join(c.dir, "kubelet"), "--cert-dir", filepath.Join(c.dir, "kubelet", "pki"),
	}
	if c.services {
		args = append(args, "--node-ip", Address) // It would ask a DNS for its name.
	}
	var err error
	c.Kubelet, err = c.start(ctx, "kubelet", c.nodeReady, args...)
	return err
}

// nodeReady tells why the node is not ready, as far as a kubelet said so since that time.
func (c *Cluster) nodeReady(ctx context.Context, since time.Time) error {
	var lease coordinationv1.Lease
	if err := c.Client.Get(ctx, client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: Node}, &lease); err != nil {
		return err
	}
	if lease.Spec.RenewTime == nil || lease.Spec.RenewTime.Time.Before(since) {
		return errors.New("the kubelet has not renewed its lease")
	}
	var node corev1.Node
	if err := c.Client.Get(ctx, client.ObjectKey{Name: Node}, &node); err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return errors.New("the node is not ready")
}
