package webhooks

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
)

// Claims keeps, in Leases, which block each node may get next from each pool.
type Claims struct {
	Client client.Client
	// Live reads Leases without a cache.
	Live client.Reader
	// Namespace is that of the Leases.
	Namespace string
	Clock     cluster.Clock
}

// claimTries is how often a claim is looked at that changes under one's hands: the manager removes those that are over,
// and other creations of the node replace them.
const claimTries = 5

// take makes the node's claim name this block, or returns why it cannot. It decides between concurrent creations: of
// those that try, one creates or replaces the Lease. On a dry run it answers the same and writes nothing.
func (c Claims) take(ctx context.Context, b ipam.Block, nodeUID string, pool ipam.Pool, records backends.Blocks, dryRun bool) ([]ipam.Problem, error) {
	want := ipam.Claim{Block: b.Name, BlockUID: b.UID}
	fresh := coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   c.Namespace,
			Name:        ipam.ClaimName(b.Pool, b.Node),
			Labels:      map[string]string{v1alpha1.ClaimLabel: "true"},
			Annotations: map[string]string{v1alpha1.NodeUIDAnnotation: nodeUID},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new(want.String()),
			AcquireTime:    &metav1.MicroTime{Time: c.Clock().Wall},
		},
	}
	for range claimTries {
		if !dryRun {
			switch err := c.Client.Create(ctx, fresh.DeepCopy()); {
			case err == nil:
				return nil, nil
			case !apierrors.IsAlreadyExists(err):
				return nil, fmt.Errorf("creating the claim of node %q on pool %q: %w", b.Node, b.Pool, err)
			}
		}
		var lease coordinationv1.Lease
		switch err := c.Live.Get(ctx, client.ObjectKeyFromObject(&fresh), &lease); {
		case apierrors.IsNotFound(err) && dryRun:
			return nil, nil
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return nil, fmt.Errorf("reading the claim of node %q on pool %q: %w", b.Node, b.Pool, err)
		}
		problems, err := c.ask(ctx, lease, want, b, pool, records)
		if err != nil || len(problems) > 0 || dryRun {
			return problems, err
		}
		lease.Annotations, lease.Spec = fresh.Annotations, fresh.Spec
		switch err := c.Client.Update(ctx, &lease); {
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
			continue
		case err != nil:
			return nil, fmt.Errorf("taking over the claim of node %q on pool %q: %w", b.Node, b.Pool, err)
		}
		return nil, nil
	}
	return []ipam.Problem{pending(b, "another block", 0)}, nil
}

// ask returns why the claim that is there stands against the block; nothing if the claim may be replaced.
func (c Claims) ask(ctx context.Context, lease coordinationv1.Lease, want ipam.Claim, b ipam.Block, pool ipam.Pool, records backends.Blocks) ([]ipam.Problem, error) {
	claim := ipam.ParseClaim(ptr.Deref(lease.Spec.HolderIdentity, ""))
	var named *ipam.Block
	switch live, err := records.LiveBlock(ctx, claim.Block); {
	case claim.Block == "", errors.Is(err, backends.ErrNotFound):
	case err != nil:
		return nil, err
	default:
		named = &live
	}
	now := c.Clock().Wall
	age := now.Sub(ptr.Deref(lease.Spec.AcquireTime, metav1.MicroTime{Time: lease.CreationTimestamp.Time}).Time)
	switch claim.Answer(want, named, pool, age, now) {
	case ipam.ClaimBinds:
		return []ipam.Problem{second(b, claim.Block)}, nil
	case ipam.ClaimPending:
		what := "another block"
		if claim.Block != "" {
			what = fmt.Sprintf("AddressBlock %q", claim.Block)
		}
		return []ipam.Problem{pending(b, what, ipam.ClaimAge-age)}, nil
	case ipam.ClaimOurs, ipam.ClaimOver:
	}
	return nil, nil
}

func pending(b ipam.Block, what string, left time.Duration) ipam.Problem {
	return ipam.Problem{
		Rule: ipam.SecondUnfilledBlock, Fault: ipam.Untimely, Field: "spec.node",
		Message: fmt.Sprintf("%s for node %q in pool %q is being created: use it, or try again in %d s at the latest", what, b.Node, b.Pool,
			int(max(left, 0)/time.Second)+1),
	}
}
