package coil_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/oakum-dev/oakum/backends/coil"
)

// noon is when everything happens.
func noon() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) }

// store is an API server and the backend over it. It keeps objects without their Go types, so that fields which these
// lack are kept as well.
type store struct {
	backend *coil.Backend
	live    client.WithWatch
	// frozen is what the backend's cache knows; nil if it does not lag.
	frozen client.WithWatch
	// before is called once before the next write, always before every call.
	before func()
	always func(write bool) error
	// writes are those that the backend sent.
	writes  []string
	indexes map[schema.GroupVersionKind]client.IndexerFunc
	scheme  *runtime.Scheme
}

// newStore returns a store that holds the objects, written in YAML.
func newStore(t *testing.T, objects ...string) *store {
	t.Helper()
	s := &store{scheme: runtime.NewScheme(), indexes: map[schema.GroupVersionKind]client.IndexerFunc{}}
	check(t, errors.Join(clientgoscheme.AddToScheme(s.scheme), coil.AddToScheme(s.scheme)))
	check(t, coil.Index(t.Context(), s))
	s.live = s.holding(parsed(t, objects)...)
	live := s.typed(func() client.WithWatch { return s.live })
	cached := s.typed(func() client.WithWatch {
		if s.frozen != nil {
			return s.frozen
		}
		return s.live
	})
	coild := coil.Usual()
	coild.Now = noon
	s.backend = coil.New(cached, unselectable{live}, live, coild)
	return s
}

// plant stores objects beside those that are there.
func (s *store) plant(t *testing.T, objects ...string) {
	t.Helper()
	for _, object := range parsed(t, objects) {
		check(t, s.live.Create(t.Context(), object))
	}
}

func parsed(t *testing.T, texts []string) []client.Object {
	t.Helper()
	objects := make([]client.Object, len(texts))
	for i, text := range texts {
		u := &unstructured.Unstructured{}
		check(t, yaml.Unmarshal([]byte(text), u))
		objects[i] = u
	}
	return objects
}

// play stores what the real programs have written.
func (s *store) play(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.yaml")
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

// change changes an object; nil deletes it, whatever its finalizers.
func (s *store) change(t *testing.T, kind, name string, change func(*unstructured.Unstructured)) {
	t.Helper()
	u := s.get(t, kind, name)
	if change != nil {
		change(u)
		check(t, s.live.Update(t.Context(), u))
		return
	}
	u.SetFinalizers(nil)
	check(t, s.live.Update(t.Context(), u))
	check(t, client.IgnoreNotFound(s.live.Delete(t.Context(), u)))
}

// get reads an object; nil if there is none.
func (s *store) get(t *testing.T, kind, name string) *unstructured.Unstructured {
	t.Helper()
	u := untyped(coil.GroupVersion.WithKind(kind))
	if kind == "Node" {
		u = untyped(corev1.SchemeGroupVersion.WithKind(kind))
	}
	err := s.live.Get(t.Context(), client.ObjectKey{Name: name}, u)
	if apierrors.IsNotFound(err) {
		return nil
	}
	check(t, err)
	return u
}

// freeze makes the backend's cache lag: it knows of no write from now on.
func (s *store) freeze(t *testing.T) {
	var objects []client.Object
	for _, kind := range []string{"AddressPool", "AddressBlock", "BlockRequest"} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(coil.GroupVersion.WithKind(kind + "List"))
		check(t, s.live.List(t.Context(), list))
		for i := range list.Items {
			objects = append(objects, &list.Items[i])
		}
	}
	s.frozen = s.holding(objects...)
}

func (s *store) called(write bool) error {
	if f := s.before; write && f != nil {
		s.before = nil
		f()
	}
	if s.always != nil {
		return s.always(write)
	}
	return nil
}

// holding returns a client of a new API server that holds the objects.
func (s *store) holding(objects ...client.Object) client.WithWatch {
	b := fake.NewClientBuilder().WithScheme(runtime.NewScheme()).WithTypeConverters(managedfields.NewDeducedTypeConverter()).
		WithGlobalResourceVersionCounter().WithObjects(objects...)
	for kind, values := range s.indexes {
		b.WithIndex(untyped(kind), "node", values)
	}
	return b.Build()
}

// typed returns a client that reads and writes objects by their Go types.
func (s *store) typed(of func() client.WithWatch) client.WithWatch {
	return interceptor.NewClient(s.live, interceptor.Funcs{
		Get: func(ctx context.Context, _ client.WithWatch, name client.ObjectKey, object client.Object, options ...client.GetOption) error {
			if err := s.called(false); err != nil {
				return err
			}
			u := untyped(s.kind(object))
			if err := of().Get(ctx, name, u, options...); err != nil {
				return err
			}
			return runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, object)
		},
		List: func(ctx context.Context, _ client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if err := s.called(false); err != nil {
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
			if err := s.called(true); err != nil {
				return err
			}
			data, err := patch.Data(object)
			if err != nil {
				return err
			}
			s.writes = append(s.writes, fmt.Sprintf("PATCH %s %s", object.GetName(), data))
			u := untyped(s.kind(object))
			u.SetName(object.GetName())
			err = of().Patch(ctx, u, patch, options...)
			if apierrors.ReasonForError(err) == metav1.StatusReasonUnknown && err != nil {
				// A patch that does not fit the object: the API server finds that out before it compares revisions.
				return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "patch", schema.GroupResource{}, "", err.Error(), 0, false)
			}
			return err
		},
		Delete: func(ctx context.Context, _ client.WithWatch, object client.Object, options ...client.DeleteOption) error {
			if err := s.called(true); err != nil {
				return err
			}
			var o client.DeleteOptions
			o.ApplyOptions(options)
			s.writes = append(s.writes, fmt.Sprintf("DELETE %s uid %s", object.GetName(), *o.Preconditions.UID))
			u := untyped(s.kind(object))
			u.SetName(object.GetName())
			err := of().Get(ctx, client.ObjectKeyFromObject(object), u)
			if err == nil && u.GetUID() != *o.Preconditions.UID { // The fake API server heeds no such precondition.
				return apierrors.NewConflict(schema.GroupResource{Resource: "addressblocks"}, object.GetName(), errors.New("another uid"))
			}
			return of().Delete(ctx, u, options...)
		},
		SubResourceCreate: func(_ context.Context, _ client.Client, name string, object, body client.Object, _ ...client.SubResourceCreateOption) error {
			if err := s.called(true); err != nil {
				return err
			}
			eviction := body.(*policyv1.Eviction)
			s.writes = append(s.writes, fmt.Sprintf("%s %s/%s uid %s", name, eviction.Namespace, eviction.Name, *eviction.DeleteOptions.Preconditions.UID))
			if object.GetName() != eviction.Name {
				return fmt.Errorf("the eviction of %s was sent to %s", eviction.Name, object.GetName())
			}
			return nil
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

// IndexField implements client.FieldIndexer for coil.Index.
func (s *store) IndexField(_ context.Context, object client.Object, _ string, values client.IndexerFunc) error {
	kind := reflect.TypeOf(object).Elem()
	s.indexes[coil.GroupVersion.WithKind(kind.Name())] = func(o client.Object) []string {
		typed := reflect.New(kind).Interface().(client.Object)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.(*unstructured.Unstructured).Object, typed); err != nil {
			return nil
		}
		return values(typed)
	}
	return nil
}

func (s *store) kind(object runtime.Object) schema.GroupVersionKind {
	if m, ok := object.(*metav1.PartialObjectMetadata); ok {
		return m.GroupVersionKind()
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

// block is an AddressBlock of pool p, written in YAML; more is more of it.
func block(name, labels, more string) string {
	return fmt.Sprintf("{apiVersion: coil.cybozu.com/v2, kind: AddressBlock, metadata: {name: %s, uid: uid-%s, finalizers: [coil.cybozu.com], labels: {%s}}, index: 0, %s}", name, name, labels, more)
}

// of returns the labels of a block for a node.
func of(node string) string {
	return fmt.Sprintf("coil.cybozu.com/pool: p, coil.cybozu.com/node: %s, coil.cybozu.com/request: for-%s", node, node)
}

func request(uid, node, status string) string {
	return fmt.Sprintf("{apiVersion: coil.cybozu.com/v2, kind: BlockRequest, metadata: {name: req-p-%s, uid: %s, creationTimestamp: %q}, spec: {poolName: p, nodeName: %s}, status: {%s}}",
		node, uid, noon().Format(time.RFC3339), node, status)
}

func pool(name, spec string) string {
	return fmt.Sprintf("{apiVersion: coil.cybozu.com/v2, kind: AddressPool, metadata: {name: %s, uid: uid-%s}, spec: {%s}}", name, name, spec)
}

func node(name string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Node, metadata: {name: %s}}", name)
}

// renew gives an object another identity.
func renew(u *unstructured.Unstructured) { u.SetUID(types.UID("another")) }

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
