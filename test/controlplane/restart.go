package controlplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

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

// RestartAPIServer kills the API server and starts it again. Meanwhile nobody answers, and every watch ends. Asked to end, it
// would wait for its watches for a minute.
func (c *ControlPlane) RestartAPIServer() error {
	server := c.env.ControlPlane.GetAPIServer()
	if err := killWith("--cert-dir=" + server.CertDir); err != nil {
		return fmt.Errorf("killing the API server: %w", err)
	}
	if err := server.Stop(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping the API server: %w", err)
	}
	if err := server.Start(); err != nil {
		return fmt.Errorf("starting the API server again: %w", err)
	}
	return nil
}

// killWith kills the child of ours that has that argument.
func killWith(argument string) error {
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return err
	}
	for _, list := range lists {
		children, err := os.ReadFile(list)
		if err != nil {
			continue // The thread has ended.
		}
		for child := range strings.FieldsSeq(string(children)) {
			arguments, err := os.ReadFile(filepath.Join("/proc", child, "cmdline"))
			if err != nil || !slices.Contains(strings.Split(string(arguments), "\x00"), argument) {
				continue
			}
			pid, err := strconv.Atoi(child)
			if err != nil {
				return err
			}
			return syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return fmt.Errorf("no process has the argument %s", argument)
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
