package envtest

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

const (
	deniedNew   = `admission webhook "create.addressblocks.ipam.oakum.dev" denied the request: `
	invalidNew  = deniedNew + `AddressBlock.ipam.oakum.dev `
	noNew       = deniedNew + `addressblocks.ipam.oakum.dev `
	deniedTake  = `admission webhook "take.addressblocks.ipam.oakum.dev" denied the request: `
	invalidTake = deniedTake + `AddressBlock.ipam.oakum.dev `
	noTake      = deniedTake + `addressblocks.ipam.oakum.dev `
)

// byPolicy begins what one of our policies says.
func byPolicy(policy string) string {
	return fmt.Sprintf("ValidatingAdmissionPolicy '%[1]s.ipam.oakum.dev' with binding '%[1]s.ipam.oakum.dev' denied request: ", policy)
}

func TestNewBlockIsFilledIn(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "filled")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.100.0.0/24", "fd00:100::/120"), fixture.Cooldown(time.Hour)))
	s.node(s.name)
	b := fixture.Block(s.name, 17, s.name, func(b *v1alpha1.AddressBlock) {
		b.Finalizers = []string{"example.org/mine"}
		b.Spec.Cooling = []v1alpha1.Cooling{{Offset: 1, Until: metav1.NewTime(time.Now().Add(time.Hour))}}
	})
	s.create(b)
	want := fixture.Block(s.name, 17, s.name, func(b *v1alpha1.AddressBlock) {
		b.Spec.IPv4, b.Spec.IPv6 = "10.100.0.68/30", "fd00:100::44/126"
	})
	if diff := gocmp.Diff(want.Spec, b.Spec); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	if diff := gocmp.Diff([]string{"example.org/mine", v1alpha1.BlockFinalizer}, b.Finalizers); diff != "" {
		t.Errorf("finalizers (-want +got):\n%s", diff)
	}
}

func TestBlockMalformed(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "malformed")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.100.0.0/24", "")))
	s.node(s.name)
	for name, tt := range map[string]struct {
		block *v1alpha1.AddressBlock
		want  answer
	}{
		"an index behind the pool's end": {
			block: fixture.Block(s.name, 64, s.name),
			want: answer{
				Message: invalidNew + `"NAME-64" is invalid: spec.index: Invalid value: "64": AddressPool "NAME" has 64 blocks: the last index is 63`,
				Causes:  []metav1.StatusCause{wrong("spec.index", `Invalid value: "64": AddressPool "NAME" has 64 blocks: the last index is 63`)},
			},
		},
		"addresses that are another block's, and a family that the pool does not have": {
			block: fixture.Block(s.name, 1, s.name, func(b *v1alpha1.AddressBlock) { b.Spec.IPv4, b.Spec.IPv6 = "10.100.0.0/30", "fd00::/126" }),
			want: answer{
				Message: invalidNew + `"NAME-1" is invalid: [` +
					`spec.ipv4: Invalid value: "10.100.0.0/30": must be 10.100.0.4/30, or left out: it follows from pool and index, ` +
					`spec.ipv6: Invalid value: "fd00::/126": must be left out: AddressPool "NAME" has no such family]`,
				Causes: []metav1.StatusCause{
					wrong("spec.ipv4", `Invalid value: "10.100.0.0/30": must be 10.100.0.4/30, or left out: it follows from pool and index`),
					wrong("spec.ipv6", `Invalid value: "fd00::/126": must be left out: AddressPool "NAME" has no such family`),
				},
			},
		},
		"a node that does not exist": {
			block: fixture.Block(s.name, 1, s.name+"-missing"),
			want: answer{
				Message: invalidNew + `"NAME-1" is invalid: spec.node: Invalid value: "NAME-missing": Node "NAME-missing" does not exist`,
				Causes:  []metav1.StatusCause{wrong("spec.node", `Invalid value: "NAME-missing": Node "NAME-missing" does not exist`)},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tt.want.Code, tt.want.Reason = http.StatusUnprocessableEntity, metav1.StatusReasonInvalid
			s.in(t).wants(tt.want, s.client.Create(t.Context(), tt.block))
		})
	}
}

func TestSecondUnfilledBlock(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "second")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.100.0.0/24", ""), fixture.Reserved("10.100.0.0"), fixture.Cooldown(time.Hour)))
	s.node(s.name)
	s.node(s.name + "-other")
	first := s.block(fixture.Reservations(1, 2))
	second := func() *v1alpha1.AddressBlock { return fixture.Block(s.name, 1, s.name) }

	refused := answer{
		Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
		Message: noNew + `"NAME-1" is forbidden: spec.node: node "NAME" has free addresses in AddressBlock "NAME-0": take one of those`,
	}
	s.wants(refused, s.client.Create(t.Context(), second()))
	s.wants(answer{}, s.client.Create(t.Context(), fixture.Block(s.name, 2, s.name+"-other")))

	// One reserved, two allocated and one cooling down: nothing is free.
	s.wants(answer{}, s.take(first, fixture.Reservations(3, 3)))
	s.patch(first, types.JSONPatchType, `[{"op":"remove","path":"/spec/allocations/2"}]`)
	s.wants(answer{}, s.client.Create(t.Context(), second()))

	// The name is taken: the webhook says so before the node's claim is spent on it.
	s.soon(answer{
		Code: http.StatusConflict, Reason: metav1.StatusReasonAlreadyExists,
		Message: noNew + `"NAME-1" already exists`,
	}, func() error {
		return s.client.Create(t.Context(), fixture.Block(s.name, 1, s.name+"-other"), client.DryRunAll)
	})
}

func TestBlockInUse(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "in-use")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.100.0.0/24", "")))
	s.node(s.name)
	b := s.block(fixture.Reservations(0, 2))
	refused := answer{
		Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
		Message: `addressblocks.ipam.oakum.dev "NAME-0" is forbidden: ` + byPolicy("block-in-use") +
			`AddressBlock NAME-0 has allocations (3): give them back first, or annotate the block: ipam.oakum.dev/force-delete=UID`,
	}
	s.wants(refused, s.client.Delete(t.Context(), b), "UID", string(b.UID))
	s.annotate(b, v1alpha1.ForceDeleteAnnotation, "6f0c11d2-0000-4000-8000-000000000000")
	s.wants(refused, s.client.Delete(t.Context(), b), "UID", string(b.UID))
	s.annotate(b, v1alpha1.ForceDeleteAnnotation, string(b.UID))
	s.wants(answer{}, s.client.Delete(t.Context(), b))

	// It still waits for its allocations, and nobody may add to them: its node may have another block.
	s.read(b)
	if b.DeletionTimestamp == nil {
		t.Error("the block should be waiting for its allocations")
	}
	s.wants(answer{
		Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
		Message: noTake + `"NAME-0" is forbidden: spec.allocations[3]: AddressBlock "NAME-0" is being deleted: take an address from another block`,
	}, s.take(b, fixture.Reservations(3, 3)))
	empty := fixture.Block(s.name, 1, s.name)
	s.create(empty)
	s.wants(answer{}, s.client.Delete(t.Context(), empty))
}

func TestNodeWriter(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "writer")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.100.0.0/24", "")))
	s.node(s.name)
	s.node(s.name + "-other")
	mine := s.block(fixture.Reservations(0, 0))
	other := fixture.Block(s.name, 1, s.name+"-other")
	s.create(other)
	// A token of a pod says on which node the pod runs, whatever the pod may do.
	s.client = s.connect(s.As(s.name, map[string][]string{"authentication.kubernetes.io/node-name": {s.name}}, "system:masters"))

	merge := func(patch string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(patch)) }
	report := merge(`{"status":{"allocated":2}}`)
	for name, tt := range map[string]struct {
		write func() error
		block string // empty if the write is admitted
	}{
		"takes from its own node's block": {write: func() error { return s.take(mine, fixture.Reservations(1, 1)) }},
		"reports its own node's block":    {write: func() error { return s.client.Status().Patch(t.Context(), mine.DeepCopy(), report, client.DryRunAll) }},
		"takes from another node's block": {write: func() error { return s.take(other, fixture.Reservations(1, 1)) }, block: "NAME-1"},
		"labels another node's block": {write: func() error {
			return s.client.Patch(t.Context(), other.DeepCopy(), merge(`{"metadata":{"labels":{"mine":"yes"}}}`))
		}, block: "NAME-1"},
		"reports another node's block":     {write: func() error { return s.client.Status().Patch(t.Context(), other.DeepCopy(), report) }, block: "NAME-1"},
		"deletes another node's block":     {write: func() error { return s.client.Delete(t.Context(), other) }, block: "NAME-1"},
		"creates a block for another node": {write: func() error { return s.client.Create(t.Context(), fixture.Block(s.name, 2, s.name+"-other")) }, block: "NAME-2"},
	} {
		t.Run(name, func(t *testing.T) {
			var want answer
			if tt.block != "" {
				want = answer{
					Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
					Message: `addressblocks.ipam.oakum.dev "` + tt.block + `" is forbidden: ` + byPolicy("node-writer") +
						`this token belongs to node NAME and may not write AddressBlock ` + tt.block + ` of node NAME-other`,
				}
			}
			s.in(t).wants(want, tt.write())
		})
	}
}
