package cluster

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/types"
)

// Sandbox is what runs of a pod on the node.
type Sandbox struct {
	// ID is the sandbox's, which Whereabouts' records have too.
	ID string
	// Pod is the pod as namespace/name, and UID the pod's.
	Pod string
	UID types.UID
	// Containers are the names of the containers that run, sorted, without the pause container.
	Containers []string
}

// Sandboxes returns those of which any process runs, the pause container's or another, sorted by pod. It looks at the processes
// and asks nobody.
func (c *Cluster) Sandboxes() ([]Sandbox, error) {
	bundles, err := c.bundles()
	if err != nil {
		return nil, fmt.Errorf("listing sandboxes: %w", err)
	}
	found := map[string]Sandbox{}
	for _, bundle := range bundles {
		spec, err := task(bundle)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue // It is not there yet, or not any more.
		case err != nil:
			return nil, fmt.Errorf("listing sandboxes: %w", err)
		}
		a := spec.Annotations
		id := a["io.kubernetes.cri.sandbox-id"]
		s := found[id]
		s.ID, s.UID = id, types.UID(a["io.kubernetes.cri.sandbox-uid"])
		s.Pod = a["io.kubernetes.cri.sandbox-namespace"] + "/" + a["io.kubernetes.cri.sandbox-name"]
		if name := a["io.kubernetes.cri.container-name"]; name != "" {
			s.Containers = append(s.Containers, name)
		}
		found[id] = s
	}
	sandboxes := make([]Sandbox, 0, len(found))
	for _, s := range found {
		slices.Sort(s.Containers)
		sandboxes = append(sandboxes, s)
	}
	slices.SortFunc(sandboxes, func(a, b Sandbox) int { return cmp.Or(strings.Compare(a.Pod, b.Pod), strings.Compare(a.ID, b.ID)) })
	return sandboxes, nil
}

// KillContainers ends what runs in a pod, given as namespace/name, without a warning. The pause container stays, and the kubelet
// starts the others again.
func (c *Cluster) KillContainers(pod string) error {
	bundles, err := filepath.Glob(filepath.Join(c.dir, "containerd", "state", "io.containerd.runtime.v2.task", "k8s.io", "*"))
	if err != nil {
		return fmt.Errorf("listing containers: %w", err)
	}
	killed := 0
	for _, bundle := range bundles {
		spec, err := task(bundle)
		a := spec.Annotations
		name := a["io.kubernetes.cri.sandbox-namespace"] + "/" + a["io.kubernetes.cri.sandbox-name"]
		if err != nil || name != pod || a["io.kubernetes.cri.container-name"] == "" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(bundle, "init.pid"))
		if err != nil {
			return fmt.Errorf("killing the containers of %s: %w", pod, err)
		}
		pid, err := strconv.Atoi(string(bytes.TrimSpace(text)))
		if err != nil {
			return fmt.Errorf("killing the containers of %s: %w", pod, err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return fmt.Errorf("killing the containers of %s: %w", pod, err)
		}
		killed++
	}
	if killed == 0 {
		return fmt.Errorf("killing the containers of %s: none runs", pod)
	}
	return nil
}

// spec is what is read of a container's specification.
type spec struct {
	Annotations map[string]string `json:"annotations"`
}

// task returns the specification of the container in that folder; fs.ErrNotExist if it does not run.
func task(bundle string) (s spec, err error) {
	if _, err := process(bundle); err != nil {
		return s, err
	}
	text, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(text, &s)
}

// process returns the first process of the container in that folder; fs.ErrNotExist if it does not run.
func process(bundle string) (pid int, err error) {
	text, err := os.ReadFile(filepath.Join(bundle, "init.pid"))
	if err != nil {
		return 0, err
	}
	if pid, err = strconv.Atoi(string(bytes.TrimSpace(text))); err != nil {
		return 0, fs.ErrNotExist // It is being written.
	}
	process := filepath.Join("/proc", strconv.Itoa(pid))
	if _, err := os.Readlink(filepath.Join(process, "exe")); err != nil {
		return 0, fs.ErrNotExist // It has ended, and may be a zombie.
	}
	// The number may be another process's by now. A container's cgroup bears its name.
	cgroups, err := os.ReadFile(filepath.Join(process, "cgroup"))
	if err != nil || !bytes.Contains(cgroups, []byte(filepath.Base(bundle))) {
		return 0, fs.ErrNotExist
	}
	return pid, nil
}

// bundles are the folders of all containers.
func (c *Cluster) bundles() ([]string, error) {
	return filepath.Glob(filepath.Join(c.dir, "containerd", "state", "io.containerd.runtime.v2.task", "k8s.io", "*"))
}

// killContainers kills what runs in pods. While a pod listens to the API server, that takes a minute to stop.
func (c *Cluster) killContainers() error {
	bundles, err := c.bundles()
	if err != nil {
		return fmt.Errorf("killing containers: %w", err)
	}
	for _, bundle := range bundles {
		if pid, err := process(bundle); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL) // It may have ended by itself.
		}
	}
	return nil
}
