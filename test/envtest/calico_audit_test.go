package envtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends/calico"
	"github.com/oakum-dev/oakum/cli"
	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/fixture"
	fixturecalico "github.com/oakum-dev/oakum/test/fixture/calico"
)

const enforceCalico = "backends: {calico: {mode: Enforce}}\naudit: {interval: 1s, gracePeriod: 2s, quarantine: 4s}\n"

// calicoTown starts an API server with Calico's kinds, in the older group as nearly everywhere, and all that config/ has
// for them.
func calicoTown(t *testing.T) *plane {
	t.Helper()
	p := own(t, func(dir string) (*controlplane.ControlPlane, error) {
		return controlplane.StartWith(dir, controlplane.Options{Components: []string{"calico", "pods"}})
	})
	root, err := controlplane.Root()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Apply(t.Context(), filepath.Join(root, "test", "fixture", "calico", "crd", "v1.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := calico.AddToScheme(p.Client.Scheme()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		var errs []error
		for _, kind := range []string{"IPAMBlock", "IPAMHandle", "BlockAffinity", "IPPool", "IPReservation", "IPAMConfig"} {
			errs = append(errs, p.listed(t, calico.V1.WithKind(kind)))
		}
		return errors.Join(errs...)
	})
	return p
}

// lot is a block of a node.
type lot struct {
	cidr, node string
	// taken is what is recorded of the addresses that are not free, by their place in the block.
	taken map[int]calico.Attribute
}

// lay creates blocks as Calico has them, with the nodes' claims to them and the handles that they name.
func (s *scene) lay(lots ...lot) {
	s.t.Helper()
	handles := map[string]map[string]int{}
	for _, l := range lots {
		for _, a := range l.taken {
			handle, _, _ := strings.Cut(a.HandleID, "\r")
			if handle == "" || handle == windowsHandle {
				continue
			}
			if handles[handle] == nil {
				handles[handle] = map[string]int{}
			}
			handles[handle][l.cidr]++
		}
	}
	for handle, counts := range handles {
		s.keep(&calico.IPAMHandle{ObjectMeta: metav1.ObjectMeta{Name: handle}, Spec: calico.IPAMHandleSpec{HandleID: handle, Block: counts}})
	}
	for _, l := range lots {
		if l.node != "" {
			s.create(fixturecalico.Claim(l.cidr, l.node))
		}
		s.keep(l.block())
	}
}

const windowsHandle = "windows-reserved-ipam-handle"

// block is the record of the lot.
func (l lot) block() *calico.IPAMBlock { return fixturecalico.Block(l.cidr, l.node, l.taken) }

// keep creates an object of Calico's with the fields that the API server wants beside those that Oakum reads.
func (s *scene) keep(o client.Object) {
	s.t.Helper()
	s.create(s.stored(o))
}

// books are Calico's records as they are now.
type books struct {
	blocks  []calico.IPAMBlock
	handles []calico.IPAMHandle
	claims  []calico.BlockAffinity
}

func (s *scene) books() books {
	s.t.Helper()
	var blocks calico.IPAMBlockList
	var handles calico.IPAMHandleList
	var claims calico.BlockAffinityList
	// Handles last: they are written first when an address is taken, and last when it is given back.
	for _, list := range []client.ObjectList{&claims, &blocks, &handles} {
		if err := s.client.List(s.t.Context(), list); err != nil {
			s.t.Fatal(err)
		}
	}
	return books{blocks.Items, handles.Items, claims.Items}
}

// recorded says who has each address that is not free, and whose each block is.
func (b books) recorded() map[string]string {
	found := map[string]string{}
	for _, block := range b.blocks {
		found[block.Spec.CIDR] = block.Spec.Affinity
		addr := netip.MustParsePrefix(block.Spec.CIDR).Addr()
		for _, i := range block.Spec.Allocations {
			if i != nil {
				found[addr.String()] = has(block.Spec.Attributes[*i])
			}
			addr = addr.Next()
		}
	}
	return found
}

// has says in a word what is recorded of an address.
func has(a calico.Attribute) string {
	switch {
	case a.ReleasedAt != nil:
		return "cools down"
	case a.HandleID == "":
		return "taken"
	case len(a.Secondary) == 0:
		return a.HandleID + ", nobody's"
	}
	return a.HandleID
}

// inconsistencies does as calicoctl ipam check does: it compares what blocks, handles and claims say about each other.
func (b books) inconsistencies() (found []string) {
	wrong := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	counted, claimed := map[string]map[string]int{}, map[string]string{}
	for _, c := range b.claims {
		if c.Spec.State != calico.Confirmed || bool(c.Spec.Deleted) {
			wrong("claim %s is %s, deleted %t", c.Name, c.Spec.State, c.Spec.Deleted)
		}
		claimed[c.Spec.CIDR] = "host:" + c.Spec.Node
	}
	for _, block := range b.blocks {
		spec := block.Spec
		if spec.Deleted {
			wrong("block %s is marked as deleted", spec.CIDR)
		}
		if spec.Affinity != claimed[spec.CIDR] {
			wrong("block %s is of %q, and %q claims it", spec.CIDR, spec.Affinity, claimed[spec.CIDR])
		}
		delete(claimed, spec.CIDR)
		used := make([]bool, len(spec.Attributes))
		for o, i := range spec.Allocations {
			queued := 0
			for _, u := range spec.Unallocated {
				if u == o {
					queued++
				}
			}
			_, numbered := spec.SequenceNumberForAllocation[strconv.Itoa(o)]
			if i == nil {
				if queued != 1 || numbered {
					wrong("block %s: address %d is free, %d times in the queue, and numbered %t", spec.CIDR, o, queued, numbered)
				}
				continue
			}
			if *i < 0 || *i >= len(spec.Attributes) || queued != 0 || !numbered && spec.Attributes[*i].HandleID != windowsHandle {
				wrong("block %s: address %d has attribute %d of %d, is %d times in the queue, and numbered %t", spec.CIDR, o, *i, len(used), queued, numbered)
				continue
			}
			used[*i] = true
			handle, _, _ := strings.Cut(spec.Attributes[*i].HandleID, "\r")
			if handle == "" || handle == windowsHandle {
				continue
			}
			if counted[handle] == nil {
				counted[handle] = map[string]int{}
			}
			counted[handle][spec.CIDR]++
		}
		if i := slices.Index(used, false); i >= 0 {
			wrong("block %s: nothing has attribute %d", spec.CIDR, i)
		}
	}
	for _, cidr := range slices.Sorted(maps.Keys(claimed)) {
		wrong("%s claims %s, which does not exist", claimed[cidr], cidr)
	}
	for _, h := range b.handles {
		if diff := gocmp.Diff(counted[h.Spec.HandleID], h.Spec.Block); diff != "" || h.Spec.Deleted {
			wrong("handle %s, deleted %t (-blocks +handle): %s", h.Name, h.Spec.Deleted, diff)
		}
		delete(counted, h.Spec.HandleID)
	}
	for _, handle := range slices.Sorted(maps.Keys(counted)) {
		wrong("blocks have %s, and there is no such handle", handle)
	}
	return found
}

// consistent checks that the records do not contradict each other. A release that has just written a block has its handle
// before it.
func (s *scene) consistent() {
	s.t.Helper()
	eventually(s.t, func() error {
		if wrong := s.books().inconsistencies(); len(wrong) > 0 {
			return errors.New(strings.Join(wrong, "\n"))
		}
		return nil
	})
}

// hasRecorded waits until what is recorded is as wanted.
func (s *scene) hasRecorded(want map[string]string) {
	s.t.Helper()
	eventually(s.t, func() error {
		if diff := gocmp.Diff(want, s.books().recorded()); diff != "" {
			return fmt.Errorf("records (-want +got):\n%s", diff)
		}
		return nil
	})
}

// calicoReported returns the report as soon as it is of a run that began so long after a time.
func (s *scene) calicoReported(since time.Time, after time.Duration) v1alpha1.LeakReportStatus {
	s.t.Helper()
	var r v1alpha1.LeakReport
	eventually(s.t, func() error {
		if err := s.client.Get(s.t.Context(), client.ObjectKey{Name: calico.Name}, &r); err != nil {
			return err
		}
		if r.Status.LastRun.StartedAt.Time.Before(since.Add(after)) {
			return fmt.Errorf("the last run began at %s", r.Status.LastRun.StartedAt)
		}
		return nil
	})
	return r.Status
}

// patience is how long nothing must have happened before it counts as never: longer than any suspicion waits.
const patience = 8 * time.Second

// checks runs oakum check and returns what it tells.
func (p *plane) checks(t *testing.T) (code int, r cli.Report) {
	t.Helper()
	got, _ := p.oakum(t, p.Kubeconfig, "check", "-o", "json")
	if err := json.Unmarshal([]byte(got.Stdout), &r); err != nil {
		t.Fatalf("%+v: %v", got, err)
	}
	return got.Code, r
}

// explained returns the verdict of oakum explain.
func (p *plane) explained(t *testing.T, subject string) string {
	t.Helper()
	got, _ := p.oakum(t, p.Kubeconfig, "explain", subject)
	_, verdict, _ := strings.Cut(got.Stdout, "Verdict:")
	verdict, _, _ = strings.Cut(verdict, "\n")
	return strings.TrimSpace(verdict)
}

// annotated sets an annotation of a pod.
func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations[key] = value
	}
}

// TestCalicoRecordings looks at what Calico itself has written, and gives back what is proven to have leaked.
func TestCalicoRecordings(t *testing.T) {
	t.Parallel()
	p := calicoTown(t)
	s := p.scene(t, "recordings")
	for _, o := range recorded(t, calico.Name) {
		status := o.DeepCopy()
		o.SetResourceVersion("")
		o.SetUID("")
		s.create(o)
		switch o.GetKind() {
		case "Pod", "Node":
			s.report(status)
		}
	}
	const (
		web0 = "k8s-pod-network.14d59290138382e3b774bb959044f920824637b5f441d8100b740c5c02bb3e9b"
		web1 = "k8s-pod-network.8670f89e4f5ab5fcc0fdb01a6aaeb4f51acb874b92fa52aef3761b8a377dae28"
		web2 = "k8s-pod-network.9751d78d9e551bc955209016651ad570f0e26527af7082f2561c145a6c030f2f"
		pair = "k8s-pod-network.aaaabbbb"
	)
	want := map[string]string{
		"10.50.1.96/29": "host:node2", "10.50.1.96": "ipip-tunnel-addr-node2", "10.50.1.97": "cools down", "10.50.1.98": pair,
		"10.50.1.99": "k8s-pod-network.vmi.default.vm1", "10.50.2.160/29": "host:node1", "10.50.2.164": web0, "10.50.2.165": web1,
		"10.50.2.166": web2, "10.50.2.167": "taken", "10.50.2.240/29": "host:win1", "10.50.2.240": windowsHandle,
		"10.50.2.241": windowsHandle, "10.50.2.242": windowsHandle, "10.50.2.243": pair, "10.50.2.247": windowsHandle,
		"fd00:50::2a0/125": "host:node1", "fd00:50::2a4": web0, "fd00:50::2a5": web1, "fd00:50::2a6": web2,
	}
	s.hasRecorded(want)

	code, got := p.checks(t)
	leaked := []cli.AllocationReport{{
		Backend: calico.Name, Addresses: []string{"10.50.1.96"}, Handle: "ipip-tunnel-addr-node2", Owner: "Node node2", Node: "node2",
		Blocks: []string{"10-50-1-96-29"}, Verdict: ipam.Orphan, Reason: ipam.Unnamed, Evidence: "E10",
		Detail: "Node node2 exists, and does not name it as its own any more",
	}}
	counted := []cli.PoolReport{
		{Backend: calico.Name, Name: "default-ipv4", Capacity: 1024, Allocated: 12, InUse: 7, Unproven: 4, Leaked: 1},
		{Backend: calico.Name, Name: "default-ipv6", Capacity: 1024, Allocated: 3, InUse: 3},
	}
	compare := func(want cli.Report) {
		t.Helper()
		if diff := gocmp.Diff(want, got, cmpopts.IgnoreFields(cli.Report{}, "Problems"), cmpopts.IgnoreFields(cli.PoolReport{}, "Blocks"), cmpopts.EquateEmpty()); diff != "" || code != min(1, len(want.Leaks)) {
			t.Errorf("oakum check ends with %d (-want +got):\n%s", code, diff)
		}
	}
	compare(cli.Report{Pools: counted, Leaks: leaked})
	problems := []string{
		`IPAMBlock "10-50-2-160-29" allocation-unowned spec.allocations[7]: 10.50.2.167: neither handle nor attributes tell whose it is: that is settled when node node1, in whose block it lies, names its tunnel's address, or is gone`,
		`IPAMBlock "10-50-2-240-29" allocation-conflict spec.allocations[3]: is of Pod default/w, and handle ` + pair + ` is of Pod default/gone elsewhere: they are given back together or not at all`,
	}
	same(t, "problems", problems, complaints(got))
	verdicts := map[string]string{
		"10.50.2.164":  "Keep (InUse, E11): Pod default/web-0 is alive",
		"fd00:50::2a5": "Keep (InUse, E11): Pod default/web-1 is alive",
		"10.50.2.167":  "Keep (OwnerUnknown): nobody says whose it is, and it lies in a block of Node node1, which may have it",
		"10.50.1.98":   `Keep (NodeNotReady, E10b): Pod default/gone does not exist, the record does not tell its node, and node "node2" is not ready: the sandbox may still run there`,
		"10.50.1.99":   "Keep (OwnerUnknown): nobody here can tell about VirtualMachine default/vm1 (uid u2)",
		"10.50.2.247":  `Keep (Reserved): reserved by hand for "Windows"`,
	}
	told := map[string]string{}
	for addr := range verdicts {
		told[addr] = p.explained(t, addr)
	}
	same(t, "oakum explain", verdicts, told)

	for _, name := range []string{"node2", "win1"} {
		s.report(fixture.Node(name))
	}
	code, got = p.checks(t)
	leaked = append(leaked, cli.AllocationReport{
		Backend: calico.Name, Addresses: []string{"10.50.1.98", "10.50.2.243"}, Handle: pair, Owner: "Pod default/gone",
		Blocks: []string{"10-50-1-96-29", "10-50-2-240-29"}, Verdict: ipam.Quarantine, Reason: ipam.OwnerGone, Evidence: "E10",
		Detail: "Pod default/gone does not exist, the record does not tell its node, and that may be gone",
	})
	counted[0].Unproven, counted[0].Leaked = 2, 3
	compare(cli.Report{Pools: counted, Leaks: leaked})

	p.start(t, enforceCalico)
	for _, addr := range []string{"10.50.1.96", "10.50.1.98", "10.50.2.243"} {
		want[addr] = "cools down"
	}
	s.hasRecorded(want)
	report := s.calicoReported(time.Now(), patience)
	s.hasRecorded(want)
	s.consistent()
	if run := report.LastRun; run.Allocations != 6 || run.InUse != 4 || run.Unproven != 2 || len(report.Candidates) > 0 {
		t.Errorf("the last run is %+v, with candidates %v", run, report.Candidates)
	}

	// The node's tunnel has another address, so that the old one is nobody's.
	s.annotate(fixture.Node("node1"), ipip, "10.50.2.161")
	want["10.50.2.161"], want["10.50.2.167"] = "ipip-tunnel-addr-node1", "cools down"
	s.hasRecorded(want)
	s.consistent()
	code, got = p.checks(t)
	counted[0].Allocated, counted[0].InUse, counted[0].Unproven, counted[0].Leaked = 9, 8, 1, 0
	compare(cli.Report{Pools: counted})
	same(t, "problems", nil, complaints(got))
}

// complaints are the problems that oakum check tells.
func complaints(r cli.Report) (found []string) {
	for _, p := range r.Problems {
		found = append(found, fmt.Sprintf("%s %s %s: %s", p.Object, p.Rule, p.Field, p.Message))
	}
	return found
}

const ipip = "projectcalico.org/IPv4IPIPTunnelAddr"

// corner is what one row of TestCalicoAudit has for itself: a node's name, the begin of container IDs, and three blocks
// that nobody else lays: a, b, and, for IPv6, v.
type corner struct {
	*scene
	index    int
	node, id string
}

func (c corner) cidr(block string) string {
	switch block {
	case "a":
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 60, byte(c.index / 16), byte(c.index % 16 * 16)}), 29).String()
	case "b":
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 60, byte(c.index / 16), byte(c.index%16*16 + 8)}), 29).String()
	default:
		return fmt.Sprintf("fd00:60::%x/125", 0x1000+c.index*8)
	}
}

// at is an address, such as a3.
func (c corner) at(place string) string {
	addr := netip.MustParsePrefix(c.cidr(place[:1])).Addr()
	for range place[1] - '0' {
		addr = addr.Next()
	}
	return addr.String()
}

// sandbox is what is recorded of an address of a pod's sandbox.
func (c corner) sandbox(n, pod string) calico.Attribute {
	return calico.Attribute{HandleID: "k8s-pod-network." + c.id + n, Secondary: map[string]string{"namespace": "default", "pod": pod, "node": c.node}}
}

// known is what is recorded in the corner, by block and place.
func (c corner) known(recorded map[string]string) map[string]string {
	found := map[string]string{}
	for _, block := range []string{"a", "b", "v"} {
		if affinity, ok := recorded[c.cidr(block)]; ok {
			found[block] = affinity
		}
		for o := range 8 {
			if has, ok := recorded[c.at(fmt.Sprint(block, o))]; ok {
				found[fmt.Sprint(block, o)] = has
			}
		}
	}
	return found
}

// story is one row of TestCalicoAudit.
type story struct {
	// lay is before Oakum comes, and then happens while it is there.
	lay, then func(c corner)
	// want is what is recorded in the end. NODE is the node's name, and ID begins the container IDs.
	want map[string]string
}

// tunnelStories are the rows about a tunnel's address, at place 3 of a block; the node's other addresses are at place 5.
func tunnelStories() map[string]story {
	stories := map[string]story{}
	for _, tunnel := range []struct{ kind, handle, annotation, block string }{
		{"ipipTunnelAddress", "ipip-tunnel-addr-", ipip, "a"},
		{"vxlanTunnelAddress", "vxlan-tunnel-addr-", "projectcalico.org/IPv4VXLANTunnelAddr", "a"},
		{"vxlanV6TunnelAddress", "vxlan-v6-tunnel-addr-", "projectcalico.org/IPv6VXLANTunnelAddr", "v"},
		{"wireguardTunnelAddress", "wireguard-tunnel-addr-", "projectcalico.org/IPv4WireguardInterfaceAddr", "a"},
		{"wireguardV6TunnelAddress", "wireguard-v6-tunnel-addr-", "projectcalico.org/IPv6WireguardInterfaceAddr", "v"},
	} {
		of := func(node, kind string) calico.Attribute {
			return calico.Attribute{HandleID: tunnel.handle + node, Secondary: map[string]string{"node": node, "type": kind}}
		}
		for name, row := range map[string]struct {
			names string
			taken func(c corner) map[int]calico.Attribute
			// want is what is recorded of places 3 and 5. OWN is the handle of the node's tunnel.
			want [2]string
		}{
			"1 a free address that the node names is recorded": {names: "3", want: [2]string{"OWN", ""}},
			"1 one that cools down is not": {
				names: "3", want: [2]string{"cools down", ""},
				taken: func(corner) map[int]calico.Attribute {
					return map[int]calico.Attribute{3: {ReleasedAt: &metav1.Time{Time: time.Now()}}}
				},
			},
			"1 one that a pod has is left to it": {
				names: "3", want: [2]string{"k8s-pod-network.ID03", ""},
				taken: func(c corner) map[int]calico.Attribute {
					c.create(fixture.Pod(c.node, c.node, fixture.Running(c.at(tunnel.block+"3"))))
					return map[int]calico.Attribute{3: c.sandbox("03", c.node)}
				},
			},
			"2 one of which nobody says whose it is is completed": {
				names: "3", want: [2]string{"OWN", ""},
				taken: func(corner) map[int]calico.Attribute { return map[int]calico.Attribute{3: {}} },
			},
			"2b one with a handle alone is left": {
				names: "3", want: [2]string{"k8s-pod-network.ID03, nobody's", ""},
				taken: func(c corner) map[int]calico.Attribute {
					return map[int]calico.Attribute{3: {HandleID: "k8s-pod-network." + c.id + "03"}}
				},
			},
			"3 one that is recorded is left": {
				names: "3", want: [2]string{"OWN", ""},
				taken: func(c corner) map[int]calico.Attribute { return map[int]calico.Attribute{3: of(c.node, tunnel.kind)} },
			},
			"3 one that is recorded as another node's is left": {
				names: "3", want: [2]string{tunnel.handle + "bystander-ID", ""},
				taken: func(c corner) map[int]calico.Attribute {
					c.create(fixture.Node("bystander-" + c.id))
					return map[int]calico.Attribute{3: of("bystander-"+c.id, tunnel.kind)}
				},
			},
			"4 one of which nobody says whose it is is left while the node names none": {
				want:  [2]string{"taken", ""},
				taken: func(corner) map[int]calico.Attribute { return map[int]calico.Attribute{3: {}} },
			},
			"4 one of which nobody says whose it is goes when the node names another": {
				names: "5", want: [2]string{"", "OWN"},
				taken: func(c corner) map[int]calico.Attribute {
					return map[int]calico.Attribute{3: {}, 5: of(c.node, tunnel.kind)}
				},
			},
			"4 one of which nobody says whose it is is left if a pod has it": {
				names: "5", want: [2]string{"taken", "OWN"},
				taken: func(c corner) map[int]calico.Attribute {
					c.create(fixture.Pod(c.node, c.node, fixture.Running(c.at(tunnel.block+"3"))))
					return map[int]calico.Attribute{3: {}, 5: of(c.node, tunnel.kind)}
				},
			},
			"5 one that the node no longer names goes": {
				taken: func(c corner) map[int]calico.Attribute { return map[int]calico.Attribute{3: of(c.node, tunnel.kind)} },
			},
			"5 one goes, and the one that the node names now is recorded": {
				names: "5", want: [2]string{"", "OWN"},
				taken: func(c corner) map[int]calico.Attribute { return map[int]calico.Attribute{3: of(c.node, tunnel.kind)} },
			},
			"6 no address and no record": {},
		} {
			s := story{want: map[string]string{tunnel.block: "host:NODE"}}
			for i, has := range row.want {
				if has != "" {
					s.want[tunnel.block+[]string{"3", "5"}[i]] = strings.Replace(has, "OWN", tunnel.handle+"NODE", 1)
				}
			}
			s.lay = func(c corner) {
				node := fixture.Node(c.node)
				if row.names != "" {
					node.Annotations = map[string]string{tunnel.annotation: c.at(tunnel.block + row.names)}
				}
				c.create(node)
				l := lot{cidr: c.cidr(tunnel.block), node: c.node}
				if row.taken != nil {
					l.taken = row.taken(c)
				}
				c.lay(l)
			}
			stories["case "+name+": "+tunnel.kind] = s
		}
	}
	return stories
}

// leave deletes the corner's node, and waits until it is gone.
func (c corner) leave() {
	c.t.Helper()
	eventually(c.t, func() error {
		err := c.client.Delete(c.t.Context(), fixture.Node(c.node))
		if err == nil {
			err = errors.New("the node is still there")
		}
		return client.IgnoreNotFound(err)
	})
}

// suspected waits until the report lists an address.
func (c corner) suspected(place string) {
	c.t.Helper()
	eventually(c.t, func() error {
		r := c.calicoReported(time.Time{}, 0)
		if !slices.ContainsFunc(r.Candidates, func(l v1alpha1.LeakCandidate) bool { return l.Address == c.at(place) }) {
			return fmt.Errorf("%s is no candidate", c.at(place))
		}
		return nil
	})
}

func calicoStories() map[string]story {
	tunnel := func(node string) calico.Attribute {
		return calico.Attribute{HandleID: "ipip-tunnel-addr-" + node, Secondary: map[string]string{"node": node, "type": "ipipTunnelAddress"}}
	}
	windows := map[int]calico.Attribute{}
	for _, o := range []int{0, 1, 2, 7} {
		windows[o] = calico.Attribute{HandleID: windowsHandle}
	}
	stays := map[string]string{"a": "host:NODE", "a0": "k8s-pod-network.ID00"}
	lost := func(c corner) {
		c.create(fixture.Node(c.node))
		c.lay(lot{c.cidr("a"), c.node, map[int]calico.Attribute{0: c.sandbox("00", c.node)}})
	}
	one := func(knobs ...func(*corev1.Pod)) func(c corner) {
		return func(c corner) {
			lost(c)
			c.create(fixture.Pod(c.node, c.node, append([]func(*corev1.Pod){fixture.Running(c.at("a0"))}, knobs...)...))
		}
	}
	vanished := func(c corner) { c.leave() }
	return map[string]story{
		"L01 a pod whose status lacks the IPv6 address keeps both": {
			lay: func(c corner) {
				c.create(fixture.Node(c.node))
				c.lay(
					lot{c.cidr("a"), c.node, map[int]calico.Attribute{0: c.sandbox("00", c.node)}},
					lot{c.cidr("v"), c.node, map[int]calico.Attribute{0: c.sandbox("00", c.node)}})
				c.create(fixture.Pod(c.node, c.node, fixture.Running(c.at("a0")),
					annotated("cni.projectcalico.org/podIPs", c.at("a0")+"/32,"+c.at("v0")+"/128")))
			},
			want: map[string]string{"a": "host:NODE", "a0": "k8s-pod-network.ID00", "v": "host:NODE", "v0": "k8s-pod-network.ID00"},
		},
		"L03 nothing goes under a name that Calico alone has for a node": {
			lay: func(c corner) {
				c.create(fixture.Node(c.node + ".ec2"))
				c.create(fixture.Pod(c.node, c.node+".ec2", fixture.Running(c.at("a0"))))
				c.lay(lot{c.cidr("a"), c.node, map[int]calico.Attribute{0: c.sandbox("00", c.node), 1: c.sandbox("01", "lost"), 2: tunnel(c.node), 3: {}}})
			},
			want: map[string]string{"a": "host:NODE", "a0": "k8s-pod-network.ID00", "a1": "k8s-pod-network.ID01", "a2": "ipip-tunnel-addr-NODE", "a3": "taken"},
		},
		"L19 a pod whose annotations a late DEL has blanked keeps its address": {
			lay: one(annotated("cni.projectcalico.org/podIP", ""), annotated("cni.projectcalico.org/podIPs", "")), want: stays,
		},
		"G22 the address of a pod that was deleted meanwhile goes": {lay: lost, want: map[string]string{"a": "host:NODE"}},
		"G24 all that a node had goes with it": {
			lay: func(c corner) {
				c.create(fixture.Node(c.node))
				taken := map[int]calico.Attribute{3: tunnel(c.node)}
				for o := range 3 {
					pod := fmt.Sprintf("%s-%d", c.node, o)
					c.create(fixture.Pod(pod, c.node, fixture.Running(c.at(fmt.Sprint("a", o)))))
					taken[o] = c.sandbox(fmt.Sprintf("0%d", o), pod)
				}
				c.lay(lot{c.cidr("a"), c.node, taken})
			},
			then: func(c corner) {
				c.leave()
				for o := range 3 {
					c.vanish(fixture.Pod(fmt.Sprintf("%s-%d", c.node, o), c.node))
				}
			},
			want: map[string]string{},
		},
		"G25 a block goes that only the tunnel's address of a vanished node held": {
			lay: func(c corner) {
				c.create(fixture.Node(c.node))
				c.lay(lot{c.cidr("a"), c.node, map[int]calico.Attribute{3: tunnel(c.node)}})
			},
			then: vanished, want: map[string]string{},
		},
		"G27 the address of a pod that was evicted goes": {
			lay:  one(fixture.Ended, func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Evicted" }),
			want: map[string]string{"a": "host:NODE"},
		},
		"G27 a pod that succeeded keeps its address while its sandbox runs": {
			lay:  one(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
			want: stays,
		},
		"G28 a handle that goes on after a carriage return is the same": {
			lay: func(c corner) {
				c.create(fixture.Node(c.node))
				split := c.sandbox("00", c.node)
				split.HandleID += "\r\neth0"
				c.lay(lot{c.cidr("a"), c.node, map[int]calico.Attribute{0: split}})
			},
			want: map[string]string{"a": "host:NODE"},
		},
		"G29 what a failed ADD has left of an earlier sandbox goes": {
			lay: func(c corner) {
				c.create(fixture.Node(c.node))
				c.lay(
					lot{c.cidr("a"), c.node, map[int]calico.Attribute{0: c.sandbox("00", c.node), 1: c.sandbox("01", c.node)}},
					lot{c.cidr("v"), c.node, map[int]calico.Attribute{0: c.sandbox("01", c.node)}})
				c.create(fixture.Pod(c.node, c.node, fixture.Running(c.at("a1"), c.at("v0")), annotated("cni.projectcalico.org/containerID", c.id+"01")))
			},
			want: map[string]string{"a": "host:NODE", "a1": "k8s-pod-network.ID01", "v": "host:NODE", "v0": "k8s-pod-network.ID01"},
		},
		"G30 a block with only Windows' own addresses goes while the node has another": {
			lay: func(c corner) {
				one()(c)
				c.lay(lot{c.cidr("b"), c.node, windows})
			},
			want: stays,
		},
		"G30 a block with only Windows' own addresses goes with its node": {
			lay: func(c corner) {
				c.create(fixture.Node(c.node))
				c.lay(lot{c.cidr("a"), c.node, windows})
			},
			then: vanished, want: map[string]string{},
		},
		"a pod that is there while its Node is gone keeps its address and its block": {
			lay: one(), then: vanished, want: stays,
		},
		"a node that comes back under its name keeps its tunnel's address": {
			lay: func(c corner) {
				node := fixture.Node(c.node)
				node.Annotations = map[string]string{ipip: c.at("a3")}
				c.create(node)
				c.lay(lot{c.cidr("a"), c.node, map[int]calico.Attribute{3: tunnel(c.node)}})
			},
			then: func(c corner) {
				c.leave()
				c.suspected("a3")
				node := fixture.Node(c.node)
				node.Annotations = map[string]string{ipip: c.at("a3")}
				c.create(node)
			},
			want: map[string]string{"a": "host:NODE", "a3": "ipip-tunnel-addr-NODE"},
		},
		"a node that comes back and takes another address under the same handle keeps both": {
			lay: func(c corner) {
				c.create(fixture.Node(c.node))
				c.lay(lot{c.cidr("a"), c.node, map[int]calico.Attribute{3: tunnel(c.node)}})
			},
			then: func(c corner) {
				c.leave()
				c.suspected("a3")
				c.patch(c.calico(calico.V1, "IPAMHandle", "ipip-tunnel-addr-"+c.node, "{}"), types.MergePatchType, fmt.Sprintf(`{"spec":{"block":{%q:2}}}`, c.cidr("a")))
				c.patch(c.calico(calico.V1, "IPAMBlock", fixturecalico.Dashed(c.cidr("a")), "{}"), types.MergePatchType,
					`{"spec":{"allocations":[null,null,null,0,0,null,null,null],"unallocated":[0,1,2,5,6,7],"sequenceNumber":1796042586181645112,"sequenceNumberForAllocation":{"4":1796042586181645111}}}`)
				node := fixture.Node(c.node)
				node.Annotations = map[string]string{ipip: c.at("a4")}
				c.create(node)
			},
			want: map[string]string{"a": "host:NODE", "a3": "ipip-tunnel-addr-NODE", "a4": "ipip-tunnel-addr-NODE"},
		},
	}
}

// TestCalicoAudit lays all stories at once, lets Oakum come, and looks at what is left when nothing happens any more.
func TestCalicoAudit(t *testing.T) {
	t.Parallel()
	p := calicoTown(t)
	s := p.scene(t, "calico")
	s.create(
		s.calico(calico.V1, "IPPool", "v4", "{cidr: 10.60.0.0/16, blockSize: 29}"),
		s.calico(calico.V1, "IPPool", "v6", "{cidr: 'fd00:60::/112', blockSize: 125}"))
	stories := tunnelStories()
	maps.Copy(stories, calicoStories())
	corners, want := map[string]corner{}, map[string]map[string]string{}
	for i, name := range slices.Sorted(maps.Keys(stories)) {
		c := corner{scene: s, index: i, node: fmt.Sprintf("node-%d", i), id: fmt.Sprintf("c%05d", i)}
		stories[name].lay(c)
		corners[name], want[name] = c, map[string]string{}
		fill := strings.NewReplacer("NODE", c.node, "ID", c.id)
		for place, has := range stories[name].want {
			want[name][place] = fill.Replace(has)
		}
	}
	all := func() map[string]map[string]string {
		found, recorded := map[string]map[string]string{}, s.books().recorded()
		for name, c := range corners {
			found[name] = c.known(recorded)
		}
		return found
	}
	before := all()
	const leftovers = 600 // More than a page.
	var group sync.WaitGroup
	for worker := range 4 {
		group.Go(func() {
			for i := worker; i < leftovers; i += 4 {
				h := s.calico(calico.V1, "IPAMHandle", fmt.Sprintf("k8s-pod-network.dead%04d", i), fmt.Sprintf("{handleID: k8s-pod-network.dead%04d, block: {10.60.0.0/29: 1}}", i))
				if err := s.client.Create(t.Context(), h); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	var now calico.IPAMBlockList
	if err := s.client.List(t.Context(), &now); err != nil {
		t.Fatal(err)
	}
	film := shoot[*calico.IPAMBlock](s, &calico.IPAMBlockList{}, "", fields.Everything(), now.ResourceVersion)

	p.start(t, enforceCalico)
	for name, c := range corners {
		if then := stories[name].then; then != nil {
			then(c)
		}
	}
	eventually(t, func() error {
		if diff := gocmp.Diff(want, all()); diff != "" {
			return fmt.Errorf("records (-want +got):\n%s", diff)
		}
		return nil
	})
	s.consistent() // G26: no handle is left of which no block has an address.
	report := s.calicoReported(time.Now(), patience)
	s.consistent()
	after := all()
	for name := range corners {
		t.Run(name, func(t *testing.T) {
			same(t, "records", want[name], after[name])
		})
	}
	if len(report.Candidates) > 0 {
		t.Errorf("candidates: %v", report.Candidates)
	}
	t.Run("what is kept was never free in between", func(t *testing.T) {
		c := corner{scene: s.in(t), index: len(stories), node: "node-of-last-block"}
		c.lay(lot{cidr: c.cidr("a"), node: c.node})
		film.until("the last block", func(f frame[*calico.IPAMBlock]) bool { return f.object.Spec.CIDR == c.cidr("a") })
		for _, f := range film.seen {
			then := books{blocks: []calico.IPAMBlock{*f.object}}.recorded()
			for name, c := range corners {
				for place := range want[name] {
					_, filmed := then[c.cidr(place[:1])]
					if held := len(place) == 2 && before[name][place] != ""; filmed && held && (then[c.at(place)] == "" || f.event == watch.Deleted) {
						t.Errorf("%s: %s was free in between", name, c.at(place))
					}
				}
			}
		}
	})
	t.Run("a pod waits until its addresses are given back", func(t *testing.T) {
		testCalicoPod(corner{scene: s.in(t), index: len(stories) + 1, node: "node-of-pod", id: "d00000"})
	})
}

// testCalicoPod ends a pod as a kubelet does while the plugin does nothing, and counts the writes.
func testCalicoPod(c corner) {
	t := c.t
	c.create(fixture.Node(c.node))
	c.lay(lot{cidr: c.cidr("a"), node: c.node}, lot{cidr: c.cidr("v"), node: c.node})
	pod := fixture.Pod(c.node, c.node)
	c.create(pod)
	c.held(pod)
	handle := &calico.IPAMHandle{ObjectMeta: metav1.ObjectMeta{Name: "k8s-pod-network." + c.id + "00"}}
	c.keep(&calico.IPAMHandle{ObjectMeta: handle.ObjectMeta, Spec: calico.IPAMHandleSpec{HandleID: handle.Name, Block: map[string]int{c.cidr("a"): 1, c.cidr("v"): 1}}})
	for _, block := range []string{"a", "v"} {
		c.patch(c.calico(calico.V1, "IPAMBlock", fixturecalico.Dashed(c.cidr(block)), "{}"), types.MergePatchType, fmt.Sprintf(
			`{"spec":{"allocations":[0,null,null,null,null,null,null,null],"unallocated":[1,2,3,4,5,6,7],"sequenceNumber":1796042586181645111,`+
				`"sequenceNumberForAllocation":{"0":1796042586181645110},"attributes":[{"handle_id":%q,"secondary":{"namespace":"default","pod":%q,"node":%q}}]}}`,
			handle.Name, pod.Name, c.node))
	}
	c.report(fixture.Pod(c.node, c.node, fixture.Running(c.at("a0"), c.at("v0"))))
	blocks := map[string]*calico.IPAMBlock{"a": {}, "v": {}}
	for name, b := range blocks {
		b.Name = fixturecalico.Dashed(c.cidr(name))
		c.read(b)
	}
	// Who takes an address writes the handle first, so one that is young stays for a while.
	c.read(handle)
	eventually(t, func() error {
		if age := time.Since(handle.CreationTimestamp.Time); age < patience/2 {
			return fmt.Errorf("the handle is %s old", age)
		}
		return nil
	})
	c.held(pod)
	pods, handles := record(c.scene, pod, &corev1.PodList{}), record(c.scene, handle, &calico.IPAMHandleList{})
	c.delete(pod)
	pods.until("deleted", func(f frame[*corev1.Pod]) bool { return f.object.DeletionTimestamp != nil })
	c.ends(pod)
	pods.letGo()
	c.finish(pod)
	pods.gone()
	same(t, "the pod", graceful(), podStory(pods))
	handles.gone()
	marked := make([]bool, len(handles.seen))
	for i, f := range handles.seen {
		marked[i] = f.object.Spec.Deleted
	}
	same(t, "the handle, marked as deleted and deleted", []bool{true, true}, marked)
	for name, b := range blocks {
		before := b.Generation
		c.read(b)
		same(t, "writes to block "+name, 1, b.Generation-before)
	}
	same(t, "records", map[string]string{"a": "host:" + c.node, "v": "host:" + c.node}, c.known(c.books().recorded()))
	c.consistent()
}
