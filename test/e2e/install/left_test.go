//go:build e2e

package install

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/oakum-dev/oakum/test/e2e/cluster"
)

// doomed names the folder in which this binary, run once more by a test, starts a cluster that does not get to its Stop.
const doomed = "OAKUM_DOOMED_CLUSTER"

// perish starts a cluster, says in which network namespace or why not, and waits to be killed.
func perish(dir string) (code int) {
	_, err := cluster.Start(context.Background(), dir, cluster.Options{Bare: true, Services: true})
	namespace, _ := os.Readlink("/proc/self/ns/net")
	fmt.Fprintln(os.Stdout, namespace, err)
	_, _ = io.Copy(io.Discard, os.Stdin) // This does not end.
	return 1
}

func TestNothingIsLeftOfTheKilled(t *testing.T) {
	dir, err := os.MkdirTemp("", "install") //nolint:usetesting // A kubelet's sockets need a short path.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // What is left in it has been reported.
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), doomed+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	namespace, answer, _ := strings.Cut(strings.TrimSpace(line), " ")
	if err != nil || answer != "<nil>" {
		t.Errorf("the process to be killed answers %q, %v", line, err)
	}
	if len(left(t, dir, namespace)) == 0 {
		t.Error("while the cluster runs, nothing of it is found")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the process to be killed ended by itself")
	}
	if err := cluster.Await(t.Context(), func(context.Context) error {
		if left := left(t, dir, namespace); len(left) > 0 {
			return fmt.Errorf("there is left:\n%s", strings.Join(left, "\n"))
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// left lists what there is of a cluster outside its folder: mounts, and processes in its namespace or that name the folder.
func left(t *testing.T, dir, namespace string) []string {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, process := range processes {
		// Who ended meanwhile has neither.
		in, _ := os.Readlink(filepath.Join(process, "ns", "net"))
		line, _ := os.ReadFile(filepath.Join(process, "cmdline"))
		if in == namespace || strings.Contains(string(line), dir) {
			left = append(left, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) {
			left = append(left, strings.TrimSpace(line))
		}
	}
	return left
}
