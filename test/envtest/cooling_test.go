package envtest

import (
	"net/http"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

func TestCooling(t *testing.T) {
	t.Parallel()
	const cooldown = time.Hour
	for name, tt := range map[string]struct {
		cooldown time.Duration
		give     func(s *scene, b *v1alpha1.AddressBlock) error
		want     []int32 // the offsets that cool down
	}{
		"a json patch gives one address back": {
			cooldown: cooldown,
			give: func(s *scene, b *v1alpha1.AddressBlock) error {
				return s.client.Patch(t.Context(), b, client.RawPatch(types.JSONPatchType, []byte(`[{"op":"remove","path":"/spec/allocations/1"}]`)))
			},
			want: []int32{1},
		},
		"a merge patch gives all back": {
			cooldown: cooldown,
			give: func(s *scene, b *v1alpha1.AddressBlock) error {
				return s.client.Patch(t.Context(), b, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"allocations":null}}`)))
			},
			want: []int32{0, 1, 2},
		},
		"an owner of entries applies one away": {
			cooldown: cooldown,
			give: func(s *scene, b *v1alpha1.AddressBlock) error {
				kept := fixture.Block(b.Spec.Pool, 0, b.Spec.Node, fixture.Reservations(0, 1))
				if err := s.client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(s.plain(kept)), applier, client.ForceOwnership); err != nil {
					return err
				}
				s.read(b)
				return nil
			},
			want: []int32{2},
		},
		"what the client says about cooling does not count": {
			cooldown: cooldown,
			give: func(s *scene, b *v1alpha1.AddressBlock) error {
				return s.client.Patch(t.Context(), b, client.RawPatch(types.JSONPatchType, []byte(`[{"op":"remove","path":"/spec/allocations/1"},`+
					`{"op":"add","path":"/spec/cooling","value":[{"offset":1,"until":"2001-01-01T00:00:00Z"},{"offset":3,"until":"2999-01-01T00:00:00Z"}]}]`)))
			},
			want: []int32{1},
		},
		"a pool without a cooldown": {
			give: func(s *scene, b *v1alpha1.AddressBlock) error {
				return s.client.Patch(t.Context(), b, client.RawPatch(types.JSONPatchType, []byte(`[{"op":"remove","path":"/spec/allocations/1"}]`)))
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := shared.scene(t, "cooling")
			s.create(fixture.Pool(s.name, fixture.Subnet("10.100.0.0/24", ""), fixture.Cooldown(tt.cooldown)))
			s.node(s.name)
			b := fixture.Block(s.name, 0, s.name, fixture.Reservations(0, 2))
			s.apply(b)
			before := time.Now().Add(tt.cooldown)
			s.wants(answer{}, tt.give(s, b))

			var got []int32
			for _, c := range b.Spec.Cooling {
				got = append(got, c.Offset)
				if latest := time.Now().Add(tt.cooldown + time.Second); c.Until.Time.Before(before) || c.Until.After(latest) {
					t.Errorf("offset %d cools until %s, want %s to %s", c.Offset, c.Until, before, latest)
				}
			}
			if diff := gocmp.Diff(tt.want, got); diff != "" {
				t.Errorf("cooling (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCoolingEntriesAreNobodysToChange(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "patience")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.100.0.0/24", ""), fixture.Cooldown(time.Hour)))
	s.node(s.name)
	b := s.block(fixture.Reservations(0, 2))
	s.patch(b, types.JSONPatchType, `[{"op":"remove","path":"/spec/allocations/2"}]`)
	want := b.DeepCopy().Spec
	for name, patch := range map[string]string{
		"removed":   `{"spec":{"cooling":null}}`,
		"shortened": `{"spec":{"cooling":[{"offset":2,"until":"2001-01-01T00:00:00Z"}]}}`,
		"prolonged": `{"spec":{"cooling":[{"offset":2,"until":"2999-01-01T00:00:00Z"}]}}`,
		"invented":  `{"spec":{"cooling":[{"offset":3,"until":"2999-01-01T00:00:00Z"}]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			s.in(t).patch(b, types.MergePatchType, patch)
			if diff := gocmp.Diff(want, b.Spec); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCoolingAddressIsTakenAgainInTime(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "again")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.100.0.0/24", ""), fixture.Cooldown(2*time.Second)))
	s.node(s.name)
	b := s.block(fixture.Reservations(0, 1))
	s.patch(b, types.JSONPatchType, `[{"op":"remove","path":"/spec/allocations/1"}]`)
	if diff := gocmp.Diff([]v1alpha1.Cooling{{Offset: 1}}, b.Spec.Cooling, cmpopts.IgnoreTypes(metav1.Time{})); diff != "" {
		t.Fatalf("cooling (-want +got):\n%s", diff)
	}
	until := b.Spec.Cooling[0].Until.Time
	take := func() error { return s.take(b, fixture.Reservations(1, 1)) }
	s.wants(answer{
		Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
		Message: noTake + `"NAME-0" is forbidden: spec.allocations[1].offset: 10.100.0.1 was given back and may be taken again at UNTIL: take another offset`,
	}, take(), "UNTIL", until.UTC().Format(time.RFC3339))
	eventually(t, take)
	if now := time.Now(); now.Before(until) {
		t.Errorf("taken at %s, before %s", now, until)
	}
}
