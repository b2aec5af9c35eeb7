// Package controlplane starts a real etcd and kube-apiserver with everything of config/ in it, and Oakum's manager as
// a process beside it, with the rights of its ServiceAccount and no more.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
)

const (
	// Namespace is where Oakum is.
	Namespace = "oakum-system"
	// ServiceAccount is the user that Oakum's manager is.
	ServiceAccount = "system:serviceaccount:" + Namespace + ":oakum"
)

// ControlPlane is an API server that runs.
type ControlPlane struct {
	// Admin may do everything.
	Admin *rest.Config
	// Client is an admin's client that knows our types and has no cache.
	Client client.Client
	// Kubeconfig is the path of the admin's.
	Kubeconfig string

	root, dir  string
	env        *envtest.Environment
	oakum      string
	webhook    int
	selfSigned bool
	ports      *ports
}

// Options are in what a control plane differs from the one that Start starts.
type Options struct {
	// Bare leaves the API server as it is without Oakum.
	Bare bool
	// Unguarded leaves out the policies.
	Unguarded bool
	// Components are folders of config/ that guard another program's records, such as whereabouts, with their webhooks
	// in webhook.yaml.
	Components []string
	// Nodes prepares the API server for controllers and kubelets: pods need a ServiceAccount, and a node may write
	// what belongs to it and no more.
	Nodes bool
	// Address is an address of this machine's that is not a loopback's, where pods reach the API server. Empty means 127.0.0.1.
	Address string
	// SelfSigned has the API server call the webhooks through their Service, and managers make the certificates for it.
	SelfSigned bool
}

// Start starts the API server with all that config/ has for it, in a folder that it may fill. Stop must be called, also if
// the answer is an error.
func Start(dir string) (*ControlPlane, error) { return StartWith(dir, Options{}) }

// StartBare does as Start, but leaves the API server as it is without Oakum.
func StartBare(dir string) (*ControlPlane, error) { return StartWith(dir, Options{Bare: true}) }

// StartWith does as Start, with options.
func StartWith(dir string, options Options) (*ControlPlane, error) {
	c, err := start(dir, options)
	if err != nil || options.Bare || options.Unguarded {
		return c, err
	}
	paths := []string{"manager/namespace.yaml", "rbac", "policy"}
	for _, component := range options.Components {
		if policy := filepath.Join(component, "policy.yaml"); exists(filepath.Join(c.root, "config", policy)) {
			paths = append(paths, policy)
		}
	}
	if options.SelfSigned {
		paths = append(paths, "selfsigned/role.yaml", "selfsigned/bindings.yaml")
	}
	for _, path := range paths {
		if err := c.Apply(context.Background(), filepath.Join(c.root, "config", path)); err != nil {
			return c, err
		}
	}
	if options.SelfSigned {
		if err := c.serve(context.Background()); err != nil {
			return c, err
		}
	}
	return c, c.awaitPolicies(context.Background())
}

// serve registers the webhooks as they are in config/webhook, behind a Service that leads to this machine. The API server
// calls the port that the registration names.
func (c *ControlPlane) serve(ctx context.Context) error {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "oakum"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}
	if err := c.Client.Create(ctx, service); err != nil {
		return fmt.Errorf("making the Service: %w", err)
	}
	objects, err := Read(filepath.Join(c.root, "config", "webhook", "manifests.yaml"))
	if err != nil {
		return err
	}
	for _, object := range objects {
		webhooks, _, err := unstructured.NestedSlice(object.Object, "webhooks")
		if err != nil {
			return fmt.Errorf("reading the webhooks of %s: %w", object.GetName(), err)
		}
		for _, w := range webhooks {
			if err := unstructured.SetNestedField(w.(map[string]any), int64(c.webhook), "clientConfig", "service", "port"); err != nil {
				return fmt.Errorf("setting the port of %s: %w", object.GetName(), err)
			}
		}
		object.Object["webhooks"] = webhooks
		if err := c.Client.Create(ctx, object); err != nil {
			return fmt.Errorf("registering the webhooks: %w", err)
		}
	}
	return nil
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// awaitPolicies returns when the API server heeds the policies, which takes it a second or two. It reads all of them at
// once, so asking one is enough: whether an admin may take a finalizer of ours off.
func (c *ControlPlane) awaitPolicies(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Deadline)
	defer cancel()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "policies", Finalizers: []string{v1alpha1.AddressesFinalizer}}}
	if err := c.Client.Create(ctx, node); err != nil {
		return fmt.Errorf("waiting for the policies: %w", err)
	}
	strip := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !apierrors.IsForbidden(c.Client.Patch(ctx, node.DeepCopy(), strip, client.DryRunAll)) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the policies: %w", ctx.Err())
		case <-tick.C:
		}
	}
	force := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.ForceReleaseAnnotation, node.UID)
	return errors.Join(
		c.Client.Patch(ctx, node, client.RawPatch(types.MergePatchType, []byte(force))),
		c.Client.Patch(ctx, node, strip),
		c.Client.Delete(ctx, node),
	)
}

// start starts the API server, with our custom resource definitions and webhooks unless it is to be bare.
func start(dir string, options Options) (*ControlPlane, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	c := &ControlPlane{root: root, dir: dir, ports: &ports{}, selfSigned: options.SelfSigned, Kubeconfig: filepath.Join(dir, "kubeconfig"), oakum: filepath.Join(dir, "oakum.kubeconfig")}
	if c.webhook, err = c.ports.reserve(); err != nil {
		return c, err
	}
	c.env = &envtest.Environment{
		BinaryAssetsDirectory:   filepath.Join(root, "bin", "control-plane"), // unless KUBEBUILDER_ASSETS is set
		ErrorIfCRDPathMissing:   true,
		ControlPlaneStopTimeout: Deadline,
		ControlPlane:            envtest.ControlPlane{Etcd: &envtest.Etcd{DataDir: filepath.Join(dir, "etcd")}}, // It survives a restart.
		WebhookInstallOptions: envtest.WebhookInstallOptions{
			LocalServingHost:             "127.0.0.1",
			LocalServingHostExternalName: "127.0.0.1",
			LocalServingPort:             c.webhook,
		},
	}
	apiserver := c.env.ControlPlane.GetAPIServer()
	apiserver.CertDir = filepath.Join(dir, "apiserver")
	if err := os.MkdirAll(apiserver.CertDir, 0o700); err != nil {
		return nil, fmt.Errorf("making a folder for the API server's certificates: %w", err)
	}
	if !options.Bare {
		c.env.CRDDirectoryPaths = []string{filepath.Join(root, "config", "crd")}
		if !options.SelfSigned {
			c.env.WebhookInstallOptions.Paths = []string{filepath.Join(root, "config", "webhook")}
		}
		for _, component := range options.Components {
			c.env.WebhookInstallOptions.Paths = append(c.env.WebhookInstallOptions.Paths, filepath.Join(root, "config", component, "webhook.yaml"))
		}
	}
	if options.Nodes {
		apiserver.Configure().
			Disable("disable-admission-plugins"). // envtest's default: ServiceAccount
			Set("enable-admission-plugins", "NodeRestriction").
			Set("authorization-mode", "Node", "RBAC")
	}
	if options.Address != "" {
		if err := serve(apiserver, options.Address); err != nil {
			return c, err
		}
	}
	if c.Admin, err = c.env.Start(); err != nil {
		return c, fmt.Errorf("starting etcd and kube-apiserver: %w", err)
	}
	// Tests and demonstrations ask in bursts; the API server looks after itself.
	c.Admin.QPS, c.Admin.Burst = -1, -1
	scheme, err := Scheme()
	if err != nil {
		return c, err
	}
	if c.Client, err = client.New(c.Admin, client.Options{Scheme: scheme}); err != nil {
		return c, fmt.Errorf("making a client: %w", err)
	}
	return c, errors.Join(
		c.AddUser(c.Kubeconfig, "admin", "system:masters"),
		c.AddUser(c.oakum, ServiceAccount, "system:serviceaccounts", "system:serviceaccounts:"+Namespace, "system:authenticated"),
	)
}

// Scheme returns a scheme with Kubernetes' types and ours.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	return scheme, errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme))
}

// Stop ends the API server.
func (c *ControlPlane) Stop() error {
	if c == nil {
		return nil
	}
	defer c.ports.release()
	if c.env == nil {
		return nil
	}
	if err := c.env.Stop(); err != nil {
		return fmt.Errorf("stopping etcd and kube-apiserver: %w", err)
	}
	return nil
}

// As returns the configuration of a client that is another user, in these groups and in that of all who have a token.
func (c *ControlPlane) As(user string, extra map[string][]string, groups ...string) *rest.Config {
	config := rest.CopyConfig(c.Admin)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:authenticated"), Extra: extra}
	return config
}

// Oakum returns the configuration of a client with the rights of Oakum's manager.
func (c *ControlPlane) Oakum() *rest.Config {
	return c.As(ServiceAccount, nil, "system:serviceaccounts", "system:serviceaccounts:"+Namespace)
}

// Apply applies a file of manifests, or every file in a folder but kustomizations.
func (c *ControlPlane) Apply(ctx context.Context, path string) error {
	files := []string{path}
	if info, err := os.Stat(path); err != nil {
		return fmt.Errorf("applying manifests: %w", err)
	} else if info.IsDir() {
		if files, err = filepath.Glob(filepath.Join(path, "*.yaml")); err != nil {
			return fmt.Errorf("applying manifests: %w", err)
		}
	}
	for _, file := range files {
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		objects, err := Read(file)
		if err != nil {
			return err
		}
		for _, object := range objects {
			if err := c.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("oakum-test"), client.ForceOwnership); err != nil {
				return fmt.Errorf("applying %s: %w", file, err)
			}
		}
	}
	return nil
}

// Read reads a file of manifests.
func Read(file string) ([]*unstructured.Unstructured, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("reading manifests: %w", err)
	}
	defer f.Close() //nolint:errcheck // It was only read.
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(f, 4096)
	for {
		object := &unstructured.Unstructured{}
		switch err := decoder.Decode(object); {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, fmt.Errorf("reading %s: %w", file, err)
		case len(object.Object) > 0:
			objects = append(objects, object)
		}
	}
}

// AddUser writes a kubeconfig with which one is that user, in these groups.
func (c *ControlPlane) AddUser(file, name string, groups ...string) error {
	user, err := c.env.AddUser(envtest.User{Name: name, Groups: groups}, nil)
	if err != nil {
		return fmt.Errorf("adding user %s: %w", name, err)
	}
	data, err := user.KubeConfig()
	if err != nil {
		return fmt.Errorf("making the kubeconfig of %s: %w", name, err)
	}
	return os.WriteFile(file, data, 0o600)
}

// ServiceAccountKey is the path of the key that signs the tokens of ServiceAccounts.
func (c *ControlPlane) ServiceAccountKey() string {
	return filepath.Join(c.dir, "apiserver", signerKey)
}

// signerKey is the name of that key's file, which envtest chose.
const signerKey = "sa-signer.key"

// Root returns the repository's root folder, above the working directory.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "PROJECT")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("finding the repository: no folder above has a file PROJECT")
		}
		dir = parent
	}
}

// ports are this machine's, and taken before anybody listens on them. The UDP port of the same number marks one as such, for
// other processes too. The zero value has none.
type ports struct {
	mu    sync.Mutex
	marks []net.PacketConn
}

// reserve returns a port that nobody listens on or is about to, from below the range out of which Linux serves connections.
func (p *ports) reserve() (int, error) {
	for range 100 {
		at := fmt.Sprintf("127.0.0.1:%d", 20000+rand.N(12000))
		mark, err := net.ListenPacket("udp", at)
		if err != nil {
			continue
		}
		l, err := net.Listen("tcp", at)
		if err != nil {
			_ = mark.Close()
			continue
		}
		p.mu.Lock()
		p.marks = append(p.marks, mark)
		p.mu.Unlock()
		return l.Addr().(*net.TCPAddr).Port, l.Close()
	}
	return 0, errors.New("finding a free port: 100 of them are in use")
}

// release leaves the ports to others.
func (p *ports) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, mark := range p.marks {
		_ = mark.Close()
	}
	p.marks = nil
}

// Deadline is how long anything on a machine with two busy cores may take before it counts as stuck.
const Deadline = time.Minute
