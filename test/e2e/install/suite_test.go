//go:build e2e

// Package install plays in a whole cluster: pods and Services are reached, from the API server as well, and what a pod asks
// for over its ServiceAccount it gets.
package install

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/oakum-dev/oakum/test/e2e/cluster"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard()) // Clients that watch would complain that there is none.
	if err := cluster.Apart(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if dir := os.Getenv(doomed); dir != "" {
		os.Exit(perish(dir))
	}
	os.Exit(m.Run())
}

// place is a cluster with Services, in which nothing of Oakum's is.
type place struct {
	*cluster.Cluster
	t   *testing.T
	dir string
}

// found starts a cluster that ends with the test.
func found(t *testing.T) *place {
	t.Helper()
	// The path of a kubelet's socket is short, and that of a test's folder is not.
	dir, err := os.MkdirTemp("", "install") //nolint:usetesting // for the reason above
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Start(t.Context(), dir, cluster.Options{Bare: true, Services: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("its logs are in %s", dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return &place{Cluster: c, t: t, dir: dir}
}

func (p *place) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// eventually waits until there is no error.
func (p *place) eventually(what string, try func(ctx context.Context) error) {
	p.t.Helper()
	if err := cluster.Await(p.t.Context(), try); err != nil {
		p.t.Fatalf("%s: %v", what, err)
	}
}

// compile builds a program of the tests' that an image can be made of, and returns its path.
func (p *place) compile(pkg string) string {
	p.t.Helper()
	program := filepath.Join(p.dir, "bin", filepath.Base(pkg))
	cmd := exec.CommandContext(p.t.Context(), "go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", program, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		p.t.Fatalf("building %s: %v: %s", pkg, err, out)
	}
	return program
}
