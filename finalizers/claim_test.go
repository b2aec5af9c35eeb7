package finalizers

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/fixture"
)

func TestClaim(t *testing.T) {
	broken := errors.New("the API server is on fire")
	deleting := "DELETE leases oakum-system/" + ipam.ClaimName("default", "n1") + ` {"preconditions":{"uid":"claim-uid","resourceVersion":"<current>"}}`
	tests := map[string]struct {
		// holder is what the claim names, and age how old it is.
		holder string
		age    time.Duration
		// renewed is how long ago the claim was taken over; 0 if it was not.
		renewed time.Duration
		objects []client.Object
		unseen  func(*stage)
		fails   map[string]error
		want    outcome
		// stays: the claim is there afterwards.
		stays bool
	}{
		"it waits for its block": {
			holder: "default-0/default-0-uid", age: 12 * time.Second,
			want: outcome{Again: 18 * time.Second}, stays: true,
		},
		"it waits for a second at least": {
			holder: "default-0/default-0-uid", age: 30*time.Second - 1,
			want: outcome{Again: time.Second}, stays: true,
		},
		"it is over if its block does not come": {
			holder: "default-0/default-0-uid", age: 30 * time.Second,
			want: outcome{Calls: []string{deleting}},
		},
		"it is as young as when it was taken over": {
			holder: "default-0/default-0-uid", age: time.Hour, renewed: 12 * time.Second,
			want: outcome{Again: 18 * time.Second}, stays: true,
		},
		"it binds while its block has room": {
			holder: "default-0/default-0-uid", age: time.Hour, objects: []client.Object{pool(), block("default", 0, "n1")},
			stays: true,
		},
		"it binds though only the cache does not show the pool": {
			holder: "default-0/default-0-uid", age: time.Hour, objects: []client.Object{block("default", 0, "n1")},
			unseen: func(s *stage) { s.put(pool()) }, stays: true,
		},
		"it is over when its block is full": {
			holder: "default-0/default-0-uid", objects: []client.Object{pool(fixture.Reserved("10.0.0.3")), block("default", 0, "n1", fixture.Reservations(0, 2))},
			want: outcome{Calls: []string{deleting}, Recorded: "reserved-0 reserved-1 reserved-2"},
		},
		"it is over when its block is being deleted": {
			holder: "default-0/default-0-uid", objects: []client.Object{pool(), block("default", 0, "n1", going)},
			want: outcome{Calls: []string{deleting}},
		},
		"it is over at once if another node was faster to take the name": {
			holder: "default-0/other", objects: []client.Object{pool(), block("default", 0, "n2")},
			want: outcome{Calls: []string{deleting}},
		},
		"it stays if somebody takes it over at that moment": {
			holder: "default-0/default-0-uid", age: time.Hour,
			unseen: func(s *stage) {
				change(s.store, claim("", 0), func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("default-1/default-1-uid") })
			},
			want:  outcome{Calls: []string{"DELETE leases oakum-system/" + ipam.ClaimName("default", "n1") + ` {"preconditions":{"uid":"claim-uid","resourceVersion":"<stale>"}}`}},
			stays: true,
		},
		"it stays if it cannot be deleted, and is looked at again": {
			holder: "default-0/default-0-uid", age: time.Hour, fails: map[string]error{"DELETE leases": broken},
			want: outcome{Calls: []string{deleting}, Err: "the API server is on fire"}, stays: true,
		},
		"it stays if nobody can tell about the pool": {
			holder: "default-0/default-0-uid", age: time.Hour, objects: []client.Object{block("default", 0, "n1")}, fails: map[string]error{"GET addresspools": broken},
			want: outcome{Err: "the API server is on fire"}, stays: true,
		},
		"one that names nothing is over as well when it is old": {
			age: time.Hour, want: outcome{Calls: []string{deleting}},
		},
		"one that is gone needs nothing": {
			holder: "default-0/default-0-uid", age: time.Hour,
			unseen: func(s *stage) { s.remove(claim("", 0)); s.catchUp() },
		},
		"one that went unseen needs nothing either": {
			holder: "default-0/default-0-uid", age: time.Hour,
			unseen: func(s *stage) { s.remove(claim("", 0)) },
			want:   outcome{Calls: []string{"DELETE leases oakum-system/" + ipam.ClaimName("default", "n1") + ` {"preconditions":{"uid":"claim-uid","resourceVersion":"<stale>"}}`}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			lease := claim(tt.holder, tt.age)
			if tt.renewed > 0 {
				lease.Spec.AcquireTime = &metav1.MicroTime{Time: noon().Add(-tt.renewed)}
			}
			s := play(t, append(tt.objects, lease)...)
			if tt.unseen != nil {
				tt.unseen(s)
			}
			s.fault = failing(tt.fails)
			if diff := cmp.Diff(tt.want, s.outcome(lease, client.ObjectKeyFromObject(lease).String())); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
			if _, stays := look(s.store, lease); stays != tt.stays {
				t.Errorf("the claim is there: %t, want %t", stays, tt.stays)
			}
		})
	}
}

// claim is the Lease in which node n1 claims a block of pool default.
func claim(holder string, age time.Duration) *coordinationv1.Lease {
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: "oakum-system", Name: ipam.ClaimName("default", "n1"), UID: "claim-uid", CreationTimestamp: *ago(age),
		Labels: map[string]string{v1alpha1.ClaimLabel: "true"},
	}}
	if holder != "" {
		l.Spec.HolderIdentity = &holder
	}
	return l
}
