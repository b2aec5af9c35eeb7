package ipam

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestBlockName(t *testing.T) {
	if got, want := BlockName("east", 1<<31-1), "east-2147483647"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestBlockFree(t *testing.T) {
	tests := map[string]struct {
		bits     int
		subnet   Subnet
		reserved []string
		entries  []Entry
		cooling  []Cooling
		want     []int
	}{
		"all of an untouched block": {
			bits:   2,
			subnet: subnet("10.0.0.4/30", "fd00::4/126"),
			want:   []int{0, 1, 2, 3},
		},
		"the only address of a block of one": {
			subnet: subnet("10.0.0.7/32", "fd00::7/128"),
			want:   []int{0},
		},
		"not what is allocated": {
			bits:    2,
			subnet:  subnet("10.0.0.4/30", ""),
			entries: []Entry{{Offset: 3}, {Offset: 1}},
			want:    []int{0, 2},
		},
		"not what is reserved as an address": {
			bits:     2,
			subnet:   subnet("10.0.0.4/30", ""),
			reserved: []string{"10.0.0.5"},
			want:     []int{0, 2, 3},
		},
		"not what is reserved as a CIDR": {
			bits:     2,
			subnet:   subnet("10.0.0.4/30", ""),
			reserved: []string{"10.0.0.4/31"},
			want:     []int{2, 3},
		},
		"not what is reserved as a range that begins before the block": {
			bits:     2,
			subnet:   subnet("10.0.0.4/30", ""),
			reserved: []string{"10.0.0.1-10.0.0.6"},
			want:     []int{3},
		},
		"not a pair of which one address is reserved": {
			bits:     2,
			subnet:   subnet("10.0.0.4/30", "fd00::4/126"),
			reserved: []string{"10.0.0.4", "fd00::7"},
			want:     []int{1, 2},
		},
		"not what is cooling down, but what has just cooled": {
			bits:    2,
			subnet:  subnet("10.0.0.4/30", ""),
			cooling: []Cooling{{0, at("12:00:01")}, {1, at("12:00:00")}, {2, at("11:59:59")}},
			want:    []int{1, 2, 3},
		},
		"nothing of a block that is full": {
			bits:     2,
			subnet:   subnet("10.0.0.4/30", ""),
			reserved: []string{"10.0.0.4"},
			entries:  []Entry{{Offset: 1}, {Offset: 2}},
			cooling:  []Cooling{{3, at("12:00:30")}},
		},
		"an offset that no block has is in nobody's way": {
			bits:    2,
			subnet:  subnet("10.0.0.4/30", ""),
			entries: []Entry{{Offset: -1}, {Offset: 4}, {Offset: 300}},
			cooling: []Cooling{{-1, at("12:00:30")}, {256, at("12:00:30")}},
			want:    []int{0, 1, 2, 3},
		},
		"the first and the last of the largest block": {
			bits:     8,
			subnet:   subnet("10.0.0.0/24", ""),
			reserved: []string{"10.0.0.1-10.0.0.254"},
			want:     []int{0, 255},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := Block{Subnet: tt.subnet, Entries: tt.entries, Cooling: tt.cooling}
			p := Pool{BlockSizeBits: tt.bits, Reserved: ranges(t, tt.reserved)}
			if diff := cmp.Diff(tt.want, slices.Collect(b.Free(p, at("12:00:00")))); diff != "" {
				t.Errorf("free offsets (-want +got):\n%s", diff)
			}
			if got, want := b.Unfilled(p, at("12:00:00")), len(tt.want) > 0; got != want {
				t.Errorf("unfilled: got %t, want %t", got, want)
			}
			b.Terminating = true
			if b.Unfilled(p, at("12:00:00")) {
				t.Error("a block that is being deleted has room")
			}
		})
	}
}

func TestBlockFreeStopsWhenAsked(t *testing.T) {
	var got []int
	for o := range (Block{Subnet: subnet("10.0.0.0/27", "")}).Free(Pool{BlockSizeBits: 5}, at("12:00:00")) {
		if got = append(got, o); o == 2 {
			break
		}
	}
	if diff := cmp.Diff([]int{0, 1, 2}, got); diff != "" {
		t.Errorf("free offsets (-want +got):\n%s", diff)
	}
}

func TestBlockEmpty(t *testing.T) {
	tests := map[string]struct {
		block Block
		want  bool
	}{
		"nothing in it":           {Block{}, true},
		"an allocation":           {Block{Entries: []Entry{{Offset: 3}}}, false},
		"an address cooling down": {Block{Cooling: []Cooling{{3, at("12:00:00")}, {4, at("12:00:01")}}}, false},
		"an address that cooled":  {Block{Cooling: []Cooling{{3, at("12:00:00")}}}, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tt.block.Empty(at("12:00:00")); got != tt.want {
				t.Errorf("got %t, want %t", got, tt.want)
			}
		})
	}
}

func TestBlockCool(t *testing.T) {
	tests := map[string]struct {
		had      []Entry
		cooled   []Cooling
		keeps    []Entry
		claims   []Cooling
		cooldown time.Duration
		now      time.Time
		want     []Cooling
	}{
		"nothing given back, nothing cools": {
			had:      []Entry{{Offset: 3}},
			keeps:    []Entry{{Offset: 3}, {Offset: 4}},
			cooldown: 30 * time.Second,
			now:      at("12:00:00"),
		},
		"what is given back cools, in ascending order": {
			had:      []Entry{{Offset: 9}, {Offset: 5}, {Offset: 3}},
			keeps:    []Entry{{Offset: 5}},
			cooldown: 30 * time.Second,
			now:      at("12:00:00"),
			want:     []Cooling{{3, at("12:00:30")}, {9, at("12:00:30")}},
		},
		"the end is rounded up to a whole second": {
			had:      []Entry{{Offset: 3}},
			cooldown: 30 * time.Second,
			now:      at("12:00:00.000000001"),
			want:     []Cooling{{3, at("12:00:31")}},
		},
		"a cooldown of a moment lasts to the next second": {
			had:      []Entry{{Offset: 3}},
			cooldown: time.Millisecond,
			now:      at("12:00:00.5"),
			want:     []Cooling{{3, at("12:00:01")}},
		},
		"without a cooldown nothing begins to cool": {
			had: []Entry{{Offset: 3}},
			now: at("12:00:00.5"),
		},
		"without a cooldown what cools goes on cooling": {
			had:    []Entry{{Offset: 3}},
			cooled: []Cooling{{9, at("12:00:10")}},
			now:    at("12:00:00"),
			want:   []Cooling{{9, at("12:00:10")}},
		},
		"what has cooled is dropped": {
			cooled:   []Cooling{{3, at("12:00:00")}, {4, at("12:00:01")}},
			cooldown: 30 * time.Second,
			now:      at("12:00:00"),
			want:     []Cooling{{4, at("12:00:01")}},
		},
		"a client cannot shorten a wait, nor lengthen or invent one": {
			had:      []Entry{{Offset: 3}},
			cooled:   []Cooling{{4, at("12:00:10")}},
			claims:   []Cooling{{3, at("12:00:01")}, {4, at("13:00:00")}, {5, at("13:00:00")}},
			cooldown: 30 * time.Second,
			now:      at("12:00:00"),
			want:     []Cooling{{3, at("12:00:30")}, {4, at("12:00:10")}},
		},
		"an offset that is taken again does not cool": {
			cooled:   []Cooling{{3, at("12:00:10")}, {4, at("12:00:10")}},
			keeps:    []Entry{{Offset: 3}},
			cooldown: 30 * time.Second,
			now:      at("12:00:00"),
			want:     []Cooling{{4, at("12:00:10")}},
		},
		"an offset that changes hands is not given back": {
			had:      []Entry{{Offset: 3, Handle: "h1"}},
			keeps:    []Entry{{Offset: 3, Handle: "h2"}},
			cooldown: 30 * time.Second,
			now:      at("12:00:00"),
		},
		"an offset that is listed twice cools once, for the longer time": {
			cooled:   []Cooling{{3, at("12:00:10")}, {3, at("12:00:20")}},
			cooldown: 30 * time.Second,
			now:      at("12:00:00"),
			want:     []Cooling{{3, at("12:00:20")}},
		},
		"a wait does not shrink because the offset is given back once more": {
			had:      []Entry{{Offset: 3}},
			cooled:   []Cooling{{3, at("12:05:00")}},
			cooldown: 30 * time.Second,
			now:      at("12:00:00"),
			want:     []Cooling{{3, at("12:05:00")}},
		},
		"an offset beyond every block cools only once it is given back": {
			had:      []Entry{{Offset: 256}, {Offset: 257}},
			cooled:   []Cooling{{257, at("12:00:10")}},
			keeps:    []Entry{{Offset: 256}},
			cooldown: 30 * time.Second,
			now:      at("12:00:00"),
			want:     []Cooling{{257, at("12:00:30")}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b, next := Block{Entries: tt.had, Cooling: tt.cooled}, Block{Entries: tt.keeps, Cooling: tt.claims}
			if diff := cmp.Diff(tt.want, b.Cool(next, tt.cooldown, tt.now)); diff != "" {
				t.Errorf("cooling (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBlockAdds(t *testing.T) {
	web := Owner{Kind: OwnerPod, Namespace: "default", Name: "web-0", UID: "u1", Node: "n1"}
	tests := map[string]struct {
		had, has []Entry
		want     []Added
	}{
		"nothing changed": {
			had: []Entry{{3, "h1", web}},
			has: []Entry{{3, "h1", web}},
		},
		"giving back adds nothing": {
			had: []Entry{{3, "h1", web}, {4, "h2", web}},
			has: []Entry{{4, "h2", web}},
		},
		"entries may change places": {
			had: []Entry{{3, "h1", web}, {4, "h2", web}},
			has: []Entry{{4, "h2", web}, {3, "h1", web}},
		},
		"a new entry is found by its place in the list": {
			had:  []Entry{{3, "h1", web}},
			has:  []Entry{{3, "h1", web}, {4, "h2", web}},
			want: []Added{{Entry{4, "h2", web}, "spec.allocations[1]"}},
		},
		"another handle makes an entry another": {
			had:  []Entry{{3, "h1", web}},
			has:  []Entry{{3, "h2", web}},
			want: []Added{{Entry{3, "h2", web}, "spec.allocations[0]"}},
		},
		"another owner makes an entry another": {
			had:  []Entry{{3, "h1", web}},
			has:  []Entry{{3, "h1", Owner{}}},
			want: []Added{{Entry{3, "h1", Owner{}}, "spec.allocations[0]"}},
		},
		"all entries of a new block are new": {
			has:  []Entry{{3, "h1", web}, {4, "h2", web}},
			want: []Added{{Entry{3, "h1", web}, "spec.allocations[0]"}, {Entry{4, "h2", web}, "spec.allocations[1]"}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, Block{Entries: tt.had}.Adds(Block{Entries: tt.has})); diff != "" {
				t.Errorf("added (-want +got):\n%s", diff)
			}
		})
	}
}

// at returns a time of one day. Fractions of a second may follow.
func at(clock string) time.Time {
	t, err := time.Parse(time.DateTime, "2026-11-30 "+clock)
	if err != nil {
		panic(err)
	}
	return t
}

func ranges(t *testing.T, texts []string) []Range {
	t.Helper()
	var rs []Range
	for _, text := range texts {
		r, err := ParseRange(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		rs = append(rs, r)
	}
	return rs
}
