// Package cli is the hand: it turns a command line into calls, and wires up the manager.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Run executes one command line, of which the first argument is the program, and returns the exit code: 0; 1 if it
// failed or found leaks; 2 if it could not tell. What went wrong is one line on stderr.
func Run(version string, args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := newRoot(displayName(args[0]), version)
	root.SetArgs(args[1:])
	root.SetOut(stdout)
	root.SetErr(stderr)
	return exit(root.ExecuteContext(ctx), stderr)
}

// exit says what went wrong and returns the exit code.
func exit(err error, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "oakum: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	if errors.Is(err, errUntold) {
		return 2
	}
	return 1
}

// progress returns stderr if it is a terminal, so that who waits sees something, and nobody else is bothered.
func progress(stderr io.Writer) io.Writer {
	if f, ok := stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return stderr
	}
	return io.Discard
}

// displayName is what people type: kubectl calls a program kubectl-oakum when they type kubectl oakum.
func displayName(program string) string {
	if strings.TrimSuffix(filepath.Base(program), ".exe") == "kubectl-oakum" {
		return "kubectl oakum"
	}
	return "oakum"
}

// newRoot returns the command line, with help for who types that name.
func newRoot(name, version string) *cobra.Command {
	root := &cobra.Command{
		Use:           "oakum",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: name},
		Short:         "Keep Kubernetes' IP pools from leaking",
		Args:          noArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		// Without a function of its own the command would show its help, and succeed, whatever its arguments are.
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(usageError)
	c := &connection{}
	c.to = c.connect
	for _, cmd := range []*cobra.Command{newCheck(c), newExplain(c), newPlan(c), newRelease(c), newUninstall(c)} {
		cmd.Flags().StringVar(&c.kubeconfig, "kubeconfig", "", "the kubeconfig `file`; KUBECONFIG and ~/.kube/config otherwise")
		cmd.Flags().StringVar(&c.context, "context", "", "the kubeconfig's context; the current one otherwise")
		root.AddCommand(cmd)
	}
	for _, cmd := range root.Commands() {
		if cmd.Name() != "uninstall" {
			cmd.Flags().StringVar(&c.scope.whereabouts, "whereabouts-namespace", metav1.NamespaceSystem, "the `namespace` of Whereabouts' records")
		}
	}
	root.AddCommand(newManager(version), newVersion(version))
	for _, cmd := range root.Commands() {
		cmd.Example = strings.ReplaceAll(cmd.Example, "  oakum ", "  "+name+" ")
	}
	return root
}

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if err := cobra.NoArgs(cmd, args); err != nil {
		return usageError(cmd, err)
	}
	return nil
}

func usageError(cmd *cobra.Command, err error) error {
	return fmt.Errorf("%w: see %s --help", err, cmd.CommandPath())
}

func newVersion(version string) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintf(cmd.OutOrStdout(), "oakum %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		},
	}
}
