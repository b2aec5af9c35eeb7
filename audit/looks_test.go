package audit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/audit"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
)

// slow is a witness whose looks take time, the first of them the longest, and of which every third fails.
type slow struct {
	eyes
	mu         sync.Mutex
	now, most  int
	began      int
	outOfOrder bool
	last       int
}

// LiveLook implements audit.Witness.
func (s *slow) LiveLook(_ context.Context, a ipam.Allocation) (ipam.World, error) {
	s.mu.Lock()
	i := s.began
	s.began++
	s.now++
	s.most = max(s.most, s.now)
	s.mu.Unlock()
	<-time.After(time.Minute - time.Duration(i)*time.Second)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now--
	s.outOfOrder = s.outOfOrder || i < s.last
	s.last = i
	var n int
	if _, err := fmt.Sscanf(a.Handle, "gone-%d-eth0", &n); err != nil || n%3 == 0 {
		return ipam.World{}, errors.Join(err, errors.New("503"))
	}
	o := s.seen
	if n == 5 {
		o.Pods = append(slices.Clone(o.Pods), running("gone-5", "n1", 5))
	}
	return ipam.NewWorld(o), nil
}

// TestLooksAtTheSameTime has a run look at seven of ten hand-outs, of which one is alive after all.
func TestLooksAtTheSameTime(t *testing.T) {
	const healthy = "False RunFailed: looking at gone-0-eth0 of Pod default/gone-0 (uid uid-gone-0): 503\n" +
		"looking at gone-3-eth0 of Pod default/gone-3 (uid uid-gone-3): 503\nlooking at gone-6-eth0 of Pod default/gone-6 (uid uid-gone-6): 503"
	type answer struct {
		Most, Looks         int
		OutOfOrder          bool
		Healthy, Candidates string
	}
	tests := map[string]struct {
		looks int
		want  answer
	}{
		"one after the other, if nobody says how many": {0, answer{Most: 1, Looks: 7}},
		"three at a time":             {3, answer{Most: 3, Looks: 7, OutOfOrder: true}},
		"all, where more are allowed": {100, answer{Most: 7, Looks: 7, OutOfOrder: true}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := sit(t, interceptor.Funcs{})
				s := &slow{eyes: eyes{d}}
				d.Witness, d.Clock, d.Looks, d.Settings.Pace = s, cluster.SystemClock(), tt.looks, config.Pace{Minimum: 7}
				for i := range 10 {
					d.lend(fmt.Sprintf("gone-%d", i), "n1", i)
				}
				d.audits()
				got := answer{Most: s.most, Looks: s.began, OutOfOrder: s.outOfOrder, Healthy: d.conditions()["Healthy"]}
				for _, c := range d.report().Candidates {
					got.Candidates += c.Handle + " "
				}
				tt.want.Healthy, tt.want.Candidates = healthy, "gone-1-eth0 gone-2-eth0 gone-4-eth0 "
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("answer (-want +got):\n%s", diff)
				}
			})
		})
	}
}

var _ audit.Witness = &slow{}
