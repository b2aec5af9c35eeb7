package controlplane

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/cli"
)

// Build compiles the oakum binary into the control plane's folder.
func (c *ControlPlane) Build(ctx context.Context) (binary string, err error) {
	binary = filepath.Join(c.dir, "oakum")
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", binary, ".")
	cmd.Dir = c.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building oakum: %w: %s", err, out)
	}
	return binary, nil
}

// Manager is a process of Oakum's manager.
type Manager struct {
	// Webhook and Health are ports on 127.0.0.1, Metrics too.
	Webhook, Health, Metrics int
	// Log is the path of what it printed.
	Log string

	cmd  *exec.Cmd
	done chan error
}

// CertDir is the folder with the certificate that the managers show to the API server: tls.crt and tls.key.
func (c *ControlPlane) CertDir() string { return c.env.WebhookInstallOptions.LocalServingCertDir }

// Webhook is the address that the API server calls.
func (c *ControlPlane) Webhook() string { return fmt.Sprintf("127.0.0.1:%d", c.webhook) }

// StartManager starts a manager, to which the API server's webhook calls go, and waits until it is ready. The settings
// are lines for the configuration file, beside those that say where to listen.
func (c *ControlPlane) StartManager(ctx context.Context, binary, settings string) (*Manager, error) {
	m, err := c.LaunchManager(binary, settings)
	if err != nil {
		return nil, err
	}
	return m, m.AwaitReady(ctx)
}

// LaunchManager does as StartManager, but does not wait.
func (c *ControlPlane) LaunchManager(binary, settings string) (*Manager, error) {
	return c.launch(binary, settings, c.webhook)
}

// LaunchAnother launches a manager that the API server does not call.
func (c *ControlPlane) LaunchAnother(binary, settings string) (*Manager, error) {
	port, err := c.ports.reserve()
	if err != nil {
		return nil, err
	}
	return c.launch(binary, settings, port)
}

func (c *ControlPlane) launch(binary, settings string, webhook int) (*Manager, error) {
	m := &Manager{Webhook: webhook, done: make(chan error, 1)}
	for _, port := range []*int{&m.Health, &m.Metrics} {
		var err error
		if *port, err = c.ports.reserve(); err != nil {
			return nil, err
		}
	}
	certificates := "certDir: " + c.CertDir()
	if c.selfSigned {
		certificates = "selfSigned: {secretName: oakum-webhook-ca, serviceName: oakum}"
	}
	file := filepath.Join(c.dir, fmt.Sprintf("config-%d.yaml", webhook))
	text := fmt.Sprintf(`apiVersion: config.oakum.dev/v1alpha1
kind: Configuration
namespace: oakum-system
webhook: {host: 127.0.0.1, port: %d, %s}
health: {bindAddress: "127.0.0.1:%d"}
metrics: {bindAddress: "127.0.0.1:%d"}
%s`, webhook, certificates, m.Health, m.Metrics, settings)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("writing the configuration: %w", err)
	}
	if err := c.grant(context.Background(), text); err != nil {
		return nil, err
	}
	m.Log = filepath.Join(c.dir, fmt.Sprintf("oakum-%d.log", webhook))
	log, err := os.OpenFile(m.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the log: %w", err)
	}
	defer log.Close() //nolint:errcheck // The process has its own descriptor.
	m.cmd = exec.Command(binary, "manager", "--config", file)
	m.cmd.Env = append(os.Environ(), "KUBECONFIG="+c.oakum)
	m.cmd.Stdout, m.cmd.Stderr = log, log
	// The manager must not outlive whoever started it.
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := m.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the manager: %w", err)
	}
	go func() { m.done <- m.cmd.Wait() }()
	return m, nil
}

// grant leaves Oakum's ServiceAccount with the rights that these settings need and no others, if it has any. Those to certificates
// are in roles of their own.
func (c *ControlPlane) grant(ctx context.Context, text string) error {
	settings, err := config.Decode([]byte(text))
	if err != nil {
		return nil //nolint:nilerr // The manager says so itself.
	}
	settings.Webhook.SelfSigned = nil
	rules := map[string][]rbacv1.PolicyRule{}
	for _, r := range cli.Rights(settings) {
		rules[r.Namespace] = append(rules[r.Namespace], r.PolicyRule)
	}
	for namespace, needed := range rules {
		var role client.Object = &rbacv1.ClusterRole{}
		if namespace != "" {
			role = &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}}
		}
		role.SetName("oakum")
		patch, err := json.Marshal(map[string]any{"rules": needed})
		if err != nil {
			return fmt.Errorf("writing rights: %w", err)
		}
		if err := c.Client.Patch(ctx, role, client.RawPatch(types.MergePatchType, patch)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("giving Oakum its rights: %w", err)
		}
	}
	return nil
}

// AwaitReady returns when the manager is ready. One that does not get ready is ended.
func (m *Manager) AwaitReady(ctx context.Context) error {
	if err := m.awaitReady(ctx); err != nil {
		m.Kill()
		text, _ := os.ReadFile(m.Log)
		return fmt.Errorf("waiting for the manager: %w\n%s", err, bytes.TrimSpace(text))
	}
	return nil
}

func (m *Manager) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Deadline)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/readyz", m.Health), nil)
		if err != nil {
			return err
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			if err := resp.Body.Close(); err == nil && resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case err := <-m.done:
			m.done <- err
			return fmt.Errorf("it ended: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// Stop asks the manager to end, and waits.
func (m *Manager) Stop() error {
	if err := m.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stopping the manager: %w", err)
	}
	select {
	case err := <-m.done:
		m.done <- err
		return err
	case <-time.After(Deadline):
		m.Kill()
		return fmt.Errorf("stopping the manager: it did not end within %s", Deadline)
	}
}

// Signal sends the manager a signal: SIGSTOP lets it hang, SIGCONT lets it go on.
func (m *Manager) Signal(s os.Signal) error { return m.cmd.Process.Signal(s) }

// PID is the number of the manager's process.
func (m *Manager) PID() int { return m.cmd.Process.Pid }

// Kill ends the manager without a warning, and waits.
func (m *Manager) Kill() {
	if err := m.cmd.Process.Kill(); err == nil {
		err := <-m.done
		m.done <- err
	}
}

// Replicas are several managers behind one address, as behind a Service.
type Replicas struct {
	Managers []*Manager
	balancer *http.Server
}

// StartReplicas starts n managers and spreads the API server's webhook calls over them, request by request. A replica
// that refuses the connection is passed over: behind a Service it would not be ready, and have no endpoint.
func (c *ControlPlane) StartReplicas(ctx context.Context, binary, settings string, n int) (*Replicas, error) {
	r := &Replicas{}
	targets := make([]*url.URL, n)
	for i := range targets {
		port, err := c.ports.reserve()
		if err != nil {
			return r, err
		}
		m, err := c.launch(binary, settings, port)
		if err != nil {
			return r, err
		}
		r.Managers = append(r.Managers, m)
		targets[i] = &url.URL{Scheme: "https", Host: fmt.Sprintf("127.0.0.1:%d", port)}
	}
	for _, m := range r.Managers {
		if err := m.AwaitReady(ctx); err != nil {
			return r, err
		}
	}
	var next atomic.Uint64
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(targets[next.Add(1)%uint64(n)]) },
		Transport: &http.Transport{
			DialContext:         r.dial,
			TLSClientConfig:     &tls.Config{InsecureSkipVerify: true},
			MaxIdleConnsPerHost: 100,
		},
	}
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", c.webhook))
	if err != nil {
		return r, fmt.Errorf("starting the balancer: %w", err)
	}
	r.balancer = &http.Server{Handler: proxy, ReadHeaderTimeout: time.Minute}
	go func() {
		// The only answer is that the server was closed, by Stop.
		_ = r.balancer.ServeTLS(listener, filepath.Join(c.CertDir(), "tls.crt"), filepath.Join(c.CertDir(), "tls.key"))
	}()
	return r, nil
}

// dial connects to the replica with that address, or else to another one.
func (r *Replicas) dial(ctx context.Context, network, address string) (net.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, network, address)
	for _, m := range r.Managers {
		if err == nil {
			break
		}
		conn, err = dialer.DialContext(ctx, network, fmt.Sprintf("127.0.0.1:%d", m.Webhook))
	}
	return conn, err
}

// Stop ends the replicas and what stands before them.
func (r *Replicas) Stop() error {
	for _, m := range r.Managers {
		m.Kill()
	}
	if r.balancer == nil {
		return nil
	}
	return r.balancer.Close()
}

// Ended answers when the manager's process has ended, and how.
func (m *Manager) Ended() <-chan error { return m.done }

// Resident returns how many bytes of the manager are in memory, and how many were at most.
func (m *Manager) Resident() (now, most uint64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.cmd.Process.Pid))
	if err != nil {
		return 0, 0, fmt.Errorf("reading how much memory the manager has: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		var kilobytes uint64
		if _, err := fmt.Sscanf(value, "%d kB", &kilobytes); err != nil {
			continue
		}
		switch name {
		case "VmRSS":
			now = kilobytes << 10
		case "VmHWM":
			most = kilobytes << 10
		}
	}
	return now, most, nil
}
