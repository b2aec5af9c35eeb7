package ipam

import (
	"fmt"
	"maps"
	"time"
)

// Moment is a point in time, told twice: by the wall clock, for people and for comparison with what the API server
// wrote; and by a clock that nobody sets, for waiting. Waits are measured by the latter alone, so that no jump of the
// wall clock shortens one.
type Moment struct {
	Wall time.Time
	// Steady is the time since some fixed point in this process' life.
	Steady time.Duration
}

// Judgement is an allocation with what the law says about it.
type Judgement struct {
	Allocation Allocation
	Verdict    Verdict
	// Basis names what a suspicion rests on besides its kind. On another basis it is another suspicion.
	Basis string
	// StartingSince is when the pod was created that is starting; zero unless that is why the hand-out is kept.
	StartingSince time.Time
}

// Consider judges an allocation for the ledger. A suspicion rests on the node having been what it is all the time: one
// that comes back after a while may not have taken down yet what it must not run. Where the record does not tell the pod's
// UID it rests on who bears the name, too: that one may have been the owner, and when it goes, its sandbox has just begun to end.
func Consider(a Allocation, w World) Judgement {
	j := Judgement{Allocation: a, Verdict: Judge(a, w)}
	p, borne := w.pods[Name{a.Owner.Namespace, a.Owner.Name}]
	borne = borne && a.Owner.Kind == OwnerPod
	if borne && j.Verdict.Reason == Starting {
		j.StartingSince = p.Created
	}
	if !j.Verdict.Disposition.Leaked() {
		return j
	}
	if basis, ok := w.bases[a.Owner.Node]; ok {
		j.Basis = basis
	} else if a.Owner.Kind == OwnerPod && a.Owner.Node == "" {
		j.Basis = fmt.Sprintf("%d returns", w.returns)
	}
	if borne && a.Owner.UID == "" {
		j.Basis += ", pod " + p.UID
	}
	return j
}

// Sighting is what the ledger remembers of one hand-out.
type Sighting struct {
	FirstSeen Moment
	// Namesake is the first that was looked for; nil if none was.
	Namesake *Namesake
	// Suspicion is Orphan, Quarantine, Stranded, Repair, or empty.
	Suspicion Disposition
	// Basis is what that suspicion rests on.
	Basis string
	// Since is when that suspicion arose; zero if there is none.
	Since Moment
}

// begins tells whether the judgement is a suspicion that was not there before.
func (s Sighting) begins(j Judgement) bool {
	d := j.Verdict.Disposition
	return d.suspicion() && (s.Suspicion != d || s.Basis != j.Basis)
}

// suspicion tells whether it takes two sightings before anything is done about it.
func (d Disposition) suspicion() bool {
	return d == Orphan || d == Quarantine || d == Stranded || d == Repair
}

// Patience is how long a suspicion must last.
type Patience struct {
	Grace, Quarantine time.Duration
}

// Ledger remembers suspicions from one audit to the next. It is a value: Next returns a new one. The zero Ledger
// remembers nothing.
type Ledger struct {
	sightings map[ID]Sighting
}

// Next takes what was found and returns the ledger that follows, what may be released now, and how long to wait until
// something else may be; zero if nothing waits. Hand-outs that were not found are forgotten.
//
// What is proven free may be released at once. A suspicion must have been there in two sightings at least a grace, or
// a quarantine, apart; a sighting that clears it, or that makes it one of the other kind or on another
// basis, starts the wait anew.
func (l Ledger) Next(found []Judgement, at Moment, patience Patience) (next Ledger, due []Judgement, again time.Duration) {
	next = Ledger{sightings: make(map[ID]Sighting, len(found))}
	for _, j := range found {
		id := j.Allocation.ID()
		s, seen := l.sightings[id]
		if !seen {
			s.FirstSeen = at
		}
		if s.Namesake == nil {
			s.Namesake = j.Allocation.Namesake
		}
		var wait time.Duration
		switch j.Verdict.Disposition {
		case Orphan, Stranded, Repair:
			wait = patience.Grace
		case Quarantine:
			wait = patience.Quarantine
		case Free:
			due = append(due, j)
			fallthrough
		default:
			s.Suspicion, s.Basis, s.Since = "", "", Moment{}
			next.sightings[id] = s
			continue
		}
		waited := at.Steady - s.Since.Steady
		switch {
		case s.begins(j):
			s.Suspicion, s.Basis, s.Since = j.Verdict.Disposition, j.Basis, at
			again = sooner(again, max(wait, 1)) // without a wait it still takes a second sighting
		case waited >= wait:
			due = append(due, j)
		default:
			again = sooner(again, wait-waited)
		}
		next.sightings[id] = s
	}
	return next, due, again
}

// Add takes hand-outs that were found beside the runs, because something happened to their owners, and returns the
// ledger with them and how long to wait until something may be released. Nothing is due from it: what may be released
// is found in a run, which sees everything.
func (l Ledger) Add(found []Judgement, at Moment, patience Patience) (next Ledger, again time.Duration) {
	some, _, again := l.Next(found, at, patience)
	next = Ledger{sightings: maps.Clone(l.sightings)}
	if next.sightings == nil {
		return some, again
	}
	maps.Copy(next.sightings, some.sightings)
	return next, again
}

// Sighting returns what is remembered of a hand-out; false if it was not seen in the last run.
func (l Ledger) Sighting(id ID) (Sighting, bool) {
	s, ok := l.sightings[id]
	return s, ok
}

// Begins tells whether the judgement is a suspicion that the ledger does not have yet.
func (l Ledger) Begins(j Judgement) bool {
	return j.Verdict.Disposition.suspicion() && l.sightings[j.Allocation.ID()].begins(j)
}

// Len returns how many hand-outs are remembered.
func (l Ledger) Len() int { return len(l.sightings) }

func sooner(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}
