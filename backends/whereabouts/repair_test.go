package whereabouts_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/backends/backendtest"
	"github.com/oakum-dev/oakum/ipam"
)

func TestRepair(t *testing.T) {
	const web0, web1 = "default/web-0", "default/web-1"
	note := func(t *testing.T, s *store) {
		all := s.Stored(t)
		check(t, unstructured.SetNestedField(all["IPPool/10.0.0.0-29"], "changed", "metadata", "annotations", "example.org/note"))
		s.Store(t, all)
	}
	mine := func(ref, id string) string { return poolOf("10.0.0.0-29", "10.0.0.0/29", entry("1", id, ref)) }
	tests := map[string]struct {
		stored []string
		block  string
		uid    string
		// event happens after the hand-out was seen, meanwhile right before the first write.
		event, meanwhile func(*testing.T, *store)
		want             string
		stale            bool
		// entries are those of all pools afterwards.
		entries []string
	}{
		"G21 a reservation without an entry gets one": {
			stored: []string{reserve("10.0.0.1", web0)}, block: "reservation/10.0.0.1",
			entries: []string{"10.0.0.0-29/1 " + uid1 + " default/web-0 eth0"},
		},
		"G21 so does an IPv6 one in a network": {
			stored: []string{network("net1"), poolOf("net1-fd00---64", "fd00::/64"), reserve("net1-fd00--5", web0)}, block: "reservation/net1-fd00--5",
			entries: []string{"net1-fd00---64/5 " + uid1 + " default/web-0 eth0"},
		},
		"the pool gets its first entry": {
			stored: []string{"{kind: IPPool, metadata: {name: 10.2.0.0-24}, spec: {range: 10.2.0.0/24}}", reserve("10.2.0.7", web0)}, block: "reservation/10.2.0.7",
			entries: []string{"10.2.0.0-24/7 " + uid1 + " default/web-0 eth0"},
		},
		"a pool that changes meanwhile is looked at again": {
			stored: []string{reserve("10.0.0.1", web0)}, block: "reservation/10.0.0.1", meanwhile: note,
			entries: []string{"10.0.0.0-29/1 " + uid1 + " default/web-0 eth0"},
		},
		"what is whole by now is left alone": {
			stored: []string{reserve("10.0.0.1", web0)}, block: "reservation/10.0.0.1",
			event:   func(t *testing.T, s *store) { s.plant(t, mine(web0, sandbox1)) },
			entries: []string{"10.0.0.0-29/1 " + sandbox1 + " default/web-0 eth0"},
		},
		"what gets whole meanwhile is left alone": {
			stored: []string{reserve("10.0.0.1", web0)}, block: "reservation/10.0.0.1",
			meanwhile: func(t *testing.T, s *store) { s.plant(t, mine(web0, sandbox1)) },
			entries:   []string{"10.0.0.0-29/1 " + sandbox1 + " default/web-0 eth0"},
		},
		"another pod's entry stays": {
			stored: []string{reserve("10.0.0.1", web0)}, block: "reservation/10.0.0.1",
			event: func(t *testing.T, s *store) { s.plant(t, mine(web1, sandbox1)) },
			want:  `IPPool "10.0.0.0-29" has 10.0.0.1 for pod default/web-1: the record has changed`, stale: true,
			entries: []string{"10.0.0.0-29/1 " + sandbox1 + " default/web-1 eth0"},
		},
		"another pod's entry that comes meanwhile stays": {
			stored: []string{reserve("10.0.0.1", web0)}, block: "reservation/10.0.0.1",
			meanwhile: func(t *testing.T, s *store) { s.plant(t, mine(web1, sandbox1)) },
			want:      `IPPool "10.0.0.0-29" has 10.0.0.1 for pod default/web-1: the record has changed`, stale: true,
			entries: []string{"10.0.0.0-29/1 " + sandbox1 + " default/web-1 eth0"},
		},
		"a reservation that is gone is not completed": {
			stored: []string{reserve("10.0.0.1", web0)}, block: "reservation/10.0.0.1",
			event: func(t *testing.T, s *store) { s.GiveBack(t, backendtest.Spot{}) },
			want:  `OverlappingRangeIPReservation "10.0.0.1" is gone, or is another one now: the record has changed`, stale: true,
		},
		"a reservation of another pod is not completed": {
			stored: []string{reserve("10.0.0.1", web0)}, block: "reservation/10.0.0.1",
			event: func(t *testing.T, s *store) { s.plant(t, reserve("10.0.0.1", web1)) },
			want:  `OverlappingRangeIPReservation "10.0.0.1" is gone, or is another one now: the record has changed`, stale: true,
		},
		"two pools that have a place for it are one too many": {
			stored: []string{poolOf("10.0.0.0-30", "10.0.0.0/30"), reserve("10.0.0.1", web0)}, block: "reservation/10.0.0.1",
			want: `repairing reservation/uid-5: 2 IPPools have a place for OverlappingRangeIPReservation "10.0.0.1", and it must be one: add the entry by hand`,
		},
		"a pool that is gone is one too few": {
			stored: []string{poolOf("10.2.0.0-24", "10.2.0.0/24"), reserve("10.2.0.7", web0)}, block: "reservation/10.2.0.7",
			event: func(t *testing.T, s *store) {
				all := s.Stored(t)
				delete(all, "IPPool/10.2.0.0-24")
				s.Store(t, all)
			},
			want: `repairing reservation/uid-5: 0 IPPools have a place for OverlappingRangeIPReservation "10.2.0.7", and it must be one: add the entry by hand`,
		},
		"a pod whose UID is not known cannot be written down": {
			stored: []string{reserve("10.0.0.1", web0)}, block: "reservation/10.0.0.1", uid: "none",
			want: `repairing reservation/uid-4: only a reservation without an entry can be completed, and the UID of its pod must be known, not ""`,
		},
		"an entry lacks nothing": {
			stored: []string{mine(web0, sandbox1)}, block: "10.0.0.0-29",
			want:    "repairing " + sandbox1 + `: only a reservation without an entry can be completed, and the UID of its pod must be known, not "` + uid1 + `"`,
			entries: []string{"10.0.0.0-29/1 " + sandbox1 + " default/web-0 eth0"},
		},
		"what the API server refuses is an error": {
			stored: []string{reserve("10.0.0.1", web0)}, block: "reservation/10.0.0.1",
			event: func(_ *testing.T, s *store) {
				s.Before(backendtest.Write, func() error { return errors.New("no") })
			},
			want: "repairing reservation/uid-4 of Pod default/web-0 (uid " + uid1 + `) in IPPool "10.0.0.0-29": no`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, tt.stored...)
			a := find(t, s, tt.block)
			if a.Owner.UID = uid1; tt.uid != "" {
				a.Owner.UID = ""
			}
			if tt.event != nil {
				tt.event(t, s)
			}
			if tt.meanwhile != nil {
				s.Before(backendtest.Write, func() error {
					tt.meanwhile(t, s)
					return nil
				})
			}
			text := ""
			err := s.backend.Repair(t.Context(), a)
			if err != nil {
				text = err.Error()
			}
			if text != tt.want || errors.Is(err, backends.ErrStale) != tt.stale {
				t.Errorf("the error is %v, want %s", err, tt.want)
			}
			if diff := diff(tt.entries, entries(t, s)); diff != "" {
				t.Errorf("entries (-want +got):\n%s", diff)
			}
			if err == nil {
				writes := len(s.writes)
				check(t, s.backend.Repair(t.Context(), a))
				if len(s.writes) != writes {
					t.Errorf("the second repair wrote %s", s.writes[writes:])
				}
			}
		})
	}
}

// entries returns all entries as pool/offset id podref ifname.
func entries(t *testing.T, s *store) []string {
	t.Helper()
	all, err := s.backend.Allocations(t.Context())
	check(t, err)
	var found []string
	for _, a := range sorted(all) {
		for _, p := range a.Places {
			if strings.HasPrefix(p.Block, "reservation/") {
				continue
			}
			e, _, err := unstructured.NestedStringMap(s.Stored(t)["IPPool/"+p.Block], "spec", "allocations", strconv.Itoa(p.Offset))
			check(t, err)
			found = append(found, strings.Join([]string{p.Block + "/" + strconv.Itoa(p.Offset), e["id"], e["podref"], e["ifname"]}, " "))
		}
	}
	return found
}

// A repaired pod is found under its UID, and goes with its reservation.
func TestWhatWasRepairedIsReleased(t *testing.T) {
	s := newStore(t, reserve("10.0.0.1", "default/web-0"))
	a := find(t, s, "reservation/10.0.0.1")
	a.Owner.UID = uid1
	check(t, s.backend.Repair(t.Context(), a))
	got, err := s.backend.Allocations(t.Context())
	check(t, err)
	want := []ipam.Allocation{allocation(uid1, withUID(pod("web-0"), uid1), at("10.0.0.0-29", 1, "10.0.0.1"))}
	if diff := diff(want, sorted(got)); diff != "" {
		t.Fatalf("Allocations (-want +got):\n%s", diff)
	}
	check(t, s.backend.Release(t.Context(), got[0]))
	if left := names(t, s); len(left) > 0 {
		t.Errorf("what is left: %v", left)
	}
}
