package finalizers

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clienttesting "k8s.io/client-go/testing"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/cluster"
)

// tester is a test, or one try of a property.
type tester interface {
	rapid.TB
	Context() context.Context
}

// store is an API server. It keeps objects of our own kinds without their Go types, as a real one does, so that fields
// which these lack are kept as well. Whatever is not the code under test writes to it directly.
type store struct {
	tester
	clock   cluster.Clock
	scheme  *runtime.Scheme
	tracker clienttesting.ObjectTracker
	// client is for the code under test. It takes Go types and keeps to the rules that the fake leaves out.
	client client.WithWatch
	writes int
	// lives counts the objects that have borne a name.
	lives map[string]int
}

func newStore(t tester, clock cluster.Clock) *store {
	s := &store{tester: t, clock: clock, scheme: runtime.NewScheme(), lives: map[string]int{}}
	untyped := runtime.NewScheme()
	for _, kind := range []string{"AddressPool", "AddressBlock"} {
		untyped.AddKnownTypeWithName(v1alpha1.SchemeGroupVersion.WithKind(kind), &unstructured.Unstructured{})
		untyped.AddKnownTypeWithName(v1alpha1.SchemeGroupVersion.WithKind(kind+"List"), &unstructured.UnstructuredList{})
	}
	for _, scheme := range []*runtime.Scheme{s.scheme, untyped} {
		s.must(corev1.AddToScheme(scheme))
		s.must(coordinationv1.AddToScheme(scheme))
	}
	s.must(v1alpha1.AddToScheme(s.scheme))
	// The fake's own tracker keeps the managers of all fields, which takes ten times as long.
	s.tracker = clienttesting.NewObjectTracker(untyped, serializer.NewCodecFactory(untyped).UniversalDecoder())
	s.client = interceptor.NewClient(
		fake.NewClientBuilder().WithScheme(untyped).WithObjectTracker(s.tracker).WithGlobalResourceVersionCounter().
			WithStatusSubresource(s.untyped(&v1alpha1.AddressPool{}), s.untyped(&v1alpha1.AddressBlock{})).Build(),
		interceptor.Funcs{Get: s.get, List: s.list, Patch: s.patch, SubResourcePatch: s.patchStatus, Delete: s.delete})
	return s
}

func (s *store) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// kinds has an object of each kind that Oakum deals with.
func kinds() []client.Object {
	return []client.Object{&corev1.Pod{}, &corev1.Node{}, &v1alpha1.AddressPool{}, &v1alpha1.AddressBlock{}, &coordinationv1.Lease{}}
}

func (s *store) kind(o runtime.Object) schema.GroupVersionKind {
	kind, err := apiutil.GVKForObject(o, s.scheme)
	s.must(err)
	return kind
}

// resource returns what holds objects of a kind, or of a list's.
func (s *store) resource(o runtime.Object) schema.GroupVersionResource {
	kind := s.kind(o)
	kind.Kind = strings.TrimSuffix(kind.Kind, "List")
	resource, _ := meta.UnsafeGuessKindToResource(kind)
	return resource
}

// untyped returns the object as the store keeps it.
func (s *store) untyped(o client.Object) client.Object {
	kind := s.kind(o)
	if kind.Group != v1alpha1.Group {
		return o
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	s.must(err)
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(kind)
	return u
}

// typed returns a stored object in its Go type.
func (s *store) typed(stored runtime.Object) client.Object {
	u, ok := stored.(*unstructured.Unstructured)
	if !ok {
		return stored.(client.Object)
	}
	o, err := s.scheme.New(u.GroupVersionKind())
	s.must(err)
	s.must(runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o))
	return o.(client.Object)
}

// put stores new objects. It keeps a deletionTimestamp, and a UID; else the UID is web-0-uid, and web-0-uid-2 for the
// next of that name.
func (s *store) put(objects ...client.Object) {
	s.Helper()
	for _, o := range objects {
		life := s.resource(o).Resource + "/" + client.ObjectKeyFromObject(o).String()
		if s.lives[life]++; o.GetUID() == "" {
			uid := o.GetName() + "-uid"
			if s.lives[life] > 1 {
				uid += "-" + strconv.Itoa(s.lives[life])
			}
			o.SetUID(types.UID(uid))
		}
		if o.GetCreationTimestamp().Time.IsZero() {
			o.SetCreationTimestamp(metav1.NewTime(s.clock().Wall))
		}
		o.SetGeneration(1)
		o.SetResourceVersion(s.revision())
		s.must(s.tracker.Create(s.resource(o), s.untyped(o), o.GetNamespace()))
	}
}

// revision returns a resourceVersion that no other write has. The fake counts its own from one.
func (s *store) revision() string {
	s.writes++
	return strconv.Itoa(1_000_000 + s.writes)
}

// look returns the object that bears the name of another; false if there is none.
func look[T client.Object](s *store, named T) (T, bool) {
	s.Helper()
	var none T
	stored, err := s.tracker.Get(s.resource(named), named.GetNamespace(), named.GetName())
	if apierrors.IsNotFound(err) {
		return none, false
	}
	s.must(err)
	return s.typed(stored).(T), true
}

// change writes to an object that exists, as somebody who is free to.
func change[T client.Object](s *store, named T, f func(T)) {
	s.Helper()
	o, ok := look(s, named)
	if !ok {
		s.Fatalf("there is no %T %s", named, client.ObjectKeyFromObject(named))
	}
	f(o)
	s.save(o)
}

func (s *store) save(o client.Object) {
	s.Helper()
	if o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0 {
		s.must(s.tracker.Delete(s.resource(o), o.GetNamespace(), o.GetName()))
		return
	}
	o.SetResourceVersion(s.revision())
	s.must(s.tracker.Update(s.resource(o), s.untyped(o), o.GetNamespace()))
}

// remove deletes an object, as far as its finalizers let it. What does not exist, or is being deleted, needs no more.
func (s *store) remove(named client.Object) {
	s.Helper()
	stored, err := s.tracker.Get(s.resource(named), named.GetNamespace(), named.GetName())
	if apierrors.IsNotFound(err) {
		return
	}
	s.must(err)
	if o := stored.(client.Object); o.GetDeletionTimestamp() == nil {
		now := metav1.NewTime(s.clock().Wall)
		o.SetDeletionTimestamp(&now)
		s.save(o)
	}
}

// all returns the objects of a kind.
func all[T client.Object](s *store, of T) []T {
	s.Helper()
	list, err := s.tracker.List(s.resource(of), s.kind(of), "")
	s.must(err)
	stored, err := meta.ExtractList(list)
	s.must(err)
	objects := make([]T, len(stored))
	for i, o := range stored {
		objects[i] = s.typed(o).(T)
	}
	return objects
}

func (s *store) get(ctx context.Context, c client.WithWatch, name client.ObjectKey, o client.Object, options ...client.GetOption) error {
	u := s.untyped(o)
	if err := c.Get(ctx, name, u, options...); err != nil {
		return err
	}
	return s.read(u, o)
}

func (s *store) list(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
	kind := s.kind(list)
	if kind.Group != v1alpha1.Group {
		return c.List(ctx, list, options...)
	}
	u := &unstructured.UnstructuredList{}
	u.SetGroupVersionKind(kind)
	if err := c.List(ctx, u, options...); err != nil {
		return err
	}
	return runtime.DefaultUnstructuredConverter.FromUnstructured(u.UnstructuredContent(), list)
}

// read copies what the fake answered into the caller's object, unless that is the one that the fake was given.
func (s *store) read(answer, o client.Object) error {
	if u, ok := answer.(*unstructured.Unstructured); ok {
		return runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o)
	}
	return nil
}

func (s *store) patch(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, options ...client.PatchOption) error {
	data, err := p.Data(o)
	if err != nil {
		return err
	}
	if err := s.refuse(o, data); err != nil {
		return err
	}
	u := s.untyped(o)
	if err := c.Patch(ctx, u, client.RawPatch(p.Type(), data), options...); err != nil {
		return err
	}
	return s.read(u, o)
}

func (s *store) patchStatus(ctx context.Context, c client.Client, subresource string, o client.Object, p client.Patch, options ...client.SubResourcePatchOption) error {
	data, err := p.Data(o)
	if err != nil {
		return err
	}
	if err := s.refuse(o, data); err != nil {
		return err
	}
	u := s.untyped(o)
	if err := c.SubResource(subresource).Patch(ctx, u, client.RawPatch(p.Type(), data), options...); err != nil {
		return err
	}
	return s.read(u, o)
}

// refuse answers a patch that would give an object another UID, or a finalizer to one that is being deleted, or that is
// about an older revision, which the fake overlooks in a status without a Go type.
func (s *store) refuse(o client.Object, data []byte) error {
	stored, err := s.tracker.Get(s.resource(o), o.GetNamespace(), o.GetName())
	if err != nil {
		return err
	}
	now, err := meta.Accessor(stored)
	s.must(err)
	invalid := func(e *field.Error) error {
		return apierrors.NewInvalid(s.kind(o).GroupKind(), o.GetName(), field.ErrorList{e})
	}
	var merge struct {
		Metadata struct {
			UID             types.UID `json:"uid"`
			ResourceVersion string    `json:"resourceVersion"`
			Finalizers      []string  `json:"finalizers"`
		} `json:"metadata"`
	}
	path := field.NewPath("metadata")
	if err := json.Unmarshal(data, &merge); err == nil && merge.Metadata.UID != "" && merge.Metadata.UID != now.GetUID() {
		return invalid(field.Invalid(path.Child("uid"), merge.Metadata.UID, "field is immutable"))
	}
	if v := merge.Metadata.ResourceVersion; v != "" && v != now.GetResourceVersion() {
		return apierrors.NewConflict(s.resource(o).GroupResource(), o.GetName(), errors.New("object was modified"))
	}
	adds := len(merge.Metadata.Finalizers) > 0 || strings.Contains(string(data), `{"op":"add","path":"/metadata/finalizers`)
	if adds && now.GetDeletionTimestamp() != nil {
		return invalid(field.Forbidden(path.Child("finalizers"), "no new finalizers can be added if the object is being deleted"))
	}
	return nil
}

func (s *store) delete(_ context.Context, _ client.WithWatch, o client.Object, options ...client.DeleteOption) error {
	stored, err := s.tracker.Get(s.resource(o), o.GetNamespace(), o.GetName())
	if err != nil {
		return err
	}
	now := stored.(client.Object)
	var wanted client.DeleteOptions
	wanted.ApplyOptions(options)
	if p := wanted.Preconditions; p != nil &&
		(p.UID != nil && *p.UID != now.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != now.GetResourceVersion()) {
		return apierrors.NewConflict(s.resource(o).GroupResource(), o.GetName(), errors.New("a precondition does not hold"))
	}
	s.remove(now)
	return nil
}

// dump returns every object as JSON has it, but for its revision.
func (s *store) dump() map[string]string {
	s.Helper()
	dumped := map[string]string{}
	for _, of := range kinds() {
		list, err := s.tracker.List(s.resource(of), s.kind(of), "")
		s.must(err)
		objects, err := meta.ExtractList(list)
		s.must(err)
		for _, o := range objects {
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
			s.must(err)
			unstructured.RemoveNestedField(content, "metadata", "resourceVersion")
			text, err := json.Marshal(content)
			s.must(err)
			named := o.(client.Object)
			dumped[s.resource(of).Resource+" "+strings.TrimPrefix(client.ObjectKeyFromObject(named).String(), "/")] = string(text)
		}
	}
	return dumped
}
