package ipam_test

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/oakum-dev/oakum/ipam"
)

// A pool is carved into blocks, which are counted and never listed.
func ExamplePoolText_Parse() {
	pool, problems := ipam.PoolText{
		Name:          "default",
		Network:       "default",
		BlockSizeBits: 5,
		Subnets:       []ipam.SubnetText{{IPv4: "10.100.0.0/16", IPv6: "fd00:100::/112"}},
		Reserved:      []string{"10.100.0.0-10.100.0.9"},
		Cooldown:      30 * time.Second,
	}.Parse()
	fmt.Println(len(problems), "problems,", pool.Blocks(), "blocks,", pool.Capacity(), "pairs")

	subnet, _ := pool.Block(2)
	fmt.Println(ipam.BlockName(pool.Name, 2), "is", subnet)

	first, _ := pool.Block(0)
	block := ipam.Block{Subnet: first, Entries: []ipam.Entry{{Offset: 10}}}
	for offset := range block.Free(pool, time.Time{}) {
		fmt.Println("offset", offset, "is", block.Subnet.At(uint64(offset)))
		break
	}
	// Output:
	// 0 problems, 2048 blocks, 65536 pairs
	// default-2 is 10.100.0.64/27,fd00:100::40/123
	// offset 11 is [10.100.0.11 fd00:100::b]
}

// What is wrong with a pool is told all at once.
func ExamplePool_CheckOverlap() {
	pool, problems := ipam.PoolText{
		Name:    "new",
		Network: "default",
		Subnets: []ipam.SubnetText{{IPv4: "10.0.0.0/8"}, {IPv4: "10.1.0.1/16"}},
	}.Parse()
	old, _ := ipam.PoolText{
		Name:    "old",
		Network: "default",
		Subnets: []ipam.SubnetText{{IPv4: "10.9.0.0/16"}},
	}.Parse()
	for _, p := range slices.Concat(problems, pool.CheckOverlap([]ipam.Pool{old})) {
		fmt.Printf("%s: %s: %q: %s\n", p.Rule, p.Field, p.Value, p.Message)
	}
	// Output:
	// pool-malformed: spec.subnets[1].ipv4: "10.1.0.1/16": must have no host bits set: did you mean 10.1.0.0/16?
	// pool-overlap: spec.subnets[0].ipv4: "10.0.0.0/8": must not overlap AddressPool "old" of network "default" (10.9.0.0/16)
}

// Two addresses are recorded for pods that nobody can find by their UID. One of them is in use all the same.
func ExampleJudge() {
	world := ipam.NewWorld(ipam.Observation{
		Pods: []ipam.Pod{{
			Namespace: "default", Name: "web-0", UID: "b2", Node: "worker-1", Phase: "Running",
			Addresses: []netip.Addr{netip.MustParseAddr("10.100.0.11")},
		}},
		PodsKnown:  true,
		Nodes:      []ipam.Node{{Name: "worker-1", Ready: ipam.ConditionTrue}},
		NodesKnown: true,
	})
	for _, text := range []string{"10.100.0.10", "10.100.0.11"} {
		v := ipam.Judge(ipam.Allocation{
			Owner:  ipam.Owner{Kind: ipam.OwnerPod, Namespace: "default", Name: "web-0", UID: "a1", Node: "worker-1"},
			Places: []ipam.Place{{Addresses: []netip.Addr{netip.MustParseAddr(text)}}},
		}, world)
		fmt.Printf("%s: %s: %s (%s): %s\n", text, v.Disposition, v.Reason, v.Evidence, v.Detail)
	}
	// Output:
	// 10.100.0.10: Orphan: OwnerReplaced (E12): Pod default/web-0 (uid a1) was replaced by uid b2
	// 10.100.0.11: Keep: InUse (E11): 10.100.0.11 is in use by Pod default/web-0 (uid b2)
}

// A suspicion has to last before it has consequences.
func ExampleLedger_Next() {
	patience := ipam.Patience{Grace: 5 * time.Minute, Quarantine: 15 * time.Minute}
	orphan := ipam.Judgement{
		Allocation: ipam.Allocation{Backend: "native", Handle: "4f1c2e-eth0"},
		Verdict:    ipam.Verdict{Disposition: ipam.Orphan, Reason: ipam.OwnerGone},
	}
	var ledger ipam.Ledger
	for _, steady := range []time.Duration{0, 3 * time.Minute, 5 * time.Minute} {
		var due []ipam.Judgement
		var again time.Duration
		ledger, due, again = ledger.Next([]ipam.Judgement{orphan}, ipam.Moment{Steady: steady}, patience)
		fmt.Printf("after %s: %d due, look again in %s\n", steady, len(due), again)
	}
	// Output:
	// after 0s: 0 due, look again in 5m0s
	// after 3m0s: 0 due, look again in 2m0s
	// after 5m0s: 1 due, look again in 0s
}
