package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	// Address is the node's in a cluster with Services. The API server listens on it.
	Address = "192.0.2.1"

	pods = "10.244.0.0/24"
)

// Apart runs this program from its start in a network namespace of its own, which a cluster with Services needs. TestMain calls
// it first. The answer comes in the namespace, whose only links are lo and those of pods; what kube-proxy and plugins do there is
// gone with the last process in it, however that ends, and the machine's own network never sees it.
func Apart() error {
	here, err := os.Readlink(namespace)
	if err != nil {
		return fmt.Errorf("looking for the network namespace: %w", err)
	}
	if os.Getenv(left) != "" {
		return arrive()
	}
	runtime.LockOSThread() // The thread that moves is the one that remains.
	if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
		return fmt.Errorf("making a network namespace, which needs root: %w", err)
	}
	err = syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), left+"="+here))
	return fmt.Errorf("running in a network namespace: %w", err)
}

const (
	namespace = "/proc/self/ns/net"
	left      = "OAKUM_LEFT_NETWORK" // says which namespace a program that is apart was started in
)

// isApart tells why this process is not in a network namespace of its own.
func isApart() error {
	here, err := os.Readlink(namespace)
	if err != nil {
		return fmt.Errorf("looking for the network namespace: %w", err)
	}
	if before := os.Getenv(left); before == "" || before == here {
		return errors.New("starting a cluster with Services: this is the machine's own network; TestMain has to call Apart")
	}
	return nil
}

// arrive brings up what a new network namespace needs. What goes to a Service gets a route before it is translated, so there is a
// route to everywhere.
func arrive() error {
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader("link set lo up\n" +
		"address replace " + Address + "/32 dev lo\n" +
		"route replace default dev lo src " + Address + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("configuring a network namespace with ip, which Debian's package iproute2 has: %w: %s", err, out)
	}
	return nil
}

// installLinks tells containerd about the plugins with which a pod gets a link to the node, and with it to everybody. A bridge
// would take a shortcut between two pods past kube-proxy's translation, where the kernel has no br_netfilter.
func (c *Cluster) installLinks() error {
	list, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": "default",
		"plugins": []map[string]any{{"type": "ptp", "ipam": map[string]any{
			"type": "host-local", "dataDir": filepath.Join(c.dir, "cni", "addresses"),
			"ranges": [][]map[string]string{{{"subnet": pods}}},
			"routes": []map[string]string{{"dst": "0.0.0.0/0"}},
		}}},
	})
	if err != nil {
		return fmt.Errorf("encoding the network: %w", err)
	}
	if err := os.WriteFile(filepath.Join(c.dir, "cni", "conf", "default.conflist"), list, 0o600); err != nil {
		return fmt.Errorf("writing the network: %w", err)
	}
	for _, plugin := range []string{"ptp", "host-local"} {
		if err := os.Symlink(c.program(plugin), filepath.Join(c.dir, "bin", plugin)); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("installing a plugin: %w", err)
		}
	}
	return nil
}

// proxyConfig leaves alone what a network namespace does not have of its own.
const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: %s}
hostnameOverride: %s
clusterCIDR: %s
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
conntrack: {maxPerCore: 0}
nftables: {minSyncPeriod: 100ms}
`

// startProxy starts kube-proxy and waits until Services are reached.
func (c *Cluster) startProxy(ctx context.Context) error {
	config := filepath.Join(c.dir, "kube-proxy.yaml")
	text := fmt.Appendf(nil, proxyConfig, c.kubeconfig("kube-proxy"), Node, pods)
	if err := os.WriteFile(config, text, 0o600); err != nil {
		return fmt.Errorf("writing kube-proxy's configuration: %w", err)
	}
	var err error
	c.Proxy, err = c.start(ctx, "kube-proxy", proxyReady, "--config", config)
	return err
}

// proxyReady tells why kube-proxy has not written its rules.
func proxyReady(ctx context.Context, _ time.Time) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:10256/healthz", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("kube-proxy answers %s", resp.Status)
	}
	return nil
}

// forgetRules removes kube-proxy's rules, as they are gone when a machine ends.
func forgetRules() error {
	if out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput(); err != nil {
		return fmt.Errorf("removing kube-proxy's rules: %w: %s", err, out)
	}
	return nil
}
