package coil

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/ipam"
)

const (
	// rest is for how long a coild that was started runs on.
	rest = time.Hour
	// evicting is how long an eviction may take: a client tries for more than a minute if the API server has not looked at a
	// new PodDisruptionBudget yet.
	evicting = 5 * time.Second
)

var _ backends.Restarter = (*Backend)(nil)

// Restart implements backends.Restarter. It evicts the coild of the block's node, which PodDisruptionBudgets may forbid. A
// coild is not restarted before it is an hour old, nor while another one that is younger is not ready; a Pod tells both, so
// this holds for all replicas and whenever they started.
func (b *Backend) Restart(ctx context.Context, a ipam.Allocation) (refusal string, err error) {
	if a.Owner.Kind != ipam.OwnerAgent || len(a.Places) != 1 {
		return "", fmt.Errorf("restarting the coild that has %s: its record does not tell the node", a.Handle)
	}
	switch block, err := b.standing(ctx, a); {
	case err != nil:
		return "", err
	case block == nil:
		return "", fmt.Errorf("AddressBlock %q is gone: %w", a.Places[0].Block, backends.ErrStale)
	}
	pods, err := b.coilds(ctx)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == a.Owner.Node })
	if i < 0 {
		return "", fmt.Errorf("restarting coild on node %q: no pod in namespace %q with the labels %v is there", a.Owner.Node, b.coild.Namespace, b.coild.Labels)
	}
	own := pods[i]
	if age := b.age(own.CreationTimestamp); age < rest {
		return fmt.Sprintf("pod %s/%s is %s old, and it must be %s", own.Namespace, own.Name, age.Truncate(time.Second), rest), nil
	}
	if i := slices.IndexFunc(pods, b.starting); i >= 0 {
		return fmt.Sprintf("pod %s/%s on node %q is not ready yet, and one restarts at a time", pods[i].Namespace, pods[i].Name, pods[i].Spec.NodeName), nil
	}
	ctx, cancel := context.WithTimeout(ctx, evicting)
	defer cancel()
	err = b.writer.SubResource("eviction").Create(ctx, &own, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: own.Namespace, Name: own.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(own.UID))},
	})
	if err != nil {
		return "", fmt.Errorf("evicting coild %s/%s on node %q: %w", own.Namespace, own.Name, a.Owner.Node, err)
	}
	return "", nil
}

// coilds lists the coild of every node.
func (b *Backend) coilds(ctx context.Context) ([]corev1.Pod, error) {
	var pods []corev1.Pod
	for next := ""; ; {
		var list corev1.PodList
		err := b.live.List(ctx, &list, client.InNamespace(b.coild.Namespace), client.MatchingLabels(b.coild.Labels), client.Limit(500), client.Continue(next))
		if err != nil {
			return nil, fmt.Errorf("listing the pods of coild: %w", err)
		}
		pods = append(pods, list.Items...)
		if next = list.Continue; next == "" {
			return pods, nil
		}
	}
}

// starting tells whether a coild is being replaced, or was a short while ago and is not ready. One that has not been ready
// for long holds nothing up: its node may be lost.
func (b *Backend) starting(p corev1.Pod) bool {
	if p.DeletionTimestamp != nil {
		return b.age(*p.DeletionTimestamp) < rest
	}
	ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	return !ready && b.age(p.CreationTimestamp) < rest
}

func (b *Backend) age(since metav1.Time) time.Duration { return b.coild.Now().Sub(since.Time) }
