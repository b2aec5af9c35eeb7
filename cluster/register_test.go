package cluster

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/fixture"
)

// A record that does not tell its node is judged by what happened to every node while somebody watched.
func TestLiveLookWithoutANode(t *testing.T) {
	readySince := func(minute int) func(*corev1.Node) {
		return func(n *corev1.Node) {
			n.Status.Conditions[0].LastTransitionTime = metav1.NewTime(time.Date(2026, 11, 30, 12, minute, 0, 0, time.UTC))
		}
	}
	appear := func(n *corev1.Node) step {
		return func(t *testing.T, s *scene) { check(t, s.api.Create(t.Context(), n.DeepCopy())) }
	}
	vanish := func(n *corev1.Node) step {
		return func(t *testing.T, s *scene) { check(t, s.api.Delete(t.Context(), n.DeepCopy())) }
	}
	add := func(n *corev1.Node) step {
		return func(t *testing.T, s *scene) { s.nodes.Add(n.DeepCopy()); appear(n)(t, s) }
	}
	modify := func(n *corev1.Node) step {
		return func(t *testing.T, s *scene) { s.nodes.Modify(n.DeepCopy()); vanish(n)(t, s); appear(n)(t, s) }
	}
	remove := func(n *corev1.Node) step {
		return func(t *testing.T, s *scene) { s.nodes.Delete(n.DeepCopy()); vanish(n)(t, s) }
	}
	n1 := node("n1", "n1-uid", readySince(0))
	lost := node("n1", "n1-uid", readySince(1), fixture.NotReady)
	back := node("n1", "n1-uid", readySince(2))
	n2 := node("n2", "n2-uid", readySince(0))
	joining := node("n2", "n2-uid", readySince(0), fixture.NotReady)
	orphan := ipam.Verdict{
		Disposition: ipam.Orphan, Reason: ipam.OwnerGone, Evidence: "E10",
		Detail: "Pod default/web-0 does not exist, and every node that it can have been on is ready",
	}
	quarantine := ipam.Verdict{
		Disposition: ipam.Quarantine, Reason: ipam.OwnerGone, Evidence: "E10",
		Detail: "Pod default/web-0 does not exist, the record does not tell its node, and that may be gone",
	}
	silent := ipam.Verdict{
		Disposition: ipam.Keep, Reason: ipam.NodeNotReady, Evidence: "E10b",
		Detail: `Pod default/web-0 does not exist, the record does not tell its node, and node "n1" is not ready: the sandbox may still run there`,
	}
	waiting := silent
	waiting.Detail = strings.ReplaceAll(silent.Detail, "n1", "n2")
	record := ipam.Allocation{Handle: "c1", Owner: ipam.Owner{Kind: ipam.OwnerPod, Namespace: "default", Name: "web-0", ContainerID: "c1"}}
	ask := func(t *testing.T, s *scene) {
		_, err := s.LiveLook(t.Context(), record)
		check(t, err)
	}
	tests := map[string]struct {
		steps []step
		want  ipam.Verdict
		basis string
	}{
		"soon after the start a node may have gone before it": {[]step{add(n1), at(60)}, quarantine, "1 returns"},
		"a quarantine later none has":                         {[]step{add(n1), at(900)}, orphan, "1 returns"},
		"a node that goes begins another quarantine":          {[]step{add(n1), add(n2), at(900), remove(n2), at(1799)}, quarantine, "3 returns"},
		"which ends": {[]step{add(n1), add(n2), at(900), remove(n2), at(1800)}, orphan, "3 returns"},
		"and is something new to rest on, also during a quarantine": {[]step{add(n1), add(n2), at(60), remove(n2), at(90)}, quarantine, "3 returns"},
		"a node that is replaced by its namesake has gone":          {[]step{add(n1), at(900), modify(node("n1", "n1-uid-2", readySince(0))), at(1000)}, quarantine, "3 returns"},
		"one that comes back begins another quarantine too": {
			[]step{add(n1), add(n2), at(900), remove(n2), at(1700), add(n2), at(1800)}, quarantine, "4 returns",
		},
		"a node does not join that comes back, and may run it": {
			[]step{add(node("n0", "n0-uid", readySince(0))), add(n1), at(900), remove(n1), at(1000), add(lost), at(1900)}, silent, "",
		},
		"a node that is not ready may run it":                               {[]step{add(n1), at(900), modify(lost)}, silent, ""},
		"one that comes back is something new to rest on":                   {[]step{add(n1), at(900), modify(lost), modify(back)}, orphan, "2 returns"},
		"so is one that was away when nobody looked":                        {[]step{add(n1), at(900), modify(back)}, orphan, "2 returns"},
		"news of other things are none":                                     {[]step{add(n1), at(900), modify(node("n1", "n1-uid", readySince(0), fixture.OutOfService))}, orphan, "1 returns"},
		"one that may come from before the watching began does not join":    {[]step{add(n1), at(86399), add(joining), at(90000)}, waiting, ""},
		"a node that is cut off while the watch lags may run it":            {[]step{add(n1), at(900), vanish(n1), appear(lost)}, silent, ""},
		"one that is back while the watch lags is something new to rest on": {[]step{add(n1), at(900), vanish(n1), appear(back)}, orphan, "2 returns"},
		"one that goes while the watch lags begins another quarantine":      {[]step{add(n1), add(n2), at(900), vanish(n2)}, quarantine, "3 returns"},
		"a list of nodes is live for 10 s":                                  {[]step{add(n1), at(900), ask, vanish(n1), appear(lost), at(909)}, orphan, "1 returns"},
		"and no longer":                                                     {[]step{add(n1), at(900), ask, vanish(n1), appear(lost), at(910)}, silent, ""},
		"so does one that came and went while the watch lagged, of which a pod tells": {
			[]step{add(n1), at(900), func(t *testing.T, s *scene) {
				s.pods.Add(pod("web-1", "n2", "u1"))
				synctest.Wait()
				_, _, err := s.World(t.Context(), nil)
				check(t, err)
			}}, quarantine, "2 returns",
		},
		"a node that joins runs nothing yet":                       {[]step{add(n1), at(86400), add(joining)}, orphan, "1 returns"},
		"and has not returned when it is ready for the first time": {[]step{add(n1), at(86400), add(joining), modify(node("n2", "n2-uid", readySince(1)))}, orphan, "1 returns"},
		"but when it is for the second time": {
			[]step{
				add(n1), at(86400), add(joining), modify(n2),
				modify(node("n2", "n2-uid", readySince(1), fixture.NotReady)), modify(node("n2", "n2-uid", readySince(2))),
			},
			orphan, "2 returns",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			perform(t, func(t *testing.T, s *scene) {
				for _, step := range tt.steps {
					step(t, s)
					synctest.Wait()
				}
				world, err := s.LiveLook(t.Context(), record)
				check(t, err)
				want := ipam.Judgement{Allocation: record, Verdict: tt.want, Basis: tt.basis}
				if diff := difference(want, ipam.Consider(record, world)); diff != "" {
					t.Errorf("judgement (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A pod that waits on the node may get an address of the block, although it names none.
func TestLiveLookAtABlockSeesThePodsOfItsNode(t *testing.T) {
	perform(t, func(t *testing.T, s *scene) {
		for _, n := range []*corev1.Node{node("n1", "n1-uid"), node("n2", "n2-uid")} {
			check(t, s.api.Create(t.Context(), n))
		}
		block := func(node string) ipam.Allocation {
			return ipam.Allocation{Handle: node, Owner: ipam.Owner{Kind: ipam.OwnerAgent, Name: node, Node: node}, Places: []ipam.Place{{Addresses: addrs("10.0.0.1")}}}
		}
		s.pods.Add(pod("web-0", "n1", "u1"))
		synctest.Wait()
		for node, want := range map[string]ipam.Reason{"n1": ipam.PodWaits, "n2": ipam.Unused} {
			world, err := s.LiveLook(t.Context(), block(node))
			check(t, err)
			if got := ipam.Judge(block(node), world); got.Reason != want {
				t.Errorf("block of %s: %+v, want %s", node, got, want)
			}
		}
	})
}
