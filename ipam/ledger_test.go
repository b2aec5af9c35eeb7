package ipam

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestLedgerNext(t *testing.T) {
	type run struct {
		at    Moment
		found []Judgement
		due   []Judgement
		again time.Duration
	}
	usual := Patience{Grace: 5 * time.Minute, Quarantine: 15 * time.Minute}
	hasty := Patience{Quarantine: 15 * time.Minute}

	keep, free, orphan, quarantine := judged("h1", Keep), judged("h1", Free), judged("h1", Orphan), judged("h1", Quarantine)
	other := judged("h2", Quarantine)
	renewed := orphan
	renewed.Allocation.Owner.UID = "u2"
	restarted := orphan
	restarted.Allocation.Owner.ContainerID = "c2"
	elsewhere := orphan
	elsewhere.Allocation.Network = "blue"
	foreign := orphan
	foreign.Allocation.Backend = "calico"
	rewritten := orphan
	rewritten.Allocation.Places = []Place{{Pool: "east", Block: "east-1", Offset: 3, Revision: "8", Addresses: addrs("10.0.0.7")}}
	rewritten.Allocation.Seen = at("12:00:00")
	rewritten.Verdict.Detail = "told in other words"
	elsewise := orphan
	elsewise.Basis = "n1 came back"
	blank := judged("h1", "")
	lacking := judged("h1", Repair)
	first, second := keep, keep
	first.Allocation.Namesake, second.Allocation.Namesake = &Namesake{UID: "u1"}, &Namesake{UID: "u2"}

	tests := map[string]struct {
		patience Patience
		runs     []run
		want     map[ID]Sighting
	}{
		"nothing found, nothing to wait for": {
			patience: usual,
			runs:     []run{{at: moment(0)}},
		},
		"what is in use is not due however long it is seen": {
			patience: usual,
			runs:     []run{{at: moment(0), found: js(keep)}, {at: moment(time.Hour), found: js(keep)}},
			want:     map[ID]Sighting{keep.Allocation.ID(): {FirstSeen: moment(0)}},
		},
		"what is free is due at once and for as long as it is there": {
			patience: usual,
			runs:     []run{{at: moment(0), found: js(free), due: js(free)}, {at: moment(time.Second), found: js(free), due: js(free)}},
			want:     map[ID]Sighting{free.Allocation.ID(): {FirstSeen: moment(0)}},
		},
		"an orphan is due a grace after it was first suspected": {
			patience: usual,
			runs: []run{
				{at: moment(0), found: js(orphan), again: 5 * time.Minute},
				{at: moment(5*time.Minute - 1), found: js(orphan), again: 1},
				{at: moment(5 * time.Minute), found: js(orphan), due: js(orphan)},
				{at: moment(6 * time.Minute), found: js(orphan), due: js(orphan)},
			},
			want: map[ID]Sighting{orphan.Allocation.ID(): {FirstSeen: moment(0), Suspicion: Orphan, Since: moment(0)}},
		},
		"what lacks a part is due a grace after that was first seen": {
			patience: usual,
			runs: []run{
				{at: moment(0), found: js(lacking), again: 5 * time.Minute},
				{at: moment(5 * time.Minute), found: js(lacking), due: js(lacking)},
			},
			want: map[ID]Sighting{lacking.Allocation.ID(): {FirstSeen: moment(0), Suspicion: Repair, Since: moment(0)}},
		},
		"the first namesake is remembered": {
			patience: usual,
			runs:     []run{{at: moment(0), found: js(keep)}, {at: moment(1), found: js(first)}, {at: moment(2), found: js(second)}, {at: moment(3), found: js(keep)}},
			want:     map[ID]Sighting{keep.Allocation.ID(): {FirstSeen: moment(0), Namesake: &Namesake{UID: "u1"}}},
		},
		"what is in quarantine is due a quarantine after it was first suspected": {
			patience: usual,
			runs: []run{
				{at: moment(time.Minute), found: js(quarantine), again: 15 * time.Minute},
				{at: moment(6 * time.Minute), found: js(quarantine), again: 10 * time.Minute},
				{at: moment(16 * time.Minute), found: js(quarantine), due: js(quarantine)},
			},
			want: map[ID]Sighting{quarantine.Allocation.ID(): {FirstSeen: moment(time.Minute), Suspicion: Quarantine, Since: moment(time.Minute)}},
		},
		"one sighting is never enough, however late in the process' life": {
			patience: usual,
			runs:     []run{{at: moment(1000 * time.Hour), found: js(orphan), again: 5 * time.Minute}},
			want:     map[ID]Sighting{orphan.Allocation.ID(): {FirstSeen: moment(1000 * time.Hour), Suspicion: Orphan, Since: moment(1000 * time.Hour)}},
		},
		"two sightings suffice, however far apart": {
			patience: usual,
			runs: []run{
				{at: moment(0), found: js(orphan), again: 5 * time.Minute},
				{at: moment(9 * time.Hour), found: js(orphan), due: js(orphan)},
			},
			want: map[ID]Sighting{orphan.Allocation.ID(): {FirstSeen: moment(0), Suspicion: Orphan, Since: moment(0)}},
		},
		"no grace at all still needs two sightings, the second at once": {
			patience: hasty,
			runs: []run{
				{at: moment(0), found: js(orphan), again: 1},
				{at: moment(1), found: js(orphan), due: js(orphan)},
			},
			want: map[ID]Sighting{orphan.Allocation.ID(): {FirstSeen: moment(0), Suspicion: Orphan, Since: moment(0)}},
		},
		"a suspicion that clears starts anew": {
			patience: usual,
			runs: []run{
				{at: moment(0), found: js(orphan), again: 5 * time.Minute},
				{at: moment(4 * time.Minute), found: js(keep)},
				{at: moment(6 * time.Minute), found: js(orphan), again: 5 * time.Minute},
				{at: moment(11 * time.Minute), found: js(orphan), due: js(orphan)},
			},
			want: map[ID]Sighting{orphan.Allocation.ID(): {FirstSeen: moment(0), Suspicion: Orphan, Since: moment(6 * time.Minute)}},
		},
		"a proof that turns into a suspicion starts it anew": {
			patience: usual,
			runs: []run{
				{at: moment(0), found: js(orphan), again: 5 * time.Minute},
				{at: moment(time.Minute), found: js(free), due: js(free)},
				{at: moment(5 * time.Minute), found: js(orphan), again: 5 * time.Minute},
			},
			want: map[ID]Sighting{orphan.Allocation.ID(): {FirstSeen: moment(0), Suspicion: Orphan, Since: moment(5 * time.Minute)}},
		},
		"an orphan that comes into quarantine waits a whole quarantine": {
			patience: usual,
			runs: []run{
				{at: moment(0), found: js(orphan), again: 5 * time.Minute},
				{at: moment(5 * time.Minute), found: js(quarantine), again: 15 * time.Minute},
				{at: moment(19 * time.Minute), found: js(quarantine), again: time.Minute},
			},
			want: map[ID]Sighting{quarantine.Allocation.ID(): {FirstSeen: moment(0), Suspicion: Quarantine, Since: moment(5 * time.Minute)}},
		},
		"what leaves quarantine as an orphan waits a whole grace": {
			patience: usual,
			runs: []run{
				{at: moment(0), found: js(quarantine), again: 15 * time.Minute},
				{at: moment(14 * time.Minute), found: js(orphan), again: 5 * time.Minute},
				{at: moment(19 * time.Minute), found: js(orphan), due: js(orphan)},
			},
			want: map[ID]Sighting{orphan.Allocation.ID(): {FirstSeen: moment(0), Suspicion: Orphan, Since: moment(14 * time.Minute)}},
		},
		"an orphan whose node went and came back starts anew": {
			patience: usual,
			runs: []run{
				{at: moment(0), found: js(orphan), again: 5 * time.Minute},
				{at: moment(5 * time.Minute), found: js(elsewise), again: 5 * time.Minute},
				{at: moment(10 * time.Minute), found: js(elsewise), due: js(elsewise)},
			},
			want: map[ID]Sighting{orphan.Allocation.ID(): {FirstSeen: moment(0), Suspicion: Orphan, Basis: "n1 came back", Since: moment(5 * time.Minute)}},
		},
		"what is not found is forgotten": {
			patience: usual,
			runs: []run{
				{at: moment(0), found: js(orphan), again: 5 * time.Minute},
				{at: moment(5 * time.Minute)},
			},
		},
		"what was forgotten is seen for the first time": {
			patience: usual,
			runs: []run{
				{at: moment(0), found: js(orphan), again: 5 * time.Minute},
				{at: moment(5 * time.Minute)},
				{at: moment(6 * time.Minute), found: js(orphan), again: 5 * time.Minute},
			},
			want: map[ID]Sighting{orphan.Allocation.ID(): {FirstSeen: moment(6 * time.Minute), Suspicion: Orphan, Since: moment(6 * time.Minute)}},
		},
		"a wall clock that jumps ahead shortens nothing": {
			patience: usual,
			runs: []run{
				{at: Moment{at("12:00:00"), 0}, found: js(orphan), again: 5 * time.Minute},
				{at: Moment{at("13:01:00"), time.Minute}, found: js(orphan), again: 4 * time.Minute},
				{at: Moment{at("13:05:00"), 5 * time.Minute}, found: js(orphan), due: js(orphan)},
			},
			want: map[ID]Sighting{orphan.Allocation.ID(): {FirstSeen: moment(0), Suspicion: Orphan, Since: moment(0)}},
		},
		"a wall clock that jumps back lengthens nothing": {
			patience: usual,
			runs: []run{
				{at: Moment{at("12:00:00"), 0}, found: js(orphan), again: 5 * time.Minute},
				{at: Moment{at("11:01:00"), time.Minute}, found: js(orphan), again: 4 * time.Minute},
				{at: Moment{at("11:05:00"), 5 * time.Minute}, found: js(orphan), due: js(orphan)},
			},
			want: map[ID]Sighting{orphan.Allocation.ID(): {FirstSeen: moment(0), Suspicion: Orphan, Since: moment(0)}},
		},
		"a handle whose owner has another UID is another hand-out": {
			patience: usual,
			runs: []run{
				{at: moment(0), found: js(orphan), again: 5 * time.Minute},
				{at: moment(5 * time.Minute), found: js(renewed), again: 5 * time.Minute},
			},
			want: map[ID]Sighting{renewed.Allocation.ID(): {FirstSeen: moment(5 * time.Minute), Suspicion: Orphan, Since: moment(5 * time.Minute)}},
		},
		"a handle with another sandbox is another hand-out": {
			patience: usual,
			runs: []run{
				{at: moment(0), found: js(orphan), again: 5 * time.Minute},
				{at: moment(5 * time.Minute), found: js(restarted), again: 5 * time.Minute},
			},
			want: map[ID]Sighting{restarted.Allocation.ID(): {FirstSeen: moment(5 * time.Minute), Suspicion: Orphan, Since: moment(5 * time.Minute)}},
		},
		"the same handle in another network or backend is another hand-out": {
			patience: usual,
			runs: []run{
				{at: moment(0), found: js(orphan), again: 5 * time.Minute},
				{at: moment(5 * time.Minute), found: js(orphan, elsewhere, foreign), due: js(orphan), again: 5 * time.Minute},
			},
			want: map[ID]Sighting{
				orphan.Allocation.ID():    {FirstSeen: moment(0), Suspicion: Orphan, Since: moment(0)},
				elsewhere.Allocation.ID(): {FirstSeen: moment(5 * time.Minute), Suspicion: Orphan, Since: moment(5 * time.Minute)},
				foreign.Allocation.ID():   {FirstSeen: moment(5 * time.Minute), Suspicion: Orphan, Since: moment(5 * time.Minute)},
			},
		},
		"a record that a neighbour's write changed is the same hand-out": {
			patience: usual,
			runs: []run{
				{at: moment(0), found: js(orphan), again: 5 * time.Minute},
				{at: moment(5 * time.Minute), found: js(rewritten), due: js(rewritten)},
			},
			want: map[ID]Sighting{orphan.Allocation.ID(): {FirstSeen: moment(0), Suspicion: Orphan, Since: moment(0)}},
		},
		"the next look is when the first of several is due": {
			patience: usual,
			runs: []run{
				{at: moment(0), found: js(other), again: 15 * time.Minute},
				{at: moment(11 * time.Minute), found: js(other, orphan), again: 4 * time.Minute},
				{at: moment(12 * time.Minute), found: js(orphan, other), again: 3 * time.Minute},
				{at: moment(16 * time.Minute), found: js(other, orphan), due: js(other, orphan)},
			},
			want: map[ID]Sighting{
				orphan.Allocation.ID(): {FirstSeen: moment(11 * time.Minute), Suspicion: Orphan, Since: moment(11 * time.Minute)},
				other.Allocation.ID():  {FirstSeen: moment(0), Suspicion: Quarantine, Since: moment(0)},
			},
		},
		"the next look is at once if one of several has no wait": {
			patience: hasty,
			runs:     []run{{at: moment(0), found: js(orphan, other), again: 1}},
			want: map[ID]Sighting{
				orphan.Allocation.ID(): {FirstSeen: moment(0), Suspicion: Orphan, Since: moment(0)},
				other.Allocation.ID():  {FirstSeen: moment(0), Suspicion: Quarantine, Since: moment(0)},
			},
		},
		"a hand-out that nobody judged is kept": {
			patience: usual,
			runs:     []run{{at: moment(0), found: js(blank)}, {at: moment(time.Hour), found: js(blank)}},
			want:     map[ID]Sighting{blank.Allocation.ID(): {FirstSeen: moment(0)}},
		},
		"L06 a pod that was listed before its hand-out is cleared by the next look": {
			patience: usual,
			runs: []run{
				{at: moment(0), found: js(orphan), again: 5 * time.Minute},
				{at: moment(5 * time.Minute), found: js(keep)},
			},
			want: map[ID]Sighting{keep.Allocation.ID(): {FirstSeen: moment(0)}},
		},
		"B39 one record that makes no sense does not stop the others": {
			patience: usual,
			runs: []run{
				{at: moment(0), found: js(judged("h2", "nonsense"), orphan), again: 5 * time.Minute},
				{at: moment(5 * time.Minute), found: js(judged("h2", "nonsense"), orphan), due: js(orphan)},
			},
			want: map[ID]Sighting{
				orphan.Allocation.ID(): {FirstSeen: moment(0), Suspicion: Orphan, Since: moment(0)},
				other.Allocation.ID():  {FirstSeen: moment(0)},
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var l Ledger
			got := make(map[ID]Sighting)
			for i, r := range tt.runs {
				next, due, again := l.Next(r.found, r.at, tt.patience)
				if diff := cmp.Diff(r.due, due, byValue()); diff != "" {
					t.Errorf("run %d: due (-want +got):\n%s", i, diff)
				}
				if again != r.again {
					t.Errorf("run %d: again in %s, want %s", i, again, r.again)
				}
				if _, _, twice := l.Next(r.found, r.at, tt.patience); twice != again {
					t.Errorf("run %d changed the ledger that it began with", i)
				}
				l = next
				for _, j := range r.found {
					got[j.Allocation.ID()] = Sighting{}
				}
			}
			for id := range got {
				if s, ok := l.Sighting(id); ok {
					got[id] = s
				} else {
					delete(got, id)
				}
			}
			if tt.want == nil {
				tt.want = map[ID]Sighting{}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("remembered (-want +got):\n%s", diff)
			}
			if l.Len() != len(tt.want) {
				t.Errorf("%d hand-outs remembered, want %d", l.Len(), len(tt.want))
			}
		})
	}
}

// A suspicion changes its basis when its node was away in between, or is another one.
func TestConsider(t *testing.T) {
	node := Node{Name: "n1", UID: "n1-uid", Created: at("08:00:00"), Ready: ConditionTrue, ReadySince: at("09:00:00")}
	back, another := node, node
	back.ReadySince = at("09:30:00")
	another.UID = "n1-uid-2"
	tests := map[string]struct {
		observed Observation
		want     string
		since    time.Time
	}{
		"an orphan rests on its node as it is": {observed: seen(nodes(node)), want: "n1-uid ready since 1796029200"},
		"a node that came back":                {observed: seen(nodes(back)), want: "n1-uid ready since 1796031000"},
		"another node":                         {observed: seen(nodes(another)), want: "n1-uid-2 ready since 1796029200"},
		"no node":                              {observed: seen(nil)},
		"no suspicion":                         {observed: seen(nodes(node), web())},
		"a pod that is starting":               {observed: seen(nodes(node), web(pending, naming())), since: at("10:00:00")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := NewWorld(tt.observed)
			want := Judgement{Allocation: native(), Verdict: Judge(native(), w), Basis: tt.want, StartingSince: tt.since}
			if diff := cmp.Diff(want, Consider(native(), w), byValue()); diff != "" {
				t.Errorf("judgement (-want +got):\n%s", diff)
			}
		})
	}
}

// moment is a time by two clocks that agree.
func moment(steady time.Duration) Moment { return Moment{at("12:00:00").Add(steady), steady} }

func judged(handle string, d Disposition) Judgement {
	return Judgement{Allocation: Allocation{Backend: "native", Handle: handle, Owner: native().Owner}, Verdict: Verdict{Disposition: d}}
}

func js(judgements ...Judgement) []Judgement { return judgements }
