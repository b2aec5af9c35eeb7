package finalizers

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

// What is sent for pod web-0 and block default-0, and what is said.
const (
	puttingOn = `PATCH pods default/web-0 {"metadata":{"uid":"u1","finalizers":["ipam.oakum.dev/addresses"]}}`
	takingOff = `PATCH pods default/web-0 {"metadata":{"uid":"u1","$deleteFromPrimitiveList/finalizers":["ipam.oakum.dev/addresses"]}}`
	giving    = `PATCH addressblocks default-0 [{"op":"replace","path":"/metadata/resourceVersion","value":"<current>"},{"op":"remove","path":"/spec/allocations/0"}]`
	giving2   = `PATCH addressblocks default-0 [{"op":"replace","path":"/metadata/resourceVersion","value":"<current>"},{"op":"remove","path":"/spec/allocations/1"}]`
	released  = "Normal AddressReleased (Release) on Pod default/web-0 (uid u1) and AddressBlock default-0 spec.allocations{%[2]s}: released %[1]s (double, handle %[2]s): the kubelet reported the end of Pod default/web-0 (uid u1): Succeeded, every container terminated, sandbox down"
)

func TestPod(t *testing.T) {
	broken := errors.New("the API server is on fire")
	tests := map[string]struct {
		pod  []func(*corev1.Pod)
		node []func(*corev1.Node)
		// beside are more objects. Record is what the block of the node has; if it is nil, the pod's address.
		beside []client.Object
		record []func(*v1alpha1.AddressBlock)
		set    func(*Reconcilers)
		// unseen happens after the process has caught up.
		unseen func(*stage)
		fails  map[string]error
		want   outcome
	}{
		"E2 what the kubelet reported as ended gives its address back, and goes": {
			pod: []func(*corev1.Pod){held, deleted(time.Second), fixture.Ended},
			want: outcome{
				Calls:  []string{giving, takingOff},
				Events: []string{fmt.Sprintf(released, "10.0.0.1", "h1")},
			},
		},
		"E2 a finished Job's pod that nobody deletes gives its address back, and stays": {
			pod: []func(*corev1.Pod){held, fixture.Ended},
			want: outcome{
				Calls:  []string{giving, takingOff},
				Events: []string{fmt.Sprintf(released, "10.0.0.1", "h1")},
			},
		},
		"E2 what the network plugin has given back already costs one write": {
			pod: []func(*corev1.Pod){held, deleted(time.Second), fixture.Ended}, record: []func(*v1alpha1.AddressBlock){},
			want: outcome{Calls: []string{takingOff}},
		},
		"E3 what the network plugin has given back still waits for the kubelet": {
			pod: []func(*corev1.Pod){held, deleted(time.Second)}, record: []func(*v1alpha1.AddressBlock){},
			want: outcome{Again: 30 * time.Second, Held: "u1"},
		},
		"E4 an administrator's word gives the address back": {
			pod: []func(*corev1.Pod){held, deleted(time.Second)}, node: []func(*corev1.Node){fixture.NotReady, fixture.OutOfService},
			want: outcome{
				Calls:  []string{giving, takingOff},
				Events: []string{`Normal AddressReleased (Release) on Pod default/web-0 (uid u1) and AddressBlock default-0 spec.allocations{h1}: released 10.0.0.1 (double, handle h1): node "n1" is not ready and has the taint node.kubernetes.io/out-of-service`},
			},
		},
		"E4 a word that was taken back meanwhile gives nothing back": {
			pod: []func(*corev1.Pod){held, deleted(time.Second)}, node: []func(*corev1.Node){fixture.NotReady, fixture.OutOfService},
			unseen: func(s *stage) {
				change(s.store, fixture.Node("n1"), func(n *corev1.Node) { n.Status, n.Spec = fixture.Node("n1").Status, corev1.NodeSpec{} })
			},
			want: outcome{Again: 30 * time.Second, Held: "u1", Recorded: "h1"},
		},
		"E6 a node that is gone lets the pod go, and the address stays": {
			pod:    []func(*corev1.Pod){held, deleted(time.Second)},
			unseen: func(s *stage) { s.remove(fixture.Node("n1")); s.catchUp() },
			want: outcome{
				Calls:    []string{takingOff},
				Events:   []string{`Warning AddressesLeft (LetGo) on Pod default/web-0 (uid u1) and AddressBlock default-0 spec.allocations{h1}: let go (NodeGone), and 10.0.0.1 stays allocated: node "n1" is gone, and nobody says that the machine is off`},
				Recorded: "h1",
			},
		},
		"E6 a node that only the cache does not show is not gone": {
			pod: []func(*corev1.Pod){held, deleted(time.Second)},
			unseen: func(s *stage) {
				_, nodes := s.witness.Informers()
				s.must(nodes.GetIndexer().Delete(s.witness.CachedNode("n1")))
			},
			want: outcome{Again: 30 * time.Second, Held: "u1", Recorded: "h1"},
		},
		"E7 a pod that has not been long about it waits in silence": {
			pod:  []func(*corev1.Pod){held, deleted(10*time.Second - 1)},
			want: outcome{Again: 30 * time.Second, Held: "u1", Recorded: "h1"},
		},
		"E7 a pod that takes its time is told about": {
			pod: []func(*corev1.Pod){held, deleted(10 * time.Second)},
			want: outcome{
				Again:  30 * time.Second,
				Events: []string{`Normal AddressesHeld (Ending) on Pod default/web-0 (uid u1): waits to be proven gone: Pod default/web-0 (uid u1) is going, and the kubelet of node "n1" has not reported its end. Let go at 2026-11-30T12:09:50Z at the latest`},
				Held:   "u1", Recorded: "h1",
			},
		},
		"E8 a pod on a node that is not ready is told about at once": {
			pod: []func(*corev1.Pod){held, deleted(0)}, node: []func(*corev1.Node){fixture.NotReady},
			want: outcome{
				Again:  30 * time.Second,
				Events: []string{`Normal AddressesHeld (NodeNotReady) on Pod default/web-0 (uid u1): waits to be proven gone: Pod default/web-0 (uid u1) is going, and node "n1" is not ready: the sandbox may still run. Let go at 2026-11-30T12:10:00Z at the latest`},
				Held:   "u1", Recorded: "h1",
			},
		},
		"the deadline lets the pod go, and the address stays": {
			pod: []func(*corev1.Pod){held, deleted(10 * time.Minute)}, node: []func(*corev1.Node){fixture.NotReady},
			want: outcome{
				Calls:    []string{takingOff},
				Events:   []string{`Warning AddressesLeft (LetGo) on Pod default/web-0 (uid u1) and AddressBlock default-0 spec.allocations{h1}: let go (DeadlineExceeded), and 10.0.0.1 stays allocated: Pod default/web-0 (uid u1) is going, and node "n1" is not ready: the sandbox may still run`},
				Recorded: "h1",
			},
		},
		"E1 nothing recorded must be read live": {
			pod: []func(*corev1.Pod){held, deleted(0), unscheduled}, record: []func(*v1alpha1.AddressBlock){}, unseen: record,
			want: outcome{
				Again:  30 * time.Second,
				Events: []string{`Normal AddressesHeld (NodeUnknown) on Pod default/web-0 (uid u1): waits to be proven gone: Pod default/web-0 (uid u1) is going, and nothing is known about node "". Let go at 2026-11-30T12:10:00Z at the latest`},
				Held:   "u1", Recorded: "h1",
			},
		},
		"E1 a pod that never had a node goes at once": {
			pod: []func(*corev1.Pod){held, deleted(0), unscheduled}, record: []func(*v1alpha1.AddressBlock){},
			want: outcome{Calls: []string{takingOff}},
		},
		"E14 nothing recorded must be read live here too": {
			pod: []func(*corev1.Pod){held, silent}, record: []func(*v1alpha1.AddressBlock){}, unseen: record,
			want: outcome{Again: 30 * time.Second, Held: "u1", Recorded: "h1"},
		},
		"E14 a pod of which nobody tells the sandbox goes if nothing is recorded": {
			pod: []func(*corev1.Pod){held, silent}, record: []func(*v1alpha1.AddressBlock){},
			want: outcome{Calls: []string{takingOff}},
		},
		"a pod that has an address is held from now on": {
			pod:  []func(*corev1.Pod){},
			want: outcome{Calls: []string{puttingOn}, Held: "u1", Recorded: "h1"},
		},
		"a pod that has an address in an excluded namespace is not": {
			pod: []func(*corev1.Pod){}, set: func(r *Reconcilers) { r.Pod.ExcludedNamespaces = []string{"default"} },
			want: outcome{Recorded: "h1"},
		},
		"a pod that was deleted unseen is refused the finalizer, and looked at again": {
			pod:    []func(*corev1.Pod){func(p *corev1.Pod) { p.Finalizers = []string{"example.org/guard"} }},
			unseen: func(s *stage) { s.remove(fixture.Pod("web-0", "n1")) },
			want: outcome{
				Calls:    []string{puttingOn},
				Err:      `Pod "web-0" is invalid: metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted`,
				Recorded: "h1",
			},
		},
		"where pods are not to be held the finalizer comes off, and nothing else happens": {
			pod: []func(*corev1.Pod){held}, set: func(r *Reconcilers) { r.Pod.Wanted = false },
			want: outcome{Calls: []string{takingOff}, Recorded: "h1"},
		},
		"in an excluded namespace it comes off as well": {
			pod: []func(*corev1.Pod){held, deleted(0)}, set: func(r *Reconcilers) { r.Pod.ExcludedNamespaces = []string{"default"} },
			want: outcome{Calls: []string{takingOff}, Recorded: "h1"},
		},
		"what is recorded for another pod of that name is left alone": {
			pod:    []func(*corev1.Pod){held, deleted(0), fixture.Ended},
			record: []func(*v1alpha1.AddressBlock){entry(1, "h0", "web-0", "u0")},
			want:   outcome{Calls: []string{takingOff}, Recorded: "h0"},
		},
		"an address that a living pod names stays, and the pod goes": {
			pod:    []func(*corev1.Pod){held, deleted(0), fixture.Ended},
			beside: []client.Object{fixture.Pod("db-0", "n1", fixture.Running("10.0.0.1"))},
			want:   outcome{Calls: []string{takingOff}, Recorded: "h1"},
		},
		"an address that was handed to somebody else meanwhile stays, and the pod goes": {
			pod: []func(*corev1.Pod){held, deleted(0), fixture.Ended},
			unseen: func(s *stage) {
				change(s.store, fixture.Block("default", 0, "n1"), func(b *v1alpha1.AddressBlock) {
					b.Spec.Allocations = nil
					entry(1, "h2", "db-0", "u2")(b)
				})
			},
			want: outcome{Calls: []string{takingOff}, Recorded: "h2"},
		},
		"a release that fails keeps the pod": {
			pod: []func(*corev1.Pod){held, deleted(0), fixture.Ended}, fails: map[string]error{"PATCH addressblocks": broken},
			want: outcome{
				Calls:  []string{giving},
				Events: []string{`Warning AddressReleaseFailed (Release) on Pod default/web-0 (uid u1) and AddressBlock default-0 spec.allocations{h1}: releasing 10.0.0.1 (double, handle h1): releasing offset 1 of AddressBlock "default-0": the API server is on fire`},
				Err:    `releasing offset 1 of AddressBlock "default-0": the API server is on fire`,
				Held:   "u1", Recorded: "h1",
			},
		},
		"a webhook that makes the patch invalid is named": {
			pod: []func(*corev1.Pod){held, deleted(0), fixture.Ended}, record: []func(*v1alpha1.AddressBlock){},
			fails: map[string]error{"PATCH pods": apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "web-0", field.ErrorList{
				field.Forbidden(field.NewPath("spec"), `admission webhook "sidecar.example.org" changed what must not change`),
			})},
			want: outcome{
				Calls:  []string{takingOff},
				Events: []string{`Warning FinalizerStuck (LetGo) on Pod default/web-0 (uid u1): taking finalizer ipam.oakum.dev/addresses off: Pod "web-0" is invalid: spec: Forbidden: admission webhook "sidecar.example.org" changed what must not change`},
				Err:    `Pod "web-0" is invalid: spec: Forbidden: admission webhook "sidecar.example.org" changed what must not change`,
				Held:   "u1",
			},
		},
		"a pod that was replaced unseen is left alone": {
			pod: []func(*corev1.Pod){held, deleted(0), fixture.Ended}, record: []func(*v1alpha1.AddressBlock){},
			unseen: func(s *stage) {
				change(s.store, fixture.Pod("web-0", "n1"), func(p *corev1.Pod) { p.Finalizers = nil })
				s.put(fixture.Pod("web-0", "n1", fixture.UID("u2"), running, held))
			},
			want: outcome{Calls: []string{takingOff}, Held: "u2"},
		},
		"a pod that went unseen needs nothing any more": {
			pod: []func(*corev1.Pod){held, deleted(0), fixture.Ended}, record: []func(*v1alpha1.AddressBlock){},
			unseen: func(s *stage) {
				change(s.store, fixture.Pod("web-0", "n1"), func(p *corev1.Pod) { p.Finalizers = nil })
			},
			want: outcome{Calls: []string{takingOff}},
		},
		"a node that cannot be read proves nothing": {
			pod:    []func(*corev1.Pod){held, deleted(time.Second)},
			unseen: func(s *stage) { s.remove(fixture.Node("n1")); s.catchUp() },
			fails:  map[string]error{"GET nodes": broken},
			want:   outcome{Err: "reading node n1: the API server is on fire", Held: "u1", Recorded: "h1"},
		},
		"the deadline lets a pod go whose address cannot be given back": {
			pod: []func(*corev1.Pod){held, deleted(10 * time.Minute), fixture.Ended}, fails: map[string]error{"PATCH addressblocks": broken},
			want: outcome{
				Calls: []string{giving, takingOff},
				Events: []string{
					`Warning AddressReleaseFailed (Release) on Pod default/web-0 (uid u1) and AddressBlock default-0 spec.allocations{h1}: releasing 10.0.0.1 (double, handle h1): releasing offset 1 of AddressBlock "default-0": the API server is on fire`,
					`Warning AddressesLeft (LetGo) on Pod default/web-0 (uid u1) and AddressBlock default-0 spec.allocations{h1}: let go (DeadlineExceeded), and 10.0.0.1 stays allocated: releasing offset 1 of AddressBlock "default-0": the API server is on fire`,
				},
				Recorded: "h1",
			},
		},
		"the deadline lets a pod go whose node cannot be read": {
			pod:    []func(*corev1.Pod){held, deleted(10 * time.Minute)},
			unseen: func(s *stage) { s.remove(fixture.Node("n1")); s.catchUp() },
			fails:  map[string]error{"GET nodes": broken},
			want: outcome{
				Calls:    []string{takingOff},
				Events:   []string{`Warning AddressesLeft (LetGo) on Pod default/web-0 (uid u1) and AddressBlock default-0 spec.allocations{h1}: let go (DeadlineExceeded), and 10.0.0.1 stays allocated: reading node n1: the API server is on fire`},
				Recorded: "h1",
			},
		},
		"the deadline lets a pod go whose record cannot be read": {
			pod: []func(*corev1.Pod){held, deleted(10 * time.Minute), unscheduled}, record: []func(*v1alpha1.AddressBlock){},
			fails: map[string]error{"LIST addressblocks": broken},
			want:  outcome{Calls: []string{takingOff}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			pod := fixture.Pod("web-0", "n1", append([]func(*corev1.Pod){fixture.UID("u1"), running}, tt.pod...)...)
			if tt.record == nil {
				tt.record = []func(*v1alpha1.AddressBlock){fixture.Entry(1, "h1", fixture.OfPod(pod))}
			}
			objects := []client.Object{
				fixture.Node("n1", tt.node...), pod, pool(), block("default", 0, "n1", tt.record...),
			}
			s := newStage(t, append(objects, tt.beside...)...)
			if tt.set != nil {
				s.settings = append(s.settings, tt.set)
			}
			s.start()
			if tt.unseen != nil {
				tt.unseen(s)
			}
			if tt.fails != nil {
				s.fault = failing(tt.fails)
			}
			if diff := cmp.Diff(tt.want, s.outcome(pod, "default/web-0")); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
		})
	}
}

// record takes an address for pod web-0 of uid u1.
func record(s *stage) { change(s.store, block("default", 0, "n1"), entry(1, "h1", "web-0", "u1")) }
