package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// oakum executes a command line of the program's own name.
func oakum(args ...string) answer { return run(append([]string{"oakum"}, args...)...) }

// failed is an answer that one line explains.
func failed(why string) answer { return answer{Code: 1, Stderr: "oakum: " + why + "\n"} }

func TestTheManagersCommandLine(t *testing.T) {
	tests := map[string]struct {
		args []string
		want answer
	}{
		"version":                       {[]string{"version"}, answer{Stdout: fmt.Sprintf("oakum v1.2.3 (%s, %s/%s)\n", runtime.Version(), runtime.GOOS, runtime.GOARCH)}},
		"version takes no argument":     {[]string{"version", "now"}, failed(`unknown command "now" for "oakum version": see oakum version --help`)},
		"an unknown command":            {[]string{"frobnicate"}, failed(`unknown command "frobnicate" for "oakum": see oakum --help`)},
		"a command with a slip":         {[]string{"manger"}, failed(`unknown command "manger" for "oakum": see oakum --help`)},
		"an unknown flag":               {[]string{"manager", "--kubeconfg", "x"}, failed("unknown flag: --kubeconfg: see oakum manager --help")},
		"manager without configuration": {[]string{"manager"}, failed("reading the configuration: --config must name its file")},
		"manager without a file":        {[]string{"manager", "--config"}, failed("flag needs an argument: --config: see oakum manager --help")},
		"a name that is no line":        {[]string{"manager", "--config", "a\nb"}, failed("reading the configuration: open a; b: no such file or directory: --config must name a readable file")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, oakum(tt.args...)); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHelpIsForThoseWhoAsk(t *testing.T) {
	for _, args := range [][]string{nil, {"help"}, {"--help"}} {
		got := oakum(args...)
		if got.Code != 0 || got.Stderr != "" || !strings.Contains(got.Stdout, "oakum [command]") {
			t.Errorf("oakum %s: %+v", strings.Join(args, " "), got)
		}
	}
}

// Every fault of a configuration is told in one line, with the file, the key, its line and what to write instead.
func TestConfigurationThatCannotBeUsed(t *testing.T) {
	const header = "apiVersion: config.oakum.dev/v1alpha1\nkind: Configuration\n"
	tests := map[string]struct{ content, want string }{
		"nothing": {"", "holds nothing: must begin with apiVersion: config.oakum.dev/v1alpha1 and kind: Configuration"},
		"an unknown key": {
			header + "webhok: {port: 1}\n",
			`line 3: Unsupported value: "webhok": supported values: "apiVersion", "audit", "backends", "debug", "finalizers", "health", "kind", "leaderElection", "log", "metrics", "namespace", "webhook"`,
		},
		"an unknown key with a line break in it": {
			header + `"web\nhook": {}` + "\n",
			`line 3: Unsupported value: "web\nhook": supported values: "apiVersion", "audit", "backends", "debug", "finalizers", "health", "kind", "leaderElection", "log", "metrics", "namespace", "webhook"`,
		},
		"a value of the wrong type": {header + "webhook: {port: high}\n", `line 3: webhook.port: Invalid value: "high": must be a whole number`},
		"a value that makes no sense": {
			header + "backends:\n  native: {mode: Strict}\n",
			`line 4: backends.native.mode: Unsupported value: "Strict": supported values: "Off", "Observe", "Warn", "Enforce"`,
		},
		"several faults": {
			header + "webhook: {port: 0}\nlog: {level: loud}\n",
			`line 3: webhook.port: Invalid value: 0: must be 1 to 65535; line 4: log.level: Unsupported value: "loud": supported values: "debug", "info", "error"`,
		},
		"no YAML": {header + "webhook: {\n", "reading the document: yaml: line 3: did not find expected node content"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "config.yaml")
			if err := os.WriteFile(file, []byte(tt.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(failed("reading the configuration "+file+": "+tt.want), oakum("manager", "--config", file)); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("no file", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "config.yaml")
		want := failed("reading the configuration: open " + file + ": no such file or directory: --config must name a readable file")
		if diff := cmp.Diff(want, oakum("manager", "--config", file)); diff != "" {
			t.Errorf("answer (-want +got):\n%s", diff)
		}
	})
	t.Run("a folder", func(t *testing.T) {
		folder := t.TempDir()
		want := failed("reading the configuration: read " + folder + ": is a directory: --config must name a readable file")
		if diff := cmp.Diff(want, oakum("manager", "--config", folder)); diff != "" {
			t.Errorf("answer (-want +got):\n%s", diff)
		}
	})
}

func TestManagerWithoutACluster(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "config.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: config.oakum.dev/v1alpha1\nkind: Configuration\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", filepath.Join(folder, "kubeconfig"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("HOME", folder)
	want := failed("finding the cluster: invalid configuration: no configuration has been provided, try setting KUBERNETES_MASTER environment variable: run in a pod or set KUBECONFIG")
	if diff := cmp.Diff(want, oakum("manager", "--config", file)); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
}
