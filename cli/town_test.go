package cli

import (
	"context"
	"errors"
	"io"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

// town is a cluster with something of everything: node n1 is ready, n2 is gone, n3 is not ready. Pod live runs and keeps
// its addresses; gone and lost have leaked theirs; nobody can tell about silent.
func town() []client.Object {
	return []client.Object{
		fixture.Pool("default", fixture.Network("blue"), fixture.Subnet("10.0.0.0/28", "fd00::/124"), fixture.Reserved("10.0.0.4")),
		fixture.Pool("spare", fixture.Subnet("10.1.0.0/29", "")),
		fixture.Node("n1"),
		fixture.Node("n3", fixture.NotReady),
		live(),
		block(0, "n1", "10.0.0.0/30", "fd00::/126",
			fixture.Entry(0, "live-eth0", fixture.OfPod(live())),
			fixture.Entry(1, "gone-eth0", ofPod("gone", "n1")),
			fixture.Entry(2, "router", fixture.External("border router"))),
		block(1, "n2", "10.0.0.4/30", "fd00::4/126", fixture.Entry(1, "lost-eth0", ofPod("lost", "n2"))),
		block(2, "n3", "10.0.0.8/30", "fd00::8/126", fixture.Entry(0, "silent-eth0", ofPod("silent", "n3"))),
	}
}

func live() *corev1.Pod {
	return fixture.Pod("live", "n1", fixture.UID("uid-live"), fixture.Running("10.0.0.0", "fd00::"))
}

// ofPod are the attributes of an address of a pod in namespace default, whose uid follows from its name.
func ofPod(name, node string) v1alpha1.Attributes {
	return fixture.OfPod(fixture.Pod(name, node, fixture.UID(types.UID("uid-"+name))))
}

// block is a block of pool default as it is stored, its addresses filled in.
func block(index int32, node, ipv4, ipv6 string, entries ...func(*v1alpha1.AddressBlock)) *v1alpha1.AddressBlock {
	b := fixture.Block("default", index, node, entries...)
	b.Spec.IPv4, b.Spec.IPv6 = ipv4, ipv6
	return b
}

// server is a client of a cluster that a test made up.
type server struct{ client.WithWatch }

// serve returns a client of a cluster with these objects. The functions change what it answers.
func serve(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) *server {
	t.Helper()
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	return &server{fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(served()).WithObjects(objects...).WithInterceptorFuncs(funcs).Build()}
}

// served are the kinds of a cluster without any other program's records.
func served() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"AddressPool", "AddressBlock", "LeakReport"} {
		mapper.Add(v1alpha1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	return mapper
}

// look gathers what is in a cluster.
func look(t *testing.T, c client.Client) finding {
	t.Helper()
	f, err := gather(t.Context(), c, scope{}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// forbid refuses to list some kinds, as to a user who lacks the right.
func forbid(kinds ...client.ObjectList) interceptor.Funcs {
	return interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		for _, kind := range kinds {
			gvk, err := c.GroupVersionKindFor(kind)
			if err != nil {
				return err
			}
			if asked, err := c.GroupVersionKindFor(list); err != nil {
				return err
			} else if asked == gvk {
				return apierrors.NewForbidden(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, "", errors.New("you may not"))
			}
		}
		return c.List(ctx, list, opts...)
	}}
}

// fail answers every list with an error.
func fail(err error) interceptor.Funcs {
	return interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return err }}
}

// second is the pod gone when it is back: in the same place, with the same uid.
func second() *corev1.Pod {
	return fixture.Pod("gone", "n1", fixture.UID("uid-gone"), fixture.Running("10.0.0.1"))
}
