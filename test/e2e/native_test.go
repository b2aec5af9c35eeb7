//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/allocator"
	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/e2e/cluster"
	"github.com/oakum-dev/oakum/test/fixture"
)

// The pods here have an address by an AddressBlock beside the one that they use, as if an IPAM plugin of Oakum's had given
// it to them.

// nativeOnly are settings under which Oakum leaves Whereabouts alone.
const nativeOnly = `
backends: {whereabouts: {mode: "Off"}}
audit: {interval: 1s, gracePeriod: 2s, quarantine: 4s}
finalizers: {pods: {deadline: 1m}}
leaderElection: {enabled: false}
`

// subnet creates an AddressPool.
func (w *town) subnet(name, ipv4 string) {
	w.t.Helper()
	w.must(w.Client.Create(w.t.Context(), fixture.Pool(name, fixture.Subnet(ipv4, ""), fixture.BlockSize(5))))
}

// take gives a pod that runs an address of an AddressPool.
func (w *town) take(pool string, p *corev1.Pod) {
	w.t.Helper()
	_, err := allocator.Allocator{Client: w.Client}.Take(w.t.Context(), allocator.Request{
		Pool: pool, Node: cluster.Node, Handle: handle(p), Attributes: fixture.OfPod(p),
	})
	w.must(err)
}

// handle names the hand-out of a pod.
func handle(p *corev1.Pod) string { return string(p.UID) + "-eth0" }

// taken lists the pods that have an address of an AddressPool, sorted.
func (w *town) taken(ctx context.Context, pool string) ([]string, error) {
	var blocks v1alpha1.AddressBlockList
	err := w.Client.List(ctx, &blocks, client.MatchingFields{"spec.pool": pool})
	var pods []string
	for _, b := range blocks.Items {
		for _, a := range b.Spec.Allocations {
			pods = append(pods, a.Attributes.Namespace+"/"+a.Attributes.Name)
		}
	}
	slices.Sort(pods)
	return pods, err
}

// freed waits until no pod has an address of an AddressPool.
func (w *town) freed(pool string) {
	w.t.Helper()
	w.eventually("the pool is free", func(ctx context.Context) error {
		pods, err := w.taken(ctx, pool)
		if err == nil && len(pods) > 0 {
			err = fmt.Errorf("of pool %s these have addresses: %q", pool, pods)
		}
		return err
	})
}

// free tells whether a block has no allocation.
func free(f frame[*v1alpha1.AddressBlock]) bool { return len(f.object.Spec.Allocations) == 0 }

// story tells what a film shows of a pod: its phase, the grace period of its deletion, and whether Oakum holds it.
func story(frames []frame[*corev1.Pod]) []string {
	var texts []string
	for _, f := range frames {
		text := "gone"
		if f.event != watch.Deleted {
			text = string(f.object.Status.Phase)
			if grace := f.object.DeletionGracePeriodSeconds; grace != nil {
				text += fmt.Sprintf(", grace %d", *grace)
			}
			if held(f.object) {
				text += ", held"
			}
		}
		texts = append(texts, text)
	}
	return slices.Compact(texts)
}

// inOrder checks that versions of objects were written one after the other.
func (w *town) inOrder(versions ...client.Object) {
	w.t.Helper()
	for i := range len(versions) - 1 {
		before, after := versions[i], versions[i+1]
		order, err := resourceversion.CompareResourceVersion(before.GetResourceVersion(), after.GetResourceVersion())
		w.must(err)
		if order >= 0 {
			w.t.Errorf("write %d, %T at version %s, is not before write %d, %T at version %s",
				i+1, before, before.GetResourceVersion(), i+2, after, after.GetResourceVersion())
		}
	}
}

func gracefully(w *town) {
	w.guard(nativeOnly)
	w.subnet("graceful", "10.61.0.0/24")
	pod := cluster.Pod("default", "graceful")
	w.run(pod)
	if held(pod) {
		w.t.Error("the pod is held before it has an address of ours")
	}
	w.take("graceful", pod)
	pods, blocks := shoot[*corev1.Pod](w, &corev1.PodList{}, nil), shoot[*v1alpha1.AddressBlock](w, &v1alpha1.AddressBlockList{}, nil)
	w.delete(pod)
	w.gone(pod)
	w.freed("graceful")

	var frames []frame[*corev1.Pod]
	w.eventually("the end is seen", func(context.Context) error {
		if frames = pods.of(pod); frames[len(frames)-1].event != watch.Deleted {
			return fmt.Errorf("the story ends with %q", story(frames))
		}
		return nil
	})
	ended, _ := first(frames, func(f frame[*corev1.Pod]) bool { return f.object.Status.Phase == corev1.PodSucceeded })
	letGo, _ := first(frames, func(f frame[*corev1.Pod]) bool { return !held(f.object) })
	released, ok := first(blocks.of(fixture.Block("graceful", 0, cluster.Node)), free)
	if !ok || letGo.object == nil || ended.object == nil {
		w.t.Fatalf("the pod's story is %q", story(frames))
	}
	w.inOrder(ended.object, released.object, letGo.object)
	got := story(frames)
	want := []string{"Running, held", "Running, grace 5, held", "Succeeded, grace 5, held", "Succeeded, grace 5", "Succeeded, grace 0", "gone"}
	if len(got) > 3 && got[3] == "Succeeded, grace 0, held" {
		want = append(want[:3], "Succeeded, grace 0, held", "gone") // In one of many the kubelet is first.
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		w.t.Errorf("the pod's story (-want +got):\n%s", diff)
	}
	w.t.Logf("end reported, and %s later the address was free, %s the pod let go, %s gone",
		released.at.Sub(ended.at), letGo.at.Sub(ended.at), frames[len(frames)-1].at.Sub(ended.at))
}

func afterAJob(w *town) {
	w.guard(guarded)
	w.subnet("job", "10.62.0.0/24")
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "job"},
		Spec:       batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: cluster.PodSpec("-finish", "3s")}},
	}
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	w.must(w.Client.Create(w.t.Context(), job))
	var pod *corev1.Pod
	w.eventually("the job has a pod", func(ctx context.Context) error {
		var pods corev1.PodList
		err := w.Client.List(ctx, &pods, client.MatchingLabels{batchv1.JobNameLabel: job.Name})
		if err == nil && len(pods.Items) != 1 {
			return fmt.Errorf("it has %d", len(pods.Items))
		}
		pod = &pods.Items[0]
		return err
	})
	w.running(pod)
	w.take("job", pod)
	pods, blocks := shoot[*corev1.Pod](w, &corev1.PodList{}, nil), shoot[*v1alpha1.AddressBlock](w, &v1alpha1.AddressBlockList{}, nil)
	w.freed("job")
	w.expect("Whereabouts' record is gone too")
	w.eventually("the pod is let go", func(context.Context) error {
		if last := pods.of(pod); held(last[len(last)-1].object) {
			return fmt.Errorf("its story is %q", story(last))
		}
		return nil
	})
	ended, _ := first(pods.of(pod), func(f frame[*corev1.Pod]) bool { return f.object.Status.Phase == corev1.PodSucceeded })
	released, ok := first(blocks.of(fixture.Block("job", 0, cluster.Node)), free)
	if ended.object == nil || !ok {
		w.t.Fatalf("the pod's story is %q", story(pods.of(pod)))
	}
	w.inOrder(ended.object, released.object)
	w.t.Logf("the address was free %s after the end was reported", released.at.Sub(ended.at))
	if now := w.now(pod); now.UID != pod.UID || now.DeletionTimestamp != nil {
		w.t.Errorf("the pod is %s, deleted at %v; want it to stay", now.UID, now.DeletionTimestamp)
	}
	w.must(w.Client.Delete(w.t.Context(), job, client.PropagationPolicy(metav1.DeletePropagationBackground)))
	w.gone(pod)
}

func withItsNamespace(w *town) {
	const deadline = 10 * time.Second
	w.guard(strings.Replace(guarded, "deadline: 1m", "deadline: "+deadline.String(), 1))
	g := w.gauge()
	w.subnet("doomed", "10.63.0.0/24")
	namespace := w.namespace("doomed")
	var pods []*corev1.Pod
	for i := range 30 {
		pod := cluster.Pod(namespace.Name, fmt.Sprintf("doomed-%d", i))
		pod.Spec.TerminationGracePeriodSeconds = new(int64(2))
		pods = append(pods, pod)
	}
	w.run(pods...)
	for _, p := range pods {
		w.take("doomed", p)
	}
	records, err := w.everything(w.t.Context())
	w.must(err)
	film := shoot[*corev1.Pod](w, &corev1.PodList{}, nil, client.InNamespace(namespace.Name))

	w.must(w.RemoveWhereabouts())
	defer func() { w.must(w.RestoreWhereabouts()) }()
	w.must(w.Client.Delete(w.t.Context(), namespace))
	var latest time.Duration
	for _, p := range pods {
		w.eventually(p.Name+" is let go", func(context.Context) error {
			letGo, ok := first(film.of(p), func(f frame[*corev1.Pod]) bool { return !held(f.object) })
			if !ok {
				return fmt.Errorf("its story is %q", story(film.of(p)))
			}
			// The API has whole seconds.
			after := letGo.at.Sub(letGo.object.DeletionTimestamp.Time)
			if after < deadline-time.Second {
				w.t.Errorf("%s was let go %s after its deletion: what proved its end?", p.Name, after)
			}
			latest = max(latest, after)
			return nil
		})
	}
	if latest > deadline+5*time.Second {
		w.t.Errorf("the last pod was let go %s after its deletion, want %s", latest, deadline)
	}
	w.survives("while the plugin is away", g, looks)
	now, err := w.everything(w.t.Context())
	w.must(err)
	if diff := gocmp.Diff(records, now); diff != "" {
		w.t.Errorf("Whereabouts' records (-before +now):\n%s", diff)
	}
	if taken, err := w.taken(w.t.Context(), "doomed"); err != nil || len(taken) != len(pods) {
		w.t.Errorf("%d native addresses are taken (%v), want %d", len(taken), err, len(pods))
	}
	w.must(w.RestoreWhereabouts())
	w.gone(pods...)
	w.expect("all is given back")
	w.freed("doomed")
	w.t.Logf("the last of %d pods was let go %s after its deletionTimestamp, where the deadline was %s", len(pods), latest.Round(10*time.Millisecond), deadline)
}

// namespace creates a namespace that is ready for pods.
func (w *town) namespace(name string) *corev1.Namespace {
	w.t.Helper()
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	w.must(w.Client.Create(w.t.Context(), n))
	w.eventually("the namespace has a ServiceAccount", func(ctx context.Context) error {
		return w.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: "default"}, &corev1.ServiceAccount{})
	})
	return n
}
