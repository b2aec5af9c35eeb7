package controlplane

import (
	"fmt"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
)

// RestartEtcd stops etcd and starts it again with the data that it had. Meanwhile the API server runs on, and answers
// with errors.
func (c *ControlPlane) RestartEtcd() error {
	etcd := c.env.ControlPlane.Etcd
	if err := etcd.Stop(); err != nil {
		return fmt.Errorf("stopping etcd: %w", err)
	}
	if err := etcd.Start(); err != nil {
		return fmt.Errorf("starting etcd again: %w", err)
	}
	return nil
}

// Halt ends etcd and the API server, which Resume can start again, with the data, the addresses and the users that there were.
func (c *ControlPlane) Halt() error {
	if err := c.env.ControlPlane.Stop(); err != nil {
		return fmt.Errorf("stopping etcd and kube-apiserver: %w", err)
	}
	return nil
}

// Resume starts what Halt ended.
func (c *ControlPlane) Resume() error {
	if err := c.env.ControlPlane.Etcd.Start(); err != nil {
		return fmt.Errorf("starting etcd again: %w", err)
	}
	if err := c.env.ControlPlane.APIServer.Start(); err != nil {
		return fmt.Errorf("starting kube-apiserver again: %w", err)
	}
	return nil
}

// Through returns the control plane as managers see it who reach the API server at another URL. Whoever answers there
// over http has to have the rights of Oakum's manager itself.
func (c *ControlPlane) Through(server string) (*ControlPlane, error) {
	kubeconfig, err := clientcmd.LoadFromFile(c.oakum)
	if err != nil {
		return nil, fmt.Errorf("reading the manager's kubeconfig: %w", err)
	}
	for _, cluster := range kubeconfig.Clusters {
		cluster.Server, cluster.CertificateAuthorityData = server, nil
	}
	through := *c
	through.oakum = filepath.Join(c.dir, "oakum-through.kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfig, through.oakum); err != nil {
		return nil, fmt.Errorf("writing another kubeconfig: %w", err)
	}
	return &through, nil
}
