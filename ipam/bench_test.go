package ipam

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// 100,000 hand-outs to as many pods on 1,000 nodes.
func BenchmarkJudge(b *testing.B) {
	const pods, machines = 100_000, 1000
	o := Observation{PodsKnown: true, NodesKnown: true}
	for i := range machines {
		o.Nodes = append(o.Nodes, ready(fmt.Sprintf("n%d", i)))
	}
	records := make([]Allocation, pods)
	for i := range records {
		p := web(on(fmt.Sprintf("n%d", i%machines)), func(p *Pod) {
			p.Name, p.UID = fmt.Sprintf("db-%d", i), fmt.Sprintf("u%d", i)
			p.Addresses = []netip.Addr{advance(addr("10.0.0.0"), uint64(i))}
		})
		o.Pods = append(o.Pods, p)
		records[i] = Allocation{
			Owner:  Owner{Kind: OwnerPod, Namespace: p.Namespace, Name: p.Name, UID: p.UID, Node: p.Node},
			Places: []Place{{Addresses: p.Addresses}},
		}
	}
	w := NewWorld(o)
	b.Run("alive", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if v := Judge(records[i%pods], w); v.Reason != InUse {
				b.Fatalf("got %+v", v)
			}
		}
	})
	b.Run("gone", func(b *testing.B) {
		b.ReportAllocs()
		gone := handout(native(), "10.9.9.9")
		for b.Loop() {
			if v := Judge(gone, w); v.Reason != OwnerGone {
				b.Fatalf("got %+v", v)
			}
		}
	})
	b.Run("index", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			w = NewWorld(o)
		}
	})
}

// One audit of 100,000 hand-outs, of which one in ten is suspect.
func BenchmarkLedgerNext(b *testing.B) {
	found := make([]Judgement, 100_000)
	for i := range found {
		found[i] = judged(fmt.Sprintf("h%d", i), Keep)
		if i%10 == 0 {
			found[i].Verdict.Disposition = Orphan
		}
	}
	l, _, _ := Ledger{}.Next(found, moment(0), Patience{Grace: time.Hour})
	b.ReportAllocs()
	for b.Loop() {
		if next, due, again := l.Next(found, moment(time.Minute), Patience{Grace: time.Hour}); next.Len() != len(found) || due != nil || again != 59*time.Minute {
			b.Fatalf("%d remembered, %d due, again in %s", next.Len(), len(due), again)
		}
	}
}

// The last free address of a block of 256, among reserved and cooling ones.
func BenchmarkBlockFree(b *testing.B) {
	p := Pool{BlockSizeBits: 8, Reserved: []Range{span("10.0.0.0", "10.0.0.9"), span("fd00::10", "fd00::1f")}}
	block := Block{Subnet: subnet("10.0.0.0/24", "fd00::/120"), Cooling: []Cooling{{254, at("12:00:30")}}}
	for o := range 254 {
		block.Entries = append(block.Entries, Entry{Offset: o})
	}
	now := at("12:00:00")
	b.ReportAllocs()
	for b.Loop() {
		for o := range block.Free(p, now) {
			if o != 255 {
				b.Fatalf("offset %d is free", o)
			}
		}
	}
}

// A block in the last of 64 subnets.
func BenchmarkPoolBlock(b *testing.B) {
	p, _ := PoolText{BlockSizeBits: 5, Subnets: manySubnets()}.Parse()
	last := p.Blocks() - 1
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := p.Block(last); !ok {
			b.Fatal("there is no last block")
		}
	}
}
