package audit

import "testing"

// Histories that once broke an invariant.
func TestWhatWentWrongOnce(t *testing.T) {
	tests := map[string]history{
		"I1 a list lags for longer than a suspicion has to last": {Steps: []step{
			{"freeze", 0, 0},
			{"run", 1, 0},
			{"audit", 0, 0},
			{"pass", 0, 4},
			{"pass", 0, 3},
			{"remove", 1, 0},
			{"audit", 0, 0},
		}},
		"I1 a record is first seen after another machine took its node's name": {Steps: []step{
			{"run", 0, 3},
			{"unregister", 0, 0},
			{"remove", 0, 0},
			{"replace", 0, 0},
			{"audit", 0, 0},
			{"pass", 0, 5},
			{"pass", 0, 5},
		}},
		"I1 a node is cut off and back between two sightings": {Steps: []step{
			{"run", 0, 0},
			{"remove", 0, 0},
			{"audit", 0, 0},
			{"cut", 0, 0},
			{"pass", 0, 4},
			{"pass", 0, 2},
			{"mend", 0, 0},
			{"heartbeat", 0, 0},
			{"pass", 0, 2},
		}},
		"I1 a node is cut off and back while the evidence had collapsed": {Steps: []step{
			{"run", 3, 4},
			{"cut", 1, 0},
			{"remove", 3, 0},
			{"blank", 0, 1},
			{"hear", 0, 0},
			{"pass", 0, 6},
		}},
		"I1 a node goes, comes back and goes again between two sightings": {Steps: []step{
			{"run", 1, 2},
			{"delete", 1, 0},
			{"unregister", 2, 0},
			{"audit", 0, 0},
			{"pass", 0, 0},
			{"register", 2, 0},
			{"pass", 0, 0},
			{"unregister", 2, 0},
			{"pass", 0, 6},
		}},
		"I1 a node goes while a record that may be of it is in quarantine": {ByName: true, Steps: []step{
			{"run", 0, 0},
			{"leave", 0, 0},
			{"cut", 0, 0},
			{"pass", 0, 3},
			{"unregister", 0, 0},
			{"pass", 0, 6},
		}},
		"I1 a node is back for a moment when a record that may be of it is due": {ByName: true, Steps: []step{
			{"run", 0, 0},
			{"cut", 0, 0},
			{"unregister", 0, 0},
			{"leave", 0, 0},
			{"pass", 0, 5},
			{"pass", 0, 5},
			{"pass", 0, 4},
			{"pass", 0, 2},
			{"mend", 0, 0},
			{"register", 0, 0},
			{"pass", 0, 2},
		}},
		"I1 a machine whose node went seems to join": {ByName: true, Steps: []step{
			{"run", 0, 0},
			{"pass", 0, 6},
			{"unregister", 0, 0},
			{"remove", 0, 0},
			{"register", 0, 1},
			{"cut", 0, 0},
			{"pass", 0, 6},
			{"pass", 0, 6},
		}},
		"I1 a machine whose node went before a restart seems to join": {ByName: true, Steps: []step{
			{"run", 0, 0},
			{"unregister", 0, 0},
			{"remove", 0, 0},
			{"kill", 0, 0},
			{"register", 0, 1},
			{"cut", 0, 0},
			{"pass", 0, 6},
			{"pass", 0, 6},
		}},
		"I1 a node goes while no node is listed": {ByName: true, Steps: []step{
			{"run", 0, 0},
			{"pass", 0, 6},
			{"blank", 0, 1},
			{"audit", 0, 0},
			{"pass", 0, 5},
			{"pass", 0, 5},
			{"pass", 0, 4},
			{"cut", 0, 0},
			{"remove", 0, 0},
			{"unregister", 0, 0},
			{"pass", 0, 3},
			{"thaw", 0, 0},
			{"pass", 0, 5},
			{"pass", 0, 5},
			{"pass", 0, 5},
		}},
		"I1 nodes lag for longer than a suspicion has to last": {ByName: true, Steps: []step{
			{"run", 0, 4},
			{"pass", 0, 6},
			{"freeze", 0, 1},
			{"strand", 0, 0},
			{"pass", 0, 6},
		}},
		"I1 a machine whose node went before a restart comes back after a quarantine": {ByName: true, Steps: []step{
			{"on", 2, 4},
			{"run", 1, 5},
			{"vanish", 1, 0},
			{"kill", 2, 3},
			{"pass", 3, 6},
			{"mend", 2, 0},
			{"register", 2, 1},
			{"run", 0, 2},
			{"blink", 0, 2},
		}},
		"I1 a pod is let go whose new sandbox has what nobody told of when it was suspected": {ByName: true, Steps: []step{
			{"run", 0, 0},
			{"run", 3, 0},
			{"unregister", 0, 0},
			{"run", 2, 1},
			{"pass", 0, 6},
			{"vanish", 0, 7},
			{"run", 0, 1},
			{"again", 0, 2},
			{"pass", 0, 5},
			{"succeed", 0, 0},
			{"vanish", 3, 1},
			{"vanish", 2, 1},
		}},
		"I9 a list still shows what was given back": {Steps: []step{
			{"run", 0, 0},
			{"finish", 0, 0},
			{"report", 0, 0},
			{"freeze", 0, 2},
			{"audit", 0, 0},
			{"audit", 0, 0},
		}},
	}
	for name, h := range tests {
		t.Run(name, func(t *testing.T) { replay(t, h) })
	}
}

// replay lets a history happen that a failing test printed.
func replay(t *testing.T, h history) {
	t.Helper()
	if _, broken, _ := h.play(variant{}); broken != "" {
		t.Error(broken)
	}
}
