//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/backends/whereabouts"
	"github.com/oakum-dev/oakum/test/e2e/cluster"
)

// full is how Whereabouts says that a range has no address left.
const full = "Could not allocate IP in range"

// scene plays a part of a test in a network of its own, which ends without a record. The first that fails is the last.
func (w *town) scene(name string, play func(w *town), ranges ...string) {
	w.t.Helper()
	ok := w.t.Run(name, func(t *testing.T) {
		v := *w
		v.t = t
		t.Cleanup(v.unguard)
		v.must(v.SetNetwork(cluster.Network{Ranges: ranges}))
		play(&v)
		v.expect("nothing is recorded in the end")
	})
	if !ok {
		w.t.FailNow()
	}
}

// stateful creates a StatefulSet of one pod, default/web-0, and returns what deletes it and waits until that pod is gone.
func (w *town) stateful() (remove func()) {
	w.t.Helper()
	labels := map[string]string{"app": "web"}
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "web"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(1)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: cluster.PodSpec()},
		},
	}
	w.must(w.Client.Create(w.t.Context(), set))
	return func() {
		w.t.Helper()
		pod := w.bearer("web-0", "")
		w.must(w.Client.Delete(w.t.Context(), set, client.PropagationPolicy(metav1.DeletePropagationForeground)))
		w.gone(pod)
	}
}

// bearer waits until a pod in default bears the name that is not that one, and returns it.
func (w *town) bearer(name string, not types.UID) *corev1.Pod {
	w.t.Helper()
	pod := &corev1.Pod{}
	w.eventually("there is another "+name, func(ctx context.Context) error {
		err := w.Client.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: name}, pod)
		if err == nil && pod.UID == not {
			err = fmt.Errorf("it is %s still, with the finalizers %v", not, pod.Finalizers)
		}
		return err
	})
	return pod
}

// hangs waits until a pod, which has no address, is told by the kubelet why.
func (w *town) hangs(pod *corev1.Pod, why string) {
	w.t.Helper()
	w.eventually(pod.Name+" hangs", func(ctx context.Context) error {
		var now corev1.Pod
		if err := w.Client.Get(ctx, key(pod), &now); err != nil {
			return err
		}
		if now.UID != pod.UID || now.Status.Phase != corev1.PodPending || now.Status.PodIP != "" {
			return fmt.Errorf("%s is %s, with the address %q", now.Name, now.Status.Phase, now.Status.PodIP)
		}
		notes, err := w.notes(ctx, pod, "FailedCreatePodSandBox")
		if err == nil && !slices.ContainsFunc(notes, func(n string) bool { return strings.Contains(n, why) }) {
			err = fmt.Errorf("the kubelet says %q", notes)
		}
		return err
	})
}

// notes returns what Events with that reason say about a pod.
func (w *town) notes(ctx context.Context, pod *corev1.Pod, reason string) ([]string, error) {
	var events corev1.EventList
	err := w.Client.List(ctx, &events, client.InNamespace(pod.Namespace),
		client.MatchingFields{"involvedObject.uid": string(pod.UID), "reason": reason})
	notes := make([]string, len(events.Items))
	for i, e := range events.Items {
		notes[i] = e.Message
	}
	return notes, err
}

// told waits until an Event with that reason about a pod says so.
func (w *town) told(pod *corev1.Pod, reason, note string) {
	w.t.Helper()
	w.eventually(reason+" is told", func(ctx context.Context) error {
		notes, err := w.notes(ctx, pod, reason)
		if err == nil && !slices.ContainsFunc(notes, func(n string) bool { return strings.Contains(n, note) }) {
			err = fmt.Errorf("Events about %s with the reason %s say %q", pod.Name, reason, notes)
		}
		return err
	})
}

// enter changes entries of an IPPool by hand; a nil one is removed. Fields that an entry does not name stay.
func (w *town) enter(pool string, entries map[string]map[string]any) {
	w.t.Helper()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"allocations": entries}})
	w.must(err)
	object := &whereabouts.IPPool{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: pool}}
	w.must(w.records.Patch(w.t.Context(), object, client.RawPatch(types.MergePatchType, patch)))
}

// pool creates an IPPool without entries, as Whereabouts does at the first ADD.
func (w *town) pool(name, subnet string) {
	w.t.Helper()
	w.must(w.records.Create(w.t.Context(), &whereabouts.IPPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: name},
		Spec:       whereabouts.IPPoolSpec{Range: subnet, Allocations: map[string]whereabouts.Entry{}},
	}))
}

// reserve writes a reservation by hand.
func (w *town) reserve(name, pod string) {
	w.t.Helper()
	w.must(w.records.Create(w.t.Context(), &whereabouts.OverlappingRangeIPReservation{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: name},
		Spec:       whereabouts.ReservationSpec{PodRef: pod, IfName: "eth0"},
	}))
}

// sandboxID is an entry's id that no sandbox has.
func sandboxID(n int) string { return fmt.Sprintf("%064x", n) }

// entry is what Whereabouts writes for a pod's sandbox.
func entry(id, pod string) map[string]any {
	return map[string]any{"id": id, "podref": pod, "ifname": "eth0"}
}

// forbid takes from Whereabouts the right to do something with its records, and returns what gives it back. Both wait until
// the API server heeds it.
func (w *town) forbid(resource, verb string) (allow func()) {
	w.t.Helper()
	role := &rbacv1.ClusterRole{}
	w.must(w.Client.Get(w.t.Context(), client.ObjectKey{Name: "whereabouts-cni"}, role))
	was := role.DeepCopy().Rules
	i := slices.IndexFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, resource) })
	less := *role.Rules[i].DeepCopy()
	less.Resources = []string{resource}
	less.Verbs = slices.DeleteFunc(less.Verbs, func(v string) bool { return v == verb })
	role.Rules[i].Resources = slices.DeleteFunc(role.Rules[i].Resources, func(r string) bool { return r == resource })
	set := func(rules []rbacv1.PolicyRule, allowed bool) {
		w.t.Helper()
		w.must(w.Client.Get(w.t.Context(), key(role), role))
		role.Rules = rules
		w.must(w.Client.Update(w.t.Context(), role))
		w.eventually("the API server heeds the right", func(ctx context.Context) error {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: "system:serviceaccount:kube-system:whereabouts",
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: metav1.NamespaceSystem, Verb: verb, Group: whereabouts.GroupVersion.Group, Resource: resource,
				},
			}}
			err := w.Client.Create(ctx, review)
			if err == nil && review.Status.Allowed != allowed {
				err = fmt.Errorf("it may %s %s: %v", verb, resource, review.Status.Allowed)
			}
			return err
		})
	}
	rest := slices.DeleteFunc(role.DeepCopy().Rules, func(r rbacv1.PolicyRule) bool { return len(r.Resources) == 0 })
	set(append(rest, less), false)
	return func() {
		w.t.Helper()
		set(was, true)
	}
}

// refusals returns the errors of the plugin's calls for a pod.
func (w *town) refusals(pod *corev1.Pod) []string {
	w.t.Helper()
	calls, err := w.Plugin.Calls()
	w.must(err)
	var texts []string
	for _, c := range calls {
		if c.UID == string(pod.UID) && c.Error != "" {
			texts = append(texts, c.Command+": "+c.Error)
		}
	}
	return texts
}

// force deletes pods as kubectl delete --force does.
func (w *town) force(pods ...*corev1.Pod) {
	w.t.Helper()
	for _, p := range pods {
		w.must(client.IgnoreNotFound(w.Client.Delete(w.t.Context(), p, client.GracePeriodSeconds(0))))
	}
}

func key(o client.Object) client.ObjectKey { return client.ObjectKeyFromObject(o) }

// exists tells whether the very pod is still there.
func (w *town) exists(pod *corev1.Pod) bool {
	w.t.Helper()
	var now corev1.Pod
	err := w.Client.Get(w.t.Context(), key(pod), &now)
	w.must(client.IgnoreNotFound(err))
	return !apierrors.IsNotFound(err) && now.UID == pod.UID
}
