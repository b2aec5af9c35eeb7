package webhooks

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"

	"gomodules.xyz/jsonpatch/v2"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
)

// +kubebuilder:webhook:mutating=true,name=create.addresspools.ipam.oakum.dev,path=/mutate-ipam-oakum-dev-v1alpha1-addresspool,groups=ipam.oakum.dev,versions=v1alpha1,resources=addresspools,verbs=create,failurePolicy=fail,timeoutSeconds=5,sideEffects=None,admissionReviewVersions=v1,serviceName=oakum,serviceNamespace=oakum-system
// +kubebuilder:webhook:mutating=false,name=write.addresspools.ipam.oakum.dev,path=/validate-ipam-oakum-dev-v1alpha1-addresspool,groups=ipam.oakum.dev,versions=v1alpha1,resources=addresspools,verbs=create;update,failurePolicy=fail,timeoutSeconds=5,sideEffects=NoneOnDryRun,admissionReviewVersions=v1,serviceName=oakum,serviceNamespace=oakum-system,patch=`{"matchConditions":[{"name":"changes-spec","expression":"request.operation == 'CREATE' || object.spec != oldObject.spec"}]}`
// +kubebuilder:webhook:mutating=false,name=delete.addresspools.ipam.oakum.dev,path=/validate-ipam-oakum-dev-v1alpha1-addresspool,groups=ipam.oakum.dev,versions=v1alpha1,resources=addresspools,verbs=delete,failurePolicy=ignore,timeoutSeconds=2,sideEffects=NoneOnDryRun,admissionReviewVersions=v1,serviceName=oakum,serviceNamespace=oakum-system

// AddressPool judges the writes of native pools. Only what changes a spec is sent here.
type AddressPool struct {
	Records backends.Blocks
	Witness *cluster.Witness
	// Live reads pools and ServiceCIDRs without a cache: pools are few and seldom written, and two that overlap are
	// hard to part again.
	Live    client.Reader
	Effects Effects
}

// Default is the mutating handler: it puts the finalizer on a new pool.
func (w AddressPool) Default(_ context.Context, req admission.Request) admission.Response {
	var pool v1alpha1.AddressPool
	if err := json.Unmarshal(req.Object.Raw, &pool); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("decoding the AddressPool: %w", err))
	}
	if !w.Effects.Enforced() || slices.Contains(pool.Finalizers, v1alpha1.PoolFinalizer) {
		return admission.Allowed("")
	}
	return admission.Patched("", jsonpatch.NewOperation("add", "/metadata/finalizers", append(pool.Finalizers, v1alpha1.PoolFinalizer)))
}

// ValidateCreate implements admission.Validator.
func (w AddressPool) ValidateCreate(ctx context.Context, object *v1alpha1.AddressPool) (admission.Warnings, error) {
	if !w.Effects.judges() {
		return nil, nil
	}
	pool, problems := object.Law()
	return w.answer(ctx, object, ipam.Pool{}, pool, problems)
}

// ValidateUpdate implements admission.Validator. Only what the update makes worse counts.
func (w AddressPool) ValidateUpdate(ctx context.Context, oldObject, object *v1alpha1.AddressPool) (admission.Warnings, error) {
	if !w.Effects.judges() || equality.Semantic.DeepEqual(oldObject.Spec, object.Spec) {
		return nil, nil
	}
	old, before := oldObject.Law()
	pool, problems := object.Law()
	problems = ipam.Ratchet(before, problems)
	var blocks []ipam.Block
	if !slices.Equal(old.Reserved, pool.Reserved) {
		var err error
		if blocks, err = w.Records.LiveBlocks(ctx, backends.Query{Pool: pool.Name}); err != nil {
			return w.Effects.unjudged(err)
		}
	}
	return w.answer(ctx, object, old, pool, append(problems, pool.CheckShrink(old, blocks)...))
}

// ValidateDelete implements admission.Validator. A pool may always be deleted; whoever does it should know what it
// waits for.
func (w AddressPool) ValidateDelete(ctx context.Context, object *v1alpha1.AddressPool) (admission.Warnings, error) {
	if !w.Effects.judges() {
		return nil, nil
	}
	blocks, err := w.Records.Blocks(ctx, backends.Query{Pool: object.Name})
	if err != nil {
		return notJudged(err), nil
	}
	if len(blocks) == 0 {
		return nil, nil
	}
	allocations := 0
	for _, b := range blocks {
		allocations += len(b.Entries)
	}
	return w.Effects.answer(poolSubject(object), []ipam.Problem{{
		Rule: ipam.PoolInUse, Fault: ipam.Untimely,
		Message: fmt.Sprintf("%s with %s remain; deletion completes when they have drained", counted(len(blocks), "block"), counted(allocations, "allocation")),
	}}, dryRun(ctx))
}

// answer adds what the pool shares with others and did not share before, when it was the old one, to its problems.
func (w AddressPool) answer(ctx context.Context, object *v1alpha1.AddressPool, old, pool ipam.Pool, problems []ipam.Problem) (admission.Warnings, error) {
	var pools v1alpha1.AddressPoolList
	if err := w.Live.List(ctx, &pools); err != nil {
		return w.Effects.unjudged(fmt.Errorf("listing the pools: %w", err))
	}
	others := make([]ipam.Pool, len(pools.Items))
	for i := range pools.Items {
		others[i], _ = pools.Items[i].Law()
	}
	problems = append(problems, ipam.Ratchet(old.CheckOverlap(others), pool.CheckOverlap(others))...)
	dryRun := dryRun(ctx)
	warnings, err := w.Effects.answer(poolSubject(object), problems, dryRun)
	if err != nil || pool.Network != v1alpha1.DefaultNetwork || w.Effects.Of(ipam.PoolOverlap) == config.EffectOff {
		return warnings, err
	}
	holdings, err := w.holdings(ctx)
	if err != nil {
		return append(warnings, notJudged(err)...), nil
	}
	before := old.Meets(holdings)
	for _, h := range pool.Meets(holdings) {
		if slices.Contains(before, h) {
			continue
		}
		warnings = append(warnings, w.Effects.warn(poolSubject(object), ipam.Problem{
			Rule: ipam.PoolOverlap, Fault: ipam.Untimely,
			Message: fmt.Sprintf("the pool overlaps %s (%s): give it a network of its own unless you mean it", h.Holder, h.Prefix),
		}, dryRun))
	}
	return warnings, nil
}

// holdings returns what Kubernetes itself uses: the ServiceCIDRs and the nodes' podCIDRs.
func (w AddressPool) holdings(ctx context.Context) ([]ipam.Holding, error) {
	var services networkingv1.ServiceCIDRList
	if err := w.Live.List(ctx, &services); err != nil {
		return nil, fmt.Errorf("listing the ServiceCIDRs: %w", err)
	}
	holdings := w.Witness.PodCIDRs()
	for _, s := range services.Items {
		for _, cidr := range s.Spec.CIDRs {
			if p, err := netip.ParsePrefix(cidr); err == nil {
				holdings = append(holdings, ipam.Holding{Holder: fmt.Sprintf("ServiceCIDR %q", s.Name), Prefix: p})
			}
		}
	}
	return holdings, nil
}

func poolSubject(p *v1alpha1.AddressPool) subject {
	return subject{Object: p, kind: "AddressPool", resource: "addresspools"}
}

func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

var _ admission.Validator[*v1alpha1.AddressPool] = AddressPool{}
