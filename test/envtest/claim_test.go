package envtest

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/allocator"
	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/fixture"
)

func TestI4WithThreeReplicas(t *testing.T) {
	p := own(t, controlplane.Start)
	replicas, err := p.StartReplicas(t.Context(), p.binary, settings, 3)
	t.Cleanup(func() {
		if err := replicas.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for round, n := range []int{100, 100, 100, 1000} {
		t.Run(fmt.Sprintf("of %d concurrent creations for one node one is admitted, round %d", n, round+1), func(t *testing.T) {
			oneOfMany(p.scene(t, "race"), n)
		})
	}
	t.Run("100 nodes that jump are served within 10 s", func(t *testing.T) {
		s := p.scene(t, "jump")
		took := s.crowd(func(ctx context.Context, node string) error {
			_, err := allocator.Allocator{Client: s.client}.Take(ctx, allocator.Request{
				Pool: s.name, Node: node, Handle: node, Attributes: fixture.External("router"),
			})
			return err
		})
		if took > 10*time.Second {
			t.Errorf("the last of 100 nodes was served after %s", took)
		}
	})
	t.Run("100 nodes that step by one are served", func(t *testing.T) {
		s := p.scene(t, "step")
		s.crowd(func(ctx context.Context, node string) error {
			for index := int32(0); ; index++ {
				err := s.client.Create(ctx, fixture.Block(s.name, index, node))
				if !apierrors.IsAlreadyExists(err) {
					return err
				}
			}
		})
	})
	t.Run("writes go on while a replica is dead", func(t *testing.T) {
		s := p.scene(t, "dead")
		s.create(fixture.Pool(s.name, fixture.Subnet("10.100.0.0/16", "")))
		replicas.Managers[1].Kill()
		for i := range int32(20) {
			node := s.node(fmt.Sprintf("%s-%d", s.name, i))
			s.wants(answer{}, s.client.Create(t.Context(), fixture.Block(s.name, i, node.Name)))
		}
		s.everyNodeHasOneBlock(20)
	})
}

// oneOfMany creates so many blocks with different indexes for one node, all at the same time.
func oneOfMany(s *scene, n int) {
	s.create(fixture.Pool(s.name, fixture.Subnet("10.100.0.0/16", "")))
	s.node(s.name)
	var mu sync.Mutex
	answers := map[string]int{}
	began := time.Now()
	var wg sync.WaitGroup
	for i := range int32(n) {
		wg.Go(func() {
			err := s.client.Create(s.t.Context(), fixture.Block(s.name, i, s.name))
			mu.Lock()
			defer mu.Unlock()
			answers[string(apierrors.ReasonForError(err))]++
		})
	}
	wg.Wait()
	s.t.Logf("%d creations took %s", n, time.Since(began).Round(time.Millisecond))
	if late := string(metav1.StatusReasonInternalError); answers[late] > 0 && n > 100 {
		// Of so many some find no webhook that has time for them, which refuses as well. It may be the one that has the claim:
		// then that is given up after half a minute, and whoever tries again is admitted.
		answers[string(metav1.StatusReasonForbidden)] += answers[late]
		delete(answers, late)
		if answers[""] == 0 {
			eventually(s.t, func() error { return s.client.Create(s.t.Context(), fixture.Block(s.name, 0, s.name)) })
			s.t.Logf("none was admitted in time; one was after %s", time.Since(began).Round(time.Second))
			answers[""]++
			answers[string(metav1.StatusReasonForbidden)]--
		}
	}
	// ReasonForError knows no reason for a write that was admitted.
	if diff := gocmp.Diff(map[string]int{"": 1, string(metav1.StatusReasonForbidden): n - 1}, answers); diff != "" {
		s.t.Errorf("answers by reason (-want +got):\n%s", diff)
	}
	s.everyNodeHasOneBlock(1)
}

// crowd lets 100 nodes get a block of their own, all at the same time, and returns how long that took.
func (s *scene) crowd(get func(ctx context.Context, node string) error) time.Duration {
	s.t.Helper()
	s.create(fixture.Pool(s.name, fixture.Subnet("10.100.0.0/16", "")))
	for i := range 100 {
		s.create(fixture.Node(fmt.Sprintf("%s-%d", s.name, i)))
	}
	began := time.Now()
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			if err := get(s.t.Context(), fmt.Sprintf("%s-%d", s.name, i)); err != nil {
				s.t.Errorf("node %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	s.t.Logf("100 nodes were served after %s", took.Round(time.Millisecond))
	s.everyNodeHasOneBlock(100)
	return took
}

// everyNodeHasOneBlock checks the end: as many nodes, each with one unfilled block of the scene's pool.
func (s *scene) everyNodeHasOneBlock(nodes int) {
	s.t.Helper()
	var object v1alpha1.AddressPool
	object.Name = s.name
	s.read(&object)
	pool, _ := object.Law()
	var blocks v1alpha1.AddressBlockList
	if err := s.client.List(s.t.Context(), &blocks, client.MatchingFields{"spec.pool": s.name}); err != nil {
		s.t.Fatal(err)
	}
	unfilled := map[string]int{}
	for _, b := range blocks.Items {
		if b.Law().Unfilled(pool, time.Now()) {
			unfilled[b.Spec.Node]++
		}
	}
	for node, n := range unfilled {
		if n != 1 {
			s.t.Errorf("node %s has %d unfilled blocks", node, n)
		}
	}
	if len(unfilled) != nodes {
		s.t.Errorf("%d nodes have a block, want %d", len(unfilled), nodes)
	}
}

func TestI4Claim(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		// claimed is the block that the node's claim names; index 0 belongs to another node.
		index int32
		age   time.Duration
		want  answer
	}{
		"one whose block may be about to appear binds": {
			index: 1, age: 10 * time.Second,
			want: answer{
				Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
				Message: noNew + `"NAME-2" is forbidden: spec.node: AddressBlock "NAME-1" for node "NAME" in pool "NAME" is being created: use it, or try again in SECONDS at the latest`,
			},
		},
		"one whose block has not appeared for 30 s is over": {index: 1, age: ipam.ClaimAge},
		"one that names what is another object now is over": {index: 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := shared.scene(t, "claim")
			s.create(fixture.Pool(s.name, fixture.Subnet("10.100.0.0/24", "")))
			node := s.node(s.name)
			s.node(s.name + "-other")
			s.create(fixture.Block(s.name, 0, s.name+"-other"))
			lost := ipam.Claim{Block: ipam.BlockName(s.name, int64(tt.index)), BlockUID: "6f0c11d2-0000-4000-8000-000000000000"}
			s.create(&coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: controlplane.Namespace, Name: ipam.ClaimName(s.name, s.name),
					Labels:      map[string]string{v1alpha1.ClaimLabel: "true"},
					Annotations: map[string]string{v1alpha1.NodeUIDAnnotation: string(node.UID)},
				},
				Spec: coordinationv1.LeaseSpec{HolderIdentity: new(lost.String()), AcquireTime: &metav1.MicroTime{Time: time.Now().Add(-tt.age)}},
			})
			b := fixture.Block(s.name, 2, s.name)
			err := s.client.Create(t.Context(), b)
			seconds := "20 s"
			if err != nil {
				seconds = regexp.MustCompile(`\b(1[5-9]|20) s\b`).FindString(err.Error())
			}
			s.wants(tt.want, err, "SECONDS", seconds)
			if err != nil {
				return
			}
			claim, err := s.claim(s.name)
			if err != nil {
				t.Fatal(err)
			}
			if diff := gocmp.Diff(ipam.Claim{Block: b.Name, BlockUID: string(b.UID)}.String(), *claim.Spec.HolderIdentity); diff != "" {
				t.Errorf("the claim's holder (-want +got):\n%s", diff)
			}
		})
	}
}
