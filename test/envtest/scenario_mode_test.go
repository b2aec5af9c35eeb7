package envtest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

// bearing is how a manager is set, and what it holds then.
type bearing struct {
	name, native, nodes string
	holds               map[string]string
}

// bearings are all that the walk through the modes comes by.
func bearings() (off, observe, warn, enforce, noPods, noNodes bearing) {
	kinds := func(pods, nodes, ours string) map[string]string {
		return map[string]string{"pods": pods, "nodes": nodes, "addresspools": ours, "addressblocks": ours}
	}
	return bearing{"Off", "{mode: Off}", "[native]", kinds("none", "none", "none")},
		bearing{"Observe", "{mode: Observe}", "[native]", kinds("none", "none", "none")},
		bearing{"Warn", "{mode: Warn}", "[native]", kinds("none", "none", "none")},
		bearing{"Enforce", "{mode: Enforce}", "[native]", kinds("all", "all", "all")},
		bearing{"Enforce without pods", "{mode: Enforce, podFinalizers: false}", "[native]", kinds("none", "all", "all")},
		bearing{"Enforce without nodes", "{mode: Enforce}", "[]", kinds("all", "none", "all")}
}

// settings are those of a manager that puts five finalizers on pods in a second.
func (b bearing) settings() string {
	return fmt.Sprintf("backends: {native: %s}\nfinalizers: {pods: {backfillPerSecond: 5}, nodes: {backends: %s}}\nleaderElection: {enabled: false}\n",
		b.native, b.nodes)
}

// The walk takes each way from one mode to another once, and those to the two switches of Enforce and back.
func changesOfMode(s *scene) {
	t := s.t
	off, observe, warn, enforce, noPods, noNodes := bearings()
	m := s.start(t, enforce.settings())
	pods := s.villagers(8)
	block := &v1alpha1.AddressBlock{}
	block.Name = s.name + "-0"
	s.holds(enforce)
	s.read(block)
	before := block.DeepCopy()
	for _, next := range []bearing{
		off, observe, off, warn, off, enforce, observe, warn, observe, enforce, warn, enforce, noPods, enforce, noNodes, enforce,
	} {
		quit(t, m)
		var list corev1.PodList
		if err := s.client.List(t.Context(), &list, client.InNamespace(s.name)); err != nil {
			t.Fatal(err)
		}
		bare := !slices.ContainsFunc(list.Items, func(p corev1.Pod) bool { return len(p.Finalizers) > 0 })
		film := shoot[*corev1.Pod](s, &corev1.PodList{}, s.name, fields.Everything(), list.ResourceVersion)
		m = s.start(t, next.settings())
		s.holds(next)
		if bare && next.holds["pods"] == "all" {
			s.paced(film, pods)
		}
		s.read(block)
		same(t, "the block's spec under "+next.name, before.Spec, block.Spec)
	}
	quit(t, m)
	s.holds(enforce)
}

// villagers creates n pods with addresses in a namespace of their own.
func (s *scene) villagers(n int32) int {
	s.t.Helper()
	s.create(
		fixture.Pool(s.name, fixture.Subnet("10.125.0.0/24", ""), fixture.BlockSize(4)),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name}},
	)
	s.node(s.name)
	block := s.block()
	for i := range n {
		s.tenant(fmt.Sprintf("%s/web-%d", s.name, i), block, i)
	}
	return int(n)
}

// holds waits until Oakum holds what it should. Nothing is asked of a cache.
func (s *scene) holds(b bearing) {
	s.t.Helper()
	eventually(s.t, func() error {
		got := map[string]string{}
		for kind, list := range map[string]client.ObjectList{
			"pods": &corev1.PodList{}, "nodes": &corev1.NodeList{},
			"addresspools": &v1alpha1.AddressPoolList{}, "addressblocks": &v1alpha1.AddressBlockList{},
		} {
			got[kind] = s.heldOf(list)
		}
		if diff := gocmp.Diff(b.holds, got); diff != "" {
			return fmt.Errorf("under %s, what has a finalizer of ours (-want +got):\n%s", b.name, diff)
		}
		return nil
	})
}

// heldOf tells how many objects of a list have a finalizer of ours: all, none, or a count.
func (s *scene) heldOf(list client.ObjectList) string {
	s.t.Helper()
	if err := s.client.List(s.t.Context(), list); err != nil {
		s.t.Fatal(err)
	}
	held, all := 0, meta.LenList(list)
	err := meta.EachListItem(list, func(o runtime.Object) error {
		ours := func(f string) bool { return strings.HasPrefix(f, v1alpha1.Group+"/") }
		if slices.ContainsFunc(o.(client.Object).GetFinalizers(), ours) {
			held++
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	switch held {
	case 0:
		return "none"
	case all:
		return "all"
	}
	return fmt.Sprintf("%d of %d", held, all)
}

// paced checks that finalizers came back no faster than they may. What is seen first may be seen late.
func (s *scene) paced(f *film[*corev1.Pod], n int) {
	s.t.Helper()
	var came []time.Time
	f.until("held all", func(next frame[*corev1.Pod]) bool {
		came = append(came, next.at)
		return len(came) == n
	})
	took, want := came[n-1].Sub(came[0]), time.Duration(n-1)*time.Second/5
	s.t.Logf("%d finalizers came back in %s", n, took.Round(time.Millisecond))
	if took < want*3/4 {
		s.t.Errorf("%d finalizers came back in %s, want %s at least", n, took, want)
	}
}
