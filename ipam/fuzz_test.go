package ipam

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func FuzzParseRange(f *testing.F) {
	for _, seed := range []string{
		"10.0.0.7", "fd00::7", "10.0.0.64/27", "fd00::/64", "0.0.0.0/0", "::/0", "10.0.0.250-10.0.1.5", "fd00::-fd00::ff",
		"255.255.255.255", "10.0.0.1-fd00::1", "10.0.0.9/27", "::ffff:10.0.0.1", "fe80::1%eth0", "-", "/", "",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRange(text)
		if err != nil {
			if diff := cmp.Diff(Range{}, r, byValue()); diff != "" {
				t.Errorf("range beside %q (-want +got):\n%s", err, diff)
			}
			return
		}
		again, err := ParseRange(r.String())
		if diff := cmp.Diff(r, again, byValue()); diff != "" || err != nil {
			t.Errorf("%s read again: %v (-want +got):\n%s", r, err, diff)
		}
		if !r.Contains(r.First) || !r.Contains(r.Last) {
			t.Errorf("%s does not contain its ends", r)
		}
		if r.Contains(r.First.Prev()) || r.Contains(r.Last.Next()) {
			t.Errorf("%s contains its neighbours", r)
		}
	})
}

func FuzzPoolParse(f *testing.F) {
	f.Add(5, "10.0.0.0/16", "fd00::/112", "10.9.0.0/24", "fd09::/120", "10.0.0.0-10.0.0.9", int64(17))
	f.Add(0, "0.0.0.0/0", "", "", "", "0.0.0.0/8", int64(1<<31-1))
	f.Add(8, "", "fd00::/64", "", "fd01::/64", "fd00::1", int64(1<<31))
	f.Add(0, "10.0.0.7/32", "fd00::7/128", "", "", "", int64(0))
	f.Add(9, "10.0.0.0/24", "10.0.0.0/24", "10.0.0.0/8", "::ffff:0:0/96", "?", int64(-1))
	f.Add(4, "10.0.0.0/24", "", "nonsense", "", "fd00::1", int64(16))
	f.Fuzz(func(t *testing.T, bits int, ipv4, ipv6, ipv4b, ipv6b, reserved string, index int64) {
		p, problems := PoolText{
			Name:          "east",
			BlockSizeBits: bits,
			Subnets:       []SubnetText{{ipv4, ipv6}, {ipv4b, ipv6b}},
			Reserved:      []string{reserved},
		}.Parse()
		blocks := p.Blocks()
		if blocks < 0 || blocks > 1<<31 || p.Capacity() != blocks<<p.BlockSizeBits {
			t.Fatalf("%d blocks for %d addresses", blocks, p.Capacity())
		}
		if _, ok := p.Block(index); ok != (0 <= index && index < blocks) {
			t.Errorf("block %d of %d: there is %t", index, blocks, ok)
		}
		if blocks == 0 {
			return
		}
		overlap := slices.ContainsFunc(problems, func(p Problem) bool { return p.Rule == PoolOverlap })
		middle := max(index, -index, 0) % blocks
		for _, i := range []int64{0, middle, blocks - 1} {
			s, _ := p.Block(i)
			if home := slices.IndexFunc(p.Subnets, func(whole Subnet) bool { return allIn(s, whole, p.BlockSizeBits) }); home < 0 {
				t.Errorf("block %d, %s, lies in no subnet of %v", i, s, p.Subnets)
			}
			if next, ok := p.Block(i + 1); ok && !overlap && (s.IPv4.Overlaps(next.IPv4) || s.IPv6.Overlaps(next.IPv6)) {
				t.Errorf("block %d, %s, overlaps the next, %s", i, s, next)
			}
			b := Block{Name: BlockName("east", i), Pool: "east", Index: i, Subnet: s}
			if diff := cmp.Diff([]Problem(nil), b.Check(p)); diff != "" {
				t.Errorf("problems of block %d as the pool gives it (-want +got):\n%s", i, diff)
			}
		}
	})
}

func FuzzBlockCool(f *testing.F) {
	f.Add([]byte{3, 9}, []byte{4, 30}, []byte{9}, uint32(30_000), uint32(1))
	f.Add([]byte{3, 3}, []byte{3, 10, 3, 200}, []byte{}, uint32(1), uint32(999_999_999))
	f.Add([]byte{255, 200}, []byte{255, 90}, []byte{200}, uint32(0), uint32(0))
	f.Fuzz(func(t *testing.T, had, cooled, keeps []byte, milliseconds, nanoseconds uint32) {
		now := at("12:00:00").Add(time.Duration(nanoseconds))
		cooldown := time.Duration(milliseconds) * time.Millisecond
		b, next := Block{Entries: entries(had), Cooling: coolings(cooled)}, Block{Entries: entries(keeps)}
		got := b.Cool(next, cooldown, now)

		held := func(o int) bool {
			return slices.ContainsFunc(next.Entries, func(e Entry) bool { return e.Offset == o })
		}
		least := make(map[int]time.Time)   // the earliest end that each offset may have
		longest := make(map[int]time.Time) // and the latest
		for _, e := range b.Entries {
			if cooldown > 0 && !held(e.Offset) {
				least[e.Offset], longest[e.Offset] = now.Add(cooldown), now.Add(cooldown+time.Second-1)
			}
		}
		for _, c := range b.Cooling {
			if c.Until.After(now) && !held(c.Offset) {
				least[c.Offset], longest[c.Offset] = later(least[c.Offset], c.Until), later(longest[c.Offset], c.Until)
			}
		}
		for i, c := range got {
			if i > 0 && got[i-1].Offset >= c.Offset {
				t.Errorf("%d follows %d", c.Offset, got[i-1].Offset)
			}
			if c.Until.Nanosecond() != 0 {
				t.Errorf("%d ends at %s, between two seconds", c.Offset, c.Until)
			}
			if c.Until.Before(least[c.Offset]) || c.Until.After(longest[c.Offset]) {
				t.Errorf("%d ends at %s, not from %s to %s", c.Offset, c.Until, least[c.Offset], longest[c.Offset])
			}
		}
		if len(got) != len(least) {
			t.Errorf("got %d offsets that cool, want %d", len(got), len(least))
		}
		next.Cooling = got
		if diff := cmp.Diff(got, next.Cool(next, cooldown, now)); diff != "" {
			t.Errorf("an update that changes nothing (-want +got):\n%s", diff)
		}
	})
}

func FuzzFree(f *testing.F) {
	f.Add(uint8(5), []byte{3, 9}, []byte{4, 30, 5, 99}, "10.0.0.0/30,fd00::1f")
	f.Add(uint8(0), []byte{}, []byte{}, "")
	f.Add(uint8(8), []byte{0, 255, 100}, []byte{50, 101}, "10.0.0.9-10.0.0.99,fd00::ff,?")
	f.Fuzz(func(t *testing.T, bits uint8, taken, cooled []byte, reserved string) {
		now := at("12:00:00")
		whole := Pool{BlockSizeBits: int(bits % (MaxBlockSizeBits + 1)), Subnets: []Subnet{subnet("10.0.0.0/24", "fd00::/120")}}
		for text := range strings.SplitSeq(reserved, ",") {
			if r, err := ParseRange(text); err == nil {
				whole.Reserved = append(whole.Reserved, r)
			}
		}
		s, _ := whole.Block(0)
		b := Block{Subnet: s, Entries: entries(taken), Cooling: coolings(cooled)}

		var want []int
		for o := range 1 << whole.BlockSizeBits {
			busy := slices.ContainsFunc(b.Entries, func(e Entry) bool { return e.Offset == o }) ||
				slices.ContainsFunc(b.Cooling, func(c Cooling) bool { return c.Offset == o && c.Until.After(now) })
			for _, a := range b.Subnet.At(uint64(o)) {
				busy = busy || slices.ContainsFunc(whole.Reserved, func(r Range) bool { return r.Contains(a) })
			}
			if !busy {
				want = append(want, o)
			}
		}
		if diff := cmp.Diff(want, slices.Collect(b.Free(whole, now))); diff != "" {
			t.Errorf("free offsets (-want +got):\n%s", diff)
		}
		if got := b.Unfilled(whole, now); got != (len(want) > 0) {
			t.Errorf("%d free offsets, and room: %t", len(want), got)
		}
	})
}

// allIn tells whether each address of a block lies in the subnet, and whether the two have the same families.
func allIn(block, whole Subnet, bits int) bool {
	if block.IPv4.IsValid() != whole.IPv4.IsValid() || block.IPv6.IsValid() != whole.IPv6.IsValid() {
		return false
	}
	for o := range uint64(1) << bits {
		for _, a := range block.At(o) {
			if !whole.IPv4.Contains(a) && !whole.IPv6.Contains(a) {
				return false
			}
		}
	}
	return true
}

// offset spreads a byte over the offsets of a block and some beyond either end.
func offset(b byte) int { return int(b)*3/2 - 50 }

func entries(offsets []byte) []Entry {
	var es []Entry
	for _, b := range offsets {
		es = append(es, Entry{Offset: offset(b)})
	}
	return es
}

// coolings makes an offset and the seconds from before to after noon out of each two bytes.
func coolings(bytes []byte) []Cooling {
	var cs []Cooling
	for pair := range slices.Chunk(bytes, 2) {
		if len(pair) == 2 {
			cs = append(cs, Cooling{offset(pair[0]), at("12:00:00").Add(time.Duration(int(pair[1])-100) * time.Second)})
		}
	}
	return cs
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
