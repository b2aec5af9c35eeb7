package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

const module = "github.com/oakum-dev/oakum"

// layer is a package's row in the table: what its files may import beside the standard library and what they may not
// use of that. Paths of ours are below the module; one that ends in "/..." stands for everything below it too, and
// "..." for everything.
type layer struct {
	imports []string
	tests   []string // what test files may import on top of imports
	without []string // imports, and names like "time.Now", that files other than tests may not use
}

// layers is the architecture: a package that has no row here has no place in the house.
func layers() map[string]layer {
	const (
		apimachinery = "k8s.io/apimachinery/..."
		goCmp        = "github.com/google/go-cmp/..."
		rapid        = "pgregory.net/rapid"
	)
	// In its own types controller-runtime speaks of loggers, metrics and patches as the last three do.
	kubernetes := []string{
		"k8s.io/...", "sigs.k8s.io/...",
		"github.com/go-logr/logr/...", "github.com/prometheus/client_golang/...", "gomodules.xyz/jsonpatch/v2", "golang.org/x/time/rate",
	}
	// The port's contract and the fixtures serve any test; a concrete backend meets the others only below test.
	tests := []string{"backends/backendtest", "test/fixture", goCmp, rapid}

	return map[string]layer{
		".": {imports: []string{"cli"}, tests: []string{goCmp}},

		"ipam": {
			tests: []string{goCmp, rapid},
			without: []string{
				"context", "io/...", "log/...", "net", "net/http/...", "os/...",
				"fmt.Print", "fmt.Printf", "fmt.Println",
				"time.After", "time.AfterFunc", "time.NewTicker", "time.NewTimer", "time.Now", "time.Since",
				"time.Sleep", "time.Tick", "time.Until",
			},
		},

		"apis/ipam/v1alpha1": {imports: []string{"ipam", apimachinery}, tests: tests},
		"apis/ipam/allocator": {
			imports: append([]string{"ipam", "apis/ipam/v1alpha1"}, kubernetes...),
			tests:   tests,
		},
		"apis/config/v1alpha1": {
			imports: []string{"ipam", apimachinery, "go.yaml.in/yaml/v3"},
			tests:   tests,
		},

		"backends":             {imports: []string{"ipam"}, tests: tests},
		"backends/foreign":     {imports: kubernetes, tests: tests},
		"backends/backendtest": {imports: []string{"ipam", "backends", goCmp, rapid}},
		"backends/native": {
			imports: append([]string{"ipam", "backends", "apis/ipam/v1alpha1"}, kubernetes...),
			tests:   tests,
		},
		"backends/whereabouts": {imports: append([]string{"ipam", "backends", "backends/foreign"}, kubernetes...), tests: tests},
		"backends/coil":        {imports: append([]string{"ipam", "backends", "backends/foreign"}, kubernetes...), tests: tests},
		"backends/calico":      {imports: append([]string{"ipam", "backends", "backends/foreign"}, kubernetes...), tests: tests},

		"cluster": {imports: append([]string{"ipam"}, kubernetes...), tests: tests},
		"webhooks": {
			imports: append([]string{"ipam", "apis/...", "backends", "cluster"}, kubernetes...),
			tests:   tests,
		},
		"finalizers": {
			imports: append([]string{"ipam", "apis/...", "backends", "cluster"}, kubernetes...),
			tests:   tests,
		},

		"certs": {imports: append([]string{"ipam", "cluster"}, kubernetes...), tests: tests},

		"audit": {
			imports: append([]string{"ipam", "apis/...", "backends", "cluster"}, kubernetes...),
			tests:   tests,
		},

		"cli": {
			imports: append([]string{
				"ipam", "apis/...", "backends/...", "cluster", "webhooks", "finalizers", "audit", "certs",
				"github.com/KimMachineGun/automemlimit/memlimit", "github.com/go-logr/zapr", "github.com/spf13/cobra/...", "go.uber.org/zap/...",
				"golang.org/x/term",
			}, kubernetes...),
			tests: tests,
		},

		"test/fixture":        {imports: append([]string{"ipam", "apis/...", "gopkg.in/evanphx/json-patch.v4"}, kubernetes...), tests: tests},
		"test/fixture/calico": {imports: append([]string{"backends/calico", "test/fixture"}, kubernetes...), tests: tests},
		"test/fixture/coil": {
			imports: append([]string{"ipam"}, kubernetes...),
			tests:   append([]string{"apis/config/v1alpha1", "backends/coil", "cluster", "webhooks"}, tests...),
		},
		"test/alerts":       {imports: []string{"..."}},
		"test/controlplane": {imports: []string{"..."}},
		"test/envtest":      {imports: []string{"..."}},
		"test/chart":        {imports: []string{"..."}},
		"test/e2e":          {imports: []string{"..."}},
		"test/local":        {imports: []string{"..."}},
		"test/bench":        {imports: []string{"..."}},
		"test/scale":        {imports: []string{"..."}},
		"test/plot":         {},

		"test/e2e/cluster":         {imports: []string{"..."}},
		"test/e2e/cluster/cni":     {},
		"test/e2e/cluster/payload": {},
		"test/e2e/cluster/plugin":  {imports: []string{"test/e2e/cluster/cni"}},
		"test/e2e/cluster/sweeper": {},

		"test/e2e/install":           {imports: []string{"..."}},
		"test/e2e/install/neighbour": {imports: kubernetes},
	}
}

func TestEveryPackageKeepsToItsLayer(t *testing.T) {
	files, err := parse(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		for _, complaint := range complaints(layers(), f) {
			t.Error(complaint)
		}
	}
	for _, row := range vacant(layers(), files) {
		t.Errorf("%s has a row in the table but no Go files: remove the row", row)
	}
}

func TestLayeringRefuses(t *testing.T) {
	tests := map[string]struct {
		name, source string
		want         []string
	}{
		"nothing of a package that stays in its layer": {
			name: "webhooks/pod.go",
			source: `package webhooks
				import (
					"context"
					"time"
					"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
					"github.com/oakum-dev/oakum/backends"
					"k8s.io/api/core/v1"
				)
				var now = time.Now`,
		},
		"Kubernetes and every other module in the law": {
			name: "ipam/pool.go",
			source: `package ipam
				import (
					"go4.org/netipx"
					"k8s.io/apimachinery/pkg/types"
				)`,
			want: []string{
				"ipam/pool.go must not import go4.org/netipx",
				"ipam/pool.go must not import k8s.io/apimachinery/pkg/types",
			},
		},
		"a context, a log, a file or a socket in the law, but not its addresses": {
			name: "ipam/pool.go",
			source: `package ipam
				import (
					"context"
					"io/fs"
					"log/slog"
					"net"
					"net/netip"
					"os"
				)`,
			want: []string{
				"ipam/pool.go must not use context",
				"ipam/pool.go must not use io/fs",
				"ipam/pool.go must not use log/slog",
				"ipam/pool.go must not use net",
				"ipam/pool.go must not use os",
			},
		},
		"a clock or a print in the law, under any name, but not a duration or a format": {
			name: "ipam/ledger.go",
			source: `package ipam
				import (
					"fmt"
					clock "time"
				)
				func age(t clock.Time) clock.Duration { fmt.Println(); return clock.Since(t) }
				func name() string { return fmt.Sprint(1) }`,
			want: []string{
				"ipam/ledger.go must not use fmt.Println",
				"ipam/ledger.go must not use time.Since",
			},
		},
		"fixtures in the law's own tests": {
			name: "ipam/pool_test.go",
			source: `package ipam_test
				import (
					"os"
					"time"
					"github.com/google/go-cmp/cmp"
					"github.com/oakum-dev/oakum/ipam"
					"github.com/oakum-dev/oakum/test/fixture"
				)
				var now = time.Now`,
			want: []string{"ipam/pool_test.go must not import github.com/oakum-dev/oakum/test/fixture"},
		},
		"a client among the words": {
			name:   "apis/ipam/v1alpha1/addresspool.go",
			source: `package v1alpha1; import "sigs.k8s.io/controller-runtime/pkg/client"`,
			want: []string{
				"apis/ipam/v1alpha1/addresspool.go must not import sigs.k8s.io/controller-runtime/pkg/client",
			},
		},
		"Kubernetes in the port": {
			name:   "backends/backend.go",
			source: `package backends; import "k8s.io/apimachinery/pkg/types"`,
			want:   []string{"backends/backend.go must not import k8s.io/apimachinery/pkg/types"},
		},
		"a module whose path only begins like an allowed one": {
			name:   "apis/ipam/v1alpha1/addresspool.go",
			source: `package v1alpha1; import "k8s.io/apimachinery-next/types"`,
			want:   []string{"apis/ipam/v1alpha1/addresspool.go must not import k8s.io/apimachinery-next/types"},
		},
		"one controller in another": {
			name:   "webhooks/pod.go",
			source: `package webhooks; import "github.com/oakum-dev/oakum/finalizers"`,
			want:   []string{"webhooks/pod.go must not import github.com/oakum-dev/oakum/finalizers"},
		},
		"a concrete backend behind the port, in a test too": {
			name:   "finalizers/pod_test.go",
			source: `package finalizers_test; import "github.com/oakum-dev/oakum/backends/native"`,
			want:   []string{"finalizers/pod_test.go must not import github.com/oakum-dev/oakum/backends/native"},
		},
		"fixtures outside tests": {
			name:   "finalizers/pod.go",
			source: `package finalizers; import "github.com/oakum-dev/oakum/test/fixture"`,
			want:   []string{"finalizers/pod.go must not import github.com/oakum-dev/oakum/test/fixture"},
		},
		"the command line to all but main and the tests of the whole": {
			name:   "cluster/pods.go",
			source: `package cluster; import "github.com/oakum-dev/oakum/cli"`,
			want:   []string{"cluster/pods.go must not import github.com/oakum-dev/oakum/cli"},
		},
		"logic in main": {
			name:   "main.go",
			source: `package main; import "github.com/oakum-dev/oakum/webhooks"`,
			want:   []string{"main.go must not import github.com/oakum-dev/oakum/webhooks"},
		},
		"a package without a row": {
			name:   "pkg/net/net.go",
			source: `package net`,
			want:   []string{"pkg/net/net.go is in an unlisted package: add a row, or move it"},
		},
		"a package whose name says nothing": {
			name:   "backends/native/addresses.go",
			source: `package util_test`,
			want:   []string{"backends/native/addresses.go is in package util, a name that says nothing"},
		},
		"init, but not a method or a call of that name": {
			name: "cli/manager.go",
			source: `package cli
				type manager struct{}
				func (manager) init() {}
				func init() { manager{}.init() }`,
			want: []string{"cli/manager.go has a func init: let main's path build what it needs"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			files, err := parse(fstest.MapFS{tt.name: {Data: []byte(tt.source)}})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range files {
				got = append(got, complaints(layers(), f)...)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("complaints (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOnlyOurOwnGoFilesAreRead(t *testing.T) {
	files, err := parse(fstest.MapFS{
		"main.go":               {Data: []byte("package main")},
		"ipam/pool.go":          {Data: []byte("package ipam")},
		"ipam/README.md":        {Data: []byte("not Go")},
		"ipam/testdata/pool.go": {Data: []byte("not ours")},
		"tools/lint/lint.go":    {Data: []byte("another module")},
		"tools/lint/go.mod":     {Data: []byte("module lint")},
		"bin/pool.go":           {Data: []byte("built")},
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range files {
		got = append(got, f.name)
	}
	if diff := cmp.Diff([]string{"ipam/pool.go", "main.go"}, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestARowWithoutAPackageIsFound(t *testing.T) {
	table := map[string]layer{".": {}, "audit": {}, "ipam": {}, "webhooks": {}}
	files := []file{{name: "ipam/pool.go"}, {name: "main.go"}}
	if diff := cmp.Diff([]string{"audit", "webhooks"}, vacant(table, files)); diff != "" {
		t.Errorf("vacant rows (-want +got):\n%s", diff)
	}
}

// file is what the rules look at in one Go file.
type file struct {
	name    string   // path below the root
	pkg     string   // package clause, without _test
	imports []string // import paths
	uses    []string // names taken from imported packages, such as "time.Now"; sorted
	init    bool     // it has a func init
}

// parse reads the module's Go files, leaving out what the go command leaves out and modules of their own.
func parse(root fs.FS) ([]file, error) {
	var files []file
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch base := path.Base(name); {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && (name == "bin" || base == "testdata" || strings.HasPrefix(base, ".") ||
			strings.HasPrefix(base, "_") || ownModule(root, name)):
			return fs.SkipDir
		case entry.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		source, err := fs.ReadFile(root, name)
		if err != nil {
			return fmt.Errorf("reading %s: %w", name, err)
		}
		tree, err := parser.ParseFile(token.NewFileSet(), name, source, parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("parsing %s: %w", name, err)
		}
		files = append(files, look(name, tree))
		return nil
	})
	return files, err
}

func ownModule(root fs.FS, folder string) bool {
	_, err := fs.Stat(root, path.Join(folder, "go.mod"))
	return err == nil
}

func look(name string, tree *ast.File) file {
	f := file{name: name, pkg: strings.TrimSuffix(tree.Name.Name, "_test")}
	named := map[string]string{} // import paths by the names that they have in this file
	for _, spec := range tree.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // the parser has refused it already
		}
		f.imports = append(f.imports, imported)
		local := path.Base(imported)
		if spec.Name != nil {
			local = spec.Name.Name
		}
		named[local] = imported
	}
	for node := range ast.Preorder(tree) {
		switch node := node.(type) {
		case *ast.SelectorExpr:
			if x, ok := node.X.(*ast.Ident); ok && named[x.Name] != "" {
				f.uses = append(f.uses, named[x.Name]+"."+node.Sel.Name)
			}
		case *ast.FuncDecl:
			f.init = f.init || node.Recv == nil && node.Name.Name == "init"
		}
	}
	slices.Sort(f.uses)
	f.uses = slices.Compact(f.uses)
	return f
}

// complaints says in which ways a file breaks the rules of the house.
func complaints(table map[string]layer, f file) []string {
	var found []string
	complain := func(format string, args ...any) { found = append(found, f.name+" "+fmt.Sprintf(format, args...)) }

	if f.init {
		complain("has a func init: let main's path build what it needs")
	}
	switch f.pkg {
	case "base", "common", "helper", "helpers", "misc", "util", "utils":
		complain("is in package %s, a name that says nothing", f.pkg)
	}

	folder := path.Dir(f.name)
	row, listed := table[folder]
	if !listed {
		complain("is in an unlisted package: add a row, or move it")
		return found
	}
	allowed, without := append([]string{folder}, row.imports...), row.without
	if strings.HasSuffix(f.name, "_test.go") {
		allowed, without = append(allowed, row.tests...), nil
	}
	for _, imported := range f.imports {
		below, ours := strings.CutPrefix(imported, module+"/")
		first, _, _ := strings.Cut(imported, "/")
		switch {
		case (ours || strings.Contains(first, ".")) && !matches(allowed, below):
			complain("must not import %s", imported)
		case matches(without, imported):
			complain("must not use %s", imported)
		}
	}
	for _, used := range f.uses {
		if slices.Contains(without, used) {
			complain("must not use %s", used)
		}
	}
	return found
}

// matches tells whether one of the patterns stands for the path.
func matches(patterns []string, p string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		prefix, tree := strings.CutSuffix(pattern, "/...")
		return pattern == "..." || p == prefix || tree && strings.HasPrefix(p, prefix+"/")
	})
}

// vacant lists the rows of the table that no file belongs to.
func vacant(table map[string]layer, files []file) []string {
	var rows []string
	for row := range table {
		if !slices.ContainsFunc(files, func(f file) bool { return path.Dir(f.name) == row }) {
			rows = append(rows, row)
		}
	}
	slices.Sort(rows)
	return rows
}
