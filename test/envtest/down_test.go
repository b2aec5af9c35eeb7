package envtest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/fixture"
)

func TestI8WithoutOakum(t *testing.T) {
	t.Parallel()
	p := own(t, controlplane.Start)
	// A leader that could not renew its Lease would end itself.
	const alone = settings + "leaderElection: {enabled: false}\n"
	manager := p.start(t, alone)
	t.Run("while all managers hang", func(t *testing.T) {
		withoutOakum(p.scene(t, "hangs"), func(t *testing.T) {
			if err := manager.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
		}, func(t *testing.T) {
			if err := manager.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
		})
	})
	t.Run("while all managers are down", func(t *testing.T) {
		withoutOakum(p.scene(t, "down"), func(*testing.T) { manager.Kill() }, func(t *testing.T) { p.start(t, alone) })
	})
}

// withoutOakum checks which writes pass between stop and start, and that everything passes afterwards.
func withoutOakum(s *scene, stop, start func(*testing.T)) {
	t := s.t
	objects := s.hold()
	pool, block, pod := objects[0].object.(*v1alpha1.AddressPool), objects[1].object.(*v1alpha1.AddressBlock), objects[2].object
	s.patch(block, types.JSONPatchType, `[
		{"op":"add","path":"/spec/allocations/-","value":{"offset":1,"handle":"h1","attributes":{"type":"External","name":"router"}}},
		{"op":"add","path":"/spec/allocations/-","value":{"offset":2,"handle":"h2","attributes":{"type":"External","name":"router"}}}]`)
	s.node(s.name + "-idle")
	empty := fixture.Block(s.name, 1, s.name+"-idle")
	s.create(empty)
	unused := fixture.Pool(s.name+"-unused", fixture.Subnet("10.101.0.0/24", ""))
	s.create(unused)

	rest, err := json.Marshal(map[string]any{"spec": map[string]any{"allocations": block.Spec.Allocations[:1]}})
	if err != nil {
		t.Fatal(err)
	}

	stop(t)
	patch := func(object client.Object, t types.PatchType, patch string) func() error {
		return func() error {
			return s.client.Patch(s.t.Context(), object.DeepCopyObject().(client.Object), client.RawPatch(t, []byte(patch)))
		}
	}
	for _, pass := range []struct {
		name  string
		write func() error
	}{
		{"labelling a pool", patch(pool, types.MergePatchType, `{"metadata":{"labels":{"a":"b"}}}`)},
		{"annotating a block", patch(block, types.MergePatchType, `{"metadata":{"annotations":{"a":"b"}}}`)},
		{"reporting a block's status", func() error {
			return s.client.Status().Patch(t.Context(), block.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"status":{"allocated":3}}`)))
		}},
		{"giving back by a json patch", patch(block, types.JSONPatchType, `[{"op":"test","path":"/spec/allocations/2/offset","value":2},{"op":"remove","path":"/spec/allocations/2"}]`)},
		{"giving back by a merge patch", patch(block, types.MergePatchType, string(rest))},
		{"giving back by apply", func() error {
			bare := s.plain(fixture.Block(s.name, 0, s.name))
			bare.SetFinalizers([]string{v1alpha1.BlockFinalizer})
			return s.client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(bare), applier, client.ForceOwnership)
		}},
		{"allowing a finalizer's removal", patch(pod, types.MergePatchType, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.ForceReleaseAnnotation, pod.GetUID()))},
		{"removing a finalizer", patch(pod, types.MergePatchType, `{"metadata":{"finalizers":null}}`)},
		{"deleting an empty block", func() error { return s.client.Delete(t.Context(), empty) }},
		{"deleting a pool", func() error { return s.client.Delete(t.Context(), unused) }},
	} {
		t.Run(pass.name+" passes", func(t *testing.T) {
			began := time.Now()
			s.in(t).wants(answer{}, pass.write())
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
	s.read(block)
	if diff := gocmp.Diff([]v1alpha1.Allocation(nil), block.Spec.Allocations); diff != "" {
		t.Errorf("allocations (-want +got):\n%s", diff)
	}

	newPool := func() error {
		return s.client.Create(t.Context(), fixture.Pool(s.name+"-new", fixture.Subnet("10.102.0.0/24", "")))
	}
	newBlock := func() error { return s.client.Create(t.Context(), fixture.Block(s.name, 2, s.name+"-new")) }
	take := func() error { return s.take(block, fixture.Reservations(0, 0)) }
	for _, fail := range []struct {
		name, webhook string
		write         func() error
	}{
		{"a new pool", "create.addresspools.ipam.oakum.dev", newPool},
		{"a new block", "create.addressblocks.ipam.oakum.dev", newBlock},
		{"taking", "take.addressblocks.ipam.oakum.dev", take},
	} {
		t.Run(fail.name+" fails and names the webhook", func(t *testing.T) {
			got := s.answer(fail.write())
			got.Message, _, _ = strings.Cut(got.Message, ": failed to call webhook: ")
			want := answer{
				Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError,
				Message: fmt.Sprintf("Internal error occurred: failed calling webhook %q", fail.webhook),
			}
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}

	start(t)
	s.node(s.name + "-new")
	for name, write := range map[string]func() error{"a new pool": newPool, "a new block": newBlock, "taking": take} {
		t.Run(name+" passes afterwards", func(t *testing.T) { s.in(t).wants(answer{}, write()) })
	}
}
