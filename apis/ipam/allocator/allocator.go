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
	pause := wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 12, Cap: 5 * time.Second}
	err := pause.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (done bool, err error) {
		grant, err = a.try(ctx, r)
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return Grant{}, fmt.Errorf("taking an address of pool %q for node %q: %w", r.Pool, r.Node, err)
	}
	return grant, nil
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
			if e.Handle == r.Handle {
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
	patch, err := json.Marshal([]map[string]any{
		{"op": "replace", "path": "/metadata/resourceVersion", "value": b.ResourceVersion},
		{"op": "add", "path": path, "value": value},
	})
	if err != nil {
		return Grant{}, fmt.Errorf("encoding the allocation: %w", err)
	}
	if err := a.Client.Patch(ctx, &b, client.RawPatch(types.JSONPatchType, patch)); err != nil {
		return Grant{}, err
	}
	return granted(b, offset, r.Handle), nil
}

// takeFromNew creates a block that holds the allocation from its beginning.
func (a Allocator) takeFromNew(ctx context.Context, pool ipam.Pool, r Request) (Grant, error) {
	var all v1alpha1.AddressBlockList
	if err := a.Client.List(ctx, &all, client.MatchingFields{"spec.pool": r.Pool}); err != nil {
		return Grant{}, err
	}
	used := make([]int64, 0, len(all.Items)+8)
	for _, b := range all.Items {
		used = append(used, int64(b.Spec.Index))
	}
	for window := int64(1); ; window = min(2*window, jumpWindow) {
		index, ok := pool.LowestFree(used)
		if !ok {
			return Grant{}, ErrPoolFull
		}
		if jump := index + rand.N(window); jump < pool.Blocks() && !slices.Contains(used, jump) {
			index = jump
		}
		grant, err := a.create(ctx, pool, index, r)
		if !apierrors.IsAlreadyExists(err) {
			return grant, err
		}
		used = append(used, index)
	}
}

func (a Allocator) create(ctx context.Context, pool ipam.Pool, index int64, r Request) (Grant, error) {
	subnet, _ := pool.Block(index)
	for offset := range (ipam.Block{Subnet: subnet}).Free(pool, time.Now()) {
		block := v1alpha1.AddressBlock{Spec: v1alpha1.AddressBlockSpec{
			Pool: r.Pool, Index: int32(index), Node: r.Node,
			Allocations: []v1alpha1.Allocation{{Offset: int32(offset), Handle: r.Handle, Attributes: r.Attributes}},
		}}
		block.Name = ipam.BlockName(r.Pool, index)
		if err := a.Client.Create(ctx, &block); err != nil {
			return Grant{}, err
		}
		return granted(block, int32(offset), r.Handle), nil
	}
	// Every address of that block is reserved: treat it as taken.
	return Grant{}, apierrors.NewAlreadyExists(schema.GroupResource{Group: v1alpha1.Group, Resource: "addressblocks"}, ipam.BlockName(r.Pool, index))
}

// Give returns an address. Giving twice is no error; an address that is another hand-out's by now is left alone.
func (a Allocator) Give(ctx context.Context, g Grant) error {
	for {
		var b v1alpha1.AddressBlock
		err := a.Client.Get(ctx, types.NamespacedName{Name: g.Block}, &b)
		if err == nil {
			i := slices.IndexFunc(b.Spec.Allocations, func(e v1alpha1.Allocation) bool { return e.Offset == g.Offset && e.Handle == g.Handle })
			if i < 0 {
				return nil
			}
			patch := fmt.Sprintf(`[{"op":"replace","path":"/metadata/resourceVersion","value":%q},{"op":"remove","path":"/spec/allocations/%d"}]`, b.ResourceVersion, i)
			err = a.Client.Patch(ctx, &b, client.RawPatch(types.JSONPatchType, []byte(patch)))
		}
		switch {
		case err == nil, apierrors.IsNotFound(err):
			return nil
		case !apierrors.IsConflict(err):
			return fmt.Errorf("giving back offset %d of AddressBlock %q: %w", g.Offset, g.Block, err)
		}
	}
}

func granted(b v1alpha1.AddressBlock, offset int32, handle string) Grant {
	return Grant{Block: b.Name, Offset: offset, Handle: handle, Addresses: b.Law().Subnet.At(uint64(offset))}
}
