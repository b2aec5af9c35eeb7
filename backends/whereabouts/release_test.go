package whereabouts_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/backends/backendtest"
	"github.com/oakum-dev/oakum/ipam"
)

// find returns the one hand-out with a place in the block.
func find(t *testing.T, s *store, block string) ipam.Allocation {
	t.Helper()
	all, err := s.backend.Allocations(t.Context())
	check(t, err)
	all = slices.DeleteFunc(all, func(a ipam.Allocation) bool {
		return !slices.ContainsFunc(a.Places, func(p ipam.Place) bool { return p.Block == block })
	})
	if len(all) != 1 {
		t.Fatalf("%d hand-outs in %s, want one: %v", len(all), block, all)
	}
	return all[0]
}

// names returns the names of what is stored but for the pools that each store begins with.
func names(t *testing.T, s *store) []string {
	t.Helper()
	stored := s.Stored(t)
	for _, p := range pools() {
		delete(stored, "IPPool/"+p.pool)
	}
	return slices.Sorted(maps.Keys(stored))
}

// I7: what is sent is the whole of what can change.
func TestReleaseSendsTheRemovalAlone(t *testing.T) {
	s := newStore(t,
		poolOf("10.2.0.0-24", "10.2.0.0/24", entry("7", sandbox1, "default/web-0"), entry("8", sandbox2, "default/web-1"), entry("12", sandbox1, "default/web-0")),
		reserve("10.2.0.7", "default/web-0"))
	revision := s.Stored(t)["OverlappingRangeIPReservation/10.2.0.7"]["metadata"].(map[string]any)["resourceVersion"].(string)
	all, err := s.backend.AllocationsOf(t.Context(), pod("web-0"))
	check(t, err)
	check(t, s.backend.Release(t.Context(), all[0]))
	want := []string{
		`application/json-patch+json 10.2.0.0-24 [` +
			`{"op":"test","path":"/spec/allocations/7/id","value":"` + sandbox1 + `"},` +
			`{"op":"test","path":"/spec/allocations/7/podref","value":"default/web-0"},` +
			`{"op":"remove","path":"/spec/allocations/7"},` +
			`{"op":"test","path":"/spec/allocations/12/id","value":"` + sandbox1 + `"},` +
			`{"op":"test","path":"/spec/allocations/12/podref","value":"default/web-0"},` +
			`{"op":"remove","path":"/spec/allocations/12"}]`,
		`DELETE 10.2.0.7 uid uid-5 revision ` + revision,
	}
	if diff := diff(want, s.writes); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
}

func TestReleaseOfReservations(t *testing.T) {
	const web0, web1 = "default/web-0", "default/web-1"
	tests := map[string]struct {
		stored []string
		// block is where the hand-out that is released is recorded.
		block string
		// event happens after it was seen.
		event func(*testing.T, *store)
		want  error
		left  []string
	}{
		"G22 an entry takes its reservation along": {
			stored: []string{poolOf("10.2.0.0-24", "10.2.0.0/24", entry("7", sandbox1, web0)), reserve("10.2.0.7", web0), reserve("10.2.0.8", web1)},
			block:  "10.2.0.0-24",
			left:   []string{"IPPool/10.2.0.0-24", "OverlappingRangeIPReservation/10.2.0.8"},
		},
		"G23 the IPv6 half of a pair takes its reservation along, whatever became of the IPv4 half": {
			stored: []string{poolOf("10.2.0.0-24", "10.2.0.0/24"), poolOf("fd02---64", "fd02::/64", entry("7", sandbox1, web0)), reserve("fd02--7", web0)},
			block:  "fd02---64",
			left:   []string{"IPPool/10.2.0.0-24", "IPPool/fd02---64"},
		},
		"an entry in a network takes the reservation in that network": {
			stored: []string{
				network("net7"), poolOf("net7-10.2.0.0-24", "10.2.0.0/24", entry("7", sandbox1, web0)), poolOf("10.2.0.0-24", "10.2.0.0/24"),
				reserve("net7-10.2.0.7", web0), reserve("10.2.0.7", web0),
			},
			block: "net7-10.2.0.0-24",
			left:  []string{"IPPool/10.2.0.0-24", "IPPool/net7-10.2.0.0-24", "NetworkAttachmentDefinition/nad-net7", "OverlappingRangeIPReservation/10.2.0.7"},
		},
		"a reservation of another pod stays": {
			stored: []string{poolOf("10.2.0.0-24", "10.2.0.0/24", entry("7", sandbox1, web0)), reserve("10.2.0.7", web1)},
			block:  "10.2.0.0-24",
			left:   []string{"IPPool/10.2.0.0-24", "OverlappingRangeIPReservation/10.2.0.7"},
		},
		"a reservation of another interface stays": {
			stored: []string{poolOf("10.2.0.0-24", "10.2.0.0/24", `"7": {id: `+sandbox1+`, podref: default/web-0, ifname: net7}`), reserve("10.2.0.7", web0)},
			block:  "10.2.0.0-24",
			left:   []string{"IPPool/10.2.0.0-24", "OverlappingRangeIPReservation/10.2.0.7"},
		},
		"a reservation goes with an entry that tells no interface": {
			stored: []string{poolOf("10.2.0.0-24", "10.2.0.0/24", `"7": {id: `+sandbox1+`, podref: default/web-0}`), reserve("10.2.0.7", web0)},
			block:  "10.2.0.0-24",
			left:   []string{"IPPool/10.2.0.0-24"},
		},
		"a reservation stays for an entry of the same address in an overlapping range": {
			stored: []string{poolOf("10.2.0.0-24", "10.2.0.0/24", entry("7", sandbox1, web0)), poolOf("10.2.0.0-28", "10.2.0.0/28", entry("7", sandbox2, web0)), reserve("10.2.0.7", web0)},
			block:  "10.2.0.0-24",
			left:   []string{"IPPool/10.2.0.0-24", "IPPool/10.2.0.0-28", "OverlappingRangeIPReservation/10.2.0.7"},
		},
		"a reservation without an entry goes": {
			stored: []string{reserve("10.0.0.1", web0), reserve("10.0.0.2", web0)},
			block:  "reservation/10.0.0.1",
			left:   []string{"OverlappingRangeIPReservation/10.0.0.2"},
		},
		"a reservation without an entry that is gone is free already": {
			stored: []string{reserve("10.0.0.1", web0)},
			block:  "reservation/10.0.0.1",
			event:  func(t *testing.T, s *store) { s.GiveBack(t, backendtest.Spot{}) },
		},
		"a reservation that was made anew stays": {
			stored: []string{reserve("10.0.0.1", web0)},
			block:  "reservation/10.0.0.1",
			event: func(t *testing.T, s *store) {
				s.GiveBack(t, backendtest.Spot{})
				s.plant(t, reserve("10.0.0.1", web0))
			},
			want: backends.ErrStale,
			left: []string{"OverlappingRangeIPReservation/10.0.0.1"},
		},
		"a reservation that another pod took over stays": {
			stored: []string{reserve("10.0.0.1", web0)},
			block:  "reservation/10.0.0.1",
			event:  func(t *testing.T, s *store) { s.plant(t, reserve("10.0.0.1", web1)) },
			want:   backends.ErrStale,
			left:   []string{"OverlappingRangeIPReservation/10.0.0.1"},
		},
		"a reservation that got an entry stays": {
			stored: []string{reserve("10.0.0.1", web0)},
			block:  "reservation/10.0.0.1",
			event: func(t *testing.T, s *store) {
				s.plant(t, poolOf("10.0.0.0-29", "10.0.0.0/29", entry("1", sandbox1, web0)))
			},
			want: backends.ErrStale,
			left: []string{"OverlappingRangeIPReservation/10.0.0.1"},
		},
		"a reservation stays while another pod's entry has the address": {
			stored: []string{poolOf("10.2.0.0-24", "10.2.0.0/24", entry("7", sandbox1, web1)), reserve("10.2.0.7", web0)},
			block:  "reservation/10.2.0.7",
			want:   backends.ErrStale,
			left:   []string{"IPPool/10.2.0.0-24", "OverlappingRangeIPReservation/10.2.0.7"},
		},
		"a reservation whose pool is gone stays": {
			stored: []string{poolOf("10.2.0.0-24", "10.2.0.0/24"), reserve("10.2.0.7", web0)},
			block:  "reservation/10.2.0.7",
			event: func(t *testing.T, s *store) {
				all := s.Stored(t)
				delete(all, "IPPool/10.2.0.0-24")
				s.Store(t, all)
			},
			want: backends.ErrStale,
			left: []string{"OverlappingRangeIPReservation/10.2.0.7"},
		},
		"a reservation that is touched while it is deleted is looked at again": {
			stored: []string{reserve("10.0.0.1", web0)},
			block:  "reservation/10.0.0.1",
			event: func(t *testing.T, s *store) {
				s.Before(backendtest.Write, func() error {
					all := s.Stored(t)
					check(t, unstructured.SetNestedField(all["OverlappingRangeIPReservation/10.0.0.1"], "eth7", "spec", "ifname"))
					s.Store(t, all)
					return nil
				})
			},
		},
		"a reservation that another pod takes over while it is deleted stays": {
			stored: []string{reserve("10.0.0.1", web0)},
			block:  "reservation/10.0.0.1",
			event: func(t *testing.T, s *store) {
				s.Before(backendtest.Write, func() error {
					s.plant(t, reserve("10.0.0.1", web1))
					return nil
				})
			},
			want: backends.ErrStale,
			left: []string{"OverlappingRangeIPReservation/10.0.0.1"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, tt.stored...)
			a := find(t, s, tt.block)
			if tt.event != nil {
				tt.event(t, s)
			}
			if err := s.backend.Release(t.Context(), a); !errors.Is(err, tt.want) {
				t.Errorf("the error is %v, want %v", err, tt.want)
			}
			if diff := diff(tt.left, names(t, s)); diff != "" {
				t.Errorf("what is left (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReleaseComparesTheEntry(t *testing.T) {
	const web0, web1, mine = "default/web-0", "default/web-1", "10.2.0.0-24"
	both := func(ref string) string {
		return poolOf(mine, "10.2.0.0/24", entry("7", sandbox1, ref), entry("8", sandbox1, web0))
	}
	tests := map[string]struct {
		// event happens after the hand-out was seen, meanwhile right before the first write.
		event, meanwhile string
		want             error
		left             []string
	}{
		"what is as it was goes": {},
		"the same id with another pod's name is another hand-out": {
			event: both(web1), want: backends.ErrStale,
			left: []string{mine + "/8 " + sandbox1 + " default/web-0 eth0", mine + "/7 " + sandbox1 + " default/web-1 eth0"},
		},
		"so it is if it comes meanwhile": {
			meanwhile: both(web1), want: backends.ErrStale,
			left: []string{mine + "/8 " + sandbox1 + " default/web-0 eth0", mine + "/7 " + sandbox1 + " default/web-1 eth0"},
		},
		"the same offset of another range is another address": {
			event: poolOf(mine, "10.3.0.0/24", entry("7", sandbox1, web0), entry("8", sandbox1, web0)), want: backends.ErrStale,
			left: []string{mine + "/7 " + sandbox1 + " default/web-0 eth0", mine + "/8 " + sandbox1 + " default/web-0 eth0"},
		},
		"one that has gone meanwhile does not keep the other": {meanwhile: poolOf(mine, "10.2.0.0/24", entry("8", sandbox1, web0))},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, both(web0))
			a := find(t, s, mine)
			if tt.event != "" {
				s.plant(t, tt.event)
			}
			s.Before(backendtest.Write, func() error {
				if tt.meanwhile != "" {
					s.plant(t, tt.meanwhile)
				}
				return nil
			})
			if err := s.backend.Release(t.Context(), a); !errors.Is(err, tt.want) {
				t.Errorf("the error is %v, want %v", err, tt.want)
			}
			if diff := diff(tt.left, entries(t, s)); diff != "" {
				t.Errorf("entries (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReleaseLooksAtWhatTheSuccessorDoesMeanwhile(t *testing.T) {
	s := newStore(t)
	spot := backendtest.Spot{}
	a := s.HandOut(t, backendtest.Who{}, spot)
	s.Before(backendtest.Write, func() error {
		s.Before(backendtest.Read, func() error { // Right after the entry went, the pod of that name gets the address anew.
			s.HandOut(t, backendtest.Who{Life: 1}, spot)
			return nil
		})
		return nil
	})
	check(t, s.backend.Release(t.Context(), a))
	if diff := diff([]string{"OverlappingRangeIPReservation/10.0.0.1"}, names(t, s)); diff != "" {
		t.Errorf("reservations (-want +got):\n%s", diff)
	}
}

func TestReleaseByHand(t *testing.T) {
	tests := map[string]struct {
		stored, block, want string
	}{
		"an entry that does not tell whose it is": {
			poolOf("10.2.0.0-24", "10.2.0.0/24", entry("7", "", "default/web-0")), "10.2.0.0-24",
			"releasing 10.2.0.0-24/7: its record does not tell whose it is: remove that by hand",
		},
		"a reservation that does not tell whose it is": {
			reserve("10.0.0.1", "web-0"), "reservation/10.0.0.1",
			"releasing reservation/uid-4: its record does not tell whose it is: remove that by hand",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, tt.stored)
			if err := s.backend.Release(t.Context(), find(t, s, tt.block)); err == nil || err.Error() != tt.want {
				t.Errorf("the error is %v, want %s", err, tt.want)
			}
		})
	}
}

func TestReleaseWhoseAnswerWasLost(t *testing.T) {
	s := newStore(t)
	empty := s.Stored(t)
	a := s.HandOut(t, backendtest.Who{}, backendtest.Spot{})
	s.Before(backendtest.Write, func() error {
		s.Store(t, empty)
		return errors.New("the connection was cut")
	})
	if err := s.backend.Release(t.Context(), a); err != nil {
		t.Errorf("the error is %v, although the write was carried out", err)
	}
}

func TestReleaseThatIsAlwaysRefused(t *testing.T) {
	s := newStore(t)
	a := s.HandOut(t, backendtest.Who{}, backendtest.Spot{})
	refused := apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "patch", schema.GroupResource{}, "", "a policy says no", 0, false)
	writes := 0
	s.always = func(c backendtest.Call) error {
		if c != backendtest.Write {
			return nil
		}
		writes++
		return refused
	}
	if err := s.backend.Release(t.Context(), a); !errors.Is(err, refused) || writes != 5 {
		t.Errorf("after %d writes the error is %v, want that of the fifth", writes, err)
	}
}

func TestErrorsSayWhatWasBeingDone(t *testing.T) {
	broken := errors.New("the API server is on fire")
	nth := func(call backendtest.Call, n int) func(*store) {
		return func(s *store) {
			s.always = func(c backendtest.Call) error {
				if c == call {
					if n--; n == 0 {
						return broken
					}
				}
				return nil
			}
		}
	}
	release := func(ctx context.Context, s *store, a ipam.Allocation) error { return s.backend.Release(ctx, a) }
	list := func(ctx context.Context, s *store, _ ipam.Allocation) error {
		_, err := s.backend.Allocations(ctx)
		return err
	}
	handle := fmt.Sprintf("%064x", 1)
	tests := map[string]struct {
		broken func(*store)
		ask    func(context.Context, *store, ipam.Allocation) error
		want   string
	}{
		"listing slices":       {nth(backendtest.Read, 1), list, "listing NodeSlicePools: the API server is on fire"},
		"listing definitions":  {nth(backendtest.Read, 2), list, "listing NetworkAttachmentDefinitions: the API server is on fire"},
		"listing pools":        {nth(backendtest.Read, 3), list, "listing IPPools: the API server is on fire"},
		"listing reservations": {nth(backendtest.Read, 4), list, "listing OverlappingRangeIPReservations: the API server is on fire"},
		"reading a pool":       {nth(backendtest.Read, 1), release, `reading IPPool "10.0.0.0-29": the API server is on fire`},
		"releasing":            {nth(backendtest.Write, 1), release, "releasing " + handle + ` of Pod default/web-0 in IPPool "10.0.0.0-29": the API server is on fire`},
		"reading a reservation": {
			nth(backendtest.Read, 5), release, `reading OverlappingRangeIPReservation "10.0.0.1": the API server is on fire`,
		},
		"looking for another entry": {nth(backendtest.Read, 6), release, `reading IPPool "10.0.0.0-29": the API server is on fire`},
		"deleting a reservation":    {nth(backendtest.Write, 2), release, `deleting OverlappingRangeIPReservation "10.0.0.1": the API server is on fire`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			a := s.HandOut(t, backendtest.Who{}, backendtest.Spot{})
			tt.broken(s)
			if err := tt.ask(t.Context(), s, a); err == nil || err.Error() != tt.want {
				t.Errorf("the error is %v, want %s", err, tt.want)
			}
		})
	}
}

// errCrash ends a process between two of its writes.
var errCrash = errors.New("the process died")

// I6, I7: whatever others write while a hand-out is released, and wherever that is interrupted, their records stay as
// they wrote them, and the next run gives back the rest.
func TestAnyReleaseLeavesWhatIsNotItsOwn(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newStore(t)
		world := s.Stored(t)
		ref := func(n int) string { return fmt.Sprintf("default/web-%d", n) }
		spots := map[backendtest.Spot]bool{}
		for record := range pools() {
			for address := range 4 {
				spots[backendtest.Spot{Record: record, Address: address}] = true
			}
		}
		// give hands a spot to a pod, as whereabouts does or as far as it got; pod 0 is the one whose hand-outs are released.
		give := func(world backendtest.Objects, who int, spot backendtest.Spot, withEntry, withReservation bool) {
			pool := world["IPPool/"+pools()[spot.Record].pool]
			if withEntry {
				check(rt, unstructured.SetNestedMap(pool, map[string]any{
					"id": fmt.Sprintf("%064x", who), "podref": ref(who), "ifname": "eth0", "note": fmt.Sprint(who),
				}, "spec", "allocations", offset(spot)))
			}
			if withReservation {
				world["OverlappingRangeIPReservation/"+reservation(spot)] = map[string]any{
					"apiVersion": pool["apiVersion"], "kind": "OverlappingRangeIPReservation",
					"metadata": map[string]any{"name": reservation(spot), "namespace": namespace, "labels": map[string]any{"who": fmt.Sprint(who)}},
					"spec":     map[string]any{"podref": ref(who), "ifname": "eth0", "unknown": "kept"},
				}
			}
			delete(spots, spot)
		}
		draw := func(label string) backendtest.Spot {
			free := slices.SortedFunc(maps.Keys(spots), func(a, b backendtest.Spot) int { return (a.Record*8 + a.Address) - (b.Record*8 + b.Address) })
			return rapid.SampledFrom(free).Draw(rt, label)
		}
		for range rapid.IntRange(1, 4).Draw(rt, "own") {
			kind := rapid.IntRange(1, 3).Draw(rt, "parts")
			give(world, 0, draw("spot"), kind&1 != 0, kind&2 != 0)
		}
		for range rapid.IntRange(0, 3).Draw(rt, "others") {
			kind := rapid.IntRange(1, 3).Draw(rt, "parts")
			give(world, rapid.IntRange(1, 2).Draw(rt, "who"), draw("spot"), kind&1 != 0, kind&2 != 0)
		}
		for _, name := range slices.Sorted(maps.Keys(world)) {
			object := world[name]
			if rapid.Bool().Draw(rt, "decorated") {
				check(rt, unstructured.SetNestedStringMap(object, map[string]string{"example.org/note": "ask first"}, "metadata", "annotations"))
				object["unknown"] = map[string]any{"since": "1.2", "list": []any{int64(1), "two", nil}}
			}
		}
		s.Store(t, world)
		want := others(world)

		all, err := s.backend.AllocationsOf(t.Context(), pod("web-0"))
		check(rt, err)
		crash, calls := rapid.IntRange(0, 6).Draw(rt, "writes before the crash"), 0
		s.always = func(call backendtest.Call) error {
			calls++
			if call == backendtest.Write {
				if crash == 0 {
					return errCrash
				}
				crash--
			}
			if len(spots) == 0 || calls > 30 || rapid.IntRange(0, 2).Draw(rt, "somebody writes") > 0 {
				return nil
			}
			who, spot, reserved := rapid.IntRange(1, 2).Draw(rt, "who"), draw("spot"), rapid.Bool().Draw(rt, "reserved")
			now := s.Stored(t)
			give(now, who, spot, true, reserved)
			s.Store(t, now)
			give(want, who, spot, true, reserved)
			return nil
		}
		for _, a := range all {
			if err := s.backend.Release(t.Context(), a); err != nil && !errors.Is(err, errCrash) {
				rt.Fatalf("releasing: %v", err)
			}
		}
		s.always = nil
		again, err := s.backend.AllocationsOf(t.Context(), pod("web-0"))
		check(rt, err)
		for _, a := range again {
			check(rt, s.backend.Release(t.Context(), a))
		}
		got := s.Stored(t)
		if diff := diff(want, others(got)); diff != "" {
			rt.Errorf("others' records (-want +got):\n%s", diff)
		}
		if left := own(got); len(left) > 0 {
			rt.Errorf("what is left of the pod: %v", left)
		}
	})
}

// others returns what is stored, without what is of pod 0.
func others(objects backendtest.Objects) backendtest.Objects {
	left := backendtest.Objects{}
	for name, object := range objects {
		object = runtime.DeepCopyJSON(object)
		for _, field := range []string{"resourceVersion", "uid"} { // The store gives these.
			unstructured.RemoveNestedField(object, "metadata", field)
		}
		if podref, _, _ := unstructured.NestedString(object, "spec", "podref"); podref == "default/web-0" {
			continue
		}
		allocations, _, _ := unstructured.NestedMap(object, "spec", "allocations")
		maps.DeleteFunc(allocations, func(_ string, e any) bool { return e.(map[string]any)["podref"] == "default/web-0" })
		if allocations != nil {
			object["spec"].(map[string]any)["allocations"] = allocations
		}
		left[name] = object
	}
	return left
}

// own returns the names of the records of pod 0.
func own(objects backendtest.Objects) []string {
	var found []string
	for name, object := range objects {
		if strings.Contains(fmt.Sprint(object["spec"]), "default/web-0") {
			found = append(found, name)
		}
	}
	return found
}
