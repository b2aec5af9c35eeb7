package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends/whereabouts"
	"github.com/oakum-dev/oakum/certs"
	"github.com/oakum-dev/oakum/test/fixture"
)

// installed is a cluster with all that an installation leaves behind, and some things that look like it.
func installed() []client.Object {
	objects := []client.Object{
		held(fixture.Pod("web", "n1"), "example.org/before", v1alpha1.AddressesFinalizer, "example.org/after"),
		held(fixture.Pod("other", "n1"), "example.org/after"),
		held(fixture.Node("n1"), v1alpha1.AddressesFinalizer),
		held(fixture.Pool("default", fixture.Subnet("10.0.0.0/30", "")), v1alpha1.PoolFinalizer),
		held(block(0, "n1", "10.0.0.0/30", "", fixture.Entry(1, "web-eth0", ofPod("web", "n1"))), v1alpha1.BlockFinalizer),
		held(&whereabouts.IPPool{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "range"}}, v1alpha1.PoolFinalizer),
		&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "oakum-of-somebody-else"}},
	}
	return append(objects, guards()...)
}

func held(o client.Object, finalizers ...string) client.Object {
	o.SetFinalizers(finalizers)
	o.SetUID(types.UID("uid-" + o.GetName()))
	return o
}

const deletions = `deleted MutatingWebhookConfiguration oakum
deleted MutatingWebhookConfiguration oakum-pods
deleted MutatingWebhookConfiguration oakum-whereabouts
deleted ValidatingWebhookConfiguration oakum
deleted ValidatingWebhookConfiguration oakum-calico
deleted ValidatingWebhookConfiguration oakum-coil
deleted ValidatingWebhookConfiguration oakum-whereabouts
deleted ValidatingAdmissionPolicyBinding finalizers.ipam.oakum.dev
deleted ValidatingAdmissionPolicy finalizers.ipam.oakum.dev
deleted ValidatingAdmissionPolicyBinding confinement.ipam.oakum.dev
deleted ValidatingAdmissionPolicy confinement.ipam.oakum.dev
deleted ValidatingAdmissionPolicyBinding block-in-use.ipam.oakum.dev
deleted ValidatingAdmissionPolicy block-in-use.ipam.oakum.dev
deleted ValidatingAdmissionPolicyBinding node-writer.ipam.oakum.dev
deleted ValidatingAdmissionPolicy node-writer.ipam.oakum.dev
deleted ValidatingAdmissionPolicyBinding allocation-unowned.calico.oakum.dev
deleted ValidatingAdmissionPolicy allocation-unowned.calico.oakum.dev
deleted ValidatingAdmissionPolicyBinding block-structure.calico.oakum.dev
deleted ValidatingAdmissionPolicy block-structure.calico.oakum.dev
deleted ValidatingAdmissionPolicyBinding allocation-unowned.whereabouts.oakum.dev
deleted ValidatingAdmissionPolicy allocation-unowned.whereabouts.oakum.dev
`

func TestUninstall(t *testing.T) {
	everything := append([]string{
		"AddressBlock default-0 [ipam.oakum.dev/allocations] 1 allocations",
		"AddressPool default [ipam.oakum.dev/blocks]",
		"IPPool range [ipam.oakum.dev/blocks]",
		"Node n1 [ipam.oakum.dev/addresses]",
		"Pod other [example.org/after]",
		"Pod web [example.org/before ipam.oakum.dev/addresses example.org/after]",
		"ValidatingWebhookConfiguration oakum-of-somebody-else []",
	}, guardNames()...)
	slices.Sort(everything)
	freed := []string{
		"AddressBlock default-0 [] 1 allocations",
		"AddressPool default []",
		"IPPool range []",
		"Node n1 []",
		"Pod other [example.org/after]",
		"Pod web [example.org/before example.org/after]",
		"ValidatingWebhookConfiguration oakum-of-somebody-else []",
	}
	justFreed := append(slices.Clone(freed), guardNames()...)
	slices.Sort(justFreed)
	tests := map[string]struct {
		objects []client.Object
		args    []string
		want    answer
		left    []string
	}{
		"guards and finalizers go, and records and what belongs to others stay": {
			objects: installed(),
			want:    answer{Stdout: deletions + "removed finalizers from 5 objects\nnone is left\n"},
			left:    freed,
		},
		"only finalizers go if only these are to": {
			objects: installed(),
			args:    []string{"--finalizers-only"},
			want:    answer{Stdout: "removed finalizers from 5 objects\nnone is left\n"},
			left:    justFreed,
		},
		"a dry run says the same and changes nothing": {
			objects: installed(),
			args:    []string{"--dry-run"},
			want:    answer{Stdout: wouldHave(deletions + "removed finalizers from 5 objects\n")},
			left:    everything,
		},
		"where nothing is installed nothing is done": {
			want: answer{Stdout: "removed finalizers from 0 objects\nnone is left\n"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := serve(t, interceptor.Funcs{}, tt.objects...)
			if diff := cmp.Diff(tt.want, command(t, c, newUninstall, tt.args...)); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.left, inventory(t, c)); diff != "" {
				t.Errorf("objects that are left (-want +got):\n%s", diff)
			}
		})
	}
}

// wouldHave puts the words before every line.
func wouldHave(lines string) string {
	return "would have " + strings.ReplaceAll(strings.TrimSuffix(lines, "\n"), "\n", "\nwould have ") + "\n"
}

func TestUninstallStopsTheManager(t *testing.T) {
	selector := map[string]string{"app": "oakum"}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "oakum-system", Name: "oakum"},
		Spec:       appsv1.DeploymentSpec{Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: selector}},
	}
	replica := func(name string) client.Object {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "oakum-system", Name: name, Labels: selector}}
	}
	const cleared = "deleted the Leases and Secrets of managers in oakum-system\n"
	end := cleared + "removed finalizers from 0 objects\nnone is left\n"
	tests := map[string]struct {
		objects []client.Object
		args    []string
		// after is how often the manager's pods are still seen.
		after int
		want  answer
	}{
		"and waits until its pods have ended": {
			objects: []client.Object{deployment, replica("oakum-a"), replica("oakum-b")},
			args:    []string{"--stop=oakum-system/oakum"},
			after:   3,
			want:    answer{Stdout: "scaled Deployment oakum-system/oakum to zero\nthe manager has stopped\n" + end},
		},
		"but not for ever: a node may be cut off": {
			objects: []client.Object{deployment, replica("oakum-b"), replica("oakum-a")},
			args:    []string{"--stop=oakum-system/oakum"},
			after:   1000,
			want: answer{Stdout: "scaled Deployment oakum-system/oakum to zero\n" +
				"going on although pods of the manager have not ended: oakum-a, oakum-b\n" + end},
		},
		"and goes on if it is gone": {
			args: []string{"--stop=oakum-system/oakum"},
			want: answer{Stdout: "found no Deployment oakum-system/oakum\n" + end},
		},
		"and waits for nothing on a dry run": {
			objects: []client.Object{deployment, replica("oakum-a")},
			args:    []string{"--stop=oakum-system/oakum", "--dry-run", "--finalizers-only"},
			after:   1000,
			want:    answer{Stdout: wouldHave("scaled Deployment oakum-system/oakum to zero\n" + cleared + "removed finalizers from 0 objects\n")},
		},
		"unless the flag's value names no namespace": {
			objects: []client.Object{deployment},
			args:    []string{"--stop=oakum"},
			want:    answer{Code: 1, Stderr: `oakum: reading --stop "oakum": must be NAMESPACE/DEPLOYMENT, as in oakum-system/oakum` + "\n"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				seen := 0
				c := serve(t, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					var o client.ListOptions
					o.ApplyOptions(opts)
					if o.Namespace == "oakum-system" {
						if seen++; seen > tt.after {
							opts = append(opts, client.InNamespace("empty"))
						}
					}
					return c.List(ctx, list, opts...)
				}}, tt.objects...)
				if diff := cmp.Diff(tt.want, command(t, c, newUninstall, tt.args...)); diff != "" {
					t.Errorf("answer (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestUninstallRemovesWhatManagersKeepForThemselves(t *testing.T) {
	in := func(o client.Object, namespace, name string, labels map[string]string) client.Object {
		o.SetNamespace(namespace)
		o.SetName(name)
		o.SetLabels(labels)
		return o
	}
	claim := map[string]string{v1alpha1.ClaimLabel: "true"}
	objects := []client.Object{
		in(&coordinationv1.Lease{}, "oakum-system", "block-1", claim),
		in(&coordinationv1.Lease{}, "oakum-system", "oakum-leader", nil),
		in(&coordinationv1.Lease{}, "oakum-system", "somebody-else", nil),
		in(&coordinationv1.Lease{}, "elsewhere", "block-1", claim),
		in(&corev1.Secret{}, "oakum-system", "oakum-webhook-ca", certs.Labels()),
		in(&corev1.Secret{}, "oakum-system", "pull-secret", nil),
	}
	c := serve(t, interceptor.Funcs{}, objects...)
	got := command(t, c, newUninstall, "--stop=oakum-system/oakum", "--finalizers-only")
	if want := (answer{Stdout: "found no Deployment oakum-system/oakum\ndeleted the Leases and Secrets of managers in oakum-system\nremoved finalizers from 0 objects\nnone is left\n"}); got != want {
		t.Errorf("answer (-want +got):\n%s", cmp.Diff(want, got))
	}
	var left []string
	for _, o := range objects {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o); err == nil {
			left = append(left, o.GetNamespace()+"/"+o.GetName())
		}
	}
	if diff := cmp.Diff([]string{"oakum-system/somebody-else", "elsewhere/block-1", "oakum-system/pull-secret"}, left); diff != "" {
		t.Errorf("objects that are left (-want +got):\n%s", diff)
	}
}

// Whatever stands in the way of a write once the manager is gone must go with it.
func TestUninstallKnowsEveryGuardThatIsInstalled(t *testing.T) {
	files, err := filepath.Glob("../config/*/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no manifests: %v", err)
	}
	var want []string
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for text := range bytes.SplitSeq(data, []byte("\n---\n")) {
			var object metav1.PartialObjectMetadata
			if err := yaml.Unmarshal(text, &object); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if strings.HasPrefix(object.APIVersion, admissionregistrationv1.GroupName+"/") {
				want = append(want, fmt.Sprintf("%s %s []", object.Kind, object.Name))
			}
		}
	}
	got := guardNames()
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("guards (-want +got):\n%s", diff)
	}
}

func guardNames() (names []string) {
	for _, o := range guards() {
		names = append(names, fmt.Sprintf("%s %s []", strings.TrimPrefix(fmt.Sprintf("%T", o), "*v1."), o.GetName()))
	}
	return names
}

// inventory lists all objects with their finalizers, sorted.
func inventory(t *testing.T, c client.Client) (found []string) {
	t.Helper()
	for _, list := range []client.ObjectList{
		&v1alpha1.AddressBlockList{}, &v1alpha1.AddressPoolList{}, &corev1.NodeList{}, &corev1.PodList{}, &whereabouts.IPPoolList{},
		&admissionregistrationv1.MutatingWebhookConfigurationList{}, &admissionregistrationv1.ValidatingWebhookConfigurationList{},
		&admissionregistrationv1.ValidatingAdmissionPolicyList{}, &admissionregistrationv1.ValidatingAdmissionPolicyBindingList{},
	} {
		gvk, err := c.GroupVersionKindFor(list)
		if err != nil {
			t.Fatal(err)
		}
		var objects metav1.PartialObjectMetadataList
		objects.SetGroupVersionKind(gvk)
		if err := errors.Join(c.List(t.Context(), list), c.List(t.Context(), &objects)); err != nil {
			t.Fatal(err)
		}
		for i, o := range objects.Items {
			text := fmt.Sprintf("%s %s %v", strings.TrimSuffix(gvk.Kind, "List"), o.Name, o.Finalizers)
			if blocks, ok := list.(*v1alpha1.AddressBlockList); ok {
				text += fmt.Sprintf(" %d allocations", len(blocks.Items[i].Spec.Allocations))
			}
			if len(o.Annotations) > 0 {
				text += fmt.Sprintf(" %v", o.Annotations)
			}
			found = append(found, text)
		}
	}
	slices.Sort(found)
	return found
}

func TestUninstallSeesEveryPage(t *testing.T) {
	var objects []client.Object
	for i := range 7 {
		objects = append(objects, held(fixture.Pod("web-"+strconv.Itoa(i), "n1"), v1alpha1.AddressesFinalizer))
	}
	var asked []string
	c := serve(t, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		var o client.ListOptions
		o.ApplyOptions(opts)
		if err := c.List(ctx, list); err != nil {
			return err
		}
		objects, ok := list.(*metav1.PartialObjectMetadataList)
		if !ok || objects.Kind != "PodList" {
			return nil
		}
		asked = append(asked, fmt.Sprintf("%d from %q", o.Limit, o.Continue))
		from, _ := strconv.Atoi(o.Continue) // The first page has none.
		to := min(from+3, len(objects.Items))
		if to < len(objects.Items) {
			list.SetContinue(strconv.Itoa(to))
		}
		objects.Items = objects.Items[from:to]
		return nil
	}}, objects...)
	want := answer{Stdout: "removed finalizers from 7 objects\nnone is left\n"}
	if diff := cmp.Diff(want, command(t, c, newUninstall, "--finalizers-only")); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	pages := []string{`500 from ""`, `500 from "3"`, `500 from "6"`}
	if diff := cmp.Diff(append(pages, pages...), asked); diff != "" {
		t.Errorf("pages, once to remove and once to verify (-want +got):\n%s", diff)
	}
}

func TestUninstallGoesOn(t *testing.T) {
	left := "oakum: finalizers are left: on 1 objects: stop the manager and try again\n"
	tests := map[string]struct {
		patch func(tries int, o client.Object) error
		want  answer
	}{
		"when an object cannot be changed, and names it": {
			patch: func(_ int, o client.Object) error {
				if o.GetName() == "n1" {
					return errors.New("a webhook says no")
				}
				return nil
			},
			want: answer{
				Code: 1, Stderr: left,
				Stdout: "taking the finalizers off Node /n1: a webhook says no\nremoved finalizers from 4 objects\n",
			},
		},
		"when somebody else wrote in between, by trying again": {
			patch: func(tries int, o client.Object) error {
				if tries < 10 && o.GetName() == "web" {
					return apierrors.NewConflict(schema.GroupResource{}, "web", nil)
				}
				return nil
			},
			want: answer{Stdout: "removed finalizers from 5 objects\nnone is left\n"},
		},
		"when an object goes meanwhile": {
			patch: func(tries int, o client.Object) error {
				if tries < 2 {
					return apierrors.NewNotFound(schema.GroupResource{}, o.GetName())
				}
				return nil
			},
			want: answer{Code: 1, Stderr: left, Stdout: "removed finalizers from 5 objects\n"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tries := 0
			c := serve(t, interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
				tries++
				if err := tt.patch(tries, o); err != nil {
					return err
				}
				return c.Patch(ctx, o, p, opts...)
			}}, installed()...)
			if diff := cmp.Diff(tt.want, command(t, c, newUninstall, "--finalizers-only")); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOurFinalizersGoWithOnePatchAndTheRestStays(t *testing.T) {
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: "17", Finalizers: []string{"ipam.oakum.dev/a", "example.org/b", "ipam.oakum.dev/c"},
	}}
	want := `[{"op":"replace","path":"/metadata/resourceVersion","value":"17"},` +
		`{"op":"remove","path":"/metadata/finalizers/2"},{"op":"remove","path":"/metadata/finalizers/0"},` +
		`{"op":"remove","path":"/metadata/annotations/ipam.oakum.dev~1force-release"}]`
	if diff := cmp.Diff(want, strip(o)); diff != "" {
		t.Errorf("patch (-want +got):\n%s", diff)
	}
}
