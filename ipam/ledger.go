package ipam

import "time"

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
}

// Sighting is what the ledger remembers of one hand-out.
type Sighting struct {
	FirstSeen Moment
	// Suspicion is Orphan, Quarantine, or empty.
	Suspicion Disposition
	// Since is when that suspicion arose; zero if there is none.
	Since Moment
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
// a quarantine, apart; a sighting that clears it, or that makes it one of the other kind, starts the wait anew.
func (l Ledger) Next(found []Judgement, at Moment, patience Patience) (next Ledger, due []Judgement, again time.Duration) {
	next = Ledger{sightings: make(map[ID]Sighting, len(found))}
	for _, j := range found {
		id := j.Allocation.ID()
		s, seen := l.sightings[id]
		if !seen {
			s.FirstSeen = at
		}
		var wait time.Duration
		switch j.Verdict.Disposition {
		case Orphan:
			wait = patience.Grace
		case Quarantine:
			wait = patience.Quarantine
		case Free:
			due = append(due, j)
			fallthrough
		default:
			s.Suspicion, s.Since = "", Moment{}
			next.sightings[id] = s
			continue
		}
		waited := at.Steady - s.Since.Steady
		switch {
		case s.Suspicion != j.Verdict.Disposition:
			s.Suspicion, s.Since = j.Verdict.Disposition, at
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

// Sighting returns what is remembered of a hand-out; false if it was not seen in the last run.
func (l Ledger) Sighting(id ID) (Sighting, bool) {
	s, ok := l.sightings[id]
	return s, ok
}

// Len returns how many hand-outs are remembered.
func (l Ledger) Len() int { return len(l.sightings) }

func sooner(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}
