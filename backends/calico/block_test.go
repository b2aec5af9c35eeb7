package calico

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func noon() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) }

// spec is a block of four addresses. An attribute of "resting" cools down; "" has no handle.
func spec(sequence uint64, allocations []int, unallocated []int, handles ...string) IPAMBlockSpec {
	s := IPAMBlockSpec{CIDR: "10.0.0.0/30", Affinity: "host:worker-1", Unallocated: unallocated, SequenceNumber: sequence}
	for o, i := range allocations {
		if i < 0 {
			s.Allocations = append(s.Allocations, nil)
			continue
		}
		s.Allocations = append(s.Allocations, &i)
		if s.SequenceNumberForAllocation == nil {
			s.SequenceNumberForAllocation = map[string]uint64{}
		}
		s.SequenceNumberForAllocation[strconv.Itoa(o)] = 100 + uint64(o)
	}
	for _, h := range handles {
		a := Attribute{HandleID: h}
		if h == "resting" {
			since := metav1.NewTime(noon())
			a = Attribute{ReleasedAt: &since}
		}
		s.Attributes = append(s.Attributes, a)
	}
	return s
}

func at(s IPAMBlockSpec, numbers map[string]uint64) IPAMBlockSpec {
	maps.Copy(s.SequenceNumberForAllocation, numbers)
	return s
}

func TestWithout(t *testing.T) {
	const big = 1796042409651816331
	tests := map[string]struct {
		before   IPAMBlockSpec
		ordinals []int
		cooldown bool
		want     IPAMBlockSpec
		err      string
	}{
		"an address joins the end of the queue, and its attribute goes": {
			before:   spec(big, []int{0, 1, 2, -1}, []int{3}, "a", "b", "c"),
			ordinals: []int{1},
			want:     spec(big+1, []int{0, -1, 1, -1}, []int{3, 1}, "a", "c"),
		},
		"an attribute that another address shares stays": {
			before:   spec(big, []int{0, 0, 1, -1}, []int{3}, "a", "b"),
			ordinals: []int{0},
			want:     spec(big+1, []int{-1, 0, 1, -1}, []int{3, 0}, "a", "b"),
		},
		"attributes that nothing points to go too": {
			before:   spec(big, []int{1, 3, -1, -1}, []int{2, 3}, "old", "a", "older", "b"),
			ordinals: []int{0},
			want:     spec(big+1, []int{-1, 0, -1, -1}, []int{2, 3, 0}, "b"),
		},
		"several go in the order in which they are named": {
			before:   spec(big, []int{0, 0, 0, 0}, []int{}, "a"),
			ordinals: []int{2, 0},
			want:     spec(big+1, []int{-1, 0, -1, 0}, []int{2, 0}, "a"),
		},
		"with a cooldown it stays, points to when that began, and gets the block's number": {
			before:   spec(big, []int{0, 1, -1, -1}, []int{2, 3}, "a", "b"),
			ordinals: []int{0}, cooldown: true,
			want: at(spec(big+1, []int{1, 0, -1, -1}, []int{2, 3}, "b", "resting"), map[string]uint64{"0": big}),
		},
		"what cools down already keeps its own time": {
			before:   spec(big, []int{0, 1, -1, -1}, []int{2, 3}, "resting", "b"),
			ordinals: []int{1}, cooldown: true,
			want: at(spec(big+1, []int{0, 1, -1, -1}, []int{2, 3}, "resting", "resting"), map[string]uint64{"1": big}),
		},
		"one that stands in the queue already does not stand there twice": {
			before:   spec(big, []int{0, 1, -1, -1}, []int{2, 0, 3}, "a", "b"),
			ordinals: []int{0},
			want:     spec(big+1, []int{-1, 0, -1, -1}, []int{2, 0, 3}, "b"),
		},
		"an address that points to nothing does not keep others from going": {
			before:   spec(big, []int{0, 7, 1, -1}, []int{3}, "a", "b"),
			ordinals: []int{0},
			want:     spec(big+1, []int{-1, 7, 0, -1}, []int{3, 0}, "b"),
		},
		"it must not come to point to something": {
			before:   spec(big, []int{0, 2, 1, 1}, []int{}, "a", "b"),
			ordinals: []int{2}, cooldown: true,
			err: "writing 10.0.0.0/30: address 1 points to attribute 2, which does not exist and would be another's now: correct that by hand",
		},
		"what is free cannot be given back": {
			before: spec(big, []int{0, -1, -1, -1}, []int{1, 2, 3}, "a"), ordinals: []int{1},
			err: "giving back address 1 of 10.0.0.0/30: it is not handed out",
		},
		"nor what the block does not have": {
			before: spec(big, []int{0, -1, -1, -1}, []int{1, 2, 3}, "a"), ordinals: []int{4},
			err: "giving back address 4 of 10.0.0.0/30: it is not handed out",
		},
		"nor the same twice": {
			before: spec(big, []int{0, -1, -1, -1}, []int{1, 2, 3}, "a"), ordinals: []int{0, 0},
			err: "giving back address 0 of 10.0.0.0/30: it is not handed out",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			stored := tt.before.DeepCopy()
			after, err := blockOf(tt.before).without(tt.ordinals, noon(), tt.cooldown)
			if text := fmt.Sprint(err); err != nil && text != tt.err || err == nil && tt.err != "" {
				t.Errorf("the error is %v, want %s", err, tt.err)
			}
			if diff := gocmp.Diff(tt.want, after.IPAMBlockSpec, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("after (-want +got):\n%s", diff)
			}
			if diff := gocmp.Diff(*stored, tt.before); diff != "" {
				t.Errorf("what was there has changed (-before +after):\n%s", diff)
			}
		})
	}
}

func TestPatchWritesWhatChangedAndNothingElse(t *testing.T) {
	const big = 1796042409651816331
	tests := map[string]struct {
		before IPAMBlockSpec
		after  func(block) (block, error)
		want   string
	}{
		"a release": {
			before: spec(big, []int{0, 1, 2, -1}, []int{3}, "a", "b", "c"),
			after:  func(b block) (block, error) { return b.without([]int{1}, noon(), false) },
			want: `[{"op":"add","path":"/spec/allocations","value":[0,null,1,null]},{"op":"add","path":"/spec/unallocated","value":[3,1]},` +
				`{"op":"remove","path":"/spec/attributes/1"},{"op":"remove","path":"/spec/sequenceNumberForAllocation/1"},` +
				`{"op":"add","path":"/spec/sequenceNumber","value":1796042409651816332}]`,
		},
		"a release with a cooldown": {
			before: spec(big, []int{0, 1, -1, -1}, []int{2, 3}, "a", "b"),
			after:  func(b block) (block, error) { return b.without([]int{0}, noon(), true) },
			want: `[{"op":"add","path":"/spec/allocations","value":[1,0,null,null]},{"op":"remove","path":"/spec/attributes/0"},` +
				`{"op":"add","path":"/spec/attributes/-","value":{"releasedAt":"2026-11-30T12:00:00Z"}},` +
				`{"op":"add","path":"/spec/sequenceNumberForAllocation/0","value":1796042409651816331},` +
				`{"op":"add","path":"/spec/sequenceNumber","value":1796042409651816332}]`,
		},
		"an address that is taken, in a block that never had one": {
			before: IPAMBlockSpec{Allocations: []*int{nil, nil}, Unallocated: []int{1, 0}},
			after:  func(b block) (block, error) { return b.with(0, Attribute{HandleID: "a"}) },
			want: `[{"op":"add","path":"/spec/allocations","value":[0,null]},{"op":"add","path":"/spec/unallocated","value":[1]},` +
				`{"op":"add","path":"/spec/attributes","value":[]},{"op":"add","path":"/spec/attributes/-","value":{"handle_id":"a"}},` +
				`{"op":"add","path":"/spec/sequenceNumberForAllocation","value":{}},{"op":"add","path":"/spec/sequenceNumber","value":1}]`,
		},
		"a block that its node loses": {
			before: IPAMBlockSpec{Affinity: "host:worker-1", AffinityClaimTime: &metav1.Time{}, Attributes: []Attribute{}, SequenceNumber: big},
			after:  func(b block) (block, error) { return b.abandoned(), nil },
			want:   `[{"op":"remove","path":"/spec/affinity"},{"op":"remove","path":"/spec/affinityClaimTime"},{"op":"add","path":"/spec/sequenceNumber","value":1796042409651816332}]`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			after, err := tt.after(blockOf(tt.before))
			if err != nil {
				t.Fatal(err)
			}
			got, err := json.Marshal(read(&IPAMBlock{Spec: tt.before}).patch(after))
			if err != nil {
				t.Fatal(err)
			}
			if diff := gocmp.Diff(tt.want, string(got)); diff != "" {
				t.Errorf("patch (-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzRelease gives addresses back from any block that is whole.
func FuzzRelease(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0}, uint16(0b0010), false)
	f.Add([]byte{1, 2, 3, 0, 1, 2, 9, 9}, uint16(0b00110101), false)
	f.Add([]byte{1, 1, 2, 5, 5, 5}, uint16(0b111), true)
	f.Fuzz(func(t *testing.T, owners []byte, mask uint16, cooldown bool) {
		before, ordinals := whole(owners, mask)
		after, err := blockOf(before).without(ordinals, noon(), cooldown)
		if err != nil {
			t.Fatal(err)
		}
		if after.SequenceNumber != before.SequenceNumber+1 {
			t.Errorf("the sequence number is %d after %d", after.SequenceNumber, before.SequenceNumber)
		}
		free := map[int]bool{}
		for _, o := range after.Unallocated {
			if free[o] {
				t.Errorf("%d is free twice", o)
			}
			free[o] = true
		}
		used := make([]int, len(after.Attributes))
		for o, i := range after.Allocations {
			switch {
			case i == nil && !free[o]:
				t.Errorf("%d is neither free nor handed out", o)
			case i != nil && free[o]:
				t.Errorf("%d is free and handed out", o)
			case i != nil && (*i < 0 || *i >= len(after.Attributes)):
				t.Fatalf("%d points to attribute %d of %d", o, *i, len(after.Attributes))
			case i != nil:
				used[*i]++
			}
			_, numbered := after.SequenceNumberForAllocation[strconv.Itoa(o)]
			if numbered != (i != nil) {
				t.Errorf("%d has a sequence number: %t, and is handed out: %t", o, numbered, i != nil)
			}
			gone := slices.Contains(ordinals, o)
			switch was := before.Allocations[o]; {
			case gone && cooldown && (i == nil || after.Attributes[*i].ReleasedAt == nil):
				t.Errorf("%d does not cool down", o)
			case gone && !cooldown && i != nil:
				t.Errorf("%d is still handed out", o)
			case !gone && (was == nil) != (i == nil):
				t.Errorf("%d was not given back, and changed", o)
			case !gone && was != nil && gocmp.Diff(before.Attributes[*was], after.Attributes[*i]) != "":
				t.Errorf("%d has another owner: %s", o, gocmp.Diff(before.Attributes[*was], after.Attributes[*i]))
			case !gone && before.SequenceNumberForAllocation[strconv.Itoa(o)] != after.SequenceNumberForAllocation[strconv.Itoa(o)]:
				t.Errorf("%d has another sequence number", o)
			}
		}
		if unused := slices.Index(used, 0); unused >= 0 {
			t.Errorf("nothing points to attribute %d", unused)
		}
		queue := slices.Clone(before.Unallocated)
		if !cooldown {
			queue = append(queue, ordinals...)
		}
		if diff := gocmp.Diff(queue, after.Unallocated, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("queue (-want +got):\n%s", diff)
		}
		if kept := after.kept; !slices.IsSorted(kept) || len(slices.Compact(slices.Clone(kept))) != len(kept) {
			t.Errorf("of the stored attributes %v are kept", kept)
		}
		for i, k := range after.kept {
			if diff := gocmp.Diff(before.Attributes[k], after.Attributes[i]); diff != "" {
				t.Errorf("attribute %d is not the stored one %d: %s", i, k, diff)
			}
		}
	})
}

// whole returns a block of at most 16 addresses, each of which is free or one of eight owners', and some of those that are
// handed out, in an order that is not theirs.
func whole(owners []byte, mask uint16) (IPAMBlockSpec, []int) {
	owners = owners[:min(len(owners), 16)]
	s := IPAMBlockSpec{CIDR: "10.0.0.0/28", SequenceNumber: 1796042409651816331, SequenceNumberForAllocation: map[string]uint64{}}
	index := map[byte]int{}
	var ordinals []int
	for o, owner := range owners {
		owner %= 9
		if owner == 0 {
			s.Allocations = append(s.Allocations, nil)
			s.Unallocated = append([]int{o}, s.Unallocated...)
			continue
		}
		i, known := index[owner]
		if !known {
			i = len(s.Attributes)
			index[owner] = i
			a := Attribute{HandleID: fmt.Sprintf("handle-%d", owner)}
			if owner == 8 {
				since := metav1.NewTime(noon().Add(-time.Hour))
				a = Attribute{ReleasedAt: &since}
			}
			s.Attributes = append(s.Attributes, a)
		}
		s.Allocations = append(s.Allocations, &i)
		s.SequenceNumberForAllocation[strconv.Itoa(o)] = s.SequenceNumber - uint64(o) - 1
		if mask>>o&1 == 1 {
			ordinals = append(ordinals, o)
		}
	}
	slices.SortFunc(ordinals, func(a, b int) int { return cmp.Or(cmp.Compare(a%3, b%3), cmp.Compare(a, b)) })
	return s, ordinals
}

func TestVacant(t *testing.T) {
	tests := map[string]struct {
		spec IPAMBlockSpec
		want bool
	}{
		"a block of which nobody has anything":                {spec(1, []int{-1, -1, -1, -1}, nil), true},
		"G30 a block with only what Windows keeps for itself": {spec(1, []int{0, 0, 0, -1}, nil, "windows-reserved-ipam-handle"), true},
		"its handle in other letters":                         {spec(1, []int{0, 0, 0, -1}, nil, "Windows-Reserved-IPAM-Handle"), true},
		"a block with a pod's address":                        {spec(1, []int{-1, 0, -1, -1}, nil, "a"), false},
		"a block with a pod's address beside Windows'":        {spec(1, []int{0, 1, -1, -1}, nil, "windows-reserved-ipam-handle", "a"), false},
		"an address that cools down is not empty":             {spec(1, []int{0, -1, -1, -1}, nil, "resting"), false},
		"an address of which nothing can be said is not":      {spec(1, []int{4, -1, -1, -1}, nil, "a"), false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := blockOf(tt.spec).vacant(); got != tt.want {
				t.Errorf("vacant is %t, want %t", got, tt.want)
			}
		})
	}
}

func TestFlag(t *testing.T) {
	tests := map[string]struct {
		json string
		want Flag
		err  string
	}{
		"v1 writes a string":             {`{"deleted":"true"}`, true, ""},
		"v1 writes it when it is false":  {`{"deleted":"false"}`, false, ""},
		"v3 writes a bool":               {`{"deleted":true}`, true, ""},
		"v3 writes it when it is false":  {`{"deleted":false}`, false, ""},
		"older releases write nothing":   {`{}`, false, ""},
		"an empty string is false":       {`{"deleted":""}`, false, ""},
		"what is neither cannot be read": {`{"deleted":"maybe"}`, false, `reading "maybe" as true or false: strconv.ParseBool: parsing "maybe": invalid syntax`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got BlockAffinitySpec
			err := json.Unmarshal([]byte(tt.json), &got)
			if text := fmt.Sprint(err); err != nil && text != tt.err || err == nil && tt.err != "" {
				t.Errorf("the error is %v, want %s", err, tt.err)
			}
			if got.Deleted != tt.want {
				t.Errorf("deleted is %t, want %t", got.Deleted, tt.want)
			}
		})
	}
}
