package envtest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/backends/whereabouts"
	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/controlplane"
)

const (
	sandbox = "03b760a78be7e65fbc5539d50e06a59f69f4c5fa30c8d5f4ac5732b76e014e58"
	podUID  = "6f0c9e0e-6dd3-4f5b-9d5c-0c3f1e2d3a4b"
)

// withWhereabouts starts an API server that has IPPools and reservations as Whereabouts defines them, and nothing else
// of what the adapter reads where it is.
func withWhereabouts(t *testing.T, start func(dir string) (*controlplane.ControlPlane, error)) *plane {
	t.Helper()
	p := own(t, start)
	root, err := controlplane.Root()
	if err != nil {
		t.Fatal(err)
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/k8snetworkplumbingwg/whereabouts")
	list.Dir = filepath.Join(root, "tools", "whereabouts")
	dir, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"ippools", "overlappingrangeipreservations"} {
		if err := p.Apply(t.Context(), filepath.Join(strings.TrimSpace(string(dir)), "doc", "crds", "whereabouts.cni.cncf.io_"+kind+".yaml")); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// adapter returns the adapter with a cache of its own, and the client that it writes with.
func (p *plane) adapter(t *testing.T) (*whereabouts.Backend, client.Client) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := whereabouts.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	live, err := client.New(p.Admin, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		return errors.Join(live.List(t.Context(), &whereabouts.IPPoolList{}), live.List(t.Context(), &whereabouts.OverlappingRangeIPReservationList{}))
	})
	cached, err := cache.New(p.Admin, cache.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	if err := whereabouts.Index(t.Context(), cached); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error)
	go func() { stopped <- cached.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
	every := whereabouts.Optional{NodeSlicePools: served, NetworkAttachmentDefinitions: served}
	return whereabouts.New(cached, live, live, metav1.NamespaceSystem, every), live
}

const ipPool = `{apiVersion: whereabouts.cni.cncf.io/v1alpha1, kind: IPPool, metadata: {name: NAME, namespace: kube-system}, spec: {range: RANGE, allocations: {` +
	`"1": {id: ` + sandbox + `, podref: default/web-0, ifname: eth0}, "2": {id: other, podref: default/web-1}}}}`

const ipReservation = `{apiVersion: whereabouts.cni.cncf.io/v1alpha1, kind: OverlappingRangeIPReservation, metadata: {name: NAME, namespace: kube-system}, ` +
	`spec: {podref: default/web-0, ifname: eth0}}`

// store creates an object that the test, or the end of its API server, takes away.
func store(t *testing.T, c client.Client, m string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(m), object); err != nil {
		t.Fatal(err)
	}
	if err := c.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	return object
}

func TestWhereaboutsPoolsAreLetGoInModeOffToo(t *testing.T) {
	t.Parallel()
	p := withWhereabouts(t, controlplane.Start)
	_, c := p.adapter(t)
	pool := store(t, c, strings.NewReplacer("NAME", "let-go", "RANGE", "10.9.0.0/24").Replace(ipPool))
	held := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["`+v1alpha1.PoolFinalizer+`","example.org/other"]}}`))
	if err := c.Patch(t.Context(), pool, held); err != nil {
		t.Fatal(err)
	}
	p.start(t, "backends: {whereabouts: {mode: \"Off\"}}")
	eventually(t, func() error {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(pool), pool); err != nil {
			return err
		}
		if got := pool.GetFinalizers(); !slices.Equal(got, []string{"example.org/other"}) {
			return fmt.Errorf("the pool's finalizers are %q", got)
		}
		return nil
	})
}

// What the adapter takes the API server's answers for.
func TestWhereaboutsAnswers(t *testing.T) {
	p := withWhereabouts(t, controlplane.StartBare)
	_, c := p.adapter(t)
	pool := store(t, c, strings.NewReplacer("NAME", "answers", "RANGE", "10.9.0.0/24").Replace(ipPool))
	reservation := store(t, c, strings.ReplaceAll(ipReservation, "NAME", "10.9.0.1"))
	const at = `"path":"/spec/allocations/`
	patch := func(operations string) func() error {
		return func() error {
			return c.Patch(t.Context(), pool.DeepCopy(), client.RawPatch(types.JSONPatchType, []byte("["+operations+"]")), client.DryRunAll)
		}
	}
	remove := func(preconditions client.Preconditions) func() error {
		return func() error { return c.Delete(t.Context(), reservation.DeepCopy(), preconditions) }
	}
	tests := map[string]struct {
		write func() error
		want  int32
	}{
		"a test that holds":                {patch(`{"op":"test",` + at + `1/id","value":"` + sandbox + `"},{"op":"remove",` + at + `1"}`), 0},
		"a test that fails":                {patch(`{"op":"test",` + at + `1/id","value":"another"},{"op":"remove",` + at + `1"}`), 422},
		"a test of a path that is absent":  {patch(`{"op":"test",` + at + `7/id","value":"` + sandbox + `"},{"op":"remove",` + at + `7"}`), 422},
		"a removal of a path that is gone": {patch(`{"op":"remove",` + at + `7"}`), 422},
		"a revision that is current": {patch(`{"op":"replace","path":"/metadata/resourceVersion","value":"` + pool.GetResourceVersion() +
			`"},{"op":"add",` + at + `7","value":{"id":"x","podref":"default/web-0"}}`), 0},
		"a revision that has passed":       {patch(`{"op":"replace","path":"/metadata/resourceVersion","value":"1"},{"op":"add",` + at + `7","value":{"id":"x","podref":"default/web-0"}}`), 409},
		"a deletion of another UID":        {remove(client.Preconditions{UID: new(types.UID("another"))}), 409},
		"a deletion of an earlier version": {remove(client.Preconditions{ResourceVersion: new("1")}), 409},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got int32
			err := tt.write()
			if status := apierrors.APIStatus(nil); errors.As(err, &status) {
				got = status.Status().Code
			} else if err != nil {
				t.Fatal(err)
			}
			refused := apierrors.IsInvalid(err) || apierrors.IsConflict(err)
			if got != tt.want || refused != (tt.want != 0) {
				t.Errorf("the answer is %d (%v), want %d", got, err, tt.want)
			}
		})
	}
}

func TestWhereaboutsRecordsAreListedRepairedAndReleased(t *testing.T) {
	p := withWhereabouts(t, controlplane.StartBare)
	records, c := p.adapter(t)
	name, subnet := "fd09---64", "fd09::/64"
	store(t, c, strings.NewReplacer("NAME", name, "RANGE", subnet).Replace(ipPool))
	store(t, c, strings.ReplaceAll(ipReservation, "NAME", "fd09--1"))
	loose := store(t, c, strings.ReplaceAll(ipReservation, "NAME", "fd09--7"))
	web := ipam.Owner{Kind: ipam.OwnerPod, Namespace: "default", Name: "web-0"}
	held, lost := web, web
	held.ContainerID = sandbox
	at := func(block string, offset int, addr string) []ipam.Place {
		return []ipam.Place{{Pool: name, Block: block, Offset: offset, Addresses: []netip.Addr{netip.MustParseAddr(addr)}}}
	}
	entry := ipam.Allocation{Backend: "whereabouts", Handle: sandbox, Owner: held, Places: at(name, 1, "fd09::1")}
	reservation := ipam.Allocation{
		Backend: "whereabouts", Handle: "reservation/" + string(loose.GetUID()), Owner: lost, Places: at("reservation/fd09--7", 7, "fd09::7"),
		Gap: "no entry in any IPPool",
	}
	wants := func(want ...ipam.Allocation) {
		t.Helper()
		for _, list := range []func(context.Context, ipam.Owner) ([]ipam.Allocation, error){records.LiveAllocationsOf, records.AllocationsOf} {
			eventually(t, func() error {
				got, err := list(t.Context(), web)
				for _, a := range got {
					for i := range a.Places {
						a.Places[i].Revision = ""
					}
				}
				if diff := gocmp.Diff(want, got, gocmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
					return errors.Join(err, errors.New("hand-outs (-want +got):\n"+diff))
				}
				return err
			})
		}
	}
	wants(entry, reservation)

	another := entry
	another.Handle, another.Owner.ContainerID = "another", "another"
	if err := records.Release(t.Context(), another); !errors.Is(err, backends.ErrStale) {
		t.Errorf("releasing another sandbox's entry: %v", err)
	}
	completed := reservation
	completed.Owner.UID = podUID
	for range 2 { // the second time it is whole
		if err := records.Repair(t.Context(), completed); err != nil {
			t.Fatal(err)
		}
	}
	whole := ipam.Allocation{Backend: "whereabouts", Handle: podUID, Owner: completed.Owner, Places: at(name, 7, "fd09::7")}
	wants(entry, whole)
	if err := records.Release(t.Context(), reservation); !errors.Is(err, backends.ErrStale) {
		t.Errorf("releasing a reservation that has an entry: %v", err)
	}
	for _, a := range []ipam.Allocation{entry, whole, entry} { // the third is free already
		if err := records.Release(t.Context(), a); err != nil {
			t.Errorf("releasing %s: %v", a.Handle, err)
		}
	}
	wants()
	left := &unstructured.UnstructuredList{}
	left.SetGroupVersionKind(whereabouts.GroupVersion.WithKind("OverlappingRangeIPReservationList"))
	if err := c.List(t.Context(), left); err != nil || len(left.Items) > 0 {
		t.Errorf("%d reservations are left (%v)", len(left.Items), err)
	}
}

func served() bool { return true }
