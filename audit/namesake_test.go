package audit_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/cluster"
	"github.com/oakum-dev/oakum/ipam"
)

// pending is a pod of node n1 that does not run yet.
func pending(name, uid string) ipam.Pod {
	return ipam.Pod{Namespace: "default", Name: name, UID: uid, Node: "n1", Phase: ipam.PhasePending, Sandbox: ipam.ConditionFalse}
}

func TestWhoBearsANameIsLookedForOnce(t *testing.T) {
	unreadable := running("web", "n1")
	unreadable.AddressesUnknown = true
	byName := func(d *desk) { d.lendByName("web", 1) }
	tests := map[string]struct {
		lend func(*desk)
		pod  ipam.Pod
		want []string
	}{
		"of a pod that is starting":                      {byName, pending("web", "u1"), []string{"web-eth0"}},
		"of a pod that has the address":                  {byName, running("web", "n1", 1), []string{"web-eth0"}},
		"of a pod whose addresses cannot be read":        {byName, unreadable, []string{"web-eth0"}},
		"and never where the record tells the pod's UID": {func(d *desk) { d.lend("web", "n1", 1) }, pending("web", "uid-web"), nil},
		"nor where it is no pod's":                       {func(d *desk) { d.lendByName("web", 1); d.recorded[0].Owner.Kind = ipam.OwnerExternal }, running("web", "n1"), nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := sit(t, interceptor.Funcs{})
			tt.lend(d)
			d.seen.Pods = append(d.seen.Pods, tt.pod)
			for range 3 {
				d.audits()
				d.pass(d.Settings.Quarantine.Duration)
			}
			if diff := cmp.Diff(tt.want, d.did("look at ")); diff != "" {
				t.Errorf("live looks in three runs (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"web-eth0"}, d.left()); diff != "" {
				t.Errorf("handles that are left (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNamesAreLookedForAsThePaceAllows(t *testing.T) {
	tests := map[string]struct {
		pace config.Pace
		want [][]string
	}{
		"one at a time, those in doubt first": {config.Pace{Minimum: 1}, [][]string{{"second-eth0"}, {"third-eth0"}, {"first-eth0"}, nil}},
		"what is in doubt as the fraction allows, the rest as the minimum does": {
			config.Pace{Minimum: 1, Fraction: 1}, [][]string{{"second-eth0", "third-eth0", "first-eth0"}, {"fourth-eth0"}, nil, nil},
		},
		"none where nothing is allowed": {config.Pace{}, [][]string{nil, nil, nil, nil}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := sit(t, interceptor.Funcs{})
			d.Settings.Pace = tt.pace
			for i, name := range []string{"first", "second", "third"} {
				d.lendByName(name, i)
			}
			d.seen.Pods = append(d.seen.Pods, running("first", "n1", 0), pending("second", "u2"), pending("third", "u3"))
			if tt.pace.Fraction > 0 {
				d.lendByName("fourth", 3)
				d.seen.Pods = append(d.seen.Pods, running("fourth", "n1", 3))
			}
			var got [][]string
			for range tt.want {
				d.audits()
				got = append(got, d.did("look at "))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("live looks in each run (-want +got):\n%s", diff)
			}
		})
	}
}

func TestALookThatFailsKeepsAndIsTriedAgain(t *testing.T) {
	d := sit(t, interceptor.Funcs{})
	d.lendByName("web", 1)
	d.seen.NodesSettled = true
	d.seen.Pods = append(d.seen.Pods, pending("web", "u1"))
	d.unlooked = errors.New("503")
	d.audits()
	if diff := cmp.Diff("False RunFailed: looking at web-eth0 of Pod default/web: 503", d.conditions()["Healthy"]); diff != "" {
		t.Errorf("Healthy (-want +got):\n%s", diff)
	}
	d.unlooked = nil
	d.audits()
	if diff := cmp.Diff([]string{"web-eth0", "web-eth0"}, d.did("look at ")); diff != "" {
		t.Errorf("live looks in two runs (-want +got):\n%s", diff)
	}
	// Whoever is looked at first is who counts: nobody saw that the record is older than this pod.
	d.pass(time.Hour)
	d.audits()
	if diff := cmp.Diff([]string{"web-eth0"}, d.left()); diff != "" {
		t.Errorf("handles that are left (-want +got):\n%s", diff)
	}
}

// TestAPredecessorsRecordGoesWhileThePodStarts is G20: the range is full, and only the predecessor's address could be had.
func TestAPredecessorsRecordGoesWhileThePodStarts(t *testing.T) {
	tests := map[string]struct {
		before []ipam.Pod
		nodes  []ipam.Node
		want   []string
	}{
		"that was seen to have the address":  {before: []ipam.Pod{running("web", "n1", 1)}},
		"that was seen to start":             {before: []ipam.Pod{pending("web", "u0")}},
		"that nobody saw, but nor was there": {before: nil},
		"unless a node is silent on which its predecessor may run": {
			before: []ipam.Pod{running("web", "n1", 1)},
			nodes:  []ipam.Node{{Name: "n1", UID: "uid-n1", Ready: ipam.ConditionTrue}, {Name: "n2", UID: "uid-n2", Ready: ipam.ConditionUnknown}},
			want:   []string{"web-eth0"},
		},
		"unless that one is the first that was seen": {before: []ipam.Pod{pending("web", "u1")}, want: []string{"web-eth0"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := sit(t, interceptor.Funcs{})
			d.lendByName("web", 1)
			d.seen.NodesSettled = true
			others := d.seen.Pods
			d.seen.Pods = slices.Concat(others, tt.before)
			d.audits()
			d.pass(time.Second)
			d.seen.Pods = slices.Concat(others, []ipam.Pod{pending("web", "u1")})
			if tt.nodes != nil {
				d.seen.Nodes = tt.nodes
			}
			d.twice()
			if diff := cmp.Diff(tt.want, d.left()); diff != "" {
				t.Errorf("handles that are left (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAnOwnerThatGoesIsSuspectedAlsoByName has a pod go whose successor is there at once: only who was looked at before
// tells whose the record is.
func TestAnOwnerThatGoesIsSuspectedAlsoByName(t *testing.T) {
	for name, tt := range map[string]struct {
		known bool
		want  []string
	}{
		"and its record goes a grace later":   {known: true},
		"and is kept where nobody had looked": {known: false, want: []string{"web-eth0"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := sit(t, interceptor.Funcs{})
				d.Clock = cluster.SystemClock()
				d.Settings.Interval = metav1.Duration{Duration: time.Hour}
				gone := make(chan ipam.Owner, 1)
				d.Gone = gone
				d.seen.NodesSettled = true
				others := d.seen.Pods
				d.seen.Pods = slices.Concat(others, []ipam.Pod{running("web", "n1", 1)})
				if tt.known {
					d.lendByName("web", 1)
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- d.Start(ctx) }()
				synctest.Wait()

				if !tt.known {
					d.lendByName("web", 1)
				}
				d.calls, d.seen.Pods = nil, slices.Concat(others, []ipam.Pod{pending("web", "u1")})
				gone <- ipam.Owner{Kind: ipam.OwnerPod, Namespace: "default", Name: "web", UID: "uid-web", Node: "n1"}
				<-time.After(5*time.Minute + time.Second)
				synctest.Wait()
				if diff := cmp.Diff(tt.want, d.left()); diff != "" {
					t.Errorf("handles that are left (-want +got):\n%s", diff)
				}
				if looked := d.did("look at "); looked[0] != "web-eth0" {
					t.Errorf("live looks %q", looked)
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
