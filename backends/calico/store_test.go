package calico_test

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
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
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
	"github.com/oakum-dev/oakum/backends/calico"
	"github.com/oakum-dev/oakum/ipam"
)

// grace is the backend's, in all tests.
const grace = time.Minute

// sequence is the sequence number with which the store's blocks begin: a float64 would make 1796042409651816448 of it.
const sequence = int64(1796042409651816331)

// store implements backendtest.Fixture. It keeps objects without their Go types, so that fields which these lack are
// kept as well.
type store struct {
	backend *calico.Backend
	live    client.WithWatch
	// frozen is what the backend's cache knows; nil if it does not lag.
	frozen client.WithWatch
	before map[backendtest.Call]func() error
	// always is called before every call, if it is not nil, and late after every write.
	always  func(backendtest.Call) error
	late    func() error
	indexes map[string]client.IndexerFunc
	scheme  *runtime.Scheme
	served  schema.GroupVersion
	now     time.Time
	// handles and identities count what the store has given out.
	handles, identities int
	// writes are those that the backend sent.
	writes []string
}

// spotted is one of the store's records.
type spotted struct{ pool, block, cidr, node string }

func blocks() []spotted {
	return []spotted{
		{"v4", "10-0-0-0-29", "10.0.0.0/29", "worker-1"},
		{"v6", "fd00---125", "fd00::/125", "worker-1"},
		{"other", "10-1-0-8-29", "10.1.0.8/29", "worker-2"},
	}
}

// newStore returns a store that holds the objects, written in YAML, beside what is in it at first.
func newStore(t testing.TB, served schema.GroupVersion, objects ...string) *store {
	t.Helper()
	s := emptyStore(t, served)
	first := []string{pool("v4", "10.0.0.0/24", 29), pool("v6", "fd00::/120", 125), pool("other", "10.1.0.0/24", 29)}
	for _, b := range blocks() {
		first = append(first, blockOf(b.cidr, "host:"+b.node))
	}
	s.plant(t, append(first, objects...)...)
	return s
}

func pool(name, cidr string, size int) string {
	return fmt.Sprintf("{kind: IPPool, metadata: {name: %s}, spec: {cidr: %q, blockSize: %d}}", name, cidr, size)
}

// blockOf is a block of eight addresses; an affinity may be empty. Each entry is an ordinal and an attribute in YAML.
func blockOf(cidr, affinity string, entries ...any) string {
	allocations, unallocated, attributes, sequences := make([]any, 8), []any{}, []any{}, map[string]any{}
	next := sequence
	for i := 0; i < len(entries); i += 2 {
		var a map[string]any
		if err := yaml.Unmarshal([]byte(entries[i+1].(string)), &a); err != nil {
			panic(err)
		}
		allocations[entries[i].(int)] = len(attributes)
		attributes = append(attributes, a)
		sequences[strconv.Itoa(entries[i].(int))] = next
		next++
	}
	for o, a := range allocations {
		if a == nil {
			unallocated = append(unallocated, o)
		}
	}
	spec := map[string]any{
		"cidr": cidr, "allocations": allocations, "unallocated": unallocated, "attributes": attributes,
		"sequenceNumber": next, "sequenceNumberForAllocation": sequences, "deleted": false, "strictAffinity": false,
	}
	if affinity != "" {
		spec["affinity"] = affinity
	}
	text, err := yaml.Marshal(map[string]any{"kind": "IPAMBlock", "metadata": map[string]any{"name": nameOf(cidr)}, "spec": spec})
	if err != nil {
		panic(err)
	}
	return string(text)
}

// nameOf is written out, so that it does not rest on what is tested.
func nameOf(cidr string) string {
	text := []byte(cidr)
	for i, c := range text {
		if c == '.' || c == ':' || c == '/' {
			text[i] = '-'
		}
	}
	return string(text)
}

// handleOf is the object of a handle. Each count is a CIDR and a number.
func handleOf(id string, counts ...any) string {
	block := map[string]any{}
	for i := 0; i < len(counts); i += 2 {
		block[counts[i].(string)] = counts[i+1]
	}
	text, err := yaml.Marshal(map[string]any{
		"kind": "IPAMHandle", "metadata": map[string]any{"name": id, "creationTimestamp": "2026-11-30T12:00:00Z"},
		"spec": map[string]any{"handleID": id, "block": block, "deleted": false},
	})
	if err != nil {
		panic(err)
	}
	return string(text)
}

func emptyStore(t testing.TB, served schema.GroupVersion) *store {
	t.Helper()
	s := &store{
		before: map[backendtest.Call]func() error{}, indexes: map[string]client.IndexerFunc{}, scheme: runtime.NewScheme(),
		served: served, now: time.Date(2026, 11, 30, 13, 0, 0, 0, time.UTC),
	}
	check(t, calico.AddToScheme(s.scheme))
	check(t, calico.Index(t.Context(), s, served))
	s.live = s.holding()
	cached := s.typed(func() client.WithWatch { return cmp.Or(s.frozen, s.live) })
	live := s.typed(func() client.WithWatch { return s.live })
	s.backend = calico.New(cached, unselectable{live}, live, served, grace, func() time.Time { return s.now })
	return s
}

// plant stores objects, written in YAML, beside those that are there.
func (s *store) plant(t testing.TB, objects ...string) {
	t.Helper()
	all := s.stored(t)
	for _, text := range objects {
		data, err := yaml.YAMLToJSON([]byte(text)) // and not to Go, which makes a float64 of a large number
		check(t, err)
		u := &unstructured.Unstructured{}
		check(t, u.UnmarshalJSON(data))
		u.SetGroupVersionKind(s.kindOf(u.GetKind()))
		all[named(u)] = u.Object
	}
	s.store(t, all)
}

// play stores what a folder of recordings has of Calico's own.
func (s *store) play(t testing.TB, folder string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	check(t, err)
	for _, file := range files {
		data, err := os.ReadFile(file)
		check(t, err)
		data, err = yaml.YAMLToJSON(data)
		check(t, err)
		l := &unstructured.UnstructuredList{}
		check(t, l.UnmarshalJSON(data))
		for _, u := range l.Items {
			if u.GroupVersionKind().GroupVersion() == s.served {
				u.SetResourceVersion("")
				check(t, s.live.Create(t.Context(), &u))
			}
		}
	}
}

func (s *store) Backend() backends.Backend { return s.backend }

func (s *store) HandOut(t *testing.T, who backendtest.Who, spots ...backendtest.Spot) ipam.Allocation {
	s.handles++
	sandbox := fmt.Sprintf("%064x", s.handles)
	a := ipam.Allocation{Backend: "calico", Handle: "k8s-pod-network." + sandbox}
	a.Owner = ipam.Owner{
		Kind: ipam.OwnerPod, Namespace: "default", Name: fmt.Sprintf("web-%d", who.Name),
		Node: blocks()[spots[0].Record].node, ContainerID: sandbox,
	}
	all := s.stored(t)
	for _, spot := range spots {
		at := blocks()[spot.Record]
		take(all, spot)
		number := assign(all, spot, map[string]any{
			"handle_id": a.Handle,
			"secondary": map[string]any{"pod": a.Owner.Name, "namespace": "default", "node": at.node},
		})
		s.count(all, a.Handle, at.cidr)
		addr := netip.MustParsePrefix(at.cidr).Addr()
		for range spot.Address {
			addr = addr.Next()
		}
		a.Places = append(a.Places, ipam.Place{
			Pool: at.pool, Block: at.block, Offset: spot.Address, Addresses: []netip.Addr{addr}, Revision: strconv.FormatInt(number, 10),
		})
	}
	s.store(t, all)
	return a
}

func (s *store) GiveBack(t *testing.T, spots ...backendtest.Spot) {
	all := s.stored(t)
	for _, spot := range spots {
		take(all, spot)
	}
	s.store(t, all)
}

// assign hands out an address as Calico does, and returns its sequence number.
func assign(all backendtest.Objects, spot backendtest.Spot, attribute map[string]any) int64 {
	spec := all["IPAMBlock/"+blocks()[spot.Record].block]["spec"].(map[string]any)
	attributes := spec["attributes"].([]any)
	spec["allocations"].([]any)[spot.Address] = int64(len(attributes))
	spec["attributes"] = append(attributes, attribute)
	spec["unallocated"] = slices.DeleteFunc(spec["unallocated"].([]any), func(o any) bool { return o == int64(spot.Address) })
	number := spec["sequenceNumber"].(int64)
	spec["sequenceNumberForAllocation"].(map[string]any)[strconv.Itoa(spot.Address)] = number
	spec["sequenceNumber"] = number + 1
	return number
}

func (s *store) count(all backendtest.Objects, id, cidr string) {
	if all["IPAMHandle/"+id] == nil {
		all["IPAMHandle/"+id] = map[string]any{
			"apiVersion": s.served.String(), "kind": "IPAMHandle",
			"metadata": map[string]any{"name": id, "creationTimestamp": "2026-11-30T12:00:00Z"},
			"spec":     map[string]any{"handleID": id, "block": map[string]any{}, "deleted": false},
		}
	}
	block := all["IPAMHandle/"+id]["spec"].(map[string]any)["block"].(map[string]any)
	n, _ := block[cidr].(int64)
	block[cidr] = n + 1
}

// take gives an address back as Calico does.
func take(all backendtest.Objects, spot backendtest.Spot) {
	at := blocks()[spot.Record]
	if all["IPAMBlock/"+at.block] == nil {
		return
	}
	spec := all["IPAMBlock/"+at.block]["spec"].(map[string]any)
	allocations, attributes := spec["allocations"].([]any), spec["attributes"].([]any)
	if allocations[spot.Address] == nil {
		return
	}
	index := allocations[spot.Address].(int64)
	handle := attributes[index].(map[string]any)["handle_id"].(string)
	allocations[spot.Address] = nil
	spec["unallocated"] = append(spec["unallocated"].([]any), int64(spot.Address))
	delete(spec["sequenceNumberForAllocation"].(map[string]any), strconv.Itoa(spot.Address))
	spec["sequenceNumber"] = spec["sequenceNumber"].(int64) + 1
	if !slices.Contains(allocations, any(index)) {
		spec["attributes"] = slices.Delete(attributes, int(index), int(index)+1)
		for o, i := range allocations {
			if i, ok := i.(int64); ok && i > index {
				allocations[o] = i - 1
			}
		}
	}
	object := all["IPAMHandle/"+handle]
	if object == nil {
		return
	}
	block := object["spec"].(map[string]any)["block"].(map[string]any)
	if block[at.cidr] = block[at.cidr].(int64) - 1; block[at.cidr] == int64(0) {
		delete(block, at.cidr)
	}
	if len(block) == 0 {
		delete(all, "IPAMHandle/"+handle)
	}
}

func (s *store) Stored(t *testing.T) backendtest.Objects { return s.stored(t) }

func (s *store) stored(t testing.TB) backendtest.Objects {
	t.Helper()
	stored := backendtest.Objects{}
	for _, kind := range []string{"IPAMBlock", "IPAMHandle", "BlockAffinity", "IPPool", "IPReservation", "IPAMConfig", "IPAMConfiguration", "Node"} {
		l := &unstructured.UnstructuredList{}
		l.SetGroupVersionKind(s.kindOf(kind + "List"))
		check(t, s.live.List(t.Context(), l))
		for _, u := range l.Items {
			stored[named(&u)] = u.Object
		}
	}
	return stored
}

func (s *store) kindOf(kind string) schema.GroupVersionKind {
	if kind == "Node" || kind == "NodeList" {
		return schema.GroupVersionKind{Version: "v1", Kind: kind}
	}
	return s.served.WithKind(kind)
}

func (s *store) Store(t *testing.T, objects backendtest.Objects) { s.store(t, objects) }

func (s *store) store(t testing.TB, objects backendtest.Objects) {
	t.Helper()
	stored := s.stored(t)
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
			u.SetGroupVersionKind(s.kindOf(u.GetKind()))
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

// Settle implements backendtest.Fixture. What was given back joins the end of the queue.
func (s *store) Settle(object map[string]any) {
	unstructured.RemoveNestedField(object, "metadata", "resourceVersion")
	unstructured.RemoveNestedField(object, "spec", "sequenceNumber")
	if spec, ok := object["spec"].(map[string]any); ok && object["kind"] == "IPAMBlock" {
		slices.SortFunc(spec["unallocated"].([]any), func(a, b any) int { return cmp.Compare(a.(int64), b.(int64)) })
	}
}

func (s *store) Before(call backendtest.Call, f func() error) { s.before[call] = f }

func (s *store) Freeze(t *testing.T) (thaw func()) {
	var objects []client.Object
	for _, object := range s.stored(t) {
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

func (s *store) written(err error) error {
	if err == nil && s.late != nil {
		return s.late()
	}
	return err
}

// holding returns a client of a new API server that holds the objects.
func (s *store) holding(objects ...client.Object) client.WithWatch {
	b := fake.NewClientBuilder().WithScheme(runtime.NewScheme()).WithTypeConverters(managedfields.NewDeducedTypeConverter()).
		WithGlobalResourceVersionCounter().WithObjects(objects...)
	for field, values := range s.indexes {
		b.WithIndex(untyped(s.kindOf("IPAMBlock")), field, values)
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
		List: func(ctx context.Context, _ client.WithWatch, l client.ObjectList, options ...client.ListOption) error {
			if err := s.called(backendtest.Read); err != nil {
				return err
			}
			u := &unstructured.UnstructuredList{}
			u.SetGroupVersionKind(s.kind(l))
			if err := of().List(ctx, u, options...); err != nil {
				return err
			}
			return runtime.DefaultUnstructuredConverter.FromUnstructured(u.UnstructuredContent(), l)
		},
		Create: func(ctx context.Context, _ client.WithWatch, object client.Object, options ...client.CreateOption) error {
			if err := s.called(backendtest.Write); err != nil {
				return err
			}
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
			if err != nil {
				return err
			}
			u := &unstructured.Unstructured{Object: content}
			u.SetGroupVersionKind(s.kind(object))
			u.SetCreationTimestamp(metav1.NewTime(s.now))
			s.identities++
			u.SetUID(types.UID(fmt.Sprintf("uid-%d", s.identities)))
			s.writes = append(s.writes, "CREATE "+object.GetName())
			if err := s.written(of().Create(ctx, u, options...)); err != nil {
				return err
			}
			return runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, object)
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
			u.SetName(object.GetName())
			err = of().Patch(ctx, u, patch, options...)
			if apierrors.ReasonForError(err) == metav1.StatusReasonUnknown && err != nil {
				// A patch that does not fit the object: the API server finds that out before it compares revisions.
				return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "patch", schema.GroupResource{}, "", err.Error(), 0, false)
			}
			if err := s.written(err); err != nil {
				return err
			}
			reflect.ValueOf(object).Elem().SetZero()
			return runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, object)
		},
		Delete: func(ctx context.Context, _ client.WithWatch, object client.Object, options ...client.DeleteOption) error {
			if err := s.called(backendtest.Write); err != nil {
				return err
			}
			var o client.DeleteOptions
			o.ApplyOptions(options)
			s.writes = append(s.writes, fmt.Sprintf("DELETE %s uid %s revision %s", object.GetName(), *o.Preconditions.UID, *o.Preconditions.ResourceVersion))
			u := untyped(s.kind(object))
			u.SetName(object.GetName())
			return s.written(of().Delete(ctx, u, options...))
		},
	})
}

// unselectable refuses to select by fields, as the API server does.
type unselectable struct{ client.Reader }

func (r unselectable) List(ctx context.Context, l client.ObjectList, options ...client.ListOption) error {
	var o client.ListOptions
	if o.ApplyOptions(options); o.FieldSelector != nil {
		return apierrors.NewBadRequest("field label not supported: " + o.FieldSelector.String())
	}
	return r.Reader.List(ctx, l, options...)
}

// IndexField collects what calico.Index registers, by field.
func (s *store) IndexField(_ context.Context, object client.Object, field string, values client.IndexerFunc) error {
	kind := reflect.TypeOf(object).Elem()
	s.indexes[field] = func(o client.Object) []string {
		typed := reflect.New(kind).Interface().(client.Object)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.(*unstructured.Unstructured).Object, typed); err != nil {
			return nil
		}
		return values(typed)
	}
	return nil
}

func (s *store) kind(object runtime.Object) schema.GroupVersionKind {
	if _, ok := object.(*metav1.PartialObjectMetadata); ok {
		return object.GetObjectKind().GroupVersionKind()
	}
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

func named(u *unstructured.Unstructured) string { return u.GetKind() + "/" + u.GetName() }

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

func diff(want, got any) string {
	return gocmp.Diff(want, got, cmpopts.EquateEmpty(),
		gocmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		gocmp.Comparer(func(a, b netip.Prefix) bool { return a == b }))
}
