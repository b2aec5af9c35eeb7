// Package whereabouts adapts the records of the Whereabouts IPAM plugin, IPPool and OverlappingRangeIPReservation, to
// the port.
//
// A hand-out is what the entries with one container id record, in all IPPools. Its handle is that id. A reservation
// without an entry is a hand-out of its own, whose handle is "reservation/" and its UID, and whose block is
// "reservation/" and its name.
//
// The network of every hand-out is empty, although Whereabouts has networks: not every record tells its own, and what
// pods say about their addresses tells none. So an address in use in one network keeps its like in another.
package whereabouts

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/backends/foreign"
	"github.com/oakum-dev/oakum/ipam"
)

// Name is the backend's name in settings, metrics and reports.
const Name = "whereabouts"

// reserved begins the handles and blocks of reservations without an entry.
const reserved = "reservation/"

// byPod is the field by which IPPools and reservations are found, in the cache alone.
const byPod = "podref"

// Backend implements backends.Backend, backends.Repairer and backends.Pools.
type Backend struct {
	cached    client.Reader
	live      client.Reader
	writer    client.Writer
	namespace string
	optional  Optional
}

// Optional tells whether the API server serves kinds that a cluster with Whereabouts can lack. It is asked each time, and
// nil means no. A kind that turns out to be lacking all the same has no objects.
type Optional struct {
	NodeSlicePools, NetworkAttachmentDefinitions func() bool
}

// New returns the backend for the records in a namespace, which is that of Whereabouts. The cached reader's cache must
// have been prepared with Index; it is nil where there is no cache. The live one must have none.
func New(cached, live client.Reader, writer client.Writer, namespace string, optional Optional) *Backend {
	return &Backend{cached: cached, live: live, writer: writer, namespace: namespace, optional: optional}
}

// Index prepares a cache for the backend's questions. It must be called before the cache is first read.
func Index(ctx context.Context, indexer client.FieldIndexer) error {
	for kind, object := range map[string]client.Object{"IPPools": &IPPool{}, "OverlappingRangeIPReservations": &OverlappingRangeIPReservation{}} {
		err := indexer.IndexField(ctx, object, byPod, func(o client.Object) []string {
			switch o := o.(type) {
			case *IPPool:
				return podRefs(o)
			case *OverlappingRangeIPReservation:
				return []string{o.Spec.PodRef}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("indexing %s by %s: %w", kind, byPod, err)
		}
	}
	return nil
}

// Name implements backends.Backend.
func (b *Backend) Name() string { return Name }

func (b *Backend) source() foreign.Source {
	return foreign.Source{Cached: b.cached, Live: b.live}
}

// Allocations implements backends.Backend.
func (b *Backend) Allocations(ctx context.Context) ([]ipam.Allocation, error) {
	return b.allocations(ctx, false, "")
}

// AllocationsOf implements backends.Backend. Records tell a pod's name and seldom its UID, so the answer has those of
// every pod of that name but the ones that tell another UID.
func (b *Backend) AllocationsOf(ctx context.Context, owner ipam.Owner) ([]ipam.Allocation, error) {
	return b.allocationsOf(ctx, false, owner)
}

// LiveAllocationsOf implements backends.Backend. It reads every IPPool and reservation.
func (b *Backend) LiveAllocationsOf(ctx context.Context, owner ipam.Owner) ([]ipam.Allocation, error) {
	return b.allocationsOf(ctx, true, owner)
}

func (b *Backend) allocationsOf(ctx context.Context, live bool, owner ipam.Owner) ([]ipam.Allocation, error) {
	if owner.Kind != ipam.OwnerPod {
		return nil, nil
	}
	all, err := b.allocations(ctx, live, owner.Namespace+"/"+owner.Name)
	var found []ipam.Allocation
	for _, a := range all {
		if a.Owner.Kind == ipam.OwnerPod && (a.Owner.UID == "" || owner.UID == "" || a.Owner.UID == owner.UID) {
			found = append(found, a)
		}
	}
	return found, err
}

// allocations lists the hand-outs of one pod or, if ref is empty, of all.
func (b *Backend) allocations(ctx context.Context, live bool, ref string) ([]ipam.Allocation, error) {
	var options []client.ListOption
	indexed := ref != "" && !live
	if indexed {
		options = append(options, client.MatchingFields{byPod: ref})
	}
	ps, err := b.readPools(ctx, live, options...)
	if err != nil {
		return nil, err
	}
	reservations, err := b.readReservations(ctx, live, options...)
	if err != nil {
		return nil, err
	}
	found := ps.handOuts(ref)
	for _, r := range reservations {
		if ref != "" && r.Spec.PodRef != ref {
			continue
		}
		spots := ps.spots(r.Name)
		if indexed && !held(spots, r) { // The pod's own pools do not tell enough.
			if ps, err = b.readPools(ctx, live); err != nil {
				return nil, err
			}
			indexed, spots = false, ps.spots(r.Name)
		}
		if len(spots) > 0 && !held(spots, r) {
			found = append(found, loose(r, spots))
		}
	}
	return found, nil
}

// Pools lists the IPPools, from a cache that may lag. One whose range cannot be read has no subnets. The network is the
// likeliest of those that the name allows.
func (b *Backend) Pools(ctx context.Context) ([]ipam.Pool, error) {
	ps, err := b.readPools(ctx, false)
	if err != nil {
		return nil, err
	}
	found := make([]ipam.Pool, len(ps.all))
	for i, p := range ps.all {
		found[i] = p.law()
	}
	return found, nil
}

// Read returns the pool in an IPPool as it is sent over the wire. One whose range cannot be read has no subnets.
func (b *Backend) Read(ctx context.Context, raw []byte) (ipam.Pool, error) {
	var object IPPool
	if err := json.Unmarshal(raw, &object); err != nil {
		return ipam.Pool{}, fmt.Errorf("decoding the IPPool: %w", err)
	}
	words, err := b.readVocabulary(ctx, false)
	if err != nil {
		return ipam.Pool{}, err
	}
	return words.pool(&object).law(), nil
}

func (p pool) law() ipam.Pool {
	law := ipam.Pool{Kind: "IPPool", Name: p.Name, Network: p.network(), Terminating: p.DeletionTimestamp != nil}
	if p.subnet.IsValid() {
		law.Subnets = []ipam.Subnet{subnetOf(p.subnet)}
	}
	return law
}

// Record implements backends.Backend.
func (b *Backend) Record(ctx context.Context, p ipam.Place) (backends.Object, error) {
	kind, name, object := "IPPool", p.Block, client.Object(&IPPool{})
	if reservation, ok := reservationOf(p); ok {
		kind, name, object = "OverlappingRangeIPReservation", reservation, &OverlappingRangeIPReservation{}
	}
	record := backends.Object{APIVersion: GroupVersion.String(), Kind: kind, Namespace: b.namespace, Name: name}
	if err := get(ctx, b.source().Reader(false), b.key(name), object); err != nil {
		return record, fmt.Errorf("reading %s %q: %w", kind, name, err)
	}
	record.UID = string(object.GetUID())
	return record, nil
}

func (b *Backend) key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: b.namespace, Name: name}
}

// get reads an object; the answer is backends.ErrNotFound if there is none.
func get(ctx context.Context, reader client.Reader, key types.NamespacedName, object client.Object) error {
	err := reader.Get(ctx, key, object)
	if apierrors.IsNotFound(err) {
		return backends.ErrNotFound
	}
	return err
}
