// Package allocator is the client's side of AddressPool and AddressBlock, for authors of IPAM plugins: it takes an
// address for an owner on a node, and gives it back.
package allocator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/ipam"
)

// ErrPoolFull says that the pool has neither a free address in the node's blocks nor a free block.
var ErrPoolFull = errors.New("the pool has no free address")

// Allocator takes and gives addresses. It keeps no state, so any number may work side by side.
type Allocator struct {
	// Client should not read from a cache: every try begins by reading what is there.
	Client client.Client
}

// Request says for whom an address is wanted.
type Request struct {
	// Pool to take from, and Node whose blocks to use.
	Pool, Node string
	// Handle names the hand-out. Asking twice with the same handle gives the same address.
	Handle     string
	Attributes v1alpha1.Attributes
}

// Grant is an address that was handed out.
type Grant struct {
	Block  string
	Offset int32
	Handle string
	// Addresses has one address, or an IPv4 and an IPv6 one.
	Addresses []netip.Addr
}

// jumpWindow is how far, at most, the allocator jumps on when another node has taken the block that it wanted: nodes
// that start together would otherwise queue behind one another.
const jumpWindow = 256

// Take hands out an address, from a block that the node has or from a new one. It tries again when others are faster,
// until the context ends. A refusal comes back as the API server gave it.
func (a Allocator) Take(ctx context.Context, r Request) (Grant, error) {
	var grant Grant
	err := persist(ctx, func(ctx context.Context) (err error) {
		grant, err = a.try(ctx, r)
		return err
	})
	if err != nil {
		return Grant{}, fmt.Errorf("taking an address of pool %q for node %q: %w", r.Pool, r.Node, err)
	}
	return grant, nil
}

// persist tries again after a pause, a longer one each time, while others are faster or the API server asks for
// patience. When the context ends it returns both that and the last failure.
func persist(ctx context.Context, try func(context.Context) error) error {
	var last error
	pause := wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 12, Cap: 5 * time.Second}
	err := pause.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (done bool, err error) {
		last = try(ctx)
		if _, patience := apierrors.SuggestsClientDelay(last); patience || apierrors.IsConflict(last) {
			return false, nil
		}
		return true, last
	})
	if err != nil && last != nil && !errors.Is(err, last) {
		return fmt.Errorf("%w, after: %w", err, last)
	}
	return err
}

func (a Allocator) try(ctx context.Context, r Request) (Grant, error) {
	var object v1alpha1.AddressPool
	if err := a.Client.Get(ctx, types.NamespacedName{Name: r.Pool}, &object); err != nil {
		return Grant{}, err
	}
	pool, problems := object.Law()
	if len(problems) > 0 {
		return Grant{}, fmt.Errorf("the pool is malformed: %s: %s", problems[0].Field, problems[0].Message)
	}
	var blocks v1alpha1.AddressBlockList
	if err := a.Client.List(ctx, &blocks, client.MatchingFields{"spec.pool": r.Pool, "spec.node": r.Node}); err != nil {
		return Grant{}, err
	}
	for _, b := range blocks.Items {
		for _, e := range b.Spec.Allocations {
			switch {
			case e.Handle != r.Handle:
			case e.Attributes.Owner() != r.Attributes.Owner():
				return Grant{}, fmt.Errorf("handle %q is that of %s in AddressBlock %q", e.Handle, e.Attributes.Owner(), b.Name)
			default:
				return granted(b, e.Offset, r.Handle), nil
			}
		}
	}
	for _, b := range blocks.Items {
		if b.DeletionTimestamp != nil {
			continue
		}
		for offset := range b.Law().Free(pool, time.Now()) {
			return a.takeFrom(ctx, b, int32(offset), r)
		}
	}
	return a.takeFromNew(ctx, pool, r)
}

// takeFrom adds an entry to a block as it was read; a conflict means that somebody else wrote it meanwhile.
func (a Allocator) takeFrom(ctx context.Context, b v1alpha1.AddressBlock, offset int32, r Request) (Grant, error) {
	entry := v1alpha1.Allocation{Offset: offset, Handle: r.Handle, Attributes: r.Attributes}
	var path string
	var value any
	if path, value = "/spec/allocations/-", entry; len(b.Spec.Allocations) == 0 {
		path, value = "/spec/allocations", []v1alpha1.Allocation{entry}
	}
	if err := a.patch(ctx, &b, operation{"op": "add", "path": path, "value": value}); err != nil {
		return Grant{}, err
	}
	return granted(b, offset, r.Handle), nil
}

// operation is one of a JSON patch.
type operation map[string]any

// patch changes a block as it was read. If it has changed since, or is gone, the answer is a conflict: also where the
// API server finds the patch invalid, because it does not fit the block any more.
func (a Allocator) patch(ctx context.Context, b *v1alpha1.AddressBlock, change operation) error {
	read := b.ResourceVersion
	data, err := json.Marshal([]operation{{"op": "replace", "path": "/metadata/resourceVersion", "value": read}, change})
	if err != nil {
		return fmt.Errorf("encoding a patch of AddressBlock %q: %w", b.Name, err)
	}
	refused := a.Client.Patch(ctx, b, client.RawPatch(types.JSONPatchType, data))
	if !apierrors.IsInvalid(refused) && !apierrors.IsNotFound(refused) {
		return refused
	}
	var now v1alpha1.AddressBlock
	switch err := a.Client.Get(ctx, types.NamespacedName{Name: b.Name}, &now); {
	case err == nil && now.ResourceVersion == read:
		return refused
	case err == nil, apierrors.IsNotFound(err):
		return apierrors.NewConflict(schema.GroupResource{Group: v1alpha1.Group, Resource: "addressblocks"}, b.Name, refused)
	default:
		return err
	}
}

// takeFromNew creates a block that holds the allocation from its beginning. An index that another node takes meanwhile
// is passed over, and so is a block whose addresses are all reserved.
func (a Allocator) takeFromNew(ctx context.Context, pool ipam.Pool, r Request) (Grant, error) {
	var all v1alpha1.AddressBlockList
	if err := a.Client.List(ctx, &all, client.MatchingFields{"spec.pool": r.Pool}); err != nil {
		return Grant{}, err
	}
	used := make(map[int64]bool, len(all.Items)+8)
	for _, b := range all.Items {
		used[int64(b.Spec.Index)] = true
	}
	blocks, lowest := pool.Blocks(), int64(0)
	for window := int64(1); ; window = min(2*window, jumpWindow) {
		for ; lowest < blocks && (used[lowest] || firstFree(pool, lowest) < 0); lowest++ {
			if err := ctx.Err(); err != nil {
				return Grant{}, err
			}
		}
		if lowest == blocks {
			return Grant{}, ErrPoolFull
		}
		index := lowest
		if jump := lowest + rand.N(window); jump < blocks && !used[jump] && firstFree(pool, jump) >= 0 {
			index = jump
		}
		grant, err := a.create(ctx, pool, index, r)
		if !apierrors.IsAlreadyExists(err) {
			return grant, err
		}
		used[index] = true
	}
}

// firstFree returns the lowest offset of a new block that is not reserved; -1 if all are.
func firstFree(pool ipam.Pool, index int64) int {
	subnet, _ := pool.Block(index)
	for offset := range (ipam.Block{Subnet: subnet}).Free(pool, time.Time{}) {
		return offset
	}
	return -1
}

func (a Allocator) create(ctx context.Context, pool ipam.Pool, index int64, r Request) (Grant, error) {
	offset := int32(firstFree(pool, index))
	block := v1alpha1.AddressBlock{Spec: v1alpha1.AddressBlockSpec{
		Pool: r.Pool, Index: int32(index), Node: r.Node,
		Allocations: []v1alpha1.Allocation{{Offset: offset, Handle: r.Handle, Attributes: r.Attributes}},
	}}
	block.Name = ipam.BlockName(r.Pool, index)
	if err := a.Client.Create(ctx, &block); err != nil {
		return Grant{}, err
	}
	return granted(block, offset, r.Handle), nil
}

// Give returns an address. Giving twice is no error; an address that is another hand-out's by now is left alone. It
// tries again when others are faster, until the context ends.
func (a Allocator) Give(ctx context.Context, g Grant) error {
	err := persist(ctx, func(ctx context.Context) error {
		var b v1alpha1.AddressBlock
		if err := a.Client.Get(ctx, types.NamespacedName{Name: g.Block}, &b); err != nil {
			return client.IgnoreNotFound(err)
		}
		i := slices.IndexFunc(b.Spec.Allocations, func(e v1alpha1.Allocation) bool { return e.Offset == g.Offset && e.Handle == g.Handle })
		if i < 0 {
			return nil
		}
		return a.patch(ctx, &b, operation{"op": "remove", "path": fmt.Sprintf("/spec/allocations/%d", i)})
	})
	if err != nil {
		return fmt.Errorf("giving back offset %d of AddressBlock %q: %w", g.Offset, g.Block, err)
	}
	return nil
}

func granted(b v1alpha1.AddressBlock, offset int32, handle string) Grant {
	return Grant{Block: b.Name, Offset: offset, Handle: handle, Addresses: b.Law().Subnet.At(uint64(offset))}
}
