package webhooks

import (
	"net/http"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/fixture"
)

// claim is that of node n1 on pool p.
func claim(holder string, age time.Duration) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "oakum-system", Name: "block-871ff79b8129cecf",
			Labels: map[string]string{v1alpha1.ClaimLabel: "true"}, Annotations: map[string]string{v1alpha1.NodeUIDAnnotation: "n1-uid"},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, AcquireTime: &metav1.MicroTime{Time: noon().Add(-age)}},
	}
}

// held returns the claims that there are, without their revisions.
func (d *door) held(t *testing.T) []coordinationv1.Lease {
	var list coordinationv1.LeaseList
	check(t, d.api.List(t.Context(), &list))
	for i := range list.Items {
		list.Items[i].ResourceVersion = ""
		list.Items[i].Spec.AcquireTime.Time = list.Items[i].Spec.AcquireTime.UTC()
	}
	return list.Items
}

// Every answer that a claim can give to a block p-0 (uid b0) of node n1, with its races. Whoever is admitted has the
// claim afterwards, and it is a moment old.
func TestClaim(t *testing.T) {
	full := fixture.Reservations(0, 3)
	binds := again(forbidden(`spec.node: node "n1" has free addresses in AddressBlock "p-1": take one of those`))
	pending := func(left string) answer {
		return again(forbidden(`spec.node: AddressBlock "p-1" for node "n1" in pool "p" is being created: use it, or try again in ` + left + ` s at the latest`))
	}
	raced := again(forbidden(`spec.node: another block for node "n1" in pool "p" is being created: use it, or try again in 1 s at the latest`))
	unknown := again(forbidden(`spec.node: another block for node "n1" in pool "p" is being created: use it, or try again in 21 s at the latest`))
	failed := func(doing string) answer { return unjudged(doing + ": the API server is on fire") }
	vanish := func(d *door) error { return d.api.Delete(t.Context(), claim("", 0)) }
	var appear func(d *door) error
	appear = func(d *door) error {
		d.before["get Lease"] = func() error {
			d.before["create Lease"] = func() error { return appear(d) }
			return vanish(d)
		}
		return d.api.Create(t.Context(), claim("p-1/b1", time.Hour))
	}
	tests := map[string]struct {
		claim *coordinationv1.Lease
		// there is the block that bears the claimed name by now; nil if none does.
		there *v1alpha1.AddressBlock
		// before has what happens before a call.
		before map[string]func(*door) error
		want   answer
	}{
		"without a claim the first to try takes it":                  {want: admitted()},
		"a claim binds while its block has room":                     {claim("p-1/b1", time.Hour), block(1, "n1", "b1"), nil, binds},
		"a claim is over when its block is full":                     {claim("p-1/b1", 0), block(1, "n1", "b1", full), nil, admitted()},
		"a claim is over when its block is being deleted":            {claim("p-1/b1", 0), block(1, "n1", "b1", going), nil, admitted()},
		"a claim is over when another node was faster with the name": {claim("p-1/b1", 0), block(1, "n2", "b2"), nil, admitted()},
		"a claim of this very block is from an earlier try":          {claim("p-0/b0", 10*time.Second), nil, nil, admitted()},
		"a claim waits for its block":                                {claim("p-1/b1", 10*time.Second), nil, nil, pending("21")},
		"a claim waits for 30 s":                                     {claim("p-1/b1", 30*time.Second-time.Millisecond), nil, nil, pending("1")},
		"a claim is over when its block has not come":                {claim("p-1/b1", 30*time.Second), nil, nil, admitted()},
		"a claim that names nothing waits as well":                   {claim("", 10*time.Second), nil, nil, unknown},
		"a claim that names nothing is over as well":                 {claim("", 30*time.Second), nil, nil, admitted()},
		"a claim whose block comes just now binds": {
			claim("p-1/b1", time.Hour), nil,
			map[string]func(*door) error{"get Lease": func(d *door) error {
				d.records.live["p-1"] = block(1, "n1", "b1").Law()
				return nil
			}},
			binds,
		},
		"a claim that appears just now binds": {
			nil, block(1, "n1", "b1"),
			map[string]func(*door) error{"create Lease": func(d *door) error { return d.api.Create(t.Context(), claim("p-1/b1", 0)) }},
			binds,
		},
		"a claim that vanishes just now is taken":     {claim("p-1/b1", time.Hour), nil, map[string]func(*door) error{"get Lease": vanish}, admitted()},
		"a claim that vanishes a moment later is too": {claim("p-1/b1", time.Hour), nil, map[string]func(*door) error{"update Lease": vanish}, admitted()},
		"a claim that somebody else took over waits for their block": {
			claim("p-1/b1", time.Hour), nil,
			map[string]func(*door) error{"update Lease": func(d *door) error {
				if err := vanish(d); err != nil {
					return err
				}
				return d.api.Create(t.Context(), claim("p-5/b5", 0))
			}},
			again(forbidden(`spec.node: AddressBlock "p-5" for node "n1" in pool "p" is being created: use it, or try again in 31 s at the latest`)),
		},
		"a claim that comes and goes all the time is given up": {
			nil, nil, map[string]func(*door) error{"create Lease": appear}, raced,
		},
		"a claim that cannot be created is not had": {
			nil, nil,
			map[string]func(*door) error{"create Lease": func(*door) error { return broken() }},
			failed(`creating the claim of node "n1" on pool "p"`),
		},
		"a claim that cannot be read is not had": {
			claim("p-1/b1", time.Hour), nil,
			map[string]func(*door) error{"get Lease": func(*door) error { return broken() }},
			failed(`reading the claim of node "n1" on pool "p"`),
		},
		"a claim whose block cannot be read is not had": {
			claim("p-1/b1", time.Hour), nil,
			map[string]func(*door) error{"get Lease": func(d *door) error {
				d.records.broken = wrapped(`reading AddressBlock "p-1"`)
				return nil
			}},
			failed(`reading AddressBlock "p-1"`),
		},
		"a claim that cannot be taken over is not had": {
			claim("p-1/b1", time.Hour), nil,
			map[string]func(*door) error{"update Lease": func(*door) error { return broken() }},
			failed(`taking over the claim of node "n1" on pool "p"`),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			objects := []known{both(node("n1-uid")), both(pool())}
			if tt.claim != nil {
				objects = append(objects, live(tt.claim))
			}
			if tt.there != nil {
				objects = append(objects, live(tt.there))
			}
			d := newDoor(t, enforce(), objects...)
			before := d.held(t)
			if tt.before == nil {
				r := request(t, admissionv1.Create, nil, block(0, "n1", "b0"), true)
				expect(t, "answer to a dry run", tt.want, d.judge(t, ValidateBlockPath, r))
				expect(t, "writes of a dry run", nil, d.writes)
			}
			for call, f := range tt.before {
				d.before[call] = func() error { return f(d) }
			}
			r := request(t, admissionv1.Create, nil, block(0, "n1", "b0"), false)
			expect(t, "answer", tt.want, d.judge(t, ValidateBlockPath, r))
			switch {
			case tt.want.Code == http.StatusOK:
				expect(t, "claims", []coordinationv1.Lease{*claim("p-0/b0", 0)}, d.held(t))
			case tt.before == nil:
				expect(t, "claims", before, d.held(t))
			}
		})
	}
}

func TestClaimIsOfTheNodeThatIs(t *testing.T) {
	old := claim("p-1/b1", time.Hour)
	old.Annotations[v1alpha1.NodeUIDAnnotation] = "an earlier node"
	d := newDoor(t, enforce(), both(node("n1-uid")), both(pool()), live(old))
	expect(t, "answer", admitted(), d.judge(t, ValidateBlockPath, request(t, admissionv1.Create, nil, block(0, "n1", "b0"), false)))
	expect(t, "claims", []coordinationv1.Lease{*claim("p-0/b0", 0)}, d.held(t))
}

func TestClaimWithoutATimeIsAsOldAsItsLease(t *testing.T) {
	old := claim("p-1/b1", 0)
	old.Spec.AcquireTime, old.CreationTimestamp = nil, metav1.NewTime(noon().Add(-10*time.Second))
	d := newDoor(t, enforce(), both(node("n1-uid")), both(pool()), live(old))
	want := again(forbidden(`spec.node: AddressBlock "p-1" for node "n1" in pool "p" is being created: use it, or try again in 21 s at the latest`))
	expect(t, "answer", want, d.judge(t, ValidateBlockPath, request(t, admissionv1.Create, nil, block(0, "n1", "b0"), false)))
}

// The claims of one node on two pools, and of two nodes on one pool, do not meet.
func TestClaimsOfOthersAreNotInTheWay(t *testing.T) {
	names := map[string]bool{}
	for _, pair := range [][2]string{{"p", "n1"}, {"p", "n2"}, {"q", "n1"}} {
		names[ipam.ClaimName(pair[0], pair[1])] = true
	}
	expect(t, "claims", 3, len(names))
}
