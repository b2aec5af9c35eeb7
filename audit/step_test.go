package audit

import (
	"context"
	"time"

	"pgregory.net/rapid"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
)

// step is something that happens. A is the pod or the node; B says how.
type step struct {
	Do   string
	A, B int
}

// anyStep draws a step; what makes a history interesting comes more often.
func anyStep(byName bool) *rapid.Generator[step] {
	actions := []string{
		"nothing", "run", "run", "run", "run", "create", "bind", "admit", "start", "start", "report", "report", "report", "crash", "flicker", "flicker", "flicker", "finish",
		"detach", "reuse", "reuse", "reuse", "delete", "delete", "forge", "forge", "forge", "remove", "remove", "remove",
		"tidy", "heartbeat", "cut", "mend", "off", "on", "taint", "untaint", "unregister", "unregister", "register", "replace", "tunnel",
		"pass", "pass", "pass", "pass", "pass", "pass", "audit", "kill", "freeze", "freeze", "freeze", "blank", "thaw", "thaw", "hear", "miss", "fail",
		"meanwhile", "meanwhile", "observe", "enforce", "jump",
	}
	// plots are what a record that tells its pod by name alone may be misjudged after.
	plots := []string{
		"run", "run", "attach", "again", "again", "succeed", "succeed", "leave", "leave", "leave", "strand", "strand", "abandon", "vanish", "vanish",
		"blink", "blink", "blink", "mend", "freeze", "lag", "lag", "lag", "thaw", "pass", "pass", "pass", "pass", "pass",
	}
	return rapid.Custom(func(t *rapid.T) step {
		from := actions
		if byName && rapid.Bool().Draw(t, "plot") {
			from = plots
		}
		return step{rapid.SampledFrom(from).Draw(t, "do"), rapid.IntRange(0, podNames-1).Draw(t, "a"), rapid.IntRange(0, poolSize-1).Draw(t, "b")}
	})
}

// do lets a step happen. It tells whether that changed anything.
func (m *model) do(s step) bool {
	t, pod, node, how := m.truth, s.A, s.A%nodeNames, s.B
	defer m.caches.notice()
	switch s.Do {
	case "create":
		return t.create(pod)
	case "bind":
		return t.bind(pod, how%nodeNames)
	case "admit":
		_, offsets := t.admit(pod, how)
		return offsets != nil
	case "start":
		return t.start(pod, how)
	case "report":
		return t.report(pod)
	case "run":
		created, bound, started := t.create(pod), t.bind(pod, how%nodeNames), t.start(pod, how)
		return t.report(pod) || created || bound || started
	case "attach":
		return t.attachSomehow(pod, how)
	case "again": // A pod's sandbox is made anew.
		died := t.die(pod, false)
		return t.attachSomehow(pod, how) || died
	case "succeed": // A StatefulSet's pod is let go, and its successor comes up, maybe elsewhere.
		removed := t.remove(pod)
		created, bound := t.create(pod), t.bind(pod, how%nodeNames)
		return t.attachSomehow(pod, how) || removed || created || bound
	case "strand": // A pod is let go whose machine was cut off a moment ago.
		at := t.machineOf(pod)
		return t.exists(pod) != nil && at >= 0 && t.link(at, false) && t.remove(pod)
	case "abandon": // A Node is deleted whose machine was cut off a moment ago.
		cut := t.link(node, false)
		return t.unregister(node) || cut
	case "crash":
		return t.die(pod, false)
	case "flicker": // The kubelet reports that a sandbox died, and not yet that there is another one.
		if !t.die(pod, false) {
			return false
		}
		t.report(pod)
		t.start(pod, how)
		return true
	case "finish":
		return t.die(pod, true)
	case "detach":
		return t.detach(pod)
	case "reuse":
		return t.reuse(how, pod, how%nodeNames)
	case "delete":
		return t.end(pod)
	case "forge":
		return t.forge(pod)
	case "remove":
		return t.remove(pod)
	case "tidy":
		return t.tidy(node)
	case "heartbeat":
		return t.heartbeat(node)
	case "cut":
		return t.link(node, false)
	case "mend":
		return t.link(node, true)
	case "off":
		return t.power(node, false)
	case "on":
		return t.power(node, true)
	case "taint":
		return t.taint(node, true)
	case "untaint":
		return t.taint(node, false)
	case "unregister":
		return t.unregister(node)
	case "register":
		return t.register(node, how%2 == 0)
	case "replace":
		return t.replace(node, how%2 == 0)
	case "tunnel":
		return t.tunnel(node, how)
	}
	return m.disturb(s)
}

// attachSomehow has a pod's sandbox start: with what is recorded under its name or with addresses of its own, quickly or
// not, and with images that are there or not.
func (t *truth) attachSomehow(pod, how int) bool {
	record := func() (string, []int) { return t.admit(pod, how) }
	if how%2 == 0 {
		record = func() (string, []int) { return t.takeOver(pod) }
	}
	if !t.attach(pod, []time.Duration{0, attaching, time.Minute, attaching}[how/2%4], record) {
		return false
	}
	t.pods[pod].slow = how < 6
	return true
}

// disturb lets happen what concerns the audit alone.
func (m *model) disturb(s step) bool {
	if m.running { // It is not disturbed by itself.
		return false
	}
	switch how := s.B; s.Do {
	case "pass":
		m.pass([]time.Duration{tick, tick, 40 * time.Second, time.Minute, 4 * time.Minute, 5 * time.Minute, 16 * time.Minute}[how%7])
	case "leave": // The audit hears at once that a pod was let go.
		removed := m.truth.remove(s.A)
		return m.disturb(step{"hear", 0, 0}) || removed
	case "vanish": // A machine is cut off, a pod of its is let go, and then its Node is deleted.
		at := m.truth.machineOf(s.A)
		if at < 0 {
			return false
		}
		m.truth.link(at, false)
		m.disturb(step{"leave", s.A, 0})
		m.pass(time.Duration(how) * 3 * tick)
		m.truth.unregister(at)
	case "blink": // The machine of a pod, or of one that was, is cut off for most of a grace.
		at := m.truth.machineOf(s.A)
		if at < 0 {
			return false
		}
		m.truth.link(at, false)
		m.pass(4*time.Minute + time.Duration(how)*tick)
		m.truth.link(at, true)
		m.truth.heartbeat(at)
	case "audit":
		m.audit(-1)
	case "kill":
		m.audit(how % 3)
	case "freeze":
		return m.caches.freeze(how%4 == 0, how%4 == 1, how%4 >= 2)
	case "lag":
		return m.caches.freeze(true, false, false)
	case "blank":
		m.caches.thaw()
		if how%2 == 0 {
			m.caches.pods = empty
		} else {
			m.caches.nodes = empty
		}
	case "thaw":
		return m.caches.thaw()
	case "hear":
		gone := m.truth.deletions
		m.truth.deletions = nil
		again, err := m.auditor.suspect(context.Background(), gone)
		if err == nil && again > 0 {
			m.due = min(m.due, m.truth.steady+again)
		}
		return len(gone) > 0
	case "miss":
		missed := m.truth.deletions != nil
		m.truth.deletions = nil
		return missed
	case "fail":
		m.fails = call(how) % calls
	case "meanwhile":
		m.meanwhile[call(how)%calls] = step{[]string{"detach", "reuse", "start", "cut", "unregister", "heartbeat", "remove", "replace"}[how%8], s.A, how}
	case "observe", "enforce":
		mode := map[string]config.Mode{"observe": config.ModeObserve, "enforce": config.ModeEnforce}[s.Do]
		changed := m.auditor.Mode != mode
		m.auditor.Mode = mode
		return changed
	case "jump":
		m.truth.wall = time.Duration(how%3-1) * time.Hour
	default:
		return false
	}
	return true
}
