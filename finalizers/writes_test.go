package finalizers

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

// Every write costs, so each is counted: these and no others.
func TestWrites(t *testing.T) {
	ended := fixture.Pod("web-0", "n1", fixture.UID("u1"), running, held, deleted(time.Second), fixture.Ended)
	pair := func(b *v1alpha1.AddressBlock) { b.Spec.IPv6 = "fd00::/126" }
	tests := map[string]struct {
		objects []client.Object
		of      client.Object
		name    string
		want    []string
	}{
		"1 for a pod whose address the network plugin has given back": {
			objects: []client.Object{pool(), fixture.Node("n1"), ended.DeepCopy(), block("default", 0, "n1")},
			of:      &corev1.Pod{}, name: "default/web-0", want: []string{takingOff},
		},
		"1 more for each address that Oakum gives back": {
			objects: []client.Object{pool(), fixture.Node("n1"), ended.DeepCopy(), block("default", 0, "n1", fixture.Entry(1, "h1", fixture.OfPod(ended)))},
			of:      &corev1.Pod{}, name: "default/web-0", want: []string{giving, takingOff},
		},
		"no more for a pair of addresses": {
			objects: []client.Object{pool(), fixture.Node("n1"), ended.DeepCopy(), block("default", 0, "n1", pair, fixture.Entry(1, "h1", fixture.OfPod(ended)))},
			of:      &corev1.Pod{}, name: "default/web-0", want: []string{giving, takingOff},
		},
		"none for a pod that lives": {
			objects: []client.Object{pool(), fixture.Node("n1"), fixture.Pod("web-0", "n1", fixture.UID("u1"), running, held), block("default", 0, "n1", entry(1, "h1", "web-0", "u1"))},
			of:      &corev1.Pod{}, name: "default/web-0",
		},
		"none for a pod that waits": {
			objects: []client.Object{pool(), fixture.Node("n1"), fixture.Pod("web-0", "n1", fixture.UID("u1"), running, held, deleted(time.Minute)), block("default", 0, "n1", entry(1, "h1", "web-0", "u1"))},
			of:      &corev1.Pod{}, name: "default/web-0",
		},
		"1 to backfill a pod": {
			objects: []client.Object{pool(), fixture.Node("n1"), fixture.Pod("web-0", "n1", fixture.UID("u1"), running), block("default", 0, "n1", entry(1, "h1", "web-0", "u1"))},
			of:      &corev1.Pod{}, name: "default/web-0", want: []string{puttingOn},
		},
		"1 to hold a node": {
			objects: []client.Object{fixture.Node("n1")}, of: &corev1.Node{}, name: "n1", want: []string{puttingOnNode},
		},
		"1 to let a node go": {
			objects: []client.Object{fixture.Node("n1", heldNode, goingNode(0)), pool(), block("default", 0, "n1", entry(1, "h1", "web-0", "u1"))},
			of:      &corev1.Node{}, name: "n1", want: []string{takingOffNode},
		},
		"1 more for each of its empty blocks": {
			objects: []client.Object{fixture.Node("n1", heldNode, goingNode(0)), pool(), block("default", 0, "n1"), block("default", 1, "n1")},
			of:      &corev1.Node{}, name: "n1", want: []string{deleting("default-0"), deleting("default-1"), takingOffNode},
		},
		"1 for the status of a pool": {
			objects: []client.Object{pool(), block("default", 0, "n1", entry(1, "h1", "web-0", "u1"))},
			of:      &v1alpha1.AddressPool{}, name: "default",
			want: []string{tellingPool + ` {"metadata":{"resourceVersion":"<current>"},"status":{"allocated":1,"blocks":1,"capacity":256,"conditions":[` +
				`{"lastTransitionTime":"2026-11-30T12:00:00Z","message":"nodes can take blocks","observedGeneration":1,"reason":"Available","status":"True","type":"Ready"},` +
				`{"lastTransitionTime":"2026-11-30T12:00:00Z","message":"addresses can be had","observedGeneration":1,"reason":"AddressesFree","status":"False","type":"Exhausted"},` +
				`{"lastTransitionTime":"2026-11-30T12:00:00Z","message":"the pool is not being deleted","observedGeneration":1,"reason":"NotDeleted","status":"False","type":"Draining"}` +
				`],"observedGeneration":1}}`},
		},
		"1 to let a pool go": {
			objects: []client.Object{pool(goingPool(settle))}, of: &v1alpha1.AddressPool{}, name: "default", want: []string{droppingPool},
		},
		"1 for the status of a block": {
			objects: []client.Object{fixture.Node("n1"), pool(), block("default", 0, "n1", entry(1, "h1", "web-0", "u1"))},
			of:      &v1alpha1.AddressBlock{}, name: "default-0", want: []string{counting(`{"allocated":1,"free":3,"observedGeneration":1}`)},
		},
		"1 to let a block go": {
			objects: []client.Object{pool(), block("default", 0, "n1", going)}, of: &v1alpha1.AddressBlock{}, name: "default-0", want: []string{droppingBlock},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := play(t, tt.objects...)
			if diff := cmp.Diff(tt.want, s.outcome(tt.of, tt.name).Calls); diff != "" {
				t.Errorf("first look (-want +got):\n%s", diff)
			}
			s.catchUp()
			if diff := cmp.Diff([]string(nil), s.outcome(tt.of, tt.name).Calls); diff != "" {
				t.Errorf("second look (-want +got):\n%s", diff)
			}
		})
	}
}
