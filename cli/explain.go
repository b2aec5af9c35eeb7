package cli

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/oakum-dev/oakum/ipam"
)

func newExplain(c *connection) *cobra.Command {
	return &cobra.Command{
		Use:   "explain ADDRESS|HANDLE|POD",
		Short: "Tell everything about an address, and why it is kept or not",
		Long: `Tell everything about an address, and why it is kept or not: the record, the owner, what was
seen of it, the verdict, and what would happen when.

A pod is given as NAMESPACE/NAME.

Exit code 0: it is told. 1: nothing is recorded. 2: something could not be read.`,
		Example: `  oakum explain 10.100.2.35
  oakum explain default/web-0`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := c.gather(cmd)
			if err != nil {
				return untold(err)
			}
			return f.explain(cmd.OutOrStdout(), args[0])
		},
	}
}

// explain prints what concerns the subject: an address, a handle, or a pod.
func (f finding) explain(w io.Writer, subject string) error {
	about := f.about(subject)
	for i, j := range about {
		if i > 0 {
			fmt.Fprintln(w)
		}
		f.explainOne(w, j)
	}
	if len(f.missing) > 0 {
		return f.untold()
	}
	if len(about) == 0 {
		return f.explainNothing(w, subject)
	}
	return nil
}

// about selects the hand-outs that have the address or the handle, or are the pod's.
func (f finding) about(subject string) []ipam.Judgement {
	addr, _ := netip.ParseAddr(subject)
	addr = addr.Unmap()
	return slices.DeleteFunc(slices.Clone(f.judged), func(j ipam.Judgement) bool {
		a := j.Allocation
		return !slices.Contains(a.Addresses(), addr) && a.Handle != subject &&
			(a.Owner.Kind != ipam.OwnerPod || a.Owner.Namespace+"/"+a.Owner.Name != subject)
	})
}

func (f finding) explainOne(w io.Writer, j ipam.Judgement) {
	a, v := j.Allocation, j.Verdict
	line := func(key, format string, args ...any) {
		fmt.Fprintf(w, "%-10s %s\n", key+":", fmt.Sprintf(format, args...))
	}
	line("Address", "%s", strings.ReplaceAll(a.AddressText(), ",", ", "))
	line("Handle", "%s", a.Handle)
	for _, p := range a.Places {
		line("Record", "%s backend, pool %s, block %s, offset %d, revision %s", a.Backend, p.Pool, p.Block, p.Offset, p.Revision)
	}
	line("Owner", "%s", a.Owner)
	if a.Owner.Node != "" {
		line("Node", "%s", a.Owner.Node)
	}
	for _, seen := range f.world.Seen(a) {
		line("Seen", "%s", seen)
	}
	line("Verdict", "%s (%s): %s", v.Disposition, strings.TrimSuffix(string(v.Reason)+", "+v.Evidence, ", "), v.Detail)
	if v.Drift {
		line("Drift", "the address is used by another owner, or on another node, than the record says")
	}
	line("Then", "%s", consequence(v))
}

// consequence says what an operator in Enforce does about a verdict, and when.
func consequence(v ipam.Verdict) string {
	switch v.Disposition {
	case ipam.Free:
		return "released at once"
	case ipam.Orphan:
		return "released after two sightings a grace apart (audit.gracePeriod, 5m by default)"
	case ipam.Quarantine:
		return "released after two sightings a quarantine apart (audit.quarantine, 15m by default)"
	case ipam.Stranded:
		return "stays until the program on its node gives it back; reported after two sightings a grace apart"
	case ipam.Repair:
		return "stays allocated; its record is completed after two sightings a grace apart (audit.gracePeriod, 5m by default)"
	default:
		return "stays allocated"
	}
}

// explainNothing tells about an address that nobody has.
func (f finding) explainNothing(w io.Writer, subject string) error {
	addr, err := netip.ParseAddr(subject)
	addr = addr.Unmap()
	if err != nil {
		return fmt.Errorf("nothing is recorded for %q: give an address, a handle, or a pod as NAMESPACE/NAME", subject)
	}
	found := false
	for _, p := range f.pools {
		if !slices.ContainsFunc(p.Subnets, func(s ipam.Subnet) bool { return s.Contains(addr) }) {
			continue
		}
		found = true
		fmt.Fprintf(w, "%s belongs to pool %s and is not allocated.\n", addr, p.Name)
		if slices.ContainsFunc(p.Reserved, func(r ipam.Range) bool { return r.Contains(addr) }) {
			fmt.Fprintln(w, "The pool reserves it, so it is never handed out.")
		}
		for _, b := range f.blocks {
			if b.Pool == p.Name && b.Subnet.Contains(addr) {
				fmt.Fprintf(w, "It lies in block %s of node %s.\n", b.Name, b.Node)
			}
		}
	}
	if !found {
		return fmt.Errorf("%s belongs to no pool", addr)
	}
	return nil
}
