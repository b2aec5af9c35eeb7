// Command sweeper ends and removes what a cluster left on the machine, outside its folder, and gives the kernel its
// settings back. It does so when its standard input ends, which is when whoever started it has ended, in whatever way.
//
// Usage: sweeper FOLDER SOCKETS CGROUP
package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	s := sweeper{folder: os.Args[1], sockets: os.Args[2], cgroup: os.Args[3]}
	err := remember()
	// Whatever ends the input, it has ended.
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := errors.Join(err, s.sweep()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type sweeper struct{ folder, sockets, cgroup string }

// kernel is a folder with the kernel's settings as they were before any kubelet changed them. It is shared by all
// clusters, and the last that ends gives the kernel its settings back.
const kernel = "/run/oakum-kernel"

// remember writes down the settings that a kubelet is going to change, unless an earlier cluster did.
func remember() error {
	if err := os.MkdirAll(kernel, 0o700); err != nil {
		return err
	}
	for name, changed := range map[string]string{
		"vm.overcommit_memory":      "1",
		"vm.panic_on_oom":           "0",
		"kernel.panic":              "10",
		"kernel.panic_on_oops":      "1",
		"kernel.keys.root_maxkeys":  "1000000",
		"kernel.keys.root_maxbytes": "25000000",
	} {
		value, err := os.ReadFile(setting(name))
		if err != nil || strings.TrimSpace(string(value)) == changed {
			continue // A container may not see it.
		}
		file, err := os.OpenFile(filepath.Join(kernel, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return err
		}
		_, err = file.Write(value)
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
	}
	return nil
}

// restore gives the kernel its settings back, unless another cluster has its sockets still.
func restore() error {
	others, err := filepath.Glob("/run/oakum-????????")
	if err != nil || len(others) > 0 {
		return err
	}
	files, err := filepath.Glob(kernel + "/*")
	errs := []error{err}
	for _, file := range files {
		value, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(setting(filepath.Base(file)), value, 0o644)
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, os.RemoveAll(kernel))...)
}

// setting is where the kernel shows a setting and takes it.
func setting(name string) string { return "/proc/sys/" + strings.ReplaceAll(name, ".", "/") }

// sweep tries until nothing is left: what is being killed may start something else meanwhile.
func (s sweeper) sweep() error {
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		left, err := s.try()
		if err == nil && !left {
			break
		}
		select {
		case <-deadline:
			return errors.Join(fmt.Errorf("sweeping %s: something is left after 30 s", s.folder), err)
		case <-tick.C:
		}
	}
	return errors.Join(os.RemoveAll(s.sockets), tidy(), restore())
}

// try tells whether something was left to sweep.
func (s sweeper) try() (left bool, err error) {
	pids, err := s.processes()
	if err != nil {
		return true, err
	}
	cgroups, inside, err := s.cgroups()
	if err != nil {
		return true, err
	}
	pids = append(pids, inside...)
	contained, theirs, err := s.containers()
	if err != nil {
		return true, err
	}
	pids, cgroups = append(pids, contained...), append(cgroups, theirs...)
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL) // It may have ended by itself.
	}
	mounts, err := s.mounts()
	if err != nil {
		return true, err
	}
	for _, mount := range mounts {
		if err := syscall.Unmount(mount, syscall.MNT_DETACH); err != nil {
			return true, fmt.Errorf("unmounting %s: %w", mount, err)
		}
	}
	for _, cgroup := range cgroups {
		_ = os.Remove(cgroup) // What ends in it is not gone at once.
	}
	links, err := s.links()
	if err != nil {
		return true, err
	}
	for _, link := range links {
		if err := os.Remove(link); err != nil {
			return true, err
		}
	}
	return len(pids)+len(mounts)+len(cgroups) > 0, nil
}

// processes lists those of the cluster's programs whose command lines name its folders.
func (s sweeper) processes() ([]int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err != nil {
			continue // It has ended.
		}
		args := strings.Split(string(line), "\x00")
		switch filepath.Base(args[0]) {
		case "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "oakum",
			"containerd", "containerd-shim-runc-v2", "runc", "ctr", "kubelet", "plugin", "whereabouts", "whereabouts-controlloop",
			"kube-proxy", "ptp", "host-local", "certmanager":
		default:
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil && slices.ContainsFunc(args, s.below) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// containers lists the processes whose root is a snapshot below the folder, and their cgroups. Where the kubelet does not
// choose, containerd puts containers into a cgroup that all clusters share.
func (s sweeper) containers() (pids []int, cgroups []string, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	if err != nil {
		return nil, nil, err
	}
	for _, file := range files {
		list, err := os.ReadFile(file)
		if err != nil {
			continue // It has ended.
		}
		within := slices.ContainsFunc(strings.Split(string(list), "\n"), func(line string) bool {
			fields := strings.Fields(line)
			return len(fields) > 4 && fields[4] == "/" && strings.HasPrefix(fields[3], s.folder+"/")
		})
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil || !within {
			continue
		}
		pids = append(pids, pid)
		own, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cgroup")) // It may have ended by now.
		for line := range strings.Lines(string(own)) {
			hierarchy, path, _ := strings.Cut(strings.TrimSpace(line), ":/")
			if _, controller, ok := strings.Cut(hierarchy, ":"); ok && path != "" {
				controller = strings.TrimPrefix(controller, "name=")
				cgroups = append(cgroups, filepath.Join("/sys/fs/cgroup", controller, path))
			}
		}
	}
	return pids, cgroups, nil
}

// below tells whether a text names one of the folders or something below.
func (s sweeper) below(text string) bool {
	return strings.Contains(text+"/", s.folder+"/") || strings.Contains(text+"/", s.sockets+"/")
}

// cgroups lists the cluster's in all hierarchies, the inner ones first, and the processes in them. It thaws what runc
// had frozen when it was killed: a frozen process does not end.
func (s sweeper) cgroups() (paths []string, pids []int, err error) {
	var roots []string
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		found, err := filepath.Glob(filepath.Join(pattern, s.cgroup))
		if err != nil {
			return nil, nil, err
		}
		roots = append(roots, found...)
	}
	for _, root := range roots {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil:
				return err
			case entry.IsDir():
				paths = append(paths, path)
				return nil
			case entry.Name() == "freezer.state":
				return os.WriteFile(path, []byte("THAWED"), 0o644)
			case entry.Name() != "cgroup.procs":
				return nil
			}
			list, err := os.ReadFile(path)
			if err != nil {
				return nil //nolint:nilerr // It is gone.
			}
			for field := range strings.FieldsSeq(string(list)) {
				if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
					pids = append(pids, pid)
				}
			}
			return nil
		})
		if err != nil {
			return nil, nil, err
		}
	}
	slices.Reverse(paths)
	return paths, pids, nil
}

// mounts lists the mount points below the folder, the last mounted first.
func (s sweeper) mounts() ([]string, error) {
	list, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var points []string
	for line := range strings.Lines(string(list)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], s.folder+"/") {
			points = append(points, fields[4])
		}
	}
	slices.Reverse(points)
	return points, nil
}

// links lists the links to logs below the folder that a kubelet leaves in a place of its own choice.
func (s sweeper) links() ([]string, error) {
	links, err := filepath.Glob(logs + "/*")
	return slices.DeleteFunc(links, func(link string) bool {
		target, err := os.Readlink(link)
		return err != nil || !s.below(target)
	}), err
}

// Where a kubelet writes whatever its configuration says.
const (
	logs    = "/var/log/containers"
	devices = "/var/lib/kubelet/device-plugins"
)

// tidy removes the socket that a kubelet left, unless another one listens, and the folders if there is nothing in them.
func tidy() error {
	socket := filepath.Join(devices, "kubelet.sock")
	conn, err := net.Dial("unix", socket)
	if err == nil {
		return conn.Close()
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		if err := os.Remove(socket); err != nil {
			return err
		}
	}
	for _, dir := range []string{logs, devices, filepath.Dir(devices)} {
		_ = os.Remove(dir) // It refuses where something is in it.
	}
	return nil
}
