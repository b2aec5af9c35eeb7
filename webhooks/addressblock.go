package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
)

// +kubebuilder:webhook:mutating=true,name=create.addressblocks.ipam.oakum.dev,path=/mutate-ipam-oakum-dev-v1alpha1-addressblock,groups=ipam.oakum.dev,versions=v1alpha1,resources=addressblocks,admissionReviewVersions=v1,serviceName=oakum,serviceNamespace=oakum-system,verbs=create,failurePolicy=fail,timeoutSeconds=5,sideEffects=None
// +kubebuilder:webhook:mutating=true,name=give.addressblocks.ipam.oakum.dev,path=/mutate-ipam-oakum-dev-v1alpha1-addressblock,groups=ipam.oakum.dev,versions=v1alpha1,resources=addressblocks,admissionReviewVersions=v1,serviceName=oakum,serviceNamespace=oakum-system,verbs=update,failurePolicy=ignore,timeoutSeconds=1,sideEffects=None,patch=`{"matchConditions":[{"name":"gives-back","expression":"has(oldObject.spec.allocations) && (!has(object.spec.allocations) || object.spec.allocations != oldObject.spec.allocations && [object.spec.allocations.transformMapEntry(i, a, {a.offset: true})].exists(now, oldObject.spec.allocations.exists(o, !(o.offset in now)))) || has(object.spec.cooling) != has(oldObject.spec.cooling) || has(object.spec.cooling) && object.spec.cooling != oldObject.spec.cooling"}]}`
// +kubebuilder:webhook:mutating=false,name=create.addressblocks.ipam.oakum.dev,path=/validate-ipam-oakum-dev-v1alpha1-addressblock,groups=ipam.oakum.dev,versions=v1alpha1,resources=addressblocks,admissionReviewVersions=v1,serviceName=oakum,serviceNamespace=oakum-system,verbs=create,failurePolicy=fail,timeoutSeconds=5,sideEffects=NoneOnDryRun
// +kubebuilder:webhook:mutating=false,name=take.addressblocks.ipam.oakum.dev,path=/validate-ipam-oakum-dev-v1alpha1-addressblock,groups=ipam.oakum.dev,versions=v1alpha1,resources=addressblocks,admissionReviewVersions=v1,serviceName=oakum,serviceNamespace=oakum-system,verbs=update,failurePolicy=fail,timeoutSeconds=5,sideEffects=NoneOnDryRun,patch=`{"matchConditions":[{"name":"takes","expression":"has(object.spec.allocations) && (!has(oldObject.spec.allocations) || object.spec.allocations != oldObject.spec.allocations && [oldObject.spec.allocations.transformMapEntry(i, o, {o.offset: o})].exists(old, object.spec.allocations.exists(a, !(a.offset in old) || old[a.offset] != a)))"}]}`

// AddressBlock judges the writes of native blocks. An update is sent here only if it takes an address, or gives one
// back: then the handler that computes the cooling entries is asked, and the write passes without it.
type AddressBlock struct {
	Records backends.Blocks
	Witness *cluster.Witness
	Owners  Owners
	Claims  Claims
	Effects Effects
	Clock   cluster.Clock
}

// Default is the mutating handler. On creation it fills in what follows from pool and index, and the finalizer; on an
// update it computes the cooling entries from the old object, whatever the client sent.
func (w AddressBlock) Default(ctx context.Context, req admission.Request) admission.Response {
	var next v1alpha1.AddressBlock
	if err := json.Unmarshal(req.Object.Raw, &next); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("decoding the AddressBlock: %w", err))
	}
	pool, err := w.Records.Pool(ctx, next.Spec.Pool)
	if req.Operation == admissionv1.Update {
		var old v1alpha1.AddressBlock
		if err := json.Unmarshal(req.OldObject.Raw, &old); err != nil {
			return admission.Errored(http.StatusBadRequest, fmt.Errorf("decoding the old AddressBlock: %w", err))
		}
		// Giving back is never refused: without the pool, what is given back just does not cool down.
		return admission.Patched("", cool(old, next, pool, w.Clock())...)
	}
	if err != nil && !errors.Is(err, backends.ErrNotFound) {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.Patched("", w.fill(next, pool)...)
}

// fill returns what a new block lacks. A block that fits no pool is left as it is: the validating handler says why.
func (w AddressBlock) fill(b v1alpha1.AddressBlock, pool ipam.Pool) []jsonpatch.Operation {
	var patch []jsonpatch.Operation
	if subnet, ok := pool.Block(int64(b.Spec.Index)); ok {
		if b.Spec.IPv4 == "" && subnet.IPv4.IsValid() {
			patch = append(patch, jsonpatch.NewOperation("add", "/spec/ipv4", subnet.IPv4.String()))
		}
		if b.Spec.IPv6 == "" && subnet.IPv6.IsValid() {
			patch = append(patch, jsonpatch.NewOperation("add", "/spec/ipv6", subnet.IPv6.String()))
		}
	}
	if b.Spec.Cooling != nil {
		patch = append(patch, jsonpatch.NewOperation("remove", "/spec/cooling", nil))
	}
	if w.Effects.Enforced() && !slices.Contains(b.Finalizers, v1alpha1.BlockFinalizer) {
		patch = append(patch, jsonpatch.NewOperation("add", "/metadata/finalizers", append(b.Finalizers, v1alpha1.BlockFinalizer)))
	}
	return patch
}

// cool returns the patch that gives next the cooling entries that follow from old.
func cool(old, next v1alpha1.AddressBlock, pool ipam.Pool, at ipam.Moment) []jsonpatch.Operation {
	want := v1alpha1.FromCooling(old.Law().Cool(next.Law(), pool.Cooldown, at.Wall))
	same := slices.EqualFunc(want, next.Spec.Cooling, func(a, b v1alpha1.Cooling) bool {
		return a.Offset == b.Offset && a.Until.Equal(&b.Until)
	})
	switch {
	case same:
		return nil
	case len(want) == 0:
		return []jsonpatch.Operation{jsonpatch.NewOperation("remove", "/spec/cooling", nil)}
	}
	return []jsonpatch.Operation{jsonpatch.NewOperation("add", "/spec/cooling", want)}
}

// ValidateCreate implements admission.Validator.
func (w AddressBlock) ValidateCreate(ctx context.Context, object *v1alpha1.AddressBlock) (admission.Warnings, error) {
	if !w.Effects.judges() {
		return nil, nil
	}
	b, dryRun := object.Law(), dryRun(ctx)
	if _, err := w.Records.Block(ctx, b.Name); err == nil && w.Effects.Of(ipam.SecondUnfilledBlock) == config.EffectDeny {
		// Storage would say so too, but only after the claim was spent on a name that another node has.
		return nil, apierrors.NewAlreadyExists(schema.GroupResource{Group: v1alpha1.Group, Resource: "addressblocks"}, b.Name)
	}
	problems, err := w.checkCreate(ctx, b, dryRun)
	if err != nil {
		return w.Effects.unjudged(err)
	}
	return w.Effects.answer(blockSubject(object), problems, dryRun)
}

// checkCreate goes from the cheap to the dear. The claim comes last: it binds the node for a while.
func (w AddressBlock) checkCreate(ctx context.Context, b ipam.Block, dryRun bool) ([]ipam.Problem, error) {
	pool, err := w.Records.Pool(ctx, b.Pool)
	switch {
	case errors.Is(err, backends.ErrNotFound):
		return []ipam.Problem{draining("spec.pool", fmt.Sprintf("AddressPool %q does not exist: create it first", b.Pool))}, nil
	case err != nil:
		return nil, err
	}
	problems := b.Check(pool)
	if pool.Terminating {
		problems = append(problems, draining("spec.pool", fmt.Sprintf("AddressPool %q is being deleted and gives out no more blocks: use another pool", b.Pool)))
	}
	nodeUID := ""
	switch node, err := w.Witness.Node(ctx, b.Node); {
	case err != nil:
		return nil, err
	case node != nil:
		nodeUID = string(node.UID)
	default:
		problems = append(problems, ipam.Problem{
			Rule: ipam.BlockMalformed, Fault: ipam.Wrong, Field: "spec.node", Value: b.Node,
			Message: fmt.Sprintf("Node %q does not exist", b.Node),
		})
	}
	problems, err = w.checkAdded(ctx, problems, b, ipam.Block{Node: b.Node, Subnet: b.Subnet}.Adds(b), pool, dryRun)
	if err != nil || w.Effects.denies(problems) {
		return problems, err
	}
	second, err := w.checkSecond(ctx, b, nodeUID, pool, dryRun)
	return append(problems, second...), err
}

// ValidateUpdate implements admission.Validator. What does not add an allocation was judged by the schema already.
func (w AddressBlock) ValidateUpdate(ctx context.Context, oldObject, object *v1alpha1.AddressBlock) (admission.Warnings, error) {
	old, b, dryRun := oldObject.Law(), object.Law(), dryRun(ctx)
	added := old.Adds(b)
	if len(added) == 0 || !w.Effects.judges() {
		return nil, nil
	}
	var problems []ipam.Problem
	pool, err := w.Records.Pool(ctx, b.Pool)
	switch {
	case errors.Is(err, backends.ErrNotFound):
		problems = append(problems, draining("spec.pool", fmt.Sprintf("AddressPool %q does not exist: its blocks can only be given back", b.Pool)))
	case err != nil:
		return w.Effects.unjudged(err)
	case b.Terminating:
		problems = append(problems, ipam.Problem{
			Rule: ipam.AllocationConflict, Fault: ipam.Untimely, Field: added[0].Field,
			Message: fmt.Sprintf("AddressBlock %q is being deleted: take an address from another block", b.Name),
		})
	default:
		if problems, err = w.checkAdded(ctx, nil, old, added, pool, dryRun); err != nil {
			return w.Effects.unjudged(err)
		}
	}
	return w.Effects.answer(blockSubject(object), problems, dryRun)
}

// ValidateDelete implements admission.Validator. Deletions are a policy's business.
func (AddressBlock) ValidateDelete(context.Context, *v1alpha1.AddressBlock) (admission.Warnings, error) {
	return nil, nil
}

// checkAdded judges the allocations that a write adds to a block: by themselves, against the other blocks of the
// network, and by their owners. It returns what it finds behind the problems that are known already. Only what passed
// the earlier checks goes to the later, dearer ones.
func (w AddressBlock) checkAdded(ctx context.Context, problems []ipam.Problem, b ipam.Block, added []ipam.Added, pool ipam.Pool, dryRun bool) ([]ipam.Problem, error) {
	problems = append(problems, b.CheckAdded(added, pool, w.Clock().Wall)...)
	own := ipam.Block{Name: b.Name}
	for _, a := range added {
		own.Entries = append(own.Entries, a.Entry)
	}
	for _, a := range added {
		more, err := w.checkHandle(ctx, a, own, pool.Network)
		if err != nil {
			return nil, err
		}
		problems = append(problems, more...)
	}
	if len(added) == 0 || w.Effects.denies(problems) {
		return problems, nil
	}
	more, err := w.Owners.check(ctx, added, w.Effects, dryRun)
	return append(problems, more...), err
}

// checkHandle compares an added entry with those that have its handle: in the same write, and in the blocks that the
// cache knows. The same handle in another network is another hand-out.
func (w AddressBlock) checkHandle(ctx context.Context, a ipam.Added, own ipam.Block, network string) ([]ipam.Problem, error) {
	if a.Handle == "" {
		return nil, nil
	}
	blocks, err := w.Records.Blocks(ctx, backends.Query{Handle: a.Handle})
	if err != nil {
		return nil, err
	}
	kept := []ipam.Block{own}
	for _, b := range blocks {
		switch p, err := w.Records.Pool(ctx, b.Pool); {
		case errors.Is(err, backends.ErrNotFound):
		case err != nil:
			return nil, err
		case p.Network == network:
			if b.Name == own.Name { // What stood in its place is itself, before it said whose it is.
				b.Entries = slices.DeleteFunc(slices.Clone(b.Entries), func(e ipam.Entry) bool { return e.Offset == a.Offset })
			}
			kept = append(kept, b)
		}
	}
	return a.CheckHandle(kept), nil
}

// checkSecond tells whether the node may have another block of the pool. The answer holds against concurrent
// creations through other replicas, since it takes the node's claim.
func (w AddressBlock) checkSecond(ctx context.Context, b ipam.Block, nodeUID string, pool ipam.Pool, dryRun bool) ([]ipam.Problem, error) {
	effect := w.Effects.Of(ipam.SecondUnfilledBlock)
	if effect == config.EffectOff {
		return nil, nil
	}
	blocks, err := w.Records.Blocks(ctx, backends.Query{Pool: b.Pool, Node: b.Node})
	if err != nil {
		return nil, err
	}
	for _, other := range blocks {
		if other.Name == b.Name || !other.Unfilled(pool, w.Clock().Wall) {
			continue
		}
		switch live, err := w.Records.LiveBlock(ctx, other.Name); {
		case errors.Is(err, backends.ErrNotFound):
		case err != nil:
			return nil, err
		case live.Pool == b.Pool && live.Node == b.Node && live.Unfilled(pool, w.Clock().Wall):
			return []ipam.Problem{second(b, live.Name)}, nil
		}
	}
	if effect == config.EffectWarn {
		return nil, nil
	}
	return w.Claims.take(ctx, b, nodeUID, pool, w.Records, dryRun)
}

func second(b ipam.Block, name string) ipam.Problem {
	return ipam.Problem{
		Rule: ipam.SecondUnfilledBlock, Fault: ipam.Untimely, Field: "spec.node",
		Message: fmt.Sprintf("node %q has free addresses in AddressBlock %q: take one of those", b.Node, name),
	}
}

func draining(field, message string) ipam.Problem {
	return ipam.Problem{Rule: ipam.PoolDraining, Fault: ipam.Untimely, Field: field, Message: message}
}

func blockSubject(b *v1alpha1.AddressBlock) subject {
	return subject{Object: b, kind: "AddressBlock", resource: "addressblocks"}
}

// dryRun tells whether the request must have no side effect. A context without a request has none to spare.
func dryRun(ctx context.Context) bool {
	req, err := admission.RequestFromContext(ctx)
	return err == nil && req.DryRun != nil && *req.DryRun
}

var _ admission.Validator[*v1alpha1.AddressBlock] = AddressBlock{}
