package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
)

// cluster is an API server that others use too.
type cluster struct {
	client.WithWatch
	// before has what happens before each call of a kind, such as "patch AddressBlock". An error is the answer.
	before map[string]func() error

	mu sync.Mutex
	// writes are the writes that were tried, patches with what they say.
	writes []string
}

func newCluster(t *testing.T, objects ...client.Object) *cluster {
	c := &cluster{before: map[string]func() error{}}
	scheme := runtime.NewScheme()
	check(t, v1alpha1.AddToScheme(scheme))
	field := func(value func(v1alpha1.AddressBlockSpec) string) client.IndexerFunc {
		return func(o client.Object) []string { return []string{value(o.(*v1alpha1.AddressBlock).Spec)} }
	}
	c.WithWatch = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithIndex(&v1alpha1.AddressBlock{}, "spec.pool", field(func(s v1alpha1.AddressBlockSpec) string { return s.Pool })).
		WithIndex(&v1alpha1.AddressBlock{}, "spec.node", field(func(s v1alpha1.AddressBlockSpec) string { return s.Node })).
		WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, inner client.WithWatch, name client.ObjectKey, object client.Object, options ...client.GetOption) error {
				if err := c.called("get", object, ""); err != nil {
					return err
				}
				return inner.Get(ctx, name, object, options...)
			},
			Create: func(ctx context.Context, inner client.WithWatch, object client.Object, options ...client.CreateOption) error {
				if err := c.called("create", object, object.GetName()); err != nil {
					return err
				}
				fill(object.(*v1alpha1.AddressBlock))
				return inner.Create(ctx, object, options...)
			},
			Patch: func(ctx context.Context, inner client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
				data, err := patch.Data(object)
				if err != nil {
					return err
				}
				if err := c.called("patch", object, object.GetName()+" "+string(patch.Type())+" "+string(data)); err != nil {
					return err
				}
				err = inner.Patch(ctx, object, patch, options...)
				if apierrors.ReasonForError(err) == metav1.StatusReasonUnknown && err != nil {
					// A patch that does not fit the object: the API server finds that out before it compares revisions.
					return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "patch", schema.GroupResource{}, "", err.Error(), 0, false)
				}
				return err
			},
		}).Build()
	return c
}

func (c *cluster) called(verb string, object client.Object, what string) error {
	if verb != "get" {
		c.mu.Lock()
		c.writes = append(c.writes, verb+" "+what)
		c.mu.Unlock()
	}
	_, kind, _ := strings.Cut(fmt.Sprintf("%T", object), ".")
	if f := c.before[verb+" "+kind]; f != nil {
		return f()
	}
	return nil
}

// fill does as the mutating webhook does.
func fill(b *v1alpha1.AddressBlock) {
	b.Spec.IPv4 = fmt.Sprintf("10.%d.%d.%d/30", b.Spec.Index>>14, b.Spec.Index>>6&0xff, b.Spec.Index<<2&0xff)
}

// once lets something happen before the first call of a kind alone.
func (c *cluster) once(call string, f func() error) {
	c.before[call] = func() error {
		delete(c.before, call)
		return f()
	}
}

// block returns a block that must be there.
func (c *cluster) block(t *testing.T, name string) *v1alpha1.AddressBlock {
	t.Helper()
	var b v1alpha1.AddressBlock
	check(t, c.Get(t.Context(), client.ObjectKey{Name: name}, &b))
	return &b
}

func conflict() error {
	return apierrors.NewConflict(schema.GroupResource{Group: v1alpha1.Group, Resource: "addressblocks"}, "p-0", errors.New("the object has been modified"))
}

// refusal is what a webhook of Oakum answers; again tells the client to try again.
func refusal(why string, again bool) error {
	err := apierrors.NewForbidden(schema.GroupResource{Group: v1alpha1.Group, Resource: "addressblocks"}, "p-0", errors.New(why))
	if again {
		err.ErrStatus.Details.RetryAfterSeconds = 1
	}
	return err
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func expect[T any](t *testing.T, what string, want, got T) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
