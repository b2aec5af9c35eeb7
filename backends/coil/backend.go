// Package coil adapts the records of Coil, AddressPool, AddressBlock and BlockRequest, to the port.
//
// A hand-out is a whole block, given to the coild of a node; its handle is the block's UID. Which of its addresses pods
// have is in coild's memory and nowhere in the API, so no pod has hand-outs here.
package coil

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/backends/foreign"
	"github.com/oakum-dev/oakum/ipam"
)

// Name is the backend's name in settings, metrics and reports.
const Name = "coil"

const (
	// finalizer is Coil's own, on pools and blocks.
	finalizer = "coil.cybozu.com"

	poolLabel = "coil.cybozu.com/pool"
	nodeLabel = "coil.cybozu.com/node"
	// requestLabel is the UID of the BlockRequest that a block was made for.
	requestLabel = "coil.cybozu.com/request"
	// reservedLabel is "true" on a block of which coild gives nothing.
	reservedLabel = "coil.cybozu.com/reserved"
)

// byNode is the field by which blocks and requests are found, in the cache alone.
const byNode = "node"

// Backend implements backends.Backend, backends.Pools and backends.Restarter.
type Backend struct {
	cached client.Reader
	live   client.Reader
	writer Writer
	coild  Coild
}

// Writer is what the backend writes with. A client.Client is one.
type Writer interface {
	client.Writer
	client.SubResourceClientConstructor
}

// Coild tells which pods are coild, and the time.
type Coild struct {
	Namespace string
	Labels    map[string]string
	// Now is the wall clock.
	Now func() time.Time
}

// Usual returns the coild that Coil's own manifests install.
func Usual() Coild {
	return Coild{Namespace: metav1.NamespaceSystem, Labels: map[string]string{"app.kubernetes.io/component": "coild"}, Now: time.Now}
}

// New returns the backend. The cached reader's cache must have been prepared with Index; it is nil where there is
// no cache. The live one must have none.
func New(cached, live client.Reader, writer Writer, coild Coild) *Backend {
	return &Backend{cached: cached, live: live, writer: writer, coild: coild}
}

// Index prepares a cache for the backend's questions. It must be called before the cache is first read.
func Index(ctx context.Context, indexer client.FieldIndexer) error {
	for kind, object := range map[string]client.Object{"AddressBlocks": &AddressBlock{}, "BlockRequests": &BlockRequest{}} {
		err := indexer.IndexField(ctx, object, byNode, func(o client.Object) []string {
			switch o := o.(type) {
			case *AddressBlock:
				return []string{o.Labels[nodeLabel]}
			case *BlockRequest:
				return []string{o.Spec.NodeName}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("indexing %s by %s: %w", kind, byNode, err)
		}
	}
	return nil
}

// Name implements backends.Backend.
func (b *Backend) Name() string { return Name }

func (b *Backend) source() foreign.Source {
	return foreign.Source{Cached: b.cached, Live: b.live}
}

// Allocations implements backends.Backend. A block whose addresses cannot be read is no hand-out, but a Problem.
func (b *Backend) Allocations(ctx context.Context) ([]ipam.Allocation, error) {
	return b.allocations(ctx, false, "")
}

// AllocationsOf implements backends.Backend. The blocks of a node are both its own and its coild's. A pod has none: its
// address is in the block of its node, and that it has it only coild knows.
func (b *Backend) AllocationsOf(ctx context.Context, owner ipam.Owner) ([]ipam.Allocation, error) {
	return b.allocationsOf(ctx, false, owner)
}

// LiveAllocationsOf implements backends.Backend. It reads every BlockRequest.
func (b *Backend) LiveAllocationsOf(ctx context.Context, owner ipam.Owner) ([]ipam.Allocation, error) {
	return b.allocationsOf(ctx, true, owner)
}

func (b *Backend) allocationsOf(ctx context.Context, live bool, owner ipam.Owner) ([]ipam.Allocation, error) {
	if owner.Kind != ipam.OwnerAgent && owner.Kind != ipam.OwnerNode || owner.Name == "" {
		return nil, nil
	}
	return b.allocations(ctx, live, owner.Name)
}

// allocations lists the blocks of one node or, if it has no name, all.
func (b *Backend) allocations(ctx context.Context, live bool, node string) ([]ipam.Allocation, error) {
	var blocksOf, requestsOf []client.ListOption
	switch {
	case node != "" && live:
		blocksOf = append(blocksOf, client.MatchingLabels{nodeLabel: node})
	case node != "":
		indexed := client.MatchingFields{byNode: node}
		blocksOf, requestsOf = append(blocksOf, indexed), append(requestsOf, indexed)
	}
	// The request of a block is older than the block, so in this order none is missed that is still there.
	blocks, err := b.readBlocks(ctx, live, blocksOf...)
	if err != nil {
		return nil, err
	}
	waiting, err := b.readWaiting(ctx, live, requestsOf...)
	if err != nil {
		return nil, err
	}
	var found []ipam.Allocation
	for _, block := range blocks {
		if a, ok := handOut(block); ok {
			a.Pending = waiting[block.Labels[requestLabel]]
			found = append(found, a)
		}
	}
	return found, nil
}

// Pools implements backends.Pools.
func (b *Backend) Pools(ctx context.Context) ([]ipam.Pool, error) {
	objects, err := b.readPools(ctx)
	if err != nil {
		return nil, err
	}
	found := make([]ipam.Pool, len(objects))
	for i := range objects {
		found[i], _ = law(objects[i])
	}
	return found, nil
}

// Record implements backends.Backend.
func (b *Backend) Record(ctx context.Context, p ipam.Place) (backends.Object, error) {
	record, block := object("AddressBlock", p.Block, ""), AddressBlock{}
	switch err := b.source().Reader(false).Get(ctx, client.ObjectKey{Name: p.Block}, &block); {
	case apierrors.IsNotFound(err):
		return record, fmt.Errorf("reading AddressBlock %q: %w", p.Block, backends.ErrNotFound)
	case err != nil:
		return record, fmt.Errorf("reading AddressBlock %q: %w", p.Block, err)
	}
	record.UID = string(block.UID)
	return record, nil
}

// Request reads a BlockRequest, live; nil if there is none of that name.
func (b *Backend) Request(ctx context.Context, name string) (*ipam.Request, error) {
	var r BlockRequest
	switch err := b.live.Get(ctx, client.ObjectKey{Name: name}, &r); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading BlockRequest %q: %w", name, err)
	}
	return &ipam.Request{UID: string(r.UID), Created: r.CreationTimestamp.Time, Answered: r.answered()}, nil
}

func object(kind, name, uid string) backends.Object {
	return backends.Object{APIVersion: GroupVersion.String(), Kind: kind, Name: name, UID: uid}
}
