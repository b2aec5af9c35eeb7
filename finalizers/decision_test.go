package finalizers

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/fixture"
)

// The table of evidence, read aloud.
func TestDecide(t *testing.T) {
	tests := map[string]struct {
		pod  []func(*corev1.Pod)
		node nodeCondition
		// without the finalizer; nothing recorded; pods are not to be held.
		unheld, unrecorded, unwanted bool
		want                         podStep
	}{
		"E0 a pod in its node's network is never held": {
			pod: []func(*corev1.Pod){running, fixture.HostNetwork}, unheld: true, want: podStep{action: podLeave},
		},
		"E0 a mirror pod is never held": {
			pod: []func(*corev1.Pod){running, mirrored}, unheld: true, want: podStep{action: podLeave},
		},
		"E0 a pod in its node's network that is held is let go at once": {
			pod: []func(*corev1.Pod){running, fixture.HostNetwork}, want: podStep{action: podLetGo, reason: Unwanted},
		},
		"E1 a pod that never had a node and has nothing recorded is let go at once": {
			pod: []func(*corev1.Pod){unscheduled, deleted(0)}, unrecorded: true, want: podStep{action: podLetGo, reason: NeverScheduled},
		},
		"E1 what is recorded for a pod that never had a node holds it": {
			pod:  []func(*corev1.Pod){unscheduled, deleted(0)},
			want: podStep{podWait, ipam.NodeUnknown, recheck},
		},
		"E2 the kubelet's report of the end releases": {
			pod: []func(*corev1.Pod){running, deleted(time.Second), fixture.Ended}, want: podStep{action: podRelease, reason: ipam.EndReported},
		},
		"E2 a finished pod that nobody deletes is released": {
			pod: []func(*corev1.Pod){running, fixture.Ended}, want: podStep{action: podRelease, reason: ipam.EndReported},
		},
		"E2 the report counts whatever became of the node since": {
			pod: []func(*corev1.Pod){running, deleted(0), fixture.Ended}, node: nodeLost, want: podStep{action: podRelease, reason: ipam.EndReported},
		},
		"E2 a container that is not reported as terminated may run": {
			pod: []func(*corev1.Pod){
				running, deleted(0), fixture.Ended,
				func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{Name: "sidecar"}} },
			},
			want: podStep{podWait, ipam.Ending, recheck},
		},
		"E3 a pod whose address is free already waits for the report all the same": {
			pod: []func(*corev1.Pod){running, deleted(0)}, unrecorded: true, want: podStep{podWait, ipam.Ending, recheck},
		},
		"E4 the taint of a node that is not ready releases": {
			pod: []func(*corev1.Pod){running, deleted(0)}, node: nodeOff, want: podStep{action: podRelease, reason: ipam.NodeOutOfService},
		},
		"E4 the taint of a node that is ready proves nothing": {
			pod: []func(*corev1.Pod){running, deleted(0)}, node: nodeTainted, want: podStep{podWait, ipam.Ending, recheck},
		},
		"E4 the taint does not end a pod that nobody deleted": {
			pod: []func(*corev1.Pod){running}, node: nodeOff, want: podStep{action: podLeave},
		},
		"E5 a node whose deletion means that it is off releases": {
			pod: []func(*corev1.Pod){running, deleted(0)}, node: nodeFenced, want: podStep{action: podRelease, reason: ipam.NodeFenced},
		},
		"E5 a node that has not been gone for long enough holds": {
			pod: []func(*corev1.Pod){running, deleted(0)}, node: nodeFencing, want: podStep{podWait, ipam.NodeFencing, recheck},
		},
		"E6 a node that is gone lets the pod go and leaves the address": {
			pod: []func(*corev1.Pod){running, deleted(0)}, node: nodeGone, want: podStep{action: podLetGo, reason: ipam.NodeGone},
		},
		"E7 a deleted pod waits for the kubelet of its node": {
			pod: []func(*corev1.Pod){running, deleted(0)}, want: podStep{podWait, ipam.Ending, recheck},
		},
		"E7 a pod that was deleted by force waits no less": {
			pod:  []func(*corev1.Pod){running, deleted(0), func(p *corev1.Pod) { p.DeletionGracePeriodSeconds = new(int64(0)) }},
			want: podStep{podWait, ipam.Ending, recheck},
		},
		"E8 a deleted pod waits for a node that is not ready": {
			pod: []func(*corev1.Pod){running, deleted(0)}, node: nodeLost, want: podStep{podWait, ipam.NodeNotReady, recheck},
		},
		"E8 a node that says nothing of itself proves nothing": {
			pod: []func(*corev1.Pod){running, deleted(0)}, node: nodeSilent, want: podStep{podWait, ipam.NodeUnknown, recheck},
		},
		"E9 an end that PodGC wrote is judged by the node": {
			pod:  []func(*corev1.Pod){running, deleted(0), fixture.Ended, fixture.CollectedByPodGC},
			want: podStep{podWait, ipam.Ending, recheck},
		},
		"E9 an end that PodGC wrote over a lost node holds": {
			pod: []func(*corev1.Pod){running, deleted(0), fixture.CollectedByPodGC}, node: nodeLost, want: podStep{podWait, ipam.NodeNotReady, recheck},
		},
		"E9 a terminal phase whose sandbox is up waits, deleted or not": {
			pod:  []func(*corev1.Pod){running, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }},
			want: podStep{podWait, ipam.Ending, recheck},
		},
		"E11 a pod that is alive is left alone, whatever became of its node": {
			pod: []func(*corev1.Pod){running}, node: nodeGone, want: podStep{action: podLeave},
		},
		"E13 so is one that is pending": {
			pod: []func(*corev1.Pod){func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }}, want: podStep{action: podLeave},
		},
		"E14 a finished pod of which nobody tells the sandbox is let go if nothing is recorded": {
			pod: []func(*corev1.Pod){silent, deleted(0)}, unrecorded: true, want: podStep{action: podLetGo, reason: NothingRecorded},
		},
		"E14 what is recorded holds it": {
			pod: []func(*corev1.Pod){silent, deleted(0)}, want: podStep{podWait, ipam.Ending, recheck},
		},
		"a pod that has an address and no finalizer gets one": {
			pod: []func(*corev1.Pod){running}, unheld: true, want: podStep{action: podHold},
		},
		"a pod that is going never gets one": {
			pod: []func(*corev1.Pod){running, deleted(0)}, unheld: true, want: podStep{action: podLeave},
		},
		"a pod without an address needs none": {
			pod: []func(*corev1.Pod){running}, unheld: true, unrecorded: true, want: podStep{action: podLeave},
		},
		"where pods are not to be held none gets one": {
			pod: []func(*corev1.Pod){running}, unheld: true, unwanted: true, want: podStep{action: podLeave},
		},
		"where pods are not to be held it comes off, even of one that lives": {
			pod: []func(*corev1.Pod){running}, unwanted: true, want: podStep{action: podLetGo, reason: Unwanted},
		},
		"shortly before the deadline the next look is at the deadline": {
			pod: []func(*corev1.Pod){running, deleted(10*time.Minute - 7*time.Second)}, want: podStep{podWait, ipam.Ending, 7 * time.Second},
		},
		"at the deadline the pod is let go, and the address stays": {
			pod: []func(*corev1.Pod){running, deleted(10 * time.Minute)}, node: nodeLost, want: podStep{action: podLetGo, reason: DeadlineExceeded},
		},
		"at the deadline a proven end still releases": {
			pod: []func(*corev1.Pod){running, deleted(time.Hour), fixture.Ended}, want: podStep{action: podRelease, reason: ipam.EndReported},
		},
		"a grace period that has not begun to count is no reason to go": {
			pod: []func(*corev1.Pod){running, deleted(-30 * time.Second)}, want: podStep{podWait, ipam.Ending, recheck},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			pod := cluster.Observe(fixture.Pod("web-0", "n1", tt.pod...)).Evidence()
			s := podState{
				pod: pod, held: !tt.unheld, wanted: !tt.unwanted, recorded: !tt.unrecorded,
				end: tt.node.world().End(pod), deadline: 10 * time.Minute, now: noon(),
			}
			if diff := cmp.Diff(tt.want, s.decide(), cmp.AllowUnexported(podStep{})); diff != "" {
				t.Errorf("step (-want +got):\n%s", diff)
			}
		})
	}
}

// nodeCondition is what can be seen of node n1.
type nodeCondition int

const (
	nodeReady nodeCondition = iota
	nodeReadyAndGoing
	nodeTainted
	nodeSilent
	nodeLost
	nodeLostAndGoing
	nodeOff
	nodeGone
	nodeGoneAWhile
	nodeFencing
	nodeFenced
	nodeConditions
)

// world is one in which only the node matters.
func (n nodeCondition) world() ipam.World {
	o := ipam.Observation{PodsKnown: true, NodesKnown: true, NodesGoneFor: map[string]time.Duration{}}
	node := fixture.Node("n1")
	switch n {
	case nodeReady:
	case nodeReadyAndGoing:
		node.DeletionTimestamp = ago(0)
	case nodeTainted:
		fixture.OutOfService(node)
	case nodeSilent:
		node.Status.Conditions = nil
		fixture.OutOfService(node)
	case nodeLost:
		fixture.NotReady(node)
	case nodeLostAndGoing:
		fixture.NotReady(node)
		node.DeletionTimestamp = ago(0)
	case nodeOff:
		fixture.NotReady(node)
		fixture.OutOfService(node)
	case nodeGone:
		node = nil
	case nodeGoneAWhile:
		node = nil
		o.NodesGoneFor["n1"] = time.Hour
	case nodeFencing:
		node = nil
		o.NodeDeletionMeansFenced = true
		o.NodesGoneFor["n1"] = 40*time.Second - 1
	case nodeFenced:
		node = nil
		o.NodeDeletionMeansFenced = true
		o.NodesGoneFor["n1"] = 40 * time.Second
	default:
		panic(fmt.Sprintf("no node is like %d", n))
	}
	if node != nil {
		o.Nodes = []ipam.Node{cluster.ObserveNode(node).Evidence()}
	}
	return ipam.NewWorld(o)
}
