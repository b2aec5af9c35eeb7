package audit

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/go-logr/logr"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
)

// crowd is a cluster in which every pod runs and has its address: fifty of them to a block, and a block to a node.
type crowd struct {
	backends.Backend
	recorded []ipam.Allocation
	pods     []ipam.Pod
	nodes    []ipam.Node
}

const perBlock = 50

func newCrowd(pods int) *crowd {
	c := &crowd{}
	start := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for i := range pods {
		n := i / perBlock
		node, block := fmt.Sprintf("n%d", n), fmt.Sprintf("east-%d", n)
		if i%perBlock == 0 {
			c.nodes = append(c.nodes, ipam.Node{Name: node, UID: "uid-of-" + node, Created: start, Ready: ipam.ConditionTrue})
		}
		addr := netip.AddrFrom4([4]byte{10, byte(n >> 8), byte(n), byte(i % perBlock)})
		p := ipam.Pod{
			Namespace: "default", Name: fmt.Sprintf("web-%d", i), UID: fmt.Sprintf("uid-of-web-%d", i), Node: node, Created: start,
			Phase: "Running", Sandbox: ipam.ConditionTrue, Addresses: []netip.Addr{addr},
		}
		c.pods = append(c.pods, p)
		c.recorded = append(c.recorded, ipam.Allocation{
			Backend: "native", Handle: "handle-of-" + p.UID,
			Owner:  ipam.Owner{Kind: ipam.OwnerPod, Namespace: p.Namespace, Name: p.Name, UID: p.UID, Node: node},
			Places: []ipam.Place{{Pool: "east", Block: block, Offset: i % perBlock, Addresses: p.Addresses, Revision: "1"}},
		})
	}
	return c
}

// Name implements backends.Backend.
func (*crowd) Name() string { return "native" }

// Allocations implements backends.Backend.
func (c *crowd) Allocations(context.Context) ([]ipam.Allocation, error) { return c.recorded, nil }

// World implements Witness.
func (c *crowd) World(context.Context, []ipam.Allocation, ...string) (ipam.World, cluster.Census, error) {
	o := ipam.Observation{Pods: c.pods, PodsKnown: true, Nodes: c.nodes, NodesKnown: true}
	return ipam.NewWorld(o), cluster.Census{Pods: len(c.pods), Nodes: len(c.nodes)}, nil
}

// LiveLook implements Witness.
func (c *crowd) LiveLook(ctx context.Context, a ipam.Allocation) (ipam.World, error) {
	world, _, err := c.World(ctx, []ipam.Allocation{a})
	return world, err
}

func (c *crowd) auditor() *Auditor {
	t := newTruth(false, false)
	r := &reports{truth: t}
	return &Auditor{
		Backend: c, Witness: c, Clock: t.clock, Mode: config.ModeEnforce, Settings: sound(),
		Client: r, Live: r, Log: logr.Discard(), Recorder: newJournal(), Metrics: newTestMetrics(),
	}
}

func BenchmarkRun(b *testing.B) {
	for _, pods := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("%d", pods), func(b *testing.B) {
			a := newCrowd(pods).auditor()
			a.Run(b.Context())
			b.ReportAllocs()
			for b.Loop() {
				a.Run(b.Context())
			}
		})
	}
}
