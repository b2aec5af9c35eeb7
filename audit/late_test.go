package audit_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/fixture"
)

// TestAPodThatStartsLateIsToldOnce is L07: its address stays, however long it takes, and somebody hears of it.
func TestAPodThatStartsLateIsToldOnce(t *testing.T) {
	for name, lend := range map[string]func(*desk){
		"whose UID is recorded": func(d *desk) { d.lend("web", "n1", 1) },
		"whose name is":         func(d *desk) { d.lendByName("web", 1) },
	} {
		t.Run(name, func(t *testing.T) {
			object := fixture.Pod("web", "n1")
			object.UID = "uid-web"
			d := sit(t, interceptor.Funcs{}, object)
			d.Mode = config.ModeObserve
			lend(d)
			pod := pending("web", "uid-web")
			pod.Created = start()
			d.seen.Pods = append(d.seen.Pods, pod)
			type state struct {
				events int
				late   float64
			}
			var got []state
			look := func() {
				d.audits()
				got = append(got, state{len(d.events), d.values("oakum_allocations_starting_late")["oakum_allocations_starting_late native"]})
			}
			for _, after := range []time.Duration{0, time.Hour - 1, 1, time.Hour} {
				d.pass(after)
				look()
			}
			d.seen.Pods = []ipam.Pod{d.seen.Pods[0], running("web", "n1", 1)}
			look()
			want := []state{{0, 0}, {0, 0}, {1, 1}, {1, 1}, {1, 0}}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(state{})); diff != "" {
				t.Errorf("Events and metric (-want +got):\n%s", diff)
			}
			told := []string{"Warning PodStartsLate on Pod default/web (uid-web): 10.0.0.1 (native, handle web-eth0) is kept for a pod that has been Pending for 1h0m0s: see why it does not start"}
			if diff := cmp.Diff(told, d.events); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"web-eth0"}, d.left()); diff != "" {
				t.Errorf("handles that are left (-want +got):\n%s", diff)
			}
		})
	}
}
