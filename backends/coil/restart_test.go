package coil_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/ipam"
)

// coild is the pod of a node's coild, created some time before noon.
func coild(node string, age time.Duration, ready bool) string {
	return pod("coild-"+node, node, "app.kubernetes.io/component: coild", age, ready, "")
}

// going is a coild that was deleted some time before noon.
func going(node string, ago time.Duration) string {
	return pod("coild-"+node, node, "app.kubernetes.io/component: coild", 24*time.Hour, true,
		fmt.Sprintf("deletionTimestamp: %q, finalizers: [example.org/slow]", noon().Add(-ago).Format(time.RFC3339)))
}

func pod(name, node, labels string, age time.Duration, ready bool, more string) string {
	status := "False"
	if ready {
		status = "True"
	}
	return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {namespace: kube-system, name: %s, uid: uid-%s, labels: {%s}, creationTimestamp: %q, %s}, spec: {nodeName: %s}, status: {conditions: [{type: Ready, status: %q}]}}",
		name, name, labels, noon().Add(-age).Format(time.RFC3339), more, node, status)
}

func TestRestart(t *testing.T) {
	const evicted = "eviction kube-system/coild-n1 uid uid-coild-n1"
	day := 24 * time.Hour
	tests := map[string]struct {
		pods []string
		// want is the refusal, if there is one.
		want string
	}{
		"the coild of the block's node":                         {pods: []string{coild("n1", day, true), coild("n2", day, true)}},
		"one that is just old enough":                           {pods: []string{coild("n1", time.Hour, true)}},
		"one that is not ready":                                 {pods: []string{coild("n1", day, false)}},
		"although another one has not been ready for long":      {pods: []string{coild("n1", day, true), coild("n2", day, false)}},
		"although another one has not been able to go for long": {pods: []string{coild("n1", day, true), going("n2", day)}},
		"not twice in an hour": {
			pods: []string{coild("n1", 59*time.Minute, true)},
			want: `pod kube-system/coild-n1 is 59m0s old, and it must be 1h0m0s`,
		},
		"not while another one starts": {
			pods: []string{coild("n1", day, true), coild("n2", time.Minute, false)},
			want: `pod kube-system/coild-n2 on node "n2" is not ready yet, and one restarts at a time`,
		},
		"not while another one goes": {
			pods: []string{coild("n1", day, true), going("n2", time.Minute)},
			want: `pod kube-system/coild-n2 on node "n2" is not ready yet, and one restarts at a time`,
		},
		"not again while it goes": {
			pods: []string{going("n1", 0)},
			want: `pod kube-system/coild-n1 on node "n1" is not ready yet, and one restarts at a time`,
		},
		"none where none is found": {
			pods: []string{coild("n2", day, true), pod("router", "n1", "app.kubernetes.io/component: coil-router", day, true, "")},
			want: `restarting coild on node "n1": no pod in namespace "kube-system" with the labels map[app.kubernetes.io/component:coild] is there`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, append(tt.pods, block("p-0", of("n1"), "ipv4: 10.0.0.0/32"))...)
			got, err := s.backend.Restart(t.Context(), handOut("p-0", agent("n1"), "10.0.0.0"))
			if err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("the answer is %q, want %q", got, tt.want)
			}
			var writes []string
			if tt.want == "" {
				writes = []string{evicted}
			}
			if diff := cmp.Diff(writes, s.writes); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRestartLooksWhetherTheBlockIsStillThere(t *testing.T) {
	old := coild("n1", 24*time.Hour, true)
	t.Run("not for one that is gone", func(t *testing.T) {
		s := newStore(t, old)
		if _, err := s.backend.Restart(t.Context(), handOut("p-0", agent("n1"), "10.0.0.0")); !errors.Is(err, backends.ErrStale) || len(s.writes) > 0 {
			t.Errorf("the error is %v, the writes %v", err, s.writes)
		}
	})
	t.Run("not for one that is another by now", func(t *testing.T) {
		s := newStore(t, old, block("p-0", of("n1"), "ipv4: 10.0.0.0/32"))
		s.change(t, "AddressBlock", "p-0", renew)
		if _, err := s.backend.Restart(t.Context(), handOut("p-0", agent("n1"), "10.0.0.0")); !errors.Is(err, backends.ErrStale) || len(s.writes) > 0 {
			t.Errorf("the error is %v, the writes %v", err, s.writes)
		}
	})
	t.Run("not for a reserved one", func(t *testing.T) {
		s := newStore(t, old)
		_, err := s.backend.Restart(t.Context(), handOut("p-0", ipam.Owner{Kind: ipam.OwnerExternal, Name: "reserved"}, "10.0.0.0"))
		if want := "restarting the coild that has uid-p-0: its record does not tell the node"; err == nil || err.Error() != want {
			t.Errorf("the error is %v, want %s", err, want)
		}
	})
	t.Run("and tells what a budget says", func(t *testing.T) {
		s := newStore(t, old, block("p-0", of("n1"), "ipv4: 10.0.0.0/32"))
		budget := errors.New("the budget is used up")
		s.always = func(write bool) error {
			if write {
				return budget
			}
			return nil
		}
		_, err := s.backend.Restart(t.Context(), handOut("p-0", agent("n1"), "10.0.0.0"))
		if want := `evicting coild kube-system/coild-n1 on node "n1": the budget is used up`; err == nil || err.Error() != want || !errors.Is(err, budget) {
			t.Errorf("the error is %v, want %s", err, want)
		}
	})
}
