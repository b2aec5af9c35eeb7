package cli

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/backends/calico"
	"github.com/oakum-dev/oakum/backends/coil"
	"github.com/oakum-dev/oakum/backends/whereabouts"
	"github.com/oakum-dev/oakum/finalizers"
	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/webhooks"
)

// foreign is a backend whose kinds come with another program. It is inactive for as long as they are not installed.
type foreign struct {
	name     string
	settings config.Backend
	// kinds must all be served, and rivals must not: where they are, somebody else's records are the ones that count.
	kinds, rivals []schema.GroupVersionKind
	// open prepares the cache, connects what this backend alone has, and returns it.
	open func(ctx context.Context, p parts) (backends.Backend, error)
	// clear takes off under config.ModeOff what only this backend puts on, in an earlier mode; nil if it puts nothing on.
	clear func(p parts) error
	// restart: a program that has what nobody uses is restarted.
	restart bool
	// record is the kind that names pods, and named returns their names; nil if none does.
	record ctrlclient.Object
	named  func(ctrlclient.Object) []types.NamespacedName
}

// admit takes foreign backends in: those whose kinds are served now before it returns, the others when theirs appear.
func (h *house) admit(ctx context.Context, p parts, all ...foreign) error {
	for _, f := range all {
		if f.settings.Mode == config.ModeOff && f.clear == nil {
			continue
		}
		if h.ready(f) {
			if err := h.takeIn(ctx, p, f); err != nil {
				return fmt.Errorf("taking in %s: %w", f.name, err)
			}
			continue
		}
		if !h.served(f.rivals) || len(f.rivals) == 0 {
			h.log.Info("inactive: its kinds are not installed", "backend", f.name)
		}
		err := h.mgr.Add(everywhere(func(ctx context.Context) error {
			err := wait.PollUntilContextCancel(ctx, appearance, false, func(context.Context) (bool, error) { return h.ready(f), nil })
			if err != nil {
				return nil //nolint:nilerr // The only error is that the context ended.
			}
			return h.takeIn(ctx, p, f)
		}))
		if err != nil {
			return fmt.Errorf("waiting for %s: %w", f.name, err)
		}
	}
	return nil
}

// appearance is how often kinds that are not served are asked for.
const appearance = 10 * time.Second

// ready tells whether a foreign backend can be taken in.
func (h *house) ready(f foreign) bool {
	return h.served(f.kinds) && (len(f.rivals) == 0 || !h.served(f.rivals))
}

// served tells whether the API server serves every one of the kinds. A failure counts as no: it is asked again.
func (h *house) served(kinds []schema.GroupVersionKind) bool {
	return !slices.ContainsFunc(kinds, func(k schema.GroupVersionKind) bool {
		_, err := h.mgr.GetRESTMapper().RESTMapping(k.GroupKind(), k.Version)
		return err != nil
	})
}

// appears returns what tells whether the API server serves a kind, which it finds out once in a while until it does.
func (h *house) appears(kind schema.GroupVersionKind) func() bool {
	var mu sync.Mutex
	var yes bool
	next := h.clock().Steady
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		if now := h.clock().Steady; !yes && now >= next {
			yes, next = h.served([]schema.GroupVersionKind{kind}), now+appearance
		}
		return yes
	}
}

// takeIn makes a foreign backend active.
func (h *house) takeIn(ctx context.Context, p parts, f foreign) error {
	if f.settings.Mode == config.ModeOff {
		return f.clear(p)
	}
	records, err := f.open(ctx, p)
	if err != nil {
		return err
	}
	if holds(f.settings) {
		p.records.Add(records)
		if f.record != nil {
			if err := p.pods.Watch(h.mgr.GetCache(), f.record, f.named); err != nil {
				return err
			}
		}
	}
	if err := h.watch(records, f.settings, f.restart, p); err != nil {
		return err
	}
	h.log.Info("active", "backend", f.name, "mode", f.settings.Mode)
	return nil
}

// whereabouts is the backend of that name.
func (h *house) whereabouts() foreign {
	settings := h.settings.Backends.Whereabouts
	client, live := h.mgr.GetClient(), h.mgr.GetAPIReader()
	empty := func() ctrlclient.Object { return &whereabouts.IPPool{} }
	hold := func(p parts) error {
		return finalizers.SetupPool(h.mgr, "ippool", &finalizers.RecordPool{
			Client: client, Voice: p.voice, Kind: whereabouts.GroupVersion.WithKind("IPPool"), New: empty,
			Count:  func(o ctrlclient.Object) int { return len(o.(*whereabouts.IPPool).Spec.Allocations) },
			Wanted: settings.Mode == config.ModeEnforce,
		})
	}
	return foreign{
		name: whereabouts.Name, settings: settings.Backend,
		kinds: []schema.GroupVersionKind{
			whereabouts.GroupVersion.WithKind("IPPool"), whereabouts.GroupVersion.WithKind("OverlappingRangeIPReservation"),
		},
		open: func(ctx context.Context, p parts) (backends.Backend, error) {
			if err := whereabouts.Index(ctx, h.mgr.GetFieldIndexer()); err != nil {
				return nil, err
			}
			if err := hold(p); err != nil {
				return nil, err
			}
			if err := h.tellOf(ctx, p, "IPPool", empty()); err != nil {
				return nil, err
			}
			records := whereabouts.New(client, live, client, settings.Namespace, whereabouts.Optional{
				NodeSlicePools:               h.appears(whereabouts.GroupVersion.WithKind("NodeSlicePool")),
				NetworkAttachmentDefinitions: h.appears(whereabouts.AttachmentGroupVersion.WithKind("NetworkAttachmentDefinition")),
			})
			h.mgr.GetWebhookServer().Register(webhooks.ValidateIPPoolPath, &admission.Webhook{Handler: webhooks.RangePool{
				Kind: "IPPool", Resource: "ippools", Field: "spec.range", Read: records.Read, Pools: records.Pools,
				Effects: webhooks.NewEffects(whereabouts.Name, settings.Backend, p.admission, p.recorder),
			}})
			return records, nil
		},
		clear:  hold,
		record: empty(),
		named:  func(o ctrlclient.Object) []types.NamespacedName { return whereabouts.Pods(o.(*whereabouts.IPPool)) },
	}
}

// coil is the backend of that name.
func (h *house) coil() foreign {
	settings := h.settings.Backends.Coil
	client, live := h.mgr.GetClient(), h.mgr.GetAPIReader()
	return foreign{
		name: coil.Name, settings: settings.Backend, restart: settings.RestartCoild,
		kinds: []schema.GroupVersionKind{
			coil.GroupVersion.WithKind("AddressPool"), coil.GroupVersion.WithKind("AddressBlock"), coil.GroupVersion.WithKind("BlockRequest"),
		},
		open: func(ctx context.Context, p parts) (backends.Backend, error) {
			if err := coil.Index(ctx, h.mgr.GetFieldIndexer()); err != nil {
				return nil, err
			}
			records := coil.New(client, live, client, coil.Usual())
			effects := webhooks.NewEffects(coil.Name, settings.Backend, p.admission, p.recorder)
			server := h.mgr.GetWebhookServer()
			server.Register(webhooks.ValidateCoilBlockPath, &admission.Webhook{Handler: webhooks.RequestedBlock{
				Kind: "AddressBlock", Resource: "addressblocks", Read: coil.ReadBlock, Request: records.Request,
				Held: records.AllocationsOf, Pods: p.witness.PodsOn, Clock: h.clock, Effects: effects,
			}})
			server.Register(webhooks.ValidateCoilPoolPath, &admission.Webhook{Handler: webhooks.SubnetPool{
				Kind: "AddressPool", Resource: "addresspools", Read: coil.ReadPool, Pools: records.Pools, Effects: effects,
			}})
			return records, nil
		},
	}
}

// calico are the backend of that name over its records in either group. While a migration has both, the older one counts.
func (h *house) calico() []foreign {
	settings := h.settings.Backends.Calico
	client, live := h.mgr.GetClient(), h.mgr.GetAPIReader()
	of := func(served schema.GroupVersion, record ctrlclient.Object, rivals ...schema.GroupVersionKind) foreign {
		return foreign{
			name: calico.Name, settings: settings.Backend, kinds: []schema.GroupVersionKind{served.WithKind("IPAMBlock")}, rivals: rivals,
			open: func(ctx context.Context, p parts) (backends.Backend, error) {
				if err := calico.Index(ctx, h.mgr.GetFieldIndexer(), served); err != nil {
					return nil, err
				}
				// What is compared with the clock was stamped by the API server.
				now := func() time.Time { return h.clock().Wall }
				records := calico.New(client, live, client, served, h.settings.Audit.GracePeriod.Duration, now)
				h.serveCalico(records, served, webhooks.NewEffects(calico.Name, settings.Backend, p.admission, p.recorder))
				return records, nil
			},
			record: record, named: calico.Pods,
		}
	}
	return []foreign{of(calico.V1, &calico.IPAMBlock{}), of(calico.V3, &calico.IPAMBlockV3{}, calico.V1.WithKind("IPAMBlock"))}
}

// serveCalico serves the webhooks of Calico's claims and pools in the group that is served.
func (h *house) serveCalico(records *calico.Backend, served schema.GroupVersion, effects webhooks.Effects) {
	serve := func(path string, handler admission.Handler) {
		h.mgr.GetWebhookServer().Register(path, &admission.Webhook{Handler: handler})
	}
	serve(webhooks.ValidatePath(served.WithKind("BlockAffinity")), webhooks.Affinity{
		Kind: "BlockAffinity", Resource: "blockaffinities", Read: records.ReadAffinity, Known: records.KnowsAffinity,
		Blocks: records.AffineBlocks, Block: records.AffineBlock, Live: h.mgr.GetAPIReader(),
		Wish: "cni.projectcalico.org/ipAddrs", Effects: effects,
	})
	serve(webhooks.ValidatePath(served.WithKind("IPPool")), webhooks.RangePool{
		Kind: "IPPool", Resource: "ippools", Field: "spec.cidr", Read: records.ReadPool, Pools: records.Pools, Effects: effects,
	})
	if served != calico.V1 {
		return // A finalizer of Calico's own holds the pool.
	}
	serve(webhooks.DeleteCalicoPoolPath, webhooks.UsedPool{
		Kind: "IPPool", Resource: "ippools", Effects: effects,
		Held: func(ctx context.Context) ([]ipam.Allocation, error) {
			held, err := records.Allocations(ctx)
			return slices.DeleteFunc(held, func(a ipam.Allocation) bool { return a.Owner.Kind == ipam.OwnerExternal }), err
		},
	})
}
