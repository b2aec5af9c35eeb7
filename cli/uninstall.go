package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends/whereabouts"
	"github.com/oakum-dev/oakum/certs"
)

func newUninstall(c *connection) *cobra.Command {
	var finalizersOnly, dryRun bool
	var stop string
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove webhooks, policies and finalizers, and verify that none is left",
		Long: `Remove webhooks, policies and finalizers, and verify that none is left. Stop the manager first, or with
--stop, or it puts finalizers on again. No allocation, block or pool is removed.

It works without any manager: this is the way out when pods hang because none runs.

Exit code 0: none is left. 1: something is left, or failed.`,
		Example: `  oakum uninstall --dry-run
  oakum uninstall --stop oakum-system/oakum
  oakum uninstall --finalizers-only`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := c.to()
			if err != nil {
				return err
			}
			u := uninstaller{client: client, dryRun: dryRun, out: cmd.OutOrStdout()}
			return u.uninstall(cmd.Context(), stop, finalizersOnly)
		},
	}
	cmd.Flags().StringVar(&stop, "stop", "", "scale the manager's `namespace/deployment` to zero, wait until its pods have ended, and remove its Leases and Secret")
	cmd.Flags().BoolVar(&finalizersOnly, "finalizers-only", false, "leave webhooks and policies in place")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be removed, and change nothing")
	return cmd
}

type uninstaller struct {
	client client.Client
	dryRun bool
	out    io.Writer
}

// uninstall takes the webhooks away before it stops the manager, which answers them: no write fails in between.
func (u uninstaller) uninstall(ctx context.Context, stop string, finalizersOnly bool) error {
	manager, err := parseDeployment(stop)
	if err != nil {
		return err
	}
	if !finalizersOnly {
		if err := u.remove(ctx, webhookConfigurations()); err != nil {
			return err
		}
	}
	if manager.Name != "" {
		if err := u.stop(ctx, manager); err != nil {
			return err
		}
		if err := u.clearOut(ctx, manager.Namespace); err != nil {
			return err
		}
	}
	if !finalizersOnly {
		if err := u.remove(ctx, policies()); err != nil {
			return err
		}
	}
	return u.removeFinalizers(ctx)
}

// parseDeployment reads the value of --stop; its zero value, if that is empty.
func parseDeployment(text string) (client.ObjectKey, error) {
	if text == "" {
		return client.ObjectKey{}, nil
	}
	namespace, name, found := strings.Cut(text, "/")
	if !found || namespace == "" || name == "" || strings.Contains(name, "/") {
		return client.ObjectKey{}, fmt.Errorf("reading --stop %q: must be NAMESPACE/DEPLOYMENT, as in oakum-system/oakum", text)
	}
	return client.ObjectKey{Namespace: namespace, Name: name}, nil
}

// patience is how long the manager's pods may take to end. One on a node that is cut off does not end at all.
const patience = 90 * time.Second

// stop scales a Deployment to zero and waits until its pods have ended. A Deployment that is gone has stopped.
func (u uninstaller) stop(ctx context.Context, key client.ObjectKey) error {
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	toZero := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":0}}`))
	var options []client.PatchOption
	if u.dryRun {
		options = append(options, client.DryRunAll)
	}
	switch err := u.client.Patch(ctx, deployment, toZero, options...); {
	case apierrors.IsNotFound(err):
		u.say("found no Deployment %s", key)
		return nil
	case err != nil:
		return fmt.Errorf("scaling Deployment %s to zero: %w", key, err)
	}
	u.say("scaled Deployment %s to zero", key)
	if u.dryRun {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(deployment.Spec.Selector)
	if err != nil {
		return fmt.Errorf("reading the selector of Deployment %s: %w", key, err)
	}
	var pods metav1.PartialObjectMetadataList
	pods.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	err = wait.PollUntilContextTimeout(ctx, time.Second, patience, true, func(ctx context.Context) (bool, error) {
		err := u.client.List(ctx, &pods, client.InNamespace(key.Namespace), client.MatchingLabelsSelector{Selector: selector})
		return len(pods.Items) == 0, err
	})
	switch {
	case err == nil:
		u.say("the manager has stopped")
	case wait.Interrupted(err) && ctx.Err() == nil:
		u.say("going on although pods of the manager have not ended: %s", names(pods.Items))
	default:
		return fmt.Errorf("waiting for the pods of Deployment %s to end: %w", key, err)
	}
	return nil
}

// clearOut removes what managers keep for themselves: claims to blocks, who leads, and the authorities of their certificates.
func (u uninstaller) clearOut(ctx context.Context, namespace string) error {
	all := []client.DeleteAllOfOption{client.InNamespace(namespace)}
	if u.dryRun {
		all = append(all, client.DryRunAll)
	}
	leader := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: leaderLease}}
	err := errors.Join(
		u.client.DeleteAllOf(ctx, &coordinationv1.Lease{}, append(all, client.MatchingLabels{v1alpha1.ClaimLabel: "true"})...),
		client.IgnoreNotFound(u.client.Delete(ctx, leader, u.deleteOptions()...)),
		u.client.DeleteAllOf(ctx, &corev1.Secret{}, append(all, client.MatchingLabels(certs.Labels()))...),
	)
	if err != nil {
		return fmt.Errorf("deleting the Leases and Secrets of managers in %s: %w", namespace, err)
	}
	u.say("deleted the Leases and Secrets of managers in %s", namespace)
	return nil
}

func names(objects []metav1.PartialObjectMetadata) string {
	var names []string
	for _, o := range objects {
		names = append(names, o.Name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// guards are our webhooks and policies.
func guards() []client.Object { return append(webhookConfigurations(), policies()...) }

// registrations returns the names of our webhook configurations, of either kind. Which of them are installed depends on what
// is guarded.
func registrations() (mutating, validating []string) {
	return []string{"oakum", "oakum-pods", "oakum-whereabouts"}, []string{"oakum", "oakum-calico", "oakum-coil", "oakum-whereabouts"}
}

func webhookConfigurations() (objects []client.Object) {
	mutating, validating := registrations()
	for _, name := range mutating {
		objects = append(objects, &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for _, name := range validating {
		objects = append(objects, &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return objects
}

func policies() (objects []client.Object) {
	for _, name := range []string{
		"finalizers." + v1alpha1.Group, "confinement." + v1alpha1.Group, "block-in-use." + v1alpha1.Group, "node-writer." + v1alpha1.Group,
		"allocation-unowned.calico.oakum.dev", "block-structure.calico.oakum.dev", "allocation-unowned.whereabouts.oakum.dev",
	} {
		objects = append(objects,
			&admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name}},
			&admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}},
		)
	}
	return objects
}

func (u uninstaller) remove(ctx context.Context, guards []client.Object) error {
	for _, o := range guards {
		kind := strings.TrimPrefix(fmt.Sprintf("%T", o), "*v1.")
		err := u.client.Delete(ctx, o, u.deleteOptions()...)
		switch {
		case client.IgnoreNotFound(err) != nil:
			return fmt.Errorf("deleting %s %s: %w", kind, o.GetName(), err)
		case err == nil:
			u.say("deleted %s %s", kind, o.GetName())
		}
	}
	return nil
}

func (u uninstaller) deleteOptions() []client.DeleteOption {
	if u.dryRun {
		return []client.DeleteOption{client.DryRunAll}
	}
	return nil
}

func (u uninstaller) say(format string, args ...any) {
	if u.dryRun {
		format = "would have " + format
	}
	fmt.Fprintf(u.out, format+"\n", args...)
}

// errLeft: exit code 1.
var errLeft = errors.New("finalizers are left")

// removeFinalizers goes through every object page by page, and then once more to verify.
func (u uninstaller) removeFinalizers(ctx context.Context) error {
	removed := 0
	err := u.each(ctx, func(o *metav1.PartialObjectMetadata) error {
		err := u.free(ctx, o)
		switch {
		case ctx.Err() != nil:
			return err
		case err != nil: // The others must not wait for it.
			fmt.Fprintln(u.out, err)
		default:
			removed++
		}
		return nil
	})
	if err != nil {
		return err
	}
	u.say("removed finalizers from %d objects", removed)
	if u.dryRun {
		return nil
	}
	left := 0
	if err := u.each(ctx, func(*metav1.PartialObjectMetadata) error { left++; return nil }); err != nil {
		return err
	}
	if left > 0 {
		return fmt.Errorf("%w: on %d objects: stop the manager and try again", errLeft, left)
	}
	fmt.Fprintln(u.out, "none is left")
	return nil
}

// each calls for every object that carries a finalizer of ours.
func (u uninstaller) each(ctx context.Context, do func(*metav1.PartialObjectMetadata) error) error {
	for _, kind := range []schema.GroupVersionKind{
		corev1.SchemeGroupVersion.WithKind("PodList"),
		corev1.SchemeGroupVersion.WithKind("NodeList"),
		v1alpha1.SchemeGroupVersion.WithKind("AddressBlockList"),
		v1alpha1.SchemeGroupVersion.WithKind("AddressPoolList"),
		whereabouts.GroupVersion.WithKind("IPPoolList"),
	} {
		for next := ""; ; {
			var list metav1.PartialObjectMetadataList
			list.SetGroupVersionKind(kind)
			err := u.client.List(ctx, &list, client.Limit(page), client.Continue(next))
			if meta.IsNoMatchError(err) {
				break // The kind was removed already, and its objects with it.
			}
			if err != nil {
				return fmt.Errorf("listing %s: %w", kind.Kind, err)
			}
			for i := range list.Items {
				o := &list.Items[i]
				o.SetGroupVersionKind(kind.GroupVersion().WithKind(strings.TrimSuffix(kind.Kind, "List")))
				if !slices.ContainsFunc(o.Finalizers, ours) {
					continue
				}
				if err := do(o); err != nil {
					return err
				}
			}
			if next = list.Continue; next == "" {
				break
			}
		}
	}
	return nil
}

func ours(finalizer string) bool { return strings.HasPrefix(finalizer, v1alpha1.Group+"/") }

// free takes our finalizers off one object. The annotation before it is what the policy asks for, in case it is there,
// and goes with them.
func (u uninstaller) free(ctx context.Context, o *metav1.PartialObjectMetadata) error {
	if u.dryRun {
		return nil
	}
	annotate := fmt.Sprintf(`{"metadata":{"uid":%q,"annotations":{%q:%q}}}`, o.UID, v1alpha1.ForceReleaseAnnotation, o.UID)
	for {
		err := u.client.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(annotate)))
		if err == nil {
			err = u.client.Patch(ctx, o, client.RawPatch(types.JSONPatchType, []byte(strip(o))))
		}
		switch {
		case apierrors.IsConflict(err): // Somebody else wrote in between.
		case client.IgnoreNotFound(err) != nil:
			return fmt.Errorf("taking the finalizers off %s %s: %w", o.Kind, client.ObjectKeyFromObject(o), err)
		default:
			return nil
		}
	}
}

// strip is the JSON patch that removes our finalizers and the annotation from an object as it was read.
func strip(o *metav1.PartialObjectMetadata) string {
	patch := []string{fmt.Sprintf(`{"op":"replace","path":"/metadata/resourceVersion","value":%q}`, o.ResourceVersion)}
	for i, f := range slices.Backward(o.Finalizers) {
		if ours(f) {
			patch = append(patch, fmt.Sprintf(`{"op":"remove","path":"/metadata/finalizers/%d"}`, i))
		}
	}
	annotation := strings.ReplaceAll(v1alpha1.ForceReleaseAnnotation, "/", "~1")
	patch = append(patch, fmt.Sprintf(`{"op":"remove","path":"/metadata/annotations/%s"}`, annotation))
	return "[" + strings.Join(patch, ",") + "]"
}
