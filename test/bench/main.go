// Command bench measures what Oakum costs, as ratios: both sides of each are taken in one run, in interleaved rounds,
// beside a control that compares a side with itself. It prints a table, and writes every round to a file in the format
// of Go's benchmarks, for benchstat.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/webhooks"
)

func main() {
	rounds := flag.Int("rounds", 9, "how many rounds each side is measured in")
	file := flag.String("out", "bench.txt", "the `file` for every round's figures")
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := measure(ctx, *rounds, *file, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func measure(ctx context.Context, rounds int, file string, out io.Writer) (err error) {
	raw, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("writing the figures: %w", err)
	}
	defer func() { err = errors.Join(err, raw.Close()) }()
	report := &report{rounds: rounds, raw: raw, out: out}

	fmt.Fprintln(out, "| measured | with | without | ratio | control | an empty webhook | target |\n|---|---|---|---|---|---|---|")
	if err := report.heap(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "oakum-bench-")
	if err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := report.audit(ctx, dir); err != nil {
		return err
	}
	with, err := start(dir, "with", controlplane.Start)
	defer func() { err = errors.Join(err, with.Stop()) }()
	if err != nil {
		return err
	}
	without, err := start(dir, "without", controlplane.StartBare)
	defer func() { err = errors.Join(err, without.Stop()) }()
	if err != nil {
		return err
	}
	empty, err := start(dir, "empty", func(dir string) (*controlplane.ControlPlane, error) {
		return controlplane.StartWith(dir, controlplane.Options{Unguarded: true})
	})
	defer func() { err = errors.Join(err, empty.Stop()) }()
	if err != nil {
		return err
	}
	root, err := controlplane.Root()
	if err != nil {
		return err
	}
	// The schema stays on both sides: it is the kind itself. What is measured is what Oakum does beyond it.
	if err := without.Apply(ctx, filepath.Join(root, "config", "crd")); err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, controlplane.Deadline, true, func(ctx context.Context) (bool, error) {
		return without.Client.List(ctx, &v1alpha1.AddressBlockList{}) == nil && without.Client.List(ctx, &v1alpha1.AddressPoolList{}) == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the custom resources: %w", err)
	}
	binary := filepath.Join(root, "bin", "oakum")
	manager, err := with.StartManager(ctx, binary, "")
	if err != nil {
		return err
	}
	admitting, stop := context.WithCancel(ctx)
	ended := empty.Admit(admitting, webhooks.MutatePoolPath, webhooks.ValidatePoolPath, webhooks.MutateBlockPath, webhooks.ValidateBlockPath)
	err = report.writes(ctx, with, without, empty)
	manager.Kill()
	stop()
	if err := errors.Join(err, <-ended); err != nil {
		return err
	}
	if err := report.calico(ctx, with, without); err != nil {
		return err
	}
	return report.releases(ctx, with, binary)
}

func start(dir, name string, how func(string) (*controlplane.ControlPlane, error)) (*controlplane.ControlPlane, error) {
	folder := filepath.Join(dir, name)
	if err := os.Mkdir(folder, 0o700); err != nil {
		return nil, fmt.Errorf("making a folder: %w", err)
	}
	return how(folder)
}

// report gathers figures and prints them.
type report struct {
	rounds   int
	raw, out io.Writer
}

// sides are the figures of one measurement, a round each, in nanoseconds an operation. The control is the same as
// without, taken once more. The floor is what it costs that a webhook is called at all; it may be left out.
type sides struct {
	with, without, control, floor []float64
}

// row prints the medians, their ratio, and what the control shows of this machine's noise.
func (r *report) row(name, target string, s sides) {
	for side, values := range map[string][]float64{"with": s.with, "without": s.without, "control": s.control, "empty": s.floor} {
		for _, v := range values {
			fmt.Fprintf(r.raw, "Benchmark%s/side=%s 1 %.0f ns/op\n", name, side, v)
		}
	}
	with, without, control := median(s.with), median(s.without), median(s.control)
	floor := "–"
	if len(s.floor) > 0 {
		floor = fmt.Sprintf("%.2f", median(s.floor)/without)
	}
	fmt.Fprintf(r.out, "| %s | %s | %s | **%.2f** | %.2f | %s | %s |\n", name,
		time.Duration(with).Round(10*time.Microsecond), time.Duration(without).Round(10*time.Microsecond), with/without, control/without, floor, target)
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
