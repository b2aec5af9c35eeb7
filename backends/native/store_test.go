package native_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/backends/backendtest"
	"github.com/oakum-dev/oakum/backends/native"
	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/fixture"
)

// store implements backendtest.Fixture. It keeps objects without their Go types, so that fields which these lack are
// kept as well.
type store struct {
	backend *native.Backend
	live    client.WithWatch
	// frozen is what the backend's cache knows; nil if it does not lag.
	frozen  client.WithWatch
	before  map[backendtest.Call]func() error
	indexes indexes
	// handles and identities count what the store has given out.
	handles, identities int
	// patches and deletions are those that the backend sent.
	patches   []string
	deletions []client.DeleteOptions
}

// record is one of the store's blocks.
type record struct {
	block, pool, node string
	first             []netip.Addr
}

func records() []record {
	return []record{
		{"a-0", "a", "n1", []netip.Addr{netip.MustParseAddr("10.0.0.0"), netip.MustParseAddr("fd00::")}},
		{"a-1", "a", "n1", []netip.Addr{netip.MustParseAddr("10.0.0.4"), netip.MustParseAddr("fd00::4")}},
		{"b-7", "b", "n2", []netip.Addr{netip.MustParseAddr("10.1.0.28")}},
	}
}

func newStore(t *testing.T) *store {
	s := &store{before: map[backendtest.Call]func() error{}, indexes: indexes{}}
	check(t, native.Index(t.Context(), s.indexes))
	s.live = s.holding()
	cached := s.typed(func() client.WithWatch { return cmp.Or(s.frozen, s.live) })
	live := s.typed(func() client.WithWatch { return s.live })
	s.backend = native.New(cached, selectable{live}, live)
	s.plant(t,
		fixture.Pool("a", fixture.Subnet("10.0.0.0/24", "fd00::/120")),
		fixture.Pool("b", fixture.Subnet("10.1.0.0/24", "")),
		fixture.Block("a", 0, "n1", cidrs("10.0.0.0/30", "fd00::/126")),
		fixture.Block("a", 1, "n1", cidrs("10.0.0.4/30", "fd00::4/126")),
		fixture.Block("b", 7, "n2", cidrs("10.1.0.28/30", "")))
	return s
}

func cidrs(ipv4, ipv6 string) func(*v1alpha1.AddressBlock) {
	return func(b *v1alpha1.AddressBlock) { b.Spec.IPv4, b.Spec.IPv6 = ipv4, ipv6 }
}

// plant stores objects beside those that are there.
func (s *store) plant(t *testing.T, objects ...client.Object) {
	all := s.Stored(t)
	for _, o := range objects {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			t.Fatal(err)
		}
		u := &unstructured.Unstructured{Object: content}
		all[key(u)] = content
	}
	s.Store(t, all)
}

func (s *store) Backend() backends.Backend { return s.backend }

func (s *store) HandOut(t *testing.T, who backendtest.Who, spots ...backendtest.Spot) ipam.Allocation {
	s.handles++
	at := records()[spots[0].Record]
	a := ipam.Allocation{
		Backend: "native", Network: at.pool, Handle: fmt.Sprintf("handle-%d", s.handles),
		Owner: ipam.Owner{Kind: ipam.OwnerPod, Namespace: "default", Name: fmt.Sprintf("web-%d", who.Name), UID: fmt.Sprintf("web-%d-life-%d", who.Name, who.Life), Node: at.node},
	}
	entry := map[string]any{
		"handle":     a.Handle,
		"attributes": map[string]any{"type": "Pod", "namespace": "default", "name": a.Owner.Name, "uid": a.Owner.UID, "node": a.Owner.Node},
	}
	s.set(t, entry, spots...)
	for _, spot := range spots {
		r := records()[spot.Record]
		place := ipam.Place{Pool: r.pool, Block: r.block, Offset: spot.Address}
		for _, addr := range r.first {
			for range spot.Address {
				addr = addr.Next()
			}
			place.Addresses = append(place.Addresses, addr)
		}
		a.Places = append(a.Places, place)
	}
	return a
}

func (s *store) GiveBack(t *testing.T, spots ...backendtest.Spot) { s.set(t, nil, spots...) }

// set puts an entry at the spots, in the place of what is there; none if it is nil.
func (s *store) set(t *testing.T, entry map[string]any, spots ...backendtest.Spot) {
	all := s.Stored(t)
	for _, spot := range spots {
		block, offset := all["AddressBlock/"+records()[spot.Record].block], int64(spot.Address)
		entries, _, err := unstructured.NestedSlice(block, "spec", "allocations")
		check(t, err)
		entries = slices.DeleteFunc(entries, func(e any) bool { return e.(map[string]any)["offset"] == offset })
		if entry != nil {
			entry = maps.Clone(entry)
			entry["offset"] = offset
			entries = append(entries, entry)
		}
		check(t, unstructured.SetNestedSlice(block, entries, "spec", "allocations"))
	}
	s.Store(t, all)
}

func (s *store) Stored(t *testing.T) backendtest.Objects {
	stored := backendtest.Objects{}
	for _, kind := range []string{"AddressPool", "AddressBlock"} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind(kind + "List"))
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
			check(t, s.live.Delete(t.Context(), &unstructured.Unstructured{Object: object}))
		}
	}
	for name, object := range objects {
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
	if entries, _, err := unstructured.NestedSlice(object, "spec", "allocations"); err == nil && len(entries) == 0 {
		unstructured.RemoveNestedField(object, "spec", "allocations")
	}
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
	for field, values := range s.indexes {
		b.WithIndex(untyped("AddressBlock"), field, values)
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
			u := untyped(kind(object))
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
			u.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind(kind(list)))
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
			s.patches = append(s.patches, string(patch.Type())+" "+string(data))
			u := untyped(kind(object))
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
			s.deletions = append(s.deletions, *o.ApplyOptions(options))
			u := untyped(kind(object))
			u.SetName(object.GetName())
			return of().Delete(ctx, u, options...)
		},
	})
}

// selectable refuses to select by fields that the API server does not know.
type selectable struct{ client.Reader }

func (r selectable) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	var o client.ListOptions
	if o.ApplyOptions(options); o.FieldSelector != nil {
		for _, q := range o.FieldSelector.Requirements() {
			if q.Field != "spec.node" && q.Field != "spec.pool" {
				return apierrors.NewBadRequest("field label not supported: " + q.Field)
			}
		}
	}
	return r.Reader.List(ctx, list, options...)
}

// indexes collects what native.Index registers.
type indexes map[string]client.IndexerFunc

func (x indexes) IndexField(_ context.Context, _ client.Object, field string, values client.IndexerFunc) error {
	x[field] = func(o client.Object) []string {
		var b v1alpha1.AddressBlock
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.(*unstructured.Unstructured).Object, &b); err != nil {
			return nil
		}
		return values(&b)
	}
	return nil
}

func untyped(kind string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind(kind))
	return u
}

// kind returns the name of an object's Go type.
func kind(object any) string { return reflect.TypeOf(object).Elem().Name() }

func key(u *unstructured.Unstructured) string { return u.GetKind() + "/" + u.GetName() }

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
