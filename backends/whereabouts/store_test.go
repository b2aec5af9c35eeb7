package whereabouts_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/backends/backendtest"
	"github.com/oakum-dev/oakum/backends/whereabouts"
	"github.com/oakum-dev/oakum/ipam"
)

const namespace = "kube-system"

// store implements backendtest.Fixture. It keeps objects without their Go types, so that fields which these lack are
// kept as well.
type store struct {
	backend *whereabouts.Backend
	live    client.WithWatch
	// frozen is what the backend's cache knows; nil if it does not lag.
	frozen client.WithWatch
	before map[backendtest.Call]func() error
	// always is called before every call, if it is not nil.
	always  func(backendtest.Call) error
	indexes indexes
	scheme  *runtime.Scheme
	// handles and identities count what the store has given out.
	handles, identities int
	// writes are those that the backend sent.
	writes []string
}

// record is one of the store's pools.
type record struct{ pool, subnet, iface string }

func pools() []record {
	return []record{
		{"10.0.0.0-29", "10.0.0.0/29", "eth0"},
		{"fd00---125", "fd00::/125", "eth0"},
		{"net1-10.1.0.0-29", "10.1.0.0/29", "net1"},
	}
}

// newStore returns a store that holds the objects, written in YAML, beside what is in it at first.
func newStore(t *testing.T, objects ...string) *store {
	t.Helper()
	s := emptyStore(t)
	for _, p := range pools() {
		s.plant(t, fmt.Sprintf("{kind: IPPool, metadata: {name: %s}, spec: {range: %q, allocations: {}}}", p.pool, p.subnet))
	}
	s.plant(t, objects...)
	return s
}

func emptyStore(t *testing.T) *store {
	t.Helper()
	s := &store{before: map[backendtest.Call]func() error{}, indexes: indexes{}, scheme: runtime.NewScheme()}
	check(t, whereabouts.AddToScheme(s.scheme))
	check(t, whereabouts.Index(t.Context(), s.indexes))
	s.live = s.holding()
	cached := s.typed(func() client.WithWatch { return cmp.Or(s.frozen, s.live) })
	live := s.typed(func() client.WithWatch { return s.live })
	every := whereabouts.Optional{NodeSlicePools: served, NetworkAttachmentDefinitions: served}
	s.backend = whereabouts.New(cached, unselectable{live}, live, namespace, every)
	return s
}

// plant stores objects, written in YAML, beside those that are there.
func (s *store) plant(t *testing.T, objects ...string) {
	t.Helper()
	all := s.Stored(t)
	for _, text := range objects {
		var content map[string]any
		check(t, yaml.Unmarshal([]byte(text), &content))
		u := &unstructured.Unstructured{Object: content}
		version := whereabouts.GroupVersion
		if u.GetKind() == "NetworkAttachmentDefinition" {
			version = whereabouts.AttachmentGroupVersion
		}
		u.SetAPIVersion(version.String())
		u.SetNamespace(namespace)
		all[key(u)] = u.Object
	}
	s.Store(t, all)
}

// play stores what a folder of recordings has.
func (s *store) play(t *testing.T, folder string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	check(t, err)
	for _, file := range files {
		data, err := os.ReadFile(file)
		check(t, err)
		var list struct{ Items []map[string]any }
		check(t, yaml.Unmarshal(data, &list))
		for _, item := range list.Items {
			u := &unstructured.Unstructured{Object: item}
			u.SetResourceVersion("")
			check(t, s.live.Create(t.Context(), u))
		}
	}
}

func (s *store) Backend() backends.Backend { return s.backend }

func (s *store) HandOut(t *testing.T, who backendtest.Who, spots ...backendtest.Spot) ipam.Allocation {
	s.handles++
	a := ipam.Allocation{Backend: "whereabouts", Handle: fmt.Sprintf("%064x", s.handles)}
	a.Owner = ipam.Owner{Kind: ipam.OwnerPod, Namespace: "default", Name: fmt.Sprintf("web-%d", who.Name), ContainerID: a.Handle}
	ref := a.Owner.Namespace + "/" + a.Owner.Name
	all := s.Stored(t)
	for _, spot := range spots {
		at := pools()[spot.Record]
		take(all, spot)
		check(t, unstructured.SetNestedMap(all["IPPool/"+at.pool], map[string]any{
			"id": a.Handle, "podref": ref, "ifname": at.iface,
		}, "spec", "allocations", offset(spot)))
		if name := "OverlappingRangeIPReservation/" + reservation(spot); all[name] == nil {
			all[name] = map[string]any{
				"apiVersion": whereabouts.GroupVersion.String(), "kind": "OverlappingRangeIPReservation",
				"metadata": map[string]any{"name": reservation(spot), "namespace": namespace},
				"spec":     map[string]any{"podref": ref, "ifname": at.iface},
			}
		} else {
			check(t, unstructured.SetNestedField(all[name], ref, "spec", "podref"))
		}
		a.Places = append(a.Places, ipam.Place{Pool: at.pool, Block: at.pool, Offset: spot.Address + 1, Addresses: []netip.Addr{addr(spot)}})
	}
	s.Store(t, all)
	return a
}

func (s *store) GiveBack(t *testing.T, spots ...backendtest.Spot) {
	all := s.Stored(t)
	for _, spot := range spots {
		take(all, spot)
		delete(all, "OverlappingRangeIPReservation/"+reservation(spot))
	}
	s.Store(t, all)
}

// take takes the entry at a spot out of its pool.
func take(all backendtest.Objects, spot backendtest.Spot) {
	unstructured.RemoveNestedField(all["IPPool/"+pools()[spot.Record].pool], "spec", "allocations", offset(spot))
}

// The first address of a range is a network's, which whereabouts gives nobody.
func offset(spot backendtest.Spot) string { return strconv.Itoa(spot.Address + 1) }

func addr(spot backendtest.Spot) netip.Addr {
	a := netip.MustParsePrefix(pools()[spot.Record].subnet).Addr()
	for range spot.Address + 1 {
		a = a.Next()
	}
	return a
}

// reservation is written out, so that it does not rest on what is tested.
func reservation(spot backendtest.Spot) string {
	return []string{"10.0.0.", "fd00--", "net1-10.1.0."}[spot.Record] + offset(spot)
}

func (s *store) Stored(t *testing.T) backendtest.Objects {
	stored := backendtest.Objects{}
	for kind, version := range map[string]schema.GroupVersion{
		"IPPool": whereabouts.GroupVersion, "OverlappingRangeIPReservation": whereabouts.GroupVersion,
		"NodeSlicePool": whereabouts.GroupVersion, "NetworkAttachmentDefinition": whereabouts.AttachmentGroupVersion,
	} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(version.WithKind(kind + "List"))
		check(t, s.live.List(t.Context(), list))
		for _, u := range list.Items {
			stored[key(&u)] = u.Object
		}
	}
	return stored
}

func (s *store) Store(t *testing.T, objects backendtest.Objects) {
	stored := s.Stored(t)
	for name, object := range stored {
		if _, ok := objects[name]; !ok {
			u := &unstructured.Unstructured{Object: object}
			if len(u.GetFinalizers()) > 0 {
				u.SetFinalizers(nil)
				check(t, s.live.Update(t.Context(), u))
			}
			check(t, s.live.Delete(t.Context(), u))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(objects)) { // so that identities do not depend on chance
		object := objects[name]
		u := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(object)}
		switch old, ok := stored[name]; {
		case !ok:
			s.identities++
			u.SetResourceVersion("")
			u.SetUID(types.UID(fmt.Sprintf("uid-%d", s.identities)))
			check(t, s.live.Create(t.Context(), u))
		case !reflect.DeepEqual(old, object):
			was := &unstructured.Unstructured{Object: old}
			u.SetResourceVersion(was.GetResourceVersion())
			u.SetUID(was.GetUID())
			check(t, s.live.Update(t.Context(), u))
		}
	}
}

func (s *store) Settle(object map[string]any) {
	unstructured.RemoveNestedField(object, "metadata", "resourceVersion")
}

func (s *store) Before(call backendtest.Call, f func() error) { s.before[call] = f }

func (s *store) Freeze(t *testing.T) (thaw func()) {
	var objects []client.Object
	for _, object := range s.Stored(t) {
		objects = append(objects, &unstructured.Unstructured{Object: object})
	}
	s.frozen = s.holding(objects...)
	return func() { s.frozen = nil }
}

func (s *store) called(call backendtest.Call) error {
	if s.always != nil {
		if err := s.always(call); err != nil {
			return err
		}
	}
	f := s.before[call]
	if f == nil {
		return nil
	}
	delete(s.before, call)
	return f()
}

// holding returns a client of a new API server that holds the objects.
func (s *store) holding(objects ...client.Object) client.WithWatch {
	b := fake.NewClientBuilder().WithScheme(runtime.NewScheme()).WithTypeConverters(managedfields.NewDeducedTypeConverter()).
		WithGlobalResourceVersionCounter().WithObjects(objects...)
	for kind, values := range s.indexes {
		b.WithIndex(untyped(whereabouts.GroupVersion.WithKind(kind)), "podref", values)
	}
	return b.Build()
}

// typed returns a client that reads and writes objects by their Go types.
func (s *store) typed(of func() client.WithWatch) client.WithWatch {
	return interceptor.NewClient(s.live, interceptor.Funcs{
		Get: func(ctx context.Context, _ client.WithWatch, name client.ObjectKey, object client.Object, options ...client.GetOption) error {
			if err := s.called(backendtest.Read); err != nil {
				return err
			}
			u := untyped(s.kind(object))
			if err := of().Get(ctx, name, u, options...); err != nil {
				return err
			}
			return runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, object)
		},
		List: func(ctx context.Context, _ client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if err := s.called(backendtest.Read); err != nil {
				return err
			}
			u := &unstructured.UnstructuredList{}
			u.SetGroupVersionKind(s.kind(list))
			if err := of().List(ctx, u, options...); err != nil {
				return err
			}
			return runtime.DefaultUnstructuredConverter.FromUnstructured(u.UnstructuredContent(), list)
		},
		Patch: func(ctx context.Context, _ client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if err := s.called(backendtest.Write); err != nil {
				return err
			}
			data, err := patch.Data(object)
			if err != nil {
				return err
			}
			s.writes = append(s.writes, fmt.Sprintf("%s %s %s", patch.Type(), object.GetName(), data))
			u := untyped(s.kind(object))
			u.SetNamespace(object.GetNamespace())
			u.SetName(object.GetName())
			err = of().Patch(ctx, u, patch, options...)
			if apierrors.ReasonForError(err) == metav1.StatusReasonUnknown && err != nil {
				// A patch that does not fit the object: the API server finds that out before it compares revisions.
				return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "patch", schema.GroupResource{}, "", err.Error(), 0, false)
			}
			return err
		},
		Delete: func(ctx context.Context, _ client.WithWatch, object client.Object, options ...client.DeleteOption) error {
			if err := s.called(backendtest.Write); err != nil {
				return err
			}
			var o client.DeleteOptions
			o.ApplyOptions(options)
			s.writes = append(s.writes, fmt.Sprintf("DELETE %s uid %s revision %s", object.GetName(), *o.Preconditions.UID, *o.Preconditions.ResourceVersion))
			u := untyped(s.kind(object))
			u.SetNamespace(object.GetNamespace())
			u.SetName(object.GetName())
			return of().Delete(ctx, u, options...)
		},
	})
}

// unselectable refuses to select by fields, as the API server does.
type unselectable struct{ client.Reader }

func (r unselectable) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	var o client.ListOptions
	if o.ApplyOptions(options); o.FieldSelector != nil {
		return apierrors.NewBadRequest("field label not supported: " + o.FieldSelector.String())
	}
	return r.Reader.List(ctx, list, options...)
}

// indexes collects what whereabouts.Index registers, by kind.
type indexes map[string]client.IndexerFunc

func (x indexes) IndexField(_ context.Context, object client.Object, _ string, values client.IndexerFunc) error {
	kind := reflect.TypeOf(object).Elem()
	x[kind.Name()] = func(o client.Object) []string {
		typed := reflect.New(kind).Interface().(client.Object)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.(*unstructured.Unstructured).Object, typed); err != nil {
			return nil
		}
		return values(typed)
	}
	return nil
}

func (s *store) kind(object runtime.Object) schema.GroupVersionKind {
	kind, err := apiutil.GVKForObject(object, s.scheme)
	if err != nil {
		panic(err) // a kind that AddToScheme forgot
	}
	return kind
}

func untyped(kind schema.GroupVersionKind) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	return u
}

func key(u *unstructured.Unstructured) string { return u.GetKind() + "/" + u.GetName() }

func check(t interface {
	Helper()
	Fatal(...any)
}, err error,
) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func served() bool { return true }
