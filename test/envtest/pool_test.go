package envtest

import (
	"fmt"
	"net/http"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

const (
	deniedPool  = `admission webhook "write.addresspools.ipam.oakum.dev" denied the request: `
	invalidPool = deniedPool + `AddressPool.ipam.oakum.dev `
	noPool      = deniedPool + `addresspools.ipam.oakum.dev `
)

// wrong and missing are causes as the API server lists them.
func wrong(field, message string) metav1.StatusCause {
	return metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Field: field, Message: message}
}

func missing(field, message string) metav1.StatusCause {
	return metav1.StatusCause{Type: metav1.CauseTypeFieldValueRequired, Field: field, Message: message}
}

func TestPoolOverlap(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "overlap")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.100.0.0/24", "fd00:100::/120")))
	later := fixture.Pool(s.name+"-later", fixture.Network(s.name), fixture.Subnet("10.100.1.0/24", "fd00:100::100/120"))
	s.create(later)

	for name, tt := range map[string]struct {
		write func() error
		want  answer
	}{
		"a new pool that shares both families with another of its network": {
			write: func() error {
				return s.client.Create(t.Context(), fixture.Pool(s.name+"-b", fixture.Network(s.name), fixture.Subnet("10.100.0.128/25", "fd00:100::80/121")))
			},
			want: answer{
				Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
				Message: invalidPool + `"NAME-b" is invalid: [` +
					`spec.subnets[0].ipv4: Invalid value: "10.100.0.128/25": must not overlap AddressPool "NAME" of network "NAME" (10.100.0.0/24), ` +
					`spec.subnets[0].ipv6: Invalid value: "fd00:100::80/121": must not overlap AddressPool "NAME" of network "NAME" (fd00:100::/120)]`,
				Causes: []metav1.StatusCause{
					wrong("spec.subnets[0].ipv4", `Invalid value: "10.100.0.128/25": must not overlap AddressPool "NAME" of network "NAME" (10.100.0.0/24)`),
					wrong("spec.subnets[0].ipv6", `Invalid value: "fd00:100::80/121": must not overlap AddressPool "NAME" of network "NAME" (fd00:100::/120)`),
				},
			},
		},
		"a pool that grows into another": {
			write: func() error {
				grow := `[{"op":"add","path":"/spec/subnets/-","value":{"ipv4":"10.100.0.0/25","ipv6":"fd00:101::/121"}}]`
				return s.client.Patch(t.Context(), later, client.RawPatch(types.JSONPatchType, []byte(grow)))
			},
			want: answer{
				Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
				Message: invalidPool + `"NAME-later" is invalid: ` +
					`spec.subnets[1].ipv4: Invalid value: "10.100.0.0/25": must not overlap AddressPool "NAME" of network "NAME" (10.100.0.0/24)`,
				Causes: []metav1.StatusCause{
					wrong("spec.subnets[1].ipv4", `Invalid value: "10.100.0.0/25": must not overlap AddressPool "NAME" of network "NAME" (10.100.0.0/24)`),
				},
			},
		},
		"the same addresses in another network": {
			write: func() error {
				return s.client.Create(t.Context(), fixture.Pool(s.name+"-c", fixture.Subnet("10.100.0.0/24", "fd00:100::/120")))
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := s.in(t)
			s.wants(tt.want, tt.write())
		})
	}
}

func TestPoolOverlapWithKubernetesItselfIsAWarning(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "podcidr")
	node := s.node(s.name, func(n *corev1.Node) {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.0.0.192/26", []string{"10.0.0.192/26", "fd00:1::/112"}
	})
	// Every pool of the default network would be warned of it.
	defer func() { s.wants(answer{}, s.client.Delete(t.Context(), node)) }()
	pool := func() *v1alpha1.AddressPool {
		return fixture.Pool(s.name, fixture.Network(v1alpha1.DefaultNetwork), fixture.Subnet("10.0.0.128/25", "fd00:1::/121"))
	}
	s.soon(answer{Warnings: []string{
		`pool-overlap: the pool overlaps Node "NAME" (10.0.0.192/26): give it a network of its own unless you mean it`,
		`pool-overlap: the pool overlaps Node "NAME" (fd00:1::/112): give it a network of its own unless you mean it`,
		`pool-overlap: the pool overlaps ServiceCIDR "kubernetes" (10.0.0.0/24): give it a network of its own unless you mean it`,
	}}, func() error { return s.client.Create(t.Context(), pool(), client.DryRunAll) })

	elsewhere := pool()
	elsewhere.Spec.Network = s.name
	s.wants(answer{}, s.client.Create(t.Context(), elsewhere))
}

func TestPoolShrink(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "shrink")
	pool := fixture.Pool(s.name, fixture.Subnet("10.100.0.0/24", ""), fixture.Reserved("10.100.0.3"))
	s.create(pool)
	s.node(s.name)
	s.block(fixture.Reservations(0, 1))

	reserve := func(ranges string) error {
		return s.client.Patch(t.Context(), pool.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"reserved":`+ranges+`}}`)))
	}
	s.wants(answer{
		Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
		Message: noPool + `"NAME" is forbidden: ` +
			`spec.reserved[1]: 10.100.0.0 in AddressBlock "NAME-0" is allocated to External router: give it back first; ` +
			`spec.reserved[1]: 10.100.0.1 in AddressBlock "NAME-0" is allocated to External router: give it back first`,
	}, reserve(`["10.100.0.3","10.100.0.0/31"]`))
	s.wants(answer{}, reserve(`["10.100.0.2-10.100.0.3"]`))
}

func TestPoolDraining(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "draining")
	pool := fixture.Pool(s.name, fixture.Subnet("10.100.0.0/24", ""))
	s.create(pool)
	s.node(s.name)
	s.block(fixture.Reservations(0, 2))

	s.wants(answer{
		Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
		Message: deniedNew + `addressblocks.ipam.oakum.dev "NAME-missing-0" is forbidden: spec.pool: AddressPool "NAME-missing" does not exist: create it first`,
	}, s.client.Create(t.Context(), fixture.Block(s.name+"-missing", 0, s.name)))

	// Deleting a pool is always admitted, and says what it waits for.
	remain := answer{Warnings: []string{"pool-in-use: 1 block with 3 allocations remain; deletion completes when they have drained"}}
	s.soon(remain, func() error { return s.client.Delete(t.Context(), pool, client.DryRunAll) })
	s.wants(remain, s.client.Delete(t.Context(), pool))
	eventually(t, func() error {
		var all eventsv1.EventList
		if err := s.client.List(t.Context(), &all, client.InNamespace(metav1.NamespaceDefault)); err != nil {
			return err
		}
		var notes []string
		for _, e := range all.Items {
			if e.Regarding.Name == s.name && e.Reason == "AdmissionWarning" {
				notes = append(notes, e.Note)
			}
		}
		if diff := gocmp.Diff(remain.Warnings, notes); diff != "" {
			return fmt.Errorf("events (-want +got):\n%s", diff)
		}
		return nil
	})

	s.soon(answer{
		Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
		Message: deniedNew + `addressblocks.ipam.oakum.dev "NAME-1" is forbidden: spec.pool: AddressPool "NAME" is being deleted and gives out no more blocks: use another pool`,
	}, func() error {
		return s.client.Create(t.Context(), fixture.Block(s.name, 1, s.name, fixture.Reservations(0, 0)), client.DryRunAll)
	})
	s.read(pool)
	if pool.DeletionTimestamp == nil {
		t.Error("the pool should be waiting for its block")
	}
}

func TestPoolWithoutBlocksIsDeletedWithoutAWord(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "unused")
	pool := fixture.Pool(s.name, fixture.Subnet("10.100.0.0/24", ""))
	s.create(pool)
	s.wants(answer{}, s.client.Delete(t.Context(), pool))
}
