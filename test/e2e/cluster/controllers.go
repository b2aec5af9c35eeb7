package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const schedulerConfig = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: %s, qps: 200, burst: 400}
leaderElection: {leaderElect: false}
`

// startControllers starts kube-controller-manager, whose controllers have the rights of their own ServiceAccounts, and
// kube-scheduler. It waits until pods can be created.
func (c *Cluster) startControllers(ctx context.Context) error {
	ca := filepath.Join(c.dir, "ca.crt")
	if err := os.WriteFile(ca, c.Admin.CAData, 0o600); err != nil {
		return fmt.Errorf("writing the API server's certificate: %w", err)
	}
	config := filepath.Join(c.dir, "scheduler.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, schedulerConfig, c.kubeconfig("kube-scheduler")), 0o600); err != nil {
		return fmt.Errorf("writing the scheduler's configuration: %w", err)
	}
	return together(
		func() (err error) {
			c.ControllerManager, err = c.start(ctx, "kube-controller-manager", c.podsCanBeCreated,
				"--kubeconfig", c.kubeconfig("kube-controller-manager"), "--use-service-account-credentials",
				"--service-account-private-key-file", c.ServiceAccountKey(), "--root-ca-file", ca,
				"--flex-volume-plugin-dir", filepath.Join(c.dir, "kubelet", "plugins"),
				"--leader-elect=false", "--secure-port=0", "--kube-api-qps=200", "--kube-api-burst=400",
				"--node-monitor-period=1s", "--node-monitor-grace-period=12s")
			return err
		},
		func() (err error) {
			c.Scheduler, err = c.start(ctx, "kube-scheduler", func(context.Context, time.Time) error { return nil },
				"--config", config, "--secure-port=0")
			return err
		},
	)
}

// podsCanBeCreated tells what is missing for it.
func (c *Cluster) podsCanBeCreated(ctx context.Context, _ time.Time) error {
	return c.Client.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: "default"}, &corev1.ServiceAccount{})
}
