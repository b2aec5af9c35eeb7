package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/test/controlplane"
)

// installWhereabouts applies Whereabouts' own manifests, but for its DaemonSet, and lets the plugin be who the DaemonSet
// would let it be: the ServiceAccount whereabouts, with its rights and no more.
func (c *Cluster) installWhereabouts(ctx context.Context) error {
	manifests, err := c.moduleDir(ctx, "whereabouts", "github.com/k8snetworkplumbingwg/whereabouts")
	if err != nil {
		return err
	}
	// Its control loop watches these.
	attachments, err := c.moduleDir(ctx, "whereabouts", "github.com/k8snetworkplumbingwg/network-attachment-definition-client")
	if err != nil {
		return err
	}
	crds, err := filepath.Glob(filepath.Join(manifests, "doc", "crds", "whereabouts.cni.cncf.io_*.yaml"))
	if err != nil {
		return err
	}
	for _, file := range append(crds, filepath.Join(attachments, "artifacts", "networks-crd.yaml")) {
		if err := c.Apply(ctx, file); err != nil {
			return err
		}
	}
	objects, err := controlplane.Read(filepath.Join(manifests, "doc", "crds", "daemonset-install.yaml"))
	if err != nil {
		return err
	}
	for _, object := range objects {
		if object.GetKind() == "DaemonSet" {
			continue
		}
		err := Await(ctx, func(ctx context.Context) error { // The namespace kube-system may be yet to come.
			return c.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("oakum-test"))
		})
		if err != nil {
			return fmt.Errorf("applying Whereabouts' %s: %w", object.GetKind(), err)
		}
	}
	token, err := c.whereaboutsToken(ctx)
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(c.dir, "cni", "whereabouts.kubeconfig")
	if err := clientcmd.WriteToFile(c.whereaboutsKubeconfig(token), kubeconfig); err != nil {
		return fmt.Errorf("writing Whereabouts' kubeconfig: %w", err)
	}
	return writeFlatFile(filepath.Join(c.dir, "cni", "whereabouts.conf"), kubeconfig, filepath.Join(c.dir, "whereabouts.log"))
}

// StartControlLoop starts Whereabouts' control loop: its pod controller, which acts on the deletion of pods that have
// network-status annotations, and its reconciler, which runs at the times of a cron expression in UTC; none means that it
// runs every minute.
func (c *Cluster) StartControlLoop(ctx context.Context, schedule string) (*Process, error) {
	if schedule == "" {
		schedule = "* * * * *"
	}
	token, err := c.whereaboutsToken(ctx)
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(c.program("whereabouts-controlloop"))
	if err != nil {
		return nil, fmt.Errorf("reading the control loop: %w", err)
	}
	// Where it looks for files is not for us to say, so it gets a world of its own.
	root := filepath.Join(c.dir, "controlloop")
	const account, conf = "var/run/secrets/kubernetes.io/serviceaccount", "etc/cni/net.d/whereabouts.d"
	for _, dir := range []string{account, conf, "host/" + conf, "cron-schedule", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			return nil, fmt.Errorf("making a folder for the control loop: %w", err)
		}
	}
	for name, content := range map[string][]byte{
		"whereabouts-controlloop": program,
		account + "/token":        []byte(token),
		account + "/ca.crt":       c.Admin.CAData,
		"cron-schedule/config":    []byte(schedule),
	} {
		if err := os.WriteFile(filepath.Join(root, name), content, 0o700); err != nil {
			return nil, fmt.Errorf("writing a file for the control loop: %w", err)
		}
	}
	const kubeconfig = "/whereabouts.kubeconfig"
	if err := clientcmd.WriteToFile(c.whereaboutsKubeconfig(token), filepath.Join(root, kubeconfig)); err != nil {
		return nil, fmt.Errorf("writing the control loop's kubeconfig: %w", err)
	}
	for _, dir := range []string{conf, "host/" + conf} {
		if err := writeFlatFile(filepath.Join(root, dir, "whereabouts.conf"), kubeconfig, ""); err != nil {
			return nil, err
		}
	}
	server, err := url.Parse(c.Admin.Host)
	if err != nil {
		return nil, fmt.Errorf("reading the API server's address: %w", err)
	}
	p := &Process{
		Log:  filepath.Join(c.dir, "whereabouts-controlloop.log"),
		path: filepath.Join(root, "whereabouts-controlloop"),
		root: root,
		env: []string{
			"KUBERNETES_SERVICE_HOST=" + server.Hostname(), "KUBERNETES_SERVICE_PORT=" + server.Port(),
			"NODENAME=" + Node, "WHEREABOUTS_NAMESPACE=" + metav1.NamespaceSystem,
		},
	}
	p.ready = func(_ context.Context, _ time.Time) error {
		log, err := os.ReadFile(p.Log)
		if err == nil && !bytes.Contains(log, []byte("using expression")) {
			err = fmt.Errorf("its log does not say that it has a schedule")
		}
		return err
	}
	return p, c.keep(ctx, p)
}

// moduleDir returns the folder of a Go module, of the version that is pinned with that tool.
func (c *Cluster) moduleDir(ctx context.Context, tool, module string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "-C", filepath.Join(c.root, "tools", tool), "mod", "download", "-json", module)
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("finding the module %s: %w: %s", module, err, out)
	}
	var found struct{ Dir string }
	if err := json.Unmarshal(out, &found); err != nil {
		return "", fmt.Errorf("finding the module %s: %w", module, err)
	}
	return found.Dir, nil
}

// whereaboutsToken returns a token of Whereabouts' ServiceAccount, good for a day.
func (c *Cluster) whereaboutsToken(ctx context.Context) (string, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "whereabouts"}}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](24 * 60 * 60)}}
	if err := c.Client.SubResource("token").Create(ctx, account, request); err != nil {
		return "", fmt.Errorf("requesting a token for Whereabouts: %w", err)
	}
	return request.Status.Token, nil
}

func (c *Cluster) whereaboutsKubeconfig(token string) clientcmdapi.Config {
	return clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"local": {Server: c.Admin.Host, CertificateAuthorityData: c.Admin.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"whereabouts": {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{"whereabouts": {Cluster: "local", AuthInfo: "whereabouts", Namespace: metav1.NamespaceSystem}},
		CurrentContext: "whereabouts",
	}
}

// writeFlatFile writes what is the same for all of Whereabouts' networks. With no log it logs to its standard error.
func writeFlatFile(file, kubeconfig, log string) error {
	content, err := json.Marshal(map[string]any{
		"datastore": "kubernetes", "kubernetes": map[string]string{"kubeconfig": kubeconfig}, "log_file": log, "log_level": "debug",
	})
	if err != nil {
		return fmt.Errorf("encoding Whereabouts' configuration: %w", err)
	}
	if err := os.WriteFile(file, content, 0o600); err != nil {
		return fmt.Errorf("writing Whereabouts' configuration: %w", err)
	}
	return nil
}
