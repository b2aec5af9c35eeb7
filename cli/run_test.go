package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// run executes a command line.
func run(args ...string) answer {
	var stdout, stderr bytes.Buffer
	code := Run("v1.2.3", args, &stdout, &stderr)
	return answer{code, stdout.String(), stderr.String()}
}

func TestRunExits(t *testing.T) {
	dir := t.TempDir()
	nowhere := write(t, dir, "nowhere", `{apiVersion: v1, kind: Config, current-context: here,
clusters: [{name: nowhere, cluster: {server: "http://127.0.0.1:1"}}],
contexts: [{name: here, context: {cluster: nowhere}}]}`)
	plan := write(t, dir, "plan", `{"version": 1, "releases": []}`)
	const refused = `failed to get server groups: Get "http://127.0.0.1:1/api": dial tcp 127.0.0.1:1: connect: connection refused` + "\n"
	absent := filepath.Join(dir, "absent")
	noFile := "finding the cluster: stat " + absent + ": no such file or directory: set KUBECONFIG or --kubeconfig\n"
	tests := map[string]struct {
		args []string
		want answer
	}{
		"check with 2 if nobody answers": {
			[]string{"check", "--kubeconfig", nowhere},
			answer{2, "", "oakum: not everything could be read: looking for AddressPool.ipam.oakum.dev: " + refused},
		},
		"explain with 2 if nobody answers": {
			[]string{"explain", "10.0.0.1", "--kubeconfig", nowhere},
			answer{2, "", "oakum: not everything could be read: looking for AddressPool.ipam.oakum.dev: " + refused},
		},
		"plan with 2 if nobody answers": {
			[]string{"plan", "--kubeconfig", nowhere},
			answer{2, "", "oakum: not everything could be read: looking for AddressPool.ipam.oakum.dev: " + refused},
		},
		"release with 2 if nobody answers": {
			[]string{"release", "--from-plan", plan, "--kubeconfig", nowhere},
			answer{2, "", "oakum: not everything could be read: looking for AddressPool.ipam.oakum.dev: " + refused},
		},
		"uninstall with 1 if nobody answers": {
			[]string{"uninstall", "--kubeconfig", nowhere},
			answer{1, "", "oakum: deleting MutatingWebhookConfiguration oakum: " + refused},
		},
		"check with 2 if there is no such kubeconfig": {
			[]string{"check", "--kubeconfig", absent},
			answer{2, "", "oakum: not everything could be read: " + noFile},
		},
		"release with 2 if there is no such kubeconfig": {
			[]string{"release", "--from-plan", plan, "--kubeconfig", absent},
			answer{2, "", "oakum: not everything could be read: " + noFile},
		},
		"check with 2 if there is no such context": {
			[]string{"check", "--kubeconfig", nowhere, "--context", "there"},
			answer{2, "", "oakum: not everything could be read: finding the cluster: context \"there\" does not exist: set KUBECONFIG or --kubeconfig\n"},
		},
		"with 1 for a command that does not exist": {
			[]string{"chekc"},
			answer{1, "", "oakum: unknown command \"chekc\" for \"oakum\": see oakum --help\n"},
		},
		"with 1 for a flag that does not exist": {
			[]string{"check", "--fix"},
			answer{1, "", "oakum: unknown flag: --fix: see oakum check --help\n"},
		},
		"with 1 for an argument too many": {
			[]string{"check", "10.0.0.1"},
			answer{1, "", "oakum: unknown command \"10.0.0.1\" for \"oakum check\"\n"},
		},
		"with 1 for an argument too few": {
			[]string{"explain"},
			answer{1, "", "oakum: accepts 1 arg(s), received 0\n"},
		},
		"with 1 for a release without a plan": {
			[]string{"release"},
			answer{1, "", "oakum: required flag(s) \"from-plan\" not set\n"},
		},
		"with 1 for a plan that does not exist": {
			[]string{"release", "--from-plan", absent, "--kubeconfig", nowhere},
			answer{1, "", "oakum: reading the plan: open " + absent + ": no such file or directory\n"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, run(append([]string{"oakum"}, tt.args...)...)); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}
}

func write(t *testing.T, dir, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestHelpShowsWhatPeopleType(t *testing.T) {
	for program, name := range map[string]string{
		"oakum": "oakum", "/usr/local/bin/oakum": "oakum", "./bin/oakum-linux-amd64": "oakum",
		"kubectl-oakum": "kubectl oakum", "/usr/local/bin/kubectl-oakum": "kubectl oakum", "kubectl-oakum.exe": "kubectl oakum",
	} {
		want := answer{Stdout: `Find addresses that have leaked. Nothing is written, and no operator is needed in the cluster.

Exit code 0: no leak. 1: leaks were found. 2: something could not be read, so there may be more.

Usage:
  ` + name + ` check [flags]

Examples:
  ` + name + ` check
  ` + name + ` check -o json | jq '.leaks[].addresses[]'

Flags:
      --backend string                    whose records to look at: native, whereabouts, coil, calico; all that are there otherwise
      --context string                    the kubeconfig's context; the current one otherwise
  -h, --help                              help for check
      --kubeconfig file                   the kubeconfig file; KUBECONFIG and ~/.kube/config otherwise
  -o, --output string                     table, wide, json or yaml (default "table")
      --whereabouts-namespace namespace   the namespace of Whereabouts' records (default "kube-system")
`}
		if diff := cmp.Diff(want, run(program, "check", "--help")); diff != "" {
			t.Errorf("help of %s (-want +got):\n%s", program, diff)
		}
	}
}

func TestShellsComplete(t *testing.T) {
	tests := map[string]struct {
		typed []string
		want  []string
	}{
		"the commands": {
			[]string{""},
			[]string{"check", "completion", "explain", "help", "manager", "plan", "release", "uninstall", "version"},
		},
		"the outputs of check":            {[]string{"check", "-o", ""}, []string{"table", "wide", "json", "yaml"}},
		"the output of plan":              {[]string{"plan", "--output", ""}, []string{"json"}},
		"the backends":                    {[]string{"check", "--backend", ""}, []string{"native", "whereabouts", "coil", "calico"}},
		"nothing where an address is due": {[]string{"explain", ""}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			// kubectl asks the same of a plugin.
			for _, program := range []string{"oakum", "kubectl-oakum"} {
				got := run(append([]string{program, "__complete"}, tt.typed...)...)
				var words []string
				for line := range strings.Lines(got.Stdout) {
					word, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
					words = append(words, word)
				}
				// The last line tells the shell what else not to offer: files.
				if diff := cmp.Diff(append(tt.want, ":4"), words); diff != "" || got.Code != 0 {
					t.Errorf("%s exits with %d and completes (-want +got):\n%s", program, got.Code, diff)
				}
			}
		})
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if got := run("oakum", "completion", shell); got.Code != 0 || !strings.Contains(got.Stdout, "__complete") || got.Stderr != "" {
			t.Errorf("completion %s exits with %d and %q and writes a script of %d bytes", shell, got.Code, got.Stderr, len(got.Stdout))
		}
	}
}

func TestVersionSaysWhatTheLinkerSet(t *testing.T) {
	if got := run("oakum", "version"); got.Code != 0 || !strings.HasPrefix(got.Stdout, "oakum v1.2.3 (go1.") {
		t.Errorf("got %+v", got)
	}
}
