package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
)

// Owners looks at those to whom addresses are to be given, and holds pods until they have given them back.
type Owners struct {
	Witness *cluster.Witness
	// Client patches pods.
	Client client.Client
	// ExcludedNamespaces are those whose pods are never held.
	ExcludedNamespaces []string
}

// check judges the owner of each added allocation: all of them from the cache first, then those of pods once more by
// what the API server answers to the patch that puts our finalizer on. The API server refuses to add a finalizer to
// an object that is being deleted, so an admitted allocation means that its pod will wait for it.
func (o Owners) check(ctx context.Context, added []ipam.Added, effects Effects, dryRun bool) ([]ipam.Problem, error) {
	var problems []ipam.Problem
	sound := added
	if effects.Of(ipam.AllocationOwner) != config.EffectOff {
		sound = nil
		for _, a := range added {
			more, err := o.checkOne(ctx, a)
			switch {
			case err != nil:
				return nil, err
			case len(more) == 0:
				sound = append(sound, a)
			}
			problems = append(problems, more...)
		}
	}
	if dryRun || !effects.HoldsPods() || effects.denies(problems) {
		return problems, nil
	}
	held := map[string]bool{}
	for _, a := range sound {
		if a.Owner.Kind != ipam.OwnerPod || held[a.Owner.UID] || slices.Contains(o.ExcludedNamespaces, a.Owner.Namespace) {
			continue
		}
		held[a.Owner.UID] = true
		more, err := o.hold(ctx, a)
		if err != nil {
			return nil, err
		}
		problems = append(problems, more...)
	}
	return problems, nil
}

// checkOne judges one owner. What the cache says against it is looked at once more, live: the cache may not know yet
// that a pod was scheduled, or recreated.
func (o Owners) checkOne(ctx context.Context, a ipam.Added) ([]ipam.Problem, error) {
	switch a.Owner.Kind {
	case ipam.OwnerPod:
		pod, err := o.Witness.Pod(ctx, podName(a.Owner))
		if err != nil {
			return nil, err
		}
		if len(a.CheckPod(evidence(pod))) == 0 {
			return nil, nil
		}
		return o.checkLivePod(ctx, a)
	case ipam.OwnerNode:
		node, err := o.Witness.Node(ctx, a.Owner.Name)
		if err != nil {
			return nil, err
		}
		if len(a.CheckNode(nodeEvidence(node))) == 0 {
			return nil, nil
		}
		if node, err = o.Witness.LiveNode(ctx, a.Owner.Name); err != nil {
			return nil, err
		}
		return a.CheckNode(nodeEvidence(node)), nil
	case ipam.OwnerVirtualMachine, ipam.OwnerService:
		owner, err := o.Witness.Other(ctx, a.Owner)
		if err != nil && !errors.Is(err, cluster.ErrNotServed) {
			return nil, err
		}
		return a.CheckOther(owner), nil
	case ipam.OwnerAgent, ipam.OwnerExternal:
	}
	return nil, nil
}

func (o Owners) checkLivePod(ctx context.Context, a ipam.Added) ([]ipam.Problem, error) {
	pod, err := o.Witness.LivePod(ctx, podName(a.Owner))
	if err != nil {
		return nil, err
	}
	return a.CheckPod(evidence(pod)), nil
}

// hold puts our finalizer on a pod and judges the pod that comes back: on one that has it already the patch changes
// nothing and succeeds, whatever became of the pod.
func (o Owners) hold(ctx context.Context, a ipam.Added) ([]ipam.Problem, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": a.Owner.UID, "finalizers": []string{v1alpha1.AddressesFinalizer},
	}})
	if err != nil {
		return nil, fmt.Errorf("encoding the finalizer's patch: %w", err)
	}
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: a.Owner.Namespace, Name: a.Owner.Name}}
	err = o.Client.Patch(ctx, &pod, client.RawPatch(types.StrategicMergePatchType, patch))
	switch {
	case apierrors.IsNotFound(err), apierrors.IsInvalid(err):
		problems, lookErr := o.checkLivePod(ctx, a)
		if len(problems) == 0 && lookErr == nil {
			// Nothing is wrong with the pod, so something else stands in the way of the patch, such as another webhook.
			return nil, fmt.Errorf("putting finalizer %s on pod %s/%s: %w", v1alpha1.AddressesFinalizer, pod.Namespace, pod.Name, err)
		}
		return problems, lookErr
	case err != nil:
		return nil, fmt.Errorf("putting finalizer %s on pod %s/%s: %w", v1alpha1.AddressesFinalizer, pod.Namespace, pod.Name, err)
	}
	return a.CheckPod(evidence(cluster.Observe(&pod))), nil
}

func podName(o ipam.Owner) types.NamespacedName {
	return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
}

func evidence(p *cluster.Pod) *ipam.Pod {
	if p == nil {
		return nil
	}
	e := p.Evidence()
	return &e
}

func nodeEvidence(n *cluster.Node) *ipam.Node {
	if n == nil {
		return nil
	}
	e := n.Evidence()
	return &e
}
