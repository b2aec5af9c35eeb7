package cluster

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	sourcetesting "k8s.io/client-go/tools/cache/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/fixture"
)

// scene is a witness with a cache and an API server that can disagree.
type scene struct {
	*Witness
	// pods and nodes are what the cache is told.
	pods, nodes *sourcetesting.FakeControllerSource
	api         client.WithWatch
	// broken is what the API server answers, if it is not nil.
	broken error
	now    ipam.Moment
}

// perform plays in a bubble of its own, in which synctest.Wait returns when the cache has heard everything.
func perform(t *testing.T, play func(t *testing.T, s *scene)) {
	synctest.Test(t, func(t *testing.T) {
		s := &scene{pods: sourcetesting.NewFakeControllerSource(), nodes: sourcetesting.NewFakeControllerSource()}
		s.api = fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, name client.ObjectKey, object client.Object, options ...client.GetOption) error {
				if s.broken != nil {
					return s.broken
				}
				return c.Get(ctx, name, object, options...)
			},
		}).Build()
		informers := &informers{}
		for object, settings := range Slim() {
			switch object.(type) {
			case *corev1.Pod:
				informers.pods = toolscache.NewSharedIndexInformer(s.pods, object, 0, toolscache.Indexers{})
				check(t, informers.pods.SetTransform(settings.Transform))
			case *corev1.Node:
				informers.nodes = toolscache.NewSharedIndexInformer(s.nodes, object, 0, toolscache.Indexers{})
				check(t, informers.nodes.SetTransform(settings.Transform))
			}
		}
		w, err := NewWitness(t.Context(), informers, s.api, func() ipam.Moment { return s.now }, Settings{NodeDeletionMeansFenced: true, Quarantine: 15 * time.Minute})
		check(t, err)
		s.Witness = w
		ctx, stop := context.WithCancel(t.Context())
		go informers.pods.RunWithContext(ctx)
		go informers.nodes.RunWithContext(ctx)
		synctest.Wait()
		play(t, s)
		stop()
		s.pods.Broadcaster.Shutdown()
		s.nodes.Broadcaster.Shutdown()
	})
}

// informers is a cache of which a witness takes the informers alone.
type informers struct {
	cache.Cache
	pods, nodes toolscache.SharedIndexInformer
	err         error
}

func (i *informers) GetInformer(_ context.Context, object client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	if _, ok := object.(*corev1.Pod); ok {
		return i.pods, i.err
	}
	return i.nodes, i.err
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func pod(name, node string, uid types.UID, knobs ...func(*corev1.Pod)) *corev1.Pod {
	return fixture.Pod(name, node, append(knobs, fixture.UID(uid))...)
}

func node(name string, uid types.UID, knobs ...func(*corev1.Node)) *corev1.Node {
	n := fixture.Node(name, knobs...)
	n.UID = uid
	return n
}

// step is something that happens in a scene.
type step func(t *testing.T, s *scene)

// at is the steady time, which tells the waits.
func at(seconds int) step {
	return func(_ *testing.T, s *scene) { s.now.Steady = time.Duration(seconds) * time.Second }
}

// jump sets the wall clock.
func jump(by time.Duration) step {
	return func(_ *testing.T, s *scene) { s.now.Wall = s.now.Wall.Add(by) }
}

func nodeIsLive(t *testing.T, s *scene)   { check(t, s.api.Create(t.Context(), node("n1", "uid"))) }
func nodeIsDead(t *testing.T, s *scene)   { check(t, s.api.Delete(t.Context(), node("n1", "uid"))) }
func nodeIsCached(_ *testing.T, s *scene) { s.nodes.Add(node("n1", "uid")) }
func nodeIsGone(_ *testing.T, s *scene)   { s.nodes.Delete(node("n1", "uid")) }
func watchIsCut(_ *testing.T, s *scene) {
	s.nodes.DeleteDropWatch(node("n1", "uid"))
	s.nodes.ResetWatch()
	<-time.After(time.Minute) // The cache lists anew after a while.
}

func ask(t *testing.T, s *scene) {
	if _, err := s.LiveNode(t.Context(), "n1"); err != nil && s.broken == nil {
		t.Error(err)
	}
}

func fire(_ *testing.T, s *scene) { s.broken = errors.New("the API server is on fire") }
