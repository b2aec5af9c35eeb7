package ipam

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// I1: whatever the record says, an address that somebody living names is kept.
func TestWhatALivingOwnerNamesIsKept(t *testing.T) {
	var named int
	checkOften(t, func(t *rapid.T) {
		a, o := anyAllocation().Draw(t, "allocation"), anyObservation().Draw(t, "observation")
		if !namedByTheLiving(a, o) {
			return
		}
		named++
		if v := Judge(a, NewWorld(o)); v.Disposition != Keep {
			t.Fatalf("got %+v", v)
		}
	})
	if named == 0 {
		t.Error("no allocation was one that somebody names")
	}
}

// What was not looked for may exist: nothing that rests on absence follows.
func TestWhatWasNotLookedForIsNotAbsent(t *testing.T) {
	checkOften(t, func(t *rapid.T) {
		a, o := anyAllocation().Draw(t, "allocation"), anyObservation().Draw(t, "observation")
		o.PodsKnown, o.NodesKnown = rapid.Bool().Draw(t, "pods known"), false
		if rapid.Bool().Draw(t, "nodes known instead") {
			o.PodsKnown, o.NodesKnown = false, true
		}
		if v := Judge(a, NewWorld(o)); v.Disposition == Orphan || v.Disposition == Quarantine {
			t.Fatalf("got %+v", v)
		}
		o.Pods, o.PodsKnown = nil, false
		if v := Judge(a, NewWorld(o)); a.Owner.Kind == OwnerPod && v.Disposition != Keep {
			t.Fatalf("with no pod looked for: got %+v", v)
		}
	})
}

// Each verdict is complete, and it does not depend on the order in which things were seen.
func TestEveryVerdictIsComplete(t *testing.T) {
	checkOften(t, func(t *rapid.T) {
		a, o := anyAllocation().Draw(t, "allocation"), anyObservation().Draw(t, "observation")
		v := Judge(a, NewWorld(o))
		if !slices.Contains([]Disposition{Keep, Free, Orphan, Quarantine}, v.Disposition) || v.Reason == "" || v.Detail == "" {
			t.Fatalf("got %+v", v)
		}
		if v.Drift && v.Disposition != Keep {
			t.Fatalf("drift of what nobody has: %+v", v)
		}
		slices.Reverse(o.Pods)
		slices.Reverse(o.Nodes)
		slices.Reverse(a.Places)
		if again := Judge(a, NewWorld(o)); again.Disposition != v.Disposition {
			t.Fatalf("the other way round: %+v, then %+v", v, again)
		}
	})
}

// Only three things prove an end: the kubelet's report (E2), the taint (E4), and a node's deletion that means that the
// machine is off (E5).
func TestNothingIsFreeWithoutProof(t *testing.T) {
	var freed int
	checkOften(t, func(t *rapid.T) {
		a, o := anyAllocation().Draw(t, "allocation"), anyObservation().Draw(t, "observation")
		w := NewWorld(o)
		for _, p := range o.Pods {
			if w.End(p).Disposition == Free && !reported(p) && !off(o, p.Node) {
				t.Fatalf("the end of %+v: got %+v", p, w.End(p))
			}
		}
		if v := Judge(a, w); v.Disposition == Free {
			freed++
			proven := off(o, a.Owner.Node) || off(o, a.Owner.Name) && a.Owner.Kind == OwnerNode
			for _, p := range o.Pods {
				if a.Owner.Kind == OwnerPod && p.Name == a.Owner.Name {
					proven = proven || reported(p) || off(o, p.Node)
				}
			}
			if !proven {
				t.Fatalf("got %+v", v)
			}
		}
	})
	if freed == 0 {
		t.Error("no allocation was freed")
	}
}

// What is due has been suspected in every run of a whole wait, by the clock that nobody sets, and nothing that has
// been is left out; the next look is when the next wait ends.
func TestTheLedgerWaits(t *testing.T) {
	checkOften(t, func(t *rapid.T) {
		short := rapid.Map(rapid.IntRange(0, 5), func(n int) time.Duration { return time.Duration(n) * time.Minute })
		patience := Patience{short.Draw(t, "grace"), short.Draw(t, "quarantine")}
		waits := map[Disposition]time.Duration{Orphan: patience.Grace, Quarantine: patience.Quarantine}

		type sighting struct {
			steady time.Duration
			as     Disposition
		}
		history := make(map[string][]sighting) // of each handle, as long as it was found in every run
		var l Ledger
		var now Moment
		for range rapid.IntRange(1, 12).Draw(t, "runs") {
			now.Steady += short.Draw(t, "passed")
			now.Wall = at("12:00:00").Add(time.Duration(rapid.IntRange(-60, 60).Draw(t, "wall clock")) * time.Minute)
			var found, wantDue []Judgement
			var wantAgain time.Duration
			for _, handle := range []string{"h1", "h2", "h3"} {
				as := rapid.SampledFrom([]Disposition{Keep, Free, Orphan, Orphan, Quarantine, Quarantine, "lost"}).Draw(t, handle)
				if as == "lost" {
					delete(history, handle)
					continue
				}
				j := judged(handle, as)
				found, history[handle] = append(found, j), append(history[handle], sighting{now.Steady, as})

				var like []sighting
				for _, s := range slices.Backward(history[handle]) {
					if s.as != as {
						break
					}
					like = append(like, s)
				}
				left := waits[as] - (now.Steady - like[len(like)-1].steady)
				switch {
				case as == Keep:
				case as == Free, len(like) > 1 && left <= 0:
					wantDue = append(wantDue, j)
				case wantAgain == 0 || max(left, 1) < wantAgain:
					wantAgain = max(left, 1)
				}
			}
			var due []Judgement
			var again time.Duration
			l, due, again = l.Next(found, now, patience)
			if diff := cmp.Diff(wantDue, due, byValue()); diff != "" {
				t.Fatalf("due at %s (-want +got):\n%s", now.Steady, diff)
			}
			if again != wantAgain {
				t.Fatalf("at %s again in %s, want %s", now.Steady, again, wantAgain)
			}
			if l.Len() != len(found) {
				t.Fatalf("at %s %d hand-outs remembered, want %d", now.Steady, l.Len(), len(found))
			}
		}
	})
}

// checkOften tries thousands of inputs, since what matters is rare among them.
func checkOften(t *testing.T, property func(*rapid.T)) {
	t.Helper()
	for range 50 {
		rapid.Check(t, property)
	}
}

func namedByTheLiving(a Allocation, o Observation) bool {
	var named []netip.Addr
	for _, p := range o.Pods {
		if p.Deleted.IsZero() && p.Phase != "Succeeded" && p.Phase != "Failed" {
			named = append(named, p.Addresses...)
		}
	}
	for _, n := range o.Nodes {
		named = append(named, n.Addresses...)
	}
	for _, kind := range o.Others {
		for _, other := range kind {
			named = append(named, other.Addresses...)
		}
	}
	return slices.ContainsFunc(a.Addresses(), func(addr netip.Addr) bool { return slices.Contains(named, addr) })
}

// reported tells whether the kubelet reported the end of the pod.
func reported(p Pod) bool {
	return (p.Phase == "Succeeded" || p.Phase == "Failed") && p.ContainersTerminated && p.Sandbox == "False" && !p.Disrupted
}

// off tells whether the machine is off by an administrator's word.
func off(o Observation, node string) bool {
	for _, n := range o.Nodes {
		if n.Name == node {
			return (n.Ready == "False" || n.Ready == "Unknown") && n.OutOfService
		}
	}
	return o.NodesKnown && o.NodeDeletionMeansFenced && o.NodesGoneFor[node] >= 40*time.Second
}

func anyAllocation() *rapid.Generator[Allocation] {
	return rapid.Custom(func(t *rapid.T) Allocation {
		return Allocation{
			Handle: "h1",
			Owner: Owner{
				Kind:        rapid.SampledFrom([]OwnerKind{OwnerPod, OwnerPod, OwnerPod, OwnerNode, OwnerVirtualMachine, OwnerService, ""}).Draw(t, "kind"),
				Namespace:   "default",
				Name:        rapid.SampledFrom([]string{"web-0", "db-0", "n1"}).Draw(t, "name"),
				UID:         rapid.SampledFrom([]string{"", "u1", "u2"}).Draw(t, "uid"),
				Node:        rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(t, "node"),
				ContainerID: rapid.SampledFrom([]string{"", "c1", "c2"}).Draw(t, "container"),
			},
			Places: []Place{{Addresses: anyAddresses().Draw(t, "addresses")}, {Addresses: anyAddresses().Draw(t, "more")}},
			Seen:   anyTime().Draw(t, "seen"),
		}
	})
}

func anyObservation() *rapid.Generator[Observation] {
	return rapid.Custom(func(t *rapid.T) Observation {
		o := Observation{
			PodsKnown:               rapid.Bool().Draw(t, "pods known"),
			NodesKnown:              rapid.Bool().Draw(t, "nodes known"),
			NodeDeletionMeansFenced: rapid.Bool().Draw(t, "fenced"),
			NodesGoneFor:            map[string]time.Duration{"n1": time.Duration(rapid.IntRange(0, 80).Draw(t, "gone for")) * time.Second},
			Others:                  map[OwnerKind]map[Name]Presence{},
		}
		for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"web-0", "db-0"}), rapid.ID).Draw(t, "pods") {
			o.Pods = append(o.Pods, anyPod(name).Draw(t, name))
		}
		for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"n1", "n2"}), rapid.ID).Draw(t, "nodes") {
			n := Node{
				Name:         name,
				UID:          rapid.SampledFrom([]string{"u1", "u2"}).Draw(t, "uid"),
				Created:      anyTime().Draw(t, "created"),
				Terminating:  rapid.Bool().Draw(t, "terminating"),
				Ready:        rapid.SampledFrom([]Condition{"", ConditionTrue, ConditionFalse, ConditionUnknown}).Draw(t, "ready"),
				OutOfService: rapid.Bool().Draw(t, "out of service"),
			}
			if rapid.Bool().Draw(t, "tunnel") {
				n.Addresses = anyAddresses().Draw(t, "addresses")
			}
			o.Nodes = append(o.Nodes, n)
		}
		for _, kind := range rapid.SliceOfDistinct(rapid.SampledFrom([]OwnerKind{OwnerVirtualMachine, OwnerService}), rapid.ID).Draw(t, "others") {
			o.Others[kind] = map[Name]Presence{}
			if rapid.Bool().Draw(t, "present") {
				o.Others[kind][Name{"default", "db-0"}] = Presence{UID: "u1", Addresses: anyAddresses().Draw(t, "addresses")}
			}
		}
		return o
	})
}

func anyPod(name string) *rapid.Generator[Pod] {
	return rapid.Custom(func(t *rapid.T) Pod {
		return Pod{
			Namespace:            "default",
			Name:                 name,
			UID:                  rapid.SampledFrom([]string{"u1", "u2"}).Draw(t, "uid"),
			Node:                 rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(t, "node"),
			Created:              anyTime().Draw(t, "created"),
			Deleted:              anyTime().Draw(t, "deleted"),
			Phase:                rapid.SampledFrom([]Phase{"Pending", "Running", "Succeeded", "Failed", "Unknown"}).Draw(t, "phase"),
			HostNetwork:          rapid.IntRange(0, 9).Draw(t, "host network") == 9,
			Mirror:               rapid.IntRange(0, 9).Draw(t, "mirror") == 9,
			Disrupted:            rapid.Bool().Draw(t, "disrupted"),
			ContainersTerminated: rapid.Bool().Draw(t, "terminated"),
			Sandbox:              rapid.SampledFrom([]Condition{"", ConditionTrue, ConditionFalse, ConditionUnknown}).Draw(t, "sandbox"),
			ContainerID:          rapid.SampledFrom([]string{"", "c1", "c2"}).Draw(t, "container"),
			Addresses:            anyAddresses().Draw(t, "addresses"),
			AddressesUnknown:     rapid.Bool().Draw(t, "unreadable"),
		}
	})
}

func anyAddresses() *rapid.Generator[[]netip.Addr] {
	return rapid.SliceOfNDistinct(rapid.SampledFrom(addrs("10.0.0.7", "10.0.0.8", "fd00::7")), 0, 2, rapid.ID)
}

// anyTime is zero or one of some that are minutes apart.
func anyTime() *rapid.Generator[time.Time] {
	return rapid.SampledFrom([]time.Time{{}, at("10:00:00"), at("10:00:30"), at("10:02:00"), at("11:00:00")})
}
