//go:build e2e

package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/allocator"
	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/e2e/cluster"
	"github.com/oakum-dev/oakum/test/fixture"
)

const (
	release   = "oakum"
	namespace = "oakum-system"
	image     = "ghcr.io/oakum-dev/oakum"
)

// quick are values with a short patience.
func quick() []string {
	return []string{"config.audit.interval=1s", "config.audit.gracePeriod=2s", "config.audit.quarantine=4s"}
}

// install installs the chart as the README says, waits as helm does, and returns what it prints.
func (p *place) install(set ...string) string {
	p.t.Helper()
	p.image()
	return p.helm(append([]string{"install", release, p.chart(), "--create-namespace", "--wait", "--timeout", "2m"}, values(set)...)...)
}

// image gives the node Oakum's image, as Dockerfile makes it.
func (p *place) image() {
	p.t.Helper()
	root, err := controlplane.Root()
	p.must(err)
	p.must(p.Import(p.t.Context(), image+":test", filepath.Join(root, "bin", "oakum")))
}

// upgrade gives the release these values in place of those that it has. It overwrites what scale has set, which Helm does not
// do by itself.
func (p *place) upgrade(set ...string) {
	p.t.Helper()
	p.helm(append([]string{"upgrade", release, p.chart(), "--reset-values", "--force-conflicts", "--wait", "--timeout", "2m"}, values(set)...)...)
}

func values(set []string) (args []string) {
	for _, s := range append([]string{"image.tag=test"}, set...) {
		args = append(args, "--set", s)
	}
	return args
}

func (p *place) chart() string {
	p.t.Helper()
	root, err := controlplane.Root()
	p.must(err)
	return filepath.Join(root, "charts", "oakum")
}

// helm runs helm for the namespace, and returns what it prints.
func (p *place) helm(args ...string) string {
	p.t.Helper()
	root, err := controlplane.Root()
	p.must(err)
	out, err := p.run(filepath.Join(root, "bin", "helm"), append(args, "--namespace", namespace)...)
	if err != nil {
		p.t.Fatalf("helm %s: %v\n%s\n%s", args[0], err, out, p.logs())
	}
	return out
}

// oakum runs the command line from outside of the cluster, and returns what it prints.
func (p *place) oakum(args ...string) string {
	p.t.Helper()
	root, err := controlplane.Root()
	p.must(err)
	out, err := p.run(filepath.Join(root, "bin", "oakum"), args...)
	if err != nil {
		p.t.Fatalf("oakum %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (p *place) run(program string, args ...string) (string, error) {
	cmd := exec.CommandContext(p.t.Context(), program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+p.Kubeconfig, "HELM_CACHE_HOME="+p.dir, "HELM_CONFIG_HOME="+p.dir, "HELM_DATA_HOME="+p.dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// logs are the last lines of what each container in Oakum's namespace printed.
func (p *place) logs() string {
	files, err := filepath.Glob(filepath.Join(p.dir, "kubelet", "logs", namespace+"_*", "*", "*.log"))
	var b strings.Builder
	for _, file := range files {
		text, readErr := os.ReadFile(file)
		err = errors.Join(err, readErr)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		fmt.Fprintf(&b, "%s:\n%s\n", strings.TrimPrefix(file, p.dir), strings.Join(lines[max(0, len(lines)-5):], "\n"))
	}
	p.must(err)
	return b.String()
}

// leader waits until there is one, and returns the name of its pod.
func (p *place) leader() (pod string) {
	p.t.Helper()
	p.eventually("there is a leader", func(ctx context.Context) error {
		var lease coordinationv1.Lease
		if err := p.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "oakum-leader"}, &lease); err != nil {
			return err
		}
		if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
			return errors.New("nobody holds the Lease")
		}
		pod, _, _ = strings.Cut(*lease.Spec.HolderIdentity, "_")
		return nil
	})
	return pod
}

// replicas are the manager's pods.
func (p *place) replicas(ctx context.Context) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := p.Client.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels{"app.kubernetes.io/component": "manager"})
	return pods.Items, err
}

// scale sets how many replicas there are, and waits until there are so many and all are ready.
func (p *place) scale(n int32) {
	p.t.Helper()
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: release}}
	p.must(p.Client.Patch(p.t.Context(), d, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n))))
	p.rolledOut()
}

// rolledOut waits until every replica is of the newest kind and ready, and no other is left.
func (p *place) rolledOut() {
	p.t.Helper()
	p.eventually("every replica is ready", func(ctx context.Context) error {
		var d appsv1.Deployment
		if err := p.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: release}, &d); err != nil {
			return err
		}
		if s, want := d.Status, *d.Spec.Replicas; s.ObservedGeneration != d.Generation || s.UpdatedReplicas != want || s.ReadyReplicas < want {
			return fmt.Errorf("of %d replicas %d are new, and %d are ready\n%s", want, s.UpdatedReplicas, s.ReadyReplicas, p.logs())
		}
		return nil
	})
	p.eventually("every other replica has ended", func(ctx context.Context) error {
		var d appsv1.Deployment
		err := p.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: release}, &d)
		pods, listErr := p.replicas(ctx)
		if err := errors.Join(err, listErr); err != nil {
			return err
		}
		if want := *d.Spec.Replicas; d.Status.ReadyReplicas != want || len(pods) != int(want) {
			return fmt.Errorf("of %d replicas %d are ready, and there are %d pods\n%s", want, d.Status.ReadyReplicas, len(pods), p.logs())
		}
		return nil
	})
}

// inhabit creates a pool and n pods that have addresses of it, in the namespace default.
func (p *place) inhabit(pool, subnet string, n int) []*corev1.Pod {
	p.t.Helper()
	p.eventually("the webhooks are called", func(ctx context.Context) error {
		return p.Client.Create(ctx, fixture.Pool(pool, fixture.Subnet(subnet, ""), fixture.BlockSize(5)))
	})
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		pods[i] = cluster.Pod("default", fmt.Sprintf("%s-%d", pool, i))
		p.must(p.Client.Create(p.t.Context(), pods[i]))
	}
	for _, pod := range pods {
		p.eventually(pod.Name+" runs", func(ctx context.Context) error {
			if err := p.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
				return err
			}
			if pod.Status.Phase != corev1.PodRunning {
				return fmt.Errorf("it is %s", pod.Status.Phase)
			}
			return nil
		})
		_, err := allocator.Allocator{Client: p.Client}.Take(p.t.Context(), allocator.Request{
			Pool: pool, Node: cluster.Node, Handle: string(pod.UID), Attributes: fixture.OfPod(pod),
		})
		p.must(err)
	}
	return pods
}

// remove deletes the pods.
func (p *place) remove(pods ...*corev1.Pod) {
	p.t.Helper()
	for _, pod := range pods {
		p.must(p.Client.Delete(p.t.Context(), pod, client.GracePeriodSeconds(1)))
	}
}

// freed waits until these pods are gone and the pool has no allocation.
func (p *place) freed(pool string, pods ...*corev1.Pod) {
	p.t.Helper()
	p.eventually("the pods of "+pool+" are gone and their addresses free", func(ctx context.Context) error {
		var left []string
		for _, pod := range pods {
			err := p.Client.Get(ctx, client.ObjectKeyFromObject(pod), &corev1.Pod{})
			if err == nil {
				left = append(left, pod.Name)
			} else if client.IgnoreNotFound(err) != nil {
				return err
			}
		}
		taken, err := p.taken(ctx, pool)
		if err == nil && len(left)+taken > 0 {
			err = fmt.Errorf("there are still %q, and %d allocations", left, taken)
		}
		return err
	})
}

func (p *place) taken(ctx context.Context, pool string) (n int, err error) {
	var blocks v1alpha1.AddressBlockList
	err = p.Client.List(ctx, &blocks)
	for _, b := range blocks.Items {
		if b.Spec.Pool == pool {
			n += len(b.Spec.Allocations)
		}
	}
	return n, err
}

// guards lists what is registered of Oakum's to judge writes.
func (p *place) guards(ctx context.Context) (found []string, err error) {
	for _, kind := range []string{
		"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
	} {
		objects, err := p.metadata(ctx, admissionregistrationv1.SchemeGroupVersion.WithKind(kind+"List"))
		if err != nil {
			return nil, err
		}
		for _, o := range objects {
			if strings.Contains(o.Name, "oakum") {
				found = append(found, kind+" "+o.Name)
			}
		}
	}
	return found, nil
}

// held lists what carries a finalizer of Oakum's.
func (p *place) held(ctx context.Context) (found []string, err error) {
	for _, kind := range []schema.GroupVersionKind{
		corev1.SchemeGroupVersion.WithKind("PodList"), corev1.SchemeGroupVersion.WithKind("NodeList"),
		v1alpha1.SchemeGroupVersion.WithKind("AddressPoolList"), v1alpha1.SchemeGroupVersion.WithKind("AddressBlockList"),
	} {
		objects, err := p.metadata(ctx, kind)
		if err != nil {
			return nil, err
		}
		for _, o := range objects {
			if slices.ContainsFunc(o.Finalizers, func(f string) bool { return strings.HasPrefix(f, v1alpha1.Group+"/") }) {
				found = append(found, strings.TrimSuffix(kind.Kind, "List")+" "+o.Name)
			}
		}
	}
	return found, nil
}

func (p *place) metadata(ctx context.Context, kind schema.GroupVersionKind) ([]metav1.PartialObjectMetadata, error) {
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(kind)
	err := p.Client.List(ctx, &list)
	return list.Items, err
}
