// Command bench measures what Oakum costs, as ratios: both sides of each are taken in one run, in interleaved rounds,
// beside a control that compares a side with itself. It prints a table, and writes every round to a file in the format
// of Go's benchmarks, for benchstat.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/webhooks"
)

// options are the flags.
type options struct {
	rounds                int
	file, parts, profiles string
	growth                string
	admit, certificates   string
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 9, "how many rounds each side is measured in")
	flag.StringVar(&o.file, "out", "bench.txt", "the `file` for every round's figures")
	flag.StringVar(&o.parts, "parts", "heap,audit,writes,calico,releases", "what is measured")
	flag.StringVar(&o.growth, "growth", "", "the `file` for the picture of how costs grow with the cluster")
	flag.StringVar(&o.profiles, "profiles", "", "measure nothing, but put the API servers' profiles into this `folder`")
	flag.StringVar(&o.admit, "admit", "", "measure nothing, but be the empty webhook at this `address`")
	flag.StringVar(&o.certificates, "certificates", "", "the `folder` of the empty webhook's certificate")
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	if o.admit != "" {
		at, err := netip.ParseAddrPort(o.admit)
		if err != nil {
			return fmt.Errorf("-admit: %w", err)
		}
		return controlplane.Admit(ctx, int(at.Port()), o.certificates, webhooks.MutatePoolPath, webhooks.ValidatePoolPath, webhooks.MutateBlockPath, webhooks.ValidateBlockPath)
	}
	dir, err := os.MkdirTemp("", "oakum-bench-")
	if err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if o.profiles != "" {
		return withPlanes(ctx, dir, func(p *planes) error {
			return p.judging(ctx, fmt.Sprintf("debug: {pprofBindAddress: %q}\n", profiler), func() error { return p.profile(ctx, o.profiles) })
		})
	}
	return measure(ctx, o, dir, os.Stdout)
}

func measure(ctx context.Context, o options, dir string, out io.Writer) (err error) {
	raw, err := os.Create(o.file)
	if err != nil {
		return fmt.Errorf("writing the figures: %w", err)
	}
	defer func() { err = errors.Join(err, raw.Close()) }()
	report := &report{rounds: o.rounds, raw: raw, out: out}
	fmt.Fprintln(out, "| measured | with | without | ratio | control | an empty webhook | target |\n|---|---|---|---|---|---|---|")
	wanted := func(part string) bool { return slices.Contains(strings.Split(o.parts, ","), part) }
	if wanted("heap") {
		if err := report.heap(); err != nil {
			return err
		}
	}
	if wanted("audit") {
		if err := report.audit(ctx, dir); err != nil {
			return err
		}
	}
	err = withPlanes(ctx, dir, func(p *planes) error {
		for _, part := range []struct {
			name    string
			measure func(context.Context, *planes) error
		}{{"writes", report.writes}, {"calico", report.calico}, {"releases", report.releases}} {
			if !wanted(part.name) {
				continue
			}
			if err := part.measure(ctx, p); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return report.growth(o.growth)
}

// planes are three control planes side by side.
type planes struct {
	// with has all that Oakum registers, without has nothing but the custom resources, and empty has Oakum's webhooks without
	// its policies.
	with, without, empty *controlplane.ControlPlane
	// binary is the path of oakum.
	binary string
}

// withPlanes starts control planes in a folder, and stops them when the function that it calls returns.
func withPlanes(ctx context.Context, dir string, do func(*planes) error) (err error) {
	root, err := controlplane.Root()
	if err != nil {
		return err
	}
	p := &planes{binary: filepath.Join(root, "bin", "oakum")}
	for _, s := range []struct {
		plane   **controlplane.ControlPlane
		name    string
		options controlplane.Options
	}{
		{&p.with, "with", controlplane.Options{Components: []string{"calico"}}},
		{&p.without, "without", controlplane.Options{Bare: true}},
		{&p.empty, "empty", controlplane.Options{Unguarded: true}},
	} {
		*s.plane, err = start(dir, s.name, s.options)
		defer func() { err = errors.Join(err, (*s.plane).Stop()) }()
		if err != nil {
			return err
		}
	}
	// The schema stays on both sides: it is the kind itself. What is measured is what Oakum does beyond it.
	if err := p.without.Apply(ctx, filepath.Join(root, "config", "crd")); err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, controlplane.Deadline, true, func(ctx context.Context) (bool, error) {
		return p.without.Client.List(ctx, &v1alpha1.AddressBlockList{}) == nil && p.without.Client.List(ctx, &v1alpha1.AddressPoolList{}) == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the custom resources: %w", err)
	}
	return do(p)
}

// judging does something while Oakum's manager and the empty webhook answer. Both are processes of their own: one that has just
// written a block would answer faster than one that has slept.
func (p *planes) judging(ctx context.Context, settings string, do func() error) error {
	manager, err := p.with.StartManager(ctx, p.binary, settings)
	if err != nil {
		return err
	}
	defer manager.Kill()
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	admits := exec.CommandContext(ctx, self, "-admit", p.empty.Webhook(), "-certificates", p.empty.CertDir())
	admits.Stderr = os.Stderr
	admits.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := admits.Start(); err != nil {
		stop()
		return fmt.Errorf("starting the empty webhook: %w", err)
	}
	err = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, controlplane.Deadline, true, func(context.Context) (bool, error) {
		conn, err := tls.Dial("tcp", p.empty.Webhook(), &tls.Config{InsecureSkipVerify: true})
		if err == nil {
			err = conn.Close()
		}
		return err == nil, nil
	})
	if err == nil {
		err = do()
	}
	stop()
	_ = admits.Wait() // It was killed.
	return err
}

func start(dir, name string, options controlplane.Options) (*controlplane.ControlPlane, error) {
	folder := filepath.Join(dir, name)
	if err := os.Mkdir(folder, 0o700); err != nil {
		return nil, fmt.Errorf("making a folder: %w", err)
	}
	return controlplane.StartWith(folder, options)
}

// report gathers figures and prints them.
type report struct {
	rounds   int
	raw, out io.Writer
	// grown is what was measured of the audit, in the order of the clusters' sizes.
	grown []audits
}

// sides are the figures of one measurement, a round each, in nanoseconds an operation. The control is the same as
// without, taken once more. The floor is what it costs that a webhook is called at all; it may be left out.
type sides struct {
	with, without, control, floor []float64
}

func (s *sides) add(with, without, control float64) {
	s.with, s.without, s.control = append(s.with, with), append(s.without, without), append(s.control, control)
}

// row prints the medians and their ratio, and what the control shows of this machine's noise. The control counts as one
// more measurement of the side without Oakum.
func (r *report) row(name, target string, s sides) {
	for side, values := range map[string][]float64{"with": s.with, "without": s.without, "control": s.control, "empty": s.floor} {
		for _, v := range values {
			fmt.Fprintf(r.raw, "Benchmark%s/side=%s 1 %.0f ns/op\n", name, side, v)
		}
	}
	with, without := median(s.with), median(slices.Concat(s.without, s.control))
	floor := "–"
	if len(s.floor) > 0 {
		floor = fmt.Sprintf("%.2f", median(s.floor)/without)
	}
	fmt.Fprintf(r.out, "| %s | %s | %s | **%.3g** | %.2f | %s | %s |\n", name,
		time.Duration(with).Round(10*time.Microsecond), time.Duration(without).Round(10*time.Microsecond), with/without,
		median(s.control)/median(s.without), floor, target)
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
