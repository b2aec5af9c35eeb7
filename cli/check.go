package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/oakum-dev/oakum/backends/calico"
	"github.com/oakum-dev/oakum/backends/coil"
	"github.com/oakum-dev/oakum/backends/native"
	"github.com/oakum-dev/oakum/backends/whereabouts"
	"github.com/oakum-dev/oakum/ipam"
)

// The exit codes of commands that look for leaks, beside 0.
var (
	// errLeaks: exit code 1.
	errLeaks = errors.New("leaks were found")
	// errUntold: exit code 2.
	errUntold = errors.New("not everything could be read")
)

// Report is what check tells, and its JSON is stable: fields are added, never changed or removed.
type Report struct {
	// Pools, backend by backend, in the order of their names.
	Pools []PoolReport `json:"pools"`
	// Leaks are the hand-outs whose owner is gone, or proven to have ended. One look cannot tell an owner that is gone
	// from one that is just being replaced: who releases looks twice.
	Leaks []AllocationReport `json:"leaks"`
	// Drifts are the hand-outs of which an address is used by another owner, or on another node, than the record says. They
	// are kept.
	Drifts []AllocationReport `json:"drifts"`
	// Problems are stored objects that break a rule.
	Problems []recordProblem `json:"problems"`
	// Missing says what could not be read. If it is not empty, there may be more leaks.
	Missing []string `json:"missing"`
}

// PoolReport counts the addresses of a pool. A pair counts once.
type PoolReport struct {
	// Backend is whose pool it is: native, whereabouts, coil or calico.
	Backend string `json:"backend"`
	// Name of the pool.
	Name string `json:"name"`
	// Network is its routing domain.
	Network string `json:"network"`
	// Blocks that nodes have taken from it.
	Blocks int `json:"blocks"`
	// Capacity is how many addresses it has, reserved ones included.
	Capacity int64 `json:"capacity"`
	// Allocated is how many are handed out: the sum of InUse, Unproven and Leaked.
	Allocated int `json:"allocated"`
	// InUse is how many of these have an owner that exists, or are reserved by hand.
	InUse int `json:"inUse"`
	// Unproven is how many are kept only because nothing proves that they are not in use.
	Unproven int `json:"unproven"`
	// Leaked is how many have no owner any more, or one whose end is proven.
	Leaked int `json:"leaked"`
}

// AllocationReport is one hand-out with what the law says about it.
type AllocationReport struct {
	// Backend is whose record it is: native, whereabouts, coil or calico.
	Backend string `json:"backend"`
	// Addresses of the hand-out, all of which go together: both of a pair, and those in other blocks.
	Addresses []string `json:"addresses"`
	// Handle is the name of the hand-out.
	Handle string `json:"handle"`
	// Owner as the record tells it, such as Pod default/web-0 (uid 6f0c).
	Owner string `json:"owner"`
	// Node on which the owner runs, or which is the owner.
	Node string `json:"node,omitempty"`
	// Blocks that hold the record.
	Blocks []string `json:"blocks"`
	// Verdict is Free, Orphan or Quarantine: its owner's end is proven, or it is gone and its node would know, or it is
	// gone as far as anyone can tell.
	Verdict ipam.Disposition `json:"verdict"`
	// Reason is the verdict's in one word, such as OwnerGone.
	Reason ipam.Reason `json:"reason"`
	// Evidence is the row of the table in docs/invariants.md that it rests on.
	Evidence string `json:"evidence,omitempty"`
	// Detail says what was seen.
	Detail string `json:"detail"`
}

// text is the addresses for people.
func (r AllocationReport) text() string {
	var place ipam.Place
	for _, text := range r.Addresses {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return strings.Join(r.Addresses, ",") // A plan that was edited by hand.
		}
		place.Addresses = append(place.Addresses, addr)
	}
	return ipam.Allocation{Places: []ipam.Place{place}}.AddressText()
}

func newCheck(c *connection) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Find addresses that have leaked",
		Long: `Find addresses that have leaked. Nothing is written, and no operator is needed in the cluster.

Exit code 0: no leak. 1: leaks were found. 2: something could not be read, so there may be more.`,
		Example: `  oakum check
  oakum check -o json | jq '.leaks[].addresses[]'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.scope.backend != "" {
				if err := oneOf("--backend", c.scope.backend, known()...); err != nil {
					return err
				}
			}
			if err := oneOf("--output", output, "table", "wide", "json", "yaml"); err != nil {
				return err
			}
			f, err := c.gather(cmd)
			if err != nil {
				return untold(err)
			}
			report := f.report()
			if err := report.print(cmd.OutOrStdout(), output); err != nil {
				return err
			}
			switch {
			case len(report.Missing) > 0:
				return f.untold()
			case len(report.Leaks) > 0:
				return errLeaks
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&c.scope.backend, "backend", "", "whose records to look at: "+strings.Join(known(), ", ")+"; all that are there otherwise")
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table, wide, json or yaml")
	complete(cmd, "backend", known()...)
	complete(cmd, "output", "table", "wide", "json", "yaml")
	return cmd
}

// known are the backends' names.
func known() []string { return []string{native.Name, whereabouts.Name, coil.Name, calico.Name} }

// gather connects and looks. Progress goes to stderr, if somebody watches it.
func (c *connection) gather(cmd *cobra.Command) (finding, error) {
	client, err := c.to()
	if err != nil {
		return finding{}, err
	}
	return gather(cmd.Context(), client, c.scope, progress(cmd.ErrOrStderr()))
}

// untold marks an error because of which nothing could be told. That a user ended the command is one too.
func untold(err error) error {
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%w: interrupted", errUntold)
	}
	return fmt.Errorf("%w: %w", errUntold, err)
}

// complete offers a flag's values to who types a command line.
func complete(cmd *cobra.Command, flag string, values ...string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // The flag was defined by the caller.
	}
}

func oneOf(flag, value string, valid ...string) error {
	if slices.Contains(valid, value) {
		return nil
	}
	return fmt.Errorf("%s %q: must be one of %s", flag, value, strings.Join(valid, ", "))
}

func (f finding) report() Report {
	r := Report{Pools: []PoolReport{}, Leaks: []AllocationReport{}, Drifts: []AllocationReport{}, Problems: f.problems, Missing: f.missing}
	if r.Problems == nil {
		r.Problems = []recordProblem{}
	}
	if r.Missing == nil {
		r.Missing = []string{}
	}
	at := map[string]int{}
	for _, p := range f.pools {
		at[p.backend+"/"+p.Name] = len(r.Pools)
		r.Pools = append(r.Pools, PoolReport{Backend: p.backend, Name: p.Name, Network: p.Network, Capacity: p.Capacity()})
	}
	for _, b := range f.blocks {
		if i, ok := at[native.Name+"/"+b.Pool]; ok {
			r.Pools[i].Blocks++
		}
	}
	blocks := map[string]bool{} // those that are known by what is handed out of them
	for _, j := range f.judged {
		for _, place := range j.Allocation.Places {
			i, ok := at[j.Allocation.Backend+"/"+place.Pool]
			if !ok {
				continue
			}
			p, size := &r.Pools[i], place.Size()
			p.Allocated += size
			switch {
			case j.Verdict.Disposition.Leaked():
				p.Leaked += size
			case j.Verdict.Unproven():
				p.Unproven += size
			default:
				p.InUse += size
			}
			if block := p.Backend + "/" + place.Block; (p.Backend == coil.Name || p.Backend == calico.Name) && !blocks[block] {
				blocks[block] = true
				p.Blocks++
			}
		}
	}
	for _, j := range f.leaks() {
		r.Leaks = append(r.Leaks, newAllocationReport(j))
	}
	for _, j := range f.judged {
		if j.Verdict.Drift {
			r.Drifts = append(r.Drifts, newAllocationReport(j))
		}
	}
	return r
}

func newAllocationReport(j ipam.Judgement) AllocationReport {
	a := j.Allocation
	r := AllocationReport{
		Backend: a.Backend, Handle: a.Handle, Owner: a.Owner.String(), Node: a.Owner.Node,
		Verdict: j.Verdict.Disposition, Reason: j.Verdict.Reason, Evidence: j.Verdict.Evidence, Detail: j.Verdict.Detail,
	}
	for _, addr := range a.Addresses() {
		r.Addresses = append(r.Addresses, addr.String())
	}
	for _, p := range a.Places {
		if !slices.Contains(r.Blocks, p.Block) {
			r.Blocks = append(r.Blocks, p.Block)
		}
	}
	return r
}

func (r Report) print(w io.Writer, output string) error {
	switch output {
	case "json":
		return printJSON(w, r)
	case "yaml":
		data, err := yaml.Marshal(r)
		if err != nil {
			return fmt.Errorf("encoding the report: %w", err)
		}
		_, err = w.Write(data)
		return err
	}
	wide := output == "wide"
	pools := table{{"BACKEND", "POOL", "NETWORK", "BLOCKS", "CAPACITY", "ALLOCATED", "IN USE", "UNPROVEN", "LEAKED"}}
	for _, p := range r.Pools {
		pools = append(pools, []any{p.Backend, p.Name, p.Network, p.Blocks, p.Capacity, p.Allocated, p.InUse, p.Unproven, p.Leaked})
	}
	if err := pools.print(w, "No pools."); err != nil {
		return err
	}
	header := []any{"ADDRESS", "OWNER", "NODE", "REASON", "WHY"}
	if wide {
		header = append(header, "VERDICT", "EVIDENCE", "BLOCKS", "HANDLE")
	}
	leaks := table{header}
	for _, l := range r.Leaks {
		row := []any{l.text(), l.Owner, l.Node, l.Reason, l.Detail}
		if wide {
			row = append(row, l.Verdict, l.Evidence, strings.Join(l.Blocks, ","), l.Handle)
		}
		leaks = append(leaks, row)
	}
	none := "No leaks."
	if len(r.Missing) > 0 {
		none = "No leaks in what could be read."
	}
	fmt.Fprintln(w)
	if err := leaks.print(w, none); err != nil {
		return err
	}
	if len(r.Drifts) > 0 {
		drifts := table{{"ADDRESS", "RECORDED FOR", "NODE", "DRIFT"}}
		for _, d := range r.Drifts {
			drifts = append(drifts, []any{d.text(), d.Owner, d.Node, d.Detail})
		}
		fmt.Fprintln(w)
		if err := drifts.print(w, ""); err != nil {
			return err
		}
	}
	if len(r.Problems) > 0 {
		problems := table{{"OBJECT", "RULE", "FIELD", "PROBLEM"}}
		for _, p := range r.Problems {
			problems = append(problems, []any{p.Object, p.Rule, p.Field, p.Message})
		}
		fmt.Fprintln(w)
		if err := problems.print(w, ""); err != nil {
			return err
		}
	}
	for _, m := range r.Missing {
		fmt.Fprintf(w, "\nNot read: %s\n", m)
	}
	return nil
}

// table is rows under a header.
type table [][]any

// print aligns the columns, or prints one sentence if there are no rows.
func (t table) print(w io.Writer, empty string) error {
	if len(t) == 1 {
		_, err := fmt.Fprintln(w, empty)
		return err
	}
	aligned := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range t {
		for i, cell := range row {
			if text := fmt.Sprint(cell); i < len(row)-1 {
				fmt.Fprintf(aligned, "%s\t", text)
			} else {
				fmt.Fprintln(aligned, text)
			}
		}
	}
	return aligned.Flush()
}

func printJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}
