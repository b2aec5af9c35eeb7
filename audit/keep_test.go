package audit_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/ipam"
)

// steward is a backend with blocks of nodes, which records what nodes name.
type steward struct {
	mender
	holders []string
}

func (s steward) Holders(context.Context) ([]string, error) { return s.holders, s.stuck["holders"] }

func (s steward) Abandon(_ context.Context, node string) error {
	s.calls = append(s.calls, "abandon "+node)
	return s.stuck["abandon"]
}

func (s steward) Tidy(context.Context) ([]backends.Problem, error) {
	s.calls = append(s.calls, "tidy")
	return []backends.Problem{backends.Object{Kind: "Handle", Name: "h1"}.Problem("", "count", "is wrong")}, s.stuck["tidy"]
}

// Unrecorded implements backends.Claimer.
func (s steward) Unrecorded(_ context.Context, named map[netip.Addr]ipam.Owner) ([]ipam.Allocation, error) {
	var found []ipam.Allocation
	for addr, owner := range named {
		p := place("b0", 0)
		p.Addresses = []netip.Addr{addr}
		found = append(found, ipam.Allocation{
			Backend: "native", Handle: "unrecorded-" + addr.String(), Owner: ipam.Owner{Kind: ipam.OwnerNode, Name: owner.Name, Node: owner.Name},
			Named: true, Gap: "nobody has it", Places: []ipam.Place{p},
		})
	}
	slices.SortFunc(found, func(a, b ipam.Allocation) int { return strings.Compare(a.Handle, b.Handle) })
	return found, s.stuck["unrecorded"]
}

// Blocks are taken from a node once that has been gone for a quarantine and nothing is recorded under its name.
func TestBlocksOfAVanishedNodeAreAbandoned(t *testing.T) {
	tests := map[string]struct {
		gone   time.Duration
		change func(*desk)
		want   []string
		failed bool
	}{
		"after a quarantine":                       {gone: 15 * time.Minute, want: []string{"n9"}},
		"not before":                               {gone: 15*time.Minute - 1},
		"not while it is known to be there":        {gone: 0},
		"not while something is recorded there":    {gone: time.Hour, change: func(d *desk) { d.lend("web", "n9", 1); d.seen.Pods = append(d.seen.Pods, running("web", "n9", 1)) }},
		"not while the name may be a plugin's own": {gone: time.Hour, change: func(d *desk) { d.lend("web", "n9", 1); d.seen.Pods = append(d.seen.Pods, running("web", "n1", 1)) }},
		"not if a live look finds it": {gone: time.Hour, change: func(d *desk) {
			live := d.seen
			live.Nodes = append(slices.Clone(live.Nodes), ipam.Node{Name: "n9", UID: "uid-n9", Ready: ipam.ConditionTrue})
			d.live = &live
		}},
		"not if nobody can look":                   {gone: time.Hour, change: func(d *desk) { d.unlooked = errors.New("no") }, failed: true},
		"not where nobody enforces":                {gone: time.Hour, change: func(d *desk) { d.Mode = config.ModeObserve }},
		"a failure is told":                        {gone: time.Hour, change: func(d *desk) { d.stuck["abandon"] = errors.New("no") }, want: []string{"n9"}, failed: true},
		"nothing is done if the names are unknown": {gone: time.Hour, change: func(d *desk) { d.stuck["holders"] = errors.New("no") }, failed: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := sit(t, interceptor.Funcs{})
			d.Backend = steward{mender{records{d}}, []string{"n1", "n9"}}
			d.seen.NodesGoneFor = map[string]time.Duration{}
			if tt.gone > 0 {
				d.seen.NodesGoneFor["n9"] = tt.gone
			}
			if tt.change != nil {
				tt.change(d)
			}
			d.audits()
			if diff := cmp.Diff(tt.want, d.did("abandon ")); diff != "" {
				t.Errorf("abandoned (-want +got):\n%s", diff)
			}
			if got := d.conditions()["Healthy"]; (got != "True RunComplete: every record was read and judged") != tt.failed {
				t.Errorf("the condition Healthy is %q", got)
			}
		})
	}
}

func TestRecordsAreTidiedWhereThatIsEnforced(t *testing.T) {
	for mode, want := range map[config.Mode]int{config.ModeEnforce: 2, config.ModeWarn: 0, config.ModeObserve: 0} {
		d := sit(t, interceptor.Funcs{})
		d.Backend, d.Mode = steward{mender: mender{records{d}}}, mode
		d.twice()
		n := 0
		for _, call := range d.calls {
			if call == "tidy" {
				n++
			}
		}
		if n != want {
			t.Errorf("in %s it tidies %d times in two runs, want %d", mode, n, want)
		}
	}
}

// An address that a node names and nobody has is recorded as the node's after a grace; what is recorded is not.
func TestWhatANodeNamesIsRecorded(t *testing.T) {
	d := sit(t, interceptor.Funcs{})
	d.Backend = steward{mender: mender{records{d}}}
	d.seen.Nodes[0].Addresses = []netip.Addr{addr(1), addr(2)}
	d.lend("web", "n1", 2)
	d.seen.Pods = append(d.seen.Pods, running("web", "n1", 2))
	var got [][]string
	for range 2 {
		d.audits()
		got = append(got, d.did("repair "))
		d.pass(d.Settings.GracePeriod.Duration)
	}
	want := [][]string{nil, {fmt.Sprintf("unrecorded-%s of Node n1", addr(1))}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("repairs in each run (-want +got):\n%s", diff)
	}
}
