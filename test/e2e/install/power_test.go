//go:build e2e

package install

import (
	"context"
	"errors"
	"maps"
	"slices"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/test/e2e/cluster"
)

func TestANodeStartsAgain(t *testing.T) {
	p := found(t)
	service := p.settle()
	before := slices.Sorted(maps.Keys(p.neighbours()))

	p.must(p.PowerOff())
	if running, err := p.Sandboxes(); err != nil || len(running) > 0 {
		t.Errorf("without power there run %v (%v)", running, err)
	}
	if err := p.Client.List(t.Context(), &corev1.PodList{}); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("without power the API server answers %v, want %v", err, syscall.ECONNREFUSED)
	}

	p.must(p.PowerOn(t.Context()))
	p.eventually("the node is ready", func(ctx context.Context) error {
		var node corev1.Node
		if err := p.Client.Get(ctx, client.ObjectKey{Name: cluster.Node}, &node); err != nil {
			return err
		}
		if !slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			return errors.New("it is not")
		}
		return nil
	})
	p.answers("the Service", before, func(ctx context.Context) (string, error) { return ask(ctx, service) })
	p.available()
}
