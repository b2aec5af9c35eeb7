package finalizers

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/fixture"
)

// cell is one of all the states in which a pod can be.
type cell struct {
	deleted    bool
	grace      int64
	phase      corev1.PodPhase
	containers containers
	// sandbox is the condition PodReadyToStartContainers; empty if the pod does not have it.
	sandbox corev1.ConditionStatus
	// disruption is the reason of the condition DisruptionTarget; empty if the pod does not have it.
	disruption string
	network    network
	scheduled  bool
	node       nodeCondition
	// age is for how long the pod has been deleted.
	age                    time.Duration
	held, wanted, recorded bool
}

// containers is what is reported about the containers of a pod that was given two, an init container and an ephemeral
// one.
type containers string

const (
	noneReported     containers = "none reported"
	waiting          containers = "waiting"
	allRunning       containers = "running"
	allTerminated    containers = "terminated"
	oneUnreported    containers = "terminated, but for one that is not reported"
	oneWaiting       containers = "terminated, but for one that waits"
	initRunning      containers = "terminated, but for the init container"
	ephemeralRunning containers = "terminated, but for the ephemeral container"
)

type network string

const (
	own     network = "own"
	ofNode  network = "its node's"
	unasked network = "a mirror pod's"
)

const deadline = 10 * time.Minute

// rule is a row of the table: what it speaks of, what is done, and which reason is given.
type rule struct {
	name    string
	applies func(cell) bool
	action  podAction
	reason  ipam.Reason
}

// rules say, in their order, what is to be done in every state. They know nothing of how the code comes to it.
func rules() []rule {
	is := func(conditions ...func(cell) bool) func(cell) bool {
		return func(c cell) bool {
			return !slices.ContainsFunc(conditions, func(condition func(cell) bool) bool { return !condition(c) })
		}
	}
	not := func(condition func(cell) bool) func(cell) bool { return func(c cell) bool { return !condition(c) } }
	on := func(states ...nodeCondition) func(cell) bool {
		return func(c cell) bool { return c.scheduled && slices.Contains(states, c.node) }
	}
	var (
		held      = func(c cell) bool { return c.held }
		wanted    = func(c cell) bool { return c.wanted }
		recorded  = func(c cell) bool { return c.recorded }
		scheduled = func(c cell) bool { return c.scheduled }
		deleted   = func(c cell) bool { return c.deleted }
		expired   = func(c cell) bool { return c.deleted && c.age >= deadline }
		finished  = func(c cell) bool { return c.phase == corev1.PodSucceeded || c.phase == corev1.PodFailed }
		forged    = func(c cell) bool { return c.disruption == "DeletionByPodGC" }
		ended     = func(c cell) bool { return c.containers == allTerminated && c.sandbox == corev1.ConditionFalse }
		untold    = func(c cell) bool { return c.sandbox == "" }
		addressed = func(c cell) bool { return c.network == own }
		alive     = is(not(deleted), not(finished))
	)
	return []rule{
		{"E0, not held", is(not(addressed), not(held)), podLeave, ""},
		{"E0, held", not(addressed), podLetGo, Unwanted},
		{"backfill", is(not(held), alive, wanted, recorded), podHold, ""},
		{"not held", not(held), podLeave, ""},
		{"not to be held", not(wanted), podLetGo, Unwanted},
		{"E11, E13", alive, podLeave, ""},
		{"E2", is(finished, ended, not(forged)), podRelease, ipam.EndReported},
		{"E4", on(nodeOff), podRelease, ipam.NodeOutOfService},
		{"E5", on(nodeFenced), podRelease, ipam.NodeFenced},
		{"E1", is(not(scheduled), not(recorded)), podLetGo, NeverScheduled},
		{"E14", is(finished, untold, not(recorded)), podLetGo, NothingRecorded},
		{"E6", on(nodeGone, nodeGoneAWhile), podLetGo, ipam.NodeGone},
		{"the deadline", expired, podLetGo, DeadlineExceeded},
		{"E3, E7, E9", on(nodeReady, nodeReadyAndGoing, nodeTainted), podWait, ipam.Ending},
		{"E8, E9", on(nodeLost, nodeLostAndGoing), podWait, ipam.NodeNotReady},
		{"E5, too soon", on(nodeFencing), podWait, ipam.NodeFencing},
		{"nothing is known of the node", func(cell) bool { return true }, podWait, ipam.NodeUnknown},
	}
}

// Every state has a way out, and it is the one of the table.
func TestDecideInEveryState(t *testing.T) {
	t.Parallel()
	rules, worlds := rules(), make([]ipam.World, nodeConditions)
	for n := range nodeConditions {
		worlds[n] = n.world()
	}
	spoken := make([]int, len(rules))
	failed := 0
	for c := range lives() {
		pod := cluster.Observe(c.pod()).Evidence()
		for n := range nodeConditions {
			c.node = n
			end := worlds[n].End(pod)
			for _, c.held = range []bool{false, true} {
				for _, c.wanted = range []bool{false, true} {
					for _, c.recorded = range []bool{false, true} {
						i := slices.IndexFunc(rules, func(r rule) bool { return r.applies(c) })
						spoken[i]++
						got := podState{pod: pod, held: c.held, wanted: c.wanted, recorded: c.recorded, end: end, deadline: deadline, now: noon()}.decide()
						if want := c.expect(rules[i]); got != want {
							t.Errorf("%s: %+v: got %+v, want %+v", rules[i].name, c, got, want)
							failed++
						}
						if complaint := c.stuck(got); complaint != "" {
							t.Errorf("%+v: %+v: %s", c, got, complaint)
							failed++
						}
						if failed > 10 {
							t.Fatal("and so on")
						}
					}
				}
			}
		}
	}
	for i, r := range rules {
		if spoken[i] == 0 {
			t.Errorf("no state is one of which %q speaks", r.name)
		}
	}
}

// expect returns the step that a rule asks for.
func (c cell) expect(r rule) podStep {
	step := podStep{action: r.action, reason: r.reason}
	if r.action == podWait {
		step.again = 30 * time.Second
		if c.deleted && deadline-c.age < step.again {
			step.again = deadline - c.age
		}
	}
	return step
}

// stuck tells in which way a step would make a pod wait for ever.
func (c cell) stuck(s podStep) string {
	ending := c.deleted || c.phase == corev1.PodSucceeded || c.phase == corev1.PodFailed
	switch {
	case s.action == podWait && (s.again <= 0 || s.again > 30*time.Second):
		return "the next look is not within 30 seconds"
	case s.action == podWait && c.deleted && c.age+s.again > deadline:
		return "the next look is after the deadline"
	case s.action != podWait && s.again != 0:
		return "what is done needs no other look"
	case s.action == podLeave && c.held && ending:
		return "nobody looks again"
	case s.action == podHold && ending:
		return "a finalizer on a pod that is going"
	}
	return ""
}

// lives yields every state of a pod, as far as the pod itself tells it.
func lives() func(yield func(cell) bool) {
	ages := []time.Duration{0, deadline - time.Second, deadline, 25 * time.Hour}
	return func(yield func(cell) bool) {
		var c cell
		for _, c.phase = range []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown} {
			for _, c.containers = range []containers{noneReported, waiting, allRunning, allTerminated, oneUnreported, oneWaiting, initRunning, ephemeralRunning} {
				for _, c.sandbox = range []corev1.ConditionStatus{"", corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown} {
					for _, c.disruption = range []string{"", "DeletionByPodGC", "EvictionByEvictionAPI"} {
						for _, c.network = range []network{own, ofNode, unasked} {
							for _, c.scheduled = range []bool{false, true} {
								c.deleted, c.age, c.grace = false, 0, 0
								if !yield(c) {
									return
								}
								c.deleted = true
								for _, c.age = range ages {
									for _, c.grace = range []int64{0, 30} {
										if !yield(c) {
											return
										}
									}
								}
							}
						}
					}
				}
			}
		}
	}
}

// pod returns a pod in that state.
func (c cell) pod() *corev1.Pod {
	p := fixture.Pod("web-0", "")
	p.Spec.Containers = []corev1.Container{{Name: "main"}, {Name: "second"}}
	p.Spec.InitContainers = []corev1.Container{{Name: "init"}}
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}}
	if c.scheduled {
		p.Spec.NodeName = "n1"
	}
	if c.deleted {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = ago(c.age), new(c.grace)
	}
	switch c.network {
	case own:
	case ofNode:
		fixture.HostNetwork(p)
	case unasked:
		mirrored(p)
	}
	p.Status.Phase = c.phase
	if c.sandbox != "" {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: c.sandbox})
	}
	if c.disruption != "" {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: c.disruption})
	}
	c.report(&p.Status)
	return p
}

// report fills in the statuses of the containers.
func (c cell) report(s *corev1.PodStatus) {
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	waits := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
	over := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	of := func(states ...corev1.ContainerState) []corev1.ContainerStatus {
		var statuses []corev1.ContainerStatus
		for _, state := range states {
			statuses = append(statuses, corev1.ContainerStatus{State: state})
		}
		return statuses
	}
	s.ContainerStatuses, s.InitContainerStatuses, s.EphemeralContainerStatuses = of(over, over), of(over), of(over)
	switch c.containers {
	case noneReported:
		s.ContainerStatuses, s.InitContainerStatuses, s.EphemeralContainerStatuses = nil, nil, nil
	case waiting:
		s.ContainerStatuses, s.InitContainerStatuses, s.EphemeralContainerStatuses = of(waits, waits), of(waits), nil
	case allRunning:
		s.ContainerStatuses, s.EphemeralContainerStatuses = of(runs, runs), of(runs)
	case allTerminated:
	case oneUnreported:
		s.ContainerStatuses = of(over)
	case oneWaiting:
		s.ContainerStatuses = of(over, waits)
	case initRunning:
		s.InitContainerStatuses = of(runs)
	case ephemeralRunning:
		s.EphemeralContainerStatuses = of(runs)
	}
}
