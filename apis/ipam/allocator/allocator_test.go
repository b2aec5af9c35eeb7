package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/allocator"
	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

func pool(knobs ...func(*v1alpha1.AddressPool)) *v1alpha1.AddressPool {
	return fixture.Pool("p", append(knobs, fixture.Subnet("10.0.0.0/28", ""))...)
}

// block is one of the four blocks of pool p.
func block(index int32, node string, knobs ...func(*v1alpha1.AddressBlock)) *v1alpha1.AddressBlock {
	b := fixture.Block("p", index, node, knobs...)
	fill(b)
	return b
}

func web() v1alpha1.Attributes {
	return v1alpha1.Attributes{Type: v1alpha1.OwnerPod, Namespace: "default", Name: "web-0", UID: "u1", Node: "n1"}
}

func request() allocator.Request {
	return allocator.Request{Pool: "p", Node: "n1", Handle: "h1", Attributes: web()}
}

func grant(block string, offset int32, addrs ...string) allocator.Grant {
	g := allocator.Grant{Block: block, Offset: offset, Handle: "h1"}
	for _, a := range addrs {
		g.Addresses = append(g.Addresses, netip.MustParseAddr(a))
	}
	return g
}

func TestTake(t *testing.T) {
	cooling := func(offset int32, left time.Duration) func(*v1alpha1.AddressBlock) {
		return func(b *v1alpha1.AddressBlock) {
			b.Spec.Cooling = append(b.Spec.Cooling, v1alpha1.Cooling{Offset: offset, Until: metav1.NewTime(time.Now().Add(left))})
		}
	}
	going := func(b *v1alpha1.AddressBlock) {
		b.DeletionTimestamp, b.Finalizers = new(metav1.Now()), []string{v1alpha1.BlockFinalizer}
	}
	full := fixture.Reservations(0, 3)
	tests := map[string]struct {
		pool   *v1alpha1.AddressPool
		blocks []client.Object
		want   allocator.Grant
		// wantErr is the whole message; empty if there is none.
		wantErr string
		writes  []string
	}{
		"the lowest free offset": {
			blocks: []client.Object{block(0, "n1", fixture.Reservations(0, 0), fixture.Reservations(2, 2))},
			want:   grant("p-0", 1, "10.0.0.1"),
			writes: []string{`patch p-0 application/json-patch+json [{"op":"replace","path":"/metadata/resourceVersion","value":"999"},{"op":"add","path":"/spec/allocations/-","value":{"offset":1,"handle":"h1","attributes":{"type":"Pod","namespace":"default","name":"web-0","uid":"u1","node":"n1"}}}]`},
		},
		"into an empty block the whole list": {
			blocks: []client.Object{block(0, "n1")},
			want:   grant("p-0", 0, "10.0.0.0"),
			writes: []string{`patch p-0 application/json-patch+json [{"op":"replace","path":"/metadata/resourceVersion","value":"999"},{"op":"add","path":"/spec/allocations","value":[{"offset":0,"handle":"h1","attributes":{"type":"Pod","namespace":"default","name":"web-0","uid":"u1","node":"n1"}}]}]`},
		},
		"the first block that has room":              {blocks: []client.Object{block(0, "n1", full), block(2, "n1", fixture.Reservations(0, 0))}, want: grant("p-2", 1, "10.0.0.9")},
		"past what cools down":                       {blocks: []client.Object{block(0, "n1", cooling(0, time.Minute))}, want: grant("p-0", 1, "10.0.0.1")},
		"what has cooled down":                       {blocks: []client.Object{block(0, "n1", cooling(0, 0))}, want: grant("p-0", 0, "10.0.0.0")},
		"past what is reserved":                      {pool: pool(fixture.Reserved("10.0.0.0")), blocks: []client.Object{block(0, "n1")}, want: grant("p-0", 1, "10.0.0.1")},
		"past a block of which all is reserved":      {pool: pool(fixture.Reserved("10.0.0.0/30")), blocks: []client.Object{block(0, "n1"), block(1, "n1")}, want: grant("p-1", 0, "10.0.0.4")},
		"a new block where there is none":            {want: grant("p-0", 0, "10.0.0.0"), writes: []string{"create p-0"}},
		"a new block where all are full":             {blocks: []client.Object{block(0, "n1", full)}, want: grant("p-1", 0, "10.0.0.4"), writes: []string{"create p-1"}},
		"a new block beside other nodes'":            {blocks: []client.Object{block(0, "n2"), block(2, "n3")}, want: grant("p-1", 0, "10.0.0.4"), writes: []string{"create p-1"}},
		"a new block beside one that goes":           {blocks: []client.Object{block(0, "n1", going)}, want: grant("p-1", 0, "10.0.0.4"), writes: []string{"create p-1"}},
		"a new block past what is reserved":          {pool: pool(fixture.Reserved("10.0.0.0/29", "10.0.0.8")), want: grant("p-2", 1, "10.0.0.9"), writes: []string{"create p-2"}},
		"the same address for the same handle":       {blocks: []client.Object{block(0, "n1", full), block(1, "n1", fixture.Entry(3, "h1", web()))}, want: grant("p-1", 3, "10.0.0.7"), writes: nil},
		"no address for the handle of another owner": {blocks: []client.Object{block(0, "n1", fixture.Entry(3, "h1", fixture.External("router")))}, wantErr: `handle "h1" is that of External router in AddressBlock "p-0"`},
		"no address of a full pool":                  {blocks: []client.Object{block(0, "n1", full), block(1, "n2"), block(2, "n3"), block(3, "n4")}, wantErr: "the pool has no free address"},
		"no address where the rest is reserved":      {pool: pool(fixture.Reserved("10.0.0.4-10.0.0.15")), blocks: []client.Object{block(0, "n1", full)}, wantErr: "the pool has no free address"},
		"no address of a pool that makes no sense":   {pool: fixture.Pool("p", fixture.Subnet("10.0.0.1/28", "")), wantErr: "the pool is malformed: spec.subnets[0].ipv4: must have no host bits set: did you mean 10.0.0.0/28?"},
		"no address of no pool":                      {pool: fixture.Pool("q"), wantErr: `addresspools.ipam.oakum.dev "p" not found`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := tt.pool
			if p == nil {
				p = pool()
			}
			c := newCluster(t, append(tt.blocks, p)...)
			got, err := allocator.Allocator{Client: c}.Take(t.Context(), request())
			if tt.wantErr != "" {
				tt.wantErr = `taking an address of pool "p" for node "n1": ` + tt.wantErr
			}
			expect(t, "error", tt.wantErr, message(err))
			expect(t, "grant", tt.want, got)
			if tt.writes != nil {
				expect(t, "writes", tt.writes, c.writes)
			}
			if err != nil {
				expect(t, "writes", nil, c.writes)
				return
			}
			entry := v1alpha1.Allocation{Offset: got.Offset, Handle: "h1", Attributes: web()}
			b := c.block(t, got.Block)
			expect(t, "entry", entry, b.Spec.Allocations[len(b.Spec.Allocations)-1])
			expect(t, "node", "n1", b.Spec.Node)
		})
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Others write too. What they do first decides what comes of it.
func TestTakeAmongOthers(t *testing.T) {
	tests := map[string]struct {
		blocks []client.Object
		// call is before which others act, first before the first of these calls.
		call string
		act  func(t *testing.T, c *cluster) error
		want allocator.Grant
	}{
		"a neighbour takes the address": {
			[]client.Object{block(0, "n1")},
			"patch AddressBlock",
			func(t *testing.T, c *cluster) error {
				b := c.block(t, "p-0")
				fixture.Entry(0, "h2", fixture.External("router"))(b)
				return c.Update(t.Context(), b)
			},
			grant("p-0", 1, "10.0.0.1"),
		},
		"the last neighbour leaves": {
			[]client.Object{block(0, "n1", fixture.Reservations(0, 0))},
			"patch AddressBlock",
			func(t *testing.T, c *cluster) error {
				b := c.block(t, "p-0")
				b.Spec.Allocations = nil
				return c.Update(t.Context(), b)
			},
			grant("p-0", 0, "10.0.0.0"),
		},
		"the block goes": {
			[]client.Object{block(0, "n1")},
			"patch AddressBlock",
			func(t *testing.T, c *cluster) error { return c.Delete(t.Context(), block(0, "n1")) },
			grant("p-0", 0, "10.0.0.0"),
		},
		"a block goes to another node": {
			[]client.Object{block(2, "n3"), block(3, "n4")},
			"create AddressBlock",
			func(t *testing.T, c *cluster) error { return c.WithWatch.Create(t.Context(), block(0, "n2")) },
			grant("p-1", 0, "10.0.0.4"),
		},
		"a pod of the same node gets the block": {
			nil, "create AddressBlock",
			func(t *testing.T, c *cluster) error {
				if err := c.WithWatch.Create(t.Context(), block(0, "n1", fixture.Entry(0, "h2", fixture.External("router")))); err != nil {
					return err
				}
				return refusal(`spec.node: node "n1" has free addresses in AddressBlock "p-0": take one of those`, true)
			},
			grant("p-0", 1, "10.0.0.1"),
		},
		"the API server is busy": {
			[]client.Object{block(0, "n1")},
			"get AddressPool",
			func(*testing.T, *cluster) error { return apierrors.NewTooManyRequests("later", 1) },
			grant("p-0", 0, "10.0.0.0"),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, append(tt.blocks, pool())...)
				c.once(tt.call, func() error { return tt.act(t, c) })
				got, err := allocator.Allocator{Client: c}.Take(t.Context(), request())
				check(t, err)
				expect(t, "grant", tt.want, got)
			})
		})
	}
}

// Collisions with other nodes end: no index is tried twice, and none far from the others.
func TestTakeJumpsOn(t *testing.T) {
	const collisions = 20
	c := newCluster(t, fixture.Pool("p", fixture.Subnet("10.0.0.0/8", "")))
	c.before["create AddressBlock"] = func() error {
		if len(c.writes) > collisions {
			return nil
		}
		return apierrors.NewAlreadyExists(schema.GroupResource{Group: v1alpha1.Group, Resource: "addressblocks"}, "p")
	}
	got, err := allocator.Allocator{Client: c}.Take(t.Context(), request())
	check(t, err)
	expect(t, "the last try", "create "+got.Block, c.writes[collisions])
	expect(t, "the first try", "create p-0", c.writes[0])
	slices.Sort(c.writes)
	expect(t, "different tries", collisions+1, len(slices.Compact(c.writes)))
	if index := c.block(t, got.Block).Spec.Index; index > collisions+256 {
		t.Errorf("it jumped to index %d", index)
	}
}

// Pods that start together on one node share its block. A call takes 5 ms here.
func TestFiftyPodsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods = 50
		c := newCluster(t, fixture.Block("p", 0, "n1"), fixture.Pool("p", fixture.BlockSize(6), fixture.Subnet("10.0.0.0/26", "")))
		for _, call := range []string{"get AddressPool", "patch AddressBlock"} {
			c.before[call] = func() error {
				<-time.After(5 * time.Millisecond)
				return nil
			}
		}
		began := time.Now()
		offsets := make(chan int32, pods)
		for i := range pods {
			go func() {
				r := request()
				r.Handle = fmt.Sprintf("h%d", i)
				g, err := allocator.Allocator{Client: c}.Take(t.Context(), r)
				if err != nil {
					t.Error(err)
				}
				offsets <- g.Offset
			}()
		}
		taken := map[int32]bool{}
		for range pods {
			taken[<-offsets] = true
		}
		expect(t, "offsets", pods, len(taken))
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

func TestARefusalComesBackAsItIs(t *testing.T) {
	tests := map[string]error{
		"at the wrong time (403)": refusal("spec.allocations[0].attributes.name: Pod default/web-0 is being deleted", false),
		"of a wrong value (422)": apierrors.NewInvalid(v1alpha1.SchemeGroupVersion.WithKind("AddressBlock").GroupKind(), "p-0", field.ErrorList{
			field.Invalid(field.NewPath("spec.allocations[0].attributes.name"), "web-0", "Pod default/web-0 does not exist"),
		}),
	}
	for name, refused := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				c := newCluster(t, pool(), block(0, "n1"))
				c.before["patch AddressBlock"] = func() error { return refused }
				_, err := allocator.Allocator{Client: c}.Take(t.Context(), request())
				expect(t, "error", `taking an address of pool "p" for node "n1": `+refused.Error(), message(err))
				expect(t, "reason", apierrors.ReasonForError(refused), apierrors.ReasonForError(err))
				expect(t, "time", 0, time.Since(began))
			})
		})
	}
}

// Whatever stands in the way, it is over when the context is.
func TestTakeEndsWithTheContext(t *testing.T) {
	tests := map[string]struct {
		pool   *v1alpha1.AddressPool
		blocks []client.Object
		call   string
		answer error
		want   string
	}{
		"others are always faster": {
			pool(),
			[]client.Object{block(0, "n1")},
			"patch AddressBlock", conflict(),
			`context deadline exceeded, after: Operation cannot be fulfilled on addressblocks.ipam.oakum.dev "p-0": the object has been modified`,
		},
		"the claim is never over": {
			pool(), nil, "create AddressBlock", refusal("spec.node: another block is being created", true),
			`context deadline exceeded, after: addressblocks.ipam.oakum.dev "p-0" is forbidden: spec.node: another block is being created`,
		},
		"the API server is always busy": {
			pool(), nil, "get AddressPool", apierrors.NewTooManyRequests("later", 1), "context deadline exceeded, after: later",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, append(tt.blocks, tt.pool)...)
				c.before[tt.call] = func() error { return tt.answer }
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				began := time.Now()
				_, err := allocator.Allocator{Client: c}.Take(ctx, request())
				expect(t, "error", `taking an address of pool "p" for node "n1": `+tt.want, message(err))
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Error("it is not told from a refusal")
				}
				expect(t, "time", time.Minute, time.Since(began))
				if tries := len(c.writes); tries > 30 {
					t.Errorf("it was tried %d times", tries)
				}
			})
		})
	}
}

// Sixteen million blocks of which each is reserved: looking through them takes a while, and no call tells that the
// context has ended.
func TestTakeEndsAmongReservedBlocks(t *testing.T) {
	c := newCluster(t, fixture.Pool("p", fixture.BlockSize(0), fixture.Subnet("10.0.0.0/8", ""), fixture.Reserved("10.0.0.0/8")))
	ctx, cancel := context.WithCancel(t.Context())
	c.before["get AddressPool"] = func() error {
		cancel()
		return nil
	}
	_, err := allocator.Allocator{Client: c}.Take(ctx, request())
	expect(t, "error", `taking an address of pool "p" for node "n1": context canceled`, message(err))
}

// Looking for a block takes time for each one that is used or reserved, but not for each pair of them.
func TestTakePastManyReservedBlocks(t *testing.T) {
	c := newCluster(t, fixture.Pool("p", fixture.BlockSize(0), fixture.Subnet("10.0.0.0/15", ""), fixture.Reserved("10.0.0.0/16")))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	got, err := allocator.Allocator{Client: c}.Take(ctx, request())
	check(t, err)
	expect(t, "block", "p-65536", got.Block)
}

func TestGive(t *testing.T) {
	given := fixture.Entry(1, "h1", web())
	other := fixture.Entry(1, "h2", fixture.External("router"))
	neighbours := fixture.Reservations(2, 3)
	tests := map[string]struct {
		block *v1alpha1.AddressBlock
		// meanwhile happens before the first patch.
		meanwhile func(t *testing.T, c *cluster) error
		want      []v1alpha1.Allocation
		writes    []string
	}{
		"the entry goes, and no other": {
			block: block(0, "n1", given, neighbours), want: block(0, "n1", neighbours).Spec.Allocations,
			writes: []string{`patch p-0 application/json-patch+json [{"op":"replace","path":"/metadata/resourceVersion","value":"999"},{"op":"remove","path":"/spec/allocations/0"}]`},
		},
		"what was given back before is no error": {block: block(0, "n1", neighbours), want: block(0, "n1", neighbours).Spec.Allocations},
		"what is another's by now stays":         {block: block(0, "n1", other), want: block(0, "n1", other).Spec.Allocations},
		"a neighbour's write is no hindrance": {
			block: block(0, "n1", neighbours, given),
			meanwhile: func(t *testing.T, c *cluster) error {
				b := c.block(t, "p-0")
				b.Spec.Allocations = b.Spec.Allocations[1:]
				return c.Update(t.Context(), b)
			},
			want: block(0, "n1", fixture.Reservations(3, 3)).Spec.Allocations,
			writes: []string{
				`patch p-0 application/json-patch+json [{"op":"replace","path":"/metadata/resourceVersion","value":"999"},{"op":"remove","path":"/spec/allocations/2"}]`,
				`patch p-0 application/json-patch+json [{"op":"replace","path":"/metadata/resourceVersion","value":"1000"},{"op":"remove","path":"/spec/allocations/1"}]`,
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, tt.block)
				if tt.meanwhile != nil {
					c.once("patch AddressBlock", func() error { return tt.meanwhile(t, c) })
				}
				check(t, allocator.Allocator{Client: c}.Give(t.Context(), grant("p-0", 1)))
				expect(t, "writes", tt.writes, c.writes)
				check(t, allocator.Allocator{Client: c}.Give(t.Context(), grant("p-0", 1)))
				expect(t, "writes after giving twice", tt.writes, c.writes)
				expect(t, "entries", tt.want, c.block(t, "p-0").Spec.Allocations)
			})
		})
	}
}

func TestGiveIntoWhatIsGone(t *testing.T) {
	c := newCluster(t)
	check(t, allocator.Allocator{Client: c}.Give(t.Context(), grant("p-0", 1)))
	c = newCluster(t, block(0, "n1", fixture.Entry(1, "h1", web())))
	c.before["patch AddressBlock"] = func() error { return c.Delete(t.Context(), block(0, "n1")) }
	check(t, allocator.Allocator{Client: c}.Give(t.Context(), grant("p-0", 1)))
}

func TestGiveEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, block(0, "n1", fixture.Entry(1, "h1", web())))
		c.before["patch AddressBlock"] = conflict
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := allocator.Allocator{Client: c}.Give(ctx, grant("p-0", 1))
		const want = `giving back offset 1 of AddressBlock "p-0": context deadline exceeded, after: Operation cannot be fulfilled on addressblocks.ipam.oakum.dev "p-0": the object has been modified`
		expect(t, "error", want, message(err))
	})
}
