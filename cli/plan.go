package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
)

// Plan is what release is to give back. Its JSON is stable: fields are added, never changed or removed.
type Plan struct {
	// Version of this format: 1.
	Version int `json:"version"`
	// At is when the cluster was looked at.
	At time.Time `json:"at"`
	// Releases, in the order in which they are stored. Entries may be taken out by hand.
	Releases []PlannedRelease `json:"releases"`
}

// PlannedRelease is one hand-out, as it was seen.
type PlannedRelease struct {
	AllocationReport
	// Revisions are those of the blocks when they were read, in the order of Blocks. Release does not ask for them to be
	// the same: a block changes with every neighbour.
	Revisions []string `json:"revisions"`
	// OwnerUID tells the owner from a namesake.
	OwnerUID string `json:"ownerUID,omitempty"`
}

func newPlan(c *connection) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Write down what a release would give back",
		Long: `Write down what a release would give back. Nothing is changed. Look at the plan, take out what you
want to keep, wait a few minutes, and give it to the command release.

Exit code 0: the plan is complete. 2: something could not be read, so there may be more.`,
		Example: `  oakum plan -o json > plan.json`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := oneOf("--output", output, "json"); err != nil {
				return err
			}
			f, err := c.gather(cmd)
			if err != nil {
				return untold(err)
			}
			if err := printJSON(cmd.OutOrStdout(), f.plan(time.Now())); err != nil {
				return err
			}
			if len(f.missing) > 0 {
				return f.untold()
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "json", "json")
	complete(cmd, "output", "json")
	return cmd
}

func (f finding) plan(at time.Time) Plan {
	p := Plan{Version: 1, At: at.UTC().Truncate(time.Second), Releases: []PlannedRelease{}}
	for _, j := range f.leaks() {
		if j.Verdict.Disposition == ipam.Stranded {
			continue // Only its own program can give it back.
		}
		p.Releases = append(p.Releases, newPlannedRelease(j))
	}
	return p
}

func newPlannedRelease(j ipam.Judgement) PlannedRelease {
	r := PlannedRelease{AllocationReport: newAllocationReport(j), OwnerUID: j.Allocation.Owner.UID}
	for _, block := range r.Blocks {
		i := slices.IndexFunc(j.Allocation.Places, func(p ipam.Place) bool { return p.Block == block })
		r.Revisions = append(r.Revisions, j.Allocation.Places[i].Revision)
	}
	return r
}

func newRelease(c *connection) *cobra.Command {
	var file string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "release --from-plan FILE",
		Short: "Give back what a plan lists and a second look confirms",
		Long: `Give back what a plan lists and a second look confirms. A hand-out that has changed since the plan
was made, or that is in use, is skipped and named; nothing else is touched.

Each one is looked at once more right before it goes. Who waits a few minutes between plan and release
has two sightings of every leak.

Exit code 0: everything in the plan was given back. 1: something was skipped, or failed. 2: something
could not be read, and nothing was given back.`,
		Example: `  oakum release --from-plan plan.json --dry-run
  oakum release --from-plan plan.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			plan, err := readPlan(file, cmd.InOrStdin())
			if err != nil {
				return err
			}
			client, err := c.to()
			if err != nil {
				return untold(err)
			}
			return plan.carryOut(cmd.Context(), client, c.scope, dryRun, cmd.OutOrStdout(), progress(cmd.ErrOrStderr()))
		},
	}
	cmd.Flags().StringVar(&file, "from-plan", "", "the plan's `file`, - for standard input")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "look again and say what would be given back, and change nothing")
	if err := cmd.MarkFlagRequired("from-plan"); err != nil {
		panic(err) // The flag was defined above.
	}
	return cmd
}

func readPlan(file string, source io.Reader) (Plan, error) {
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return Plan{}, fmt.Errorf("reading the plan: %w", err)
		}
		defer f.Close() //nolint:errcheck // It is only read.
		source = f
	}
	decoder := json.NewDecoder(source)
	decoder.DisallowUnknownFields()
	var p Plan
	if err := decoder.Decode(&p); err != nil {
		return Plan{}, fmt.Errorf("reading the plan %s: %w: write one with the command plan", file, err)
	}
	if p.Version != 1 {
		return Plan{}, fmt.Errorf("reading the plan %s: version: %d: must be 1: write one with the command plan of this version", file, p.Version)
	}
	return p, nil
}

// errSkipped: exit code 1.
var errSkipped = errors.New("not everything in the plan was given back")

// carryOut looks at everything a second time, then at each hand-out once more right before it goes.
func (p Plan) carryOut(ctx context.Context, c client.Client, of scope, dryRun bool, out, progress io.Writer) error {
	f, err := gather(ctx, c, of, progress)
	if err != nil {
		return untold(err)
	}
	if len(f.missing) > 0 {
		return f.untold()
	}
	skipped := 0
	for _, planned := range p.Releases {
		what := fmt.Sprintf("%s (handle %s, %s)", planned.text(), planned.Handle, planned.Owner)
		j, why := f.confirm(planned)
		if why == "" {
			j, why = f.release(ctx, c, j.Allocation, dryRun)
		}
		switch {
		case ctx.Err() != nil:
			return untold(ctx.Err())
		case why != "":
			skipped++
			fmt.Fprintf(out, "skipped %s: %s\n", what, why)
		case dryRun:
			fmt.Fprintf(out, "would release %s: %s\n", what, j.Verdict.Detail)
		default:
			fmt.Fprintf(out, "released %s: %s\n", what, j.Verdict.Detail)
		}
	}
	if len(p.Releases) == 0 {
		fmt.Fprintln(out, "The plan is empty.")
	}
	if skipped > 0 {
		return fmt.Errorf("%w: %d of %d were skipped", errSkipped, skipped, len(p.Releases))
	}
	return nil
}

// confirm finds the hand-out of the plan as it is now, or says why it is not to be released. Its owner and its places
// must be what they were; that a neighbour in the same block came or went does not matter.
func (f finding) confirm(planned PlannedRelease) (ipam.Judgement, string) {
	why := "it is not recorded any more"
	for _, j := range f.judged {
		if j.Allocation.Handle != planned.Handle || j.Allocation.Backend != planned.Backend {
			continue
		}
		switch now := newPlannedRelease(j); {
		case now.Owner != planned.Owner, now.OwnerUID != planned.OwnerUID, now.Node != planned.Node:
			why = fmt.Sprintf("it belongs to %s now", now.Owner)
		case !slices.Equal(now.Addresses, planned.Addresses), !slices.Equal(now.Blocks, planned.Blocks):
			why = fmt.Sprintf("it has other addresses now: %s", now.text())
		case !j.Verdict.Disposition.Leaked(), j.Verdict.Disposition == ipam.Stranded:
			return j, j.Verdict.Detail
		default:
			return j, ""
		}
	}
	return ipam.Judgement{}, why
}

// release looks once more, live, and gives the hand-out back if that confirms that it may go, or says why not.
func (f finding) release(ctx context.Context, c client.Client, a ipam.Allocation, dryRun bool) (now ipam.Judgement, why string) {
	world, err := cluster.LookAgain(ctx, c, f.observed, a)
	if err != nil {
		return now, err.Error()
	}
	now = ipam.Judgement{Allocation: a, Verdict: ipam.Judge(a, world.Doubting(f.doubted))}
	if d := now.Verdict.Disposition; !d.Leaked() || d == ipam.Stranded {
		return now, now.Verdict.Detail
	}
	if !dryRun {
		err = f.records.Release(ctx, a)
	}
	switch {
	case errors.Is(err, backends.ErrStale):
		return now, "another hand-out is there by now"
	case err != nil:
		return now, err.Error()
	}
	return now, ""
}
