package webhooks

import (
	"net/http"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

// terminating is when a deletion has begun.
func terminating() *metav1.Time { return &metav1.Time{Time: noon().Add(-time.Minute)} }

func going(b *v1alpha1.AddressBlock) {
	b.DeletionTimestamp, b.Finalizers = terminating(), []string{v1alpha1.BlockFinalizer}
}

func cooling(offset int32, until time.Duration) func(*v1alpha1.AddressBlock) {
	return func(b *v1alpha1.AddressBlock) {
		b.Spec.Cooling = append(b.Spec.Cooling, v1alpha1.Cooling{Offset: offset, Until: metav1.NewTime(noon().Add(until))})
	}
}

func subnet(ipv4 string) func(*v1alpha1.AddressBlock) {
	return func(b *v1alpha1.AddressBlock) { b.Spec.IPv4 = ipv4 }
}

func pool(knobs ...func(*v1alpha1.AddressPool)) *v1alpha1.AddressPool {
	return fixture.Pool("p", append(knobs, fixture.Subnet("10.0.0.0/24", ""))...)
}

func drains(p *v1alpha1.AddressPool) {
	p.DeletionTimestamp, p.Finalizers = terminating(), []string{v1alpha1.PoolFinalizer}
}

func TestAddressBlockCreate(t *testing.T) {
	second := again(forbidden(`spec.node: node "n1" has free addresses in AddressBlock "p-1": take one of those`))
	full := fixture.Reservations(0, 3)
	n1 := both(node("n1-uid"))
	claimed := []string{"create Lease"}
	tests := map[string]struct {
		objects []known
		block   *v1alpha1.AddressBlock
		want    answer
		writes  []string
	}{
		"a node's first block takes its claim": {
			objects: []known{n1, both(pool())},
			block:   block(0, "n1", "b0"), want: admitted(), writes: claimed,
		},
		"a node that the cache does not know yet counts": {
			objects: []known{live(node("n1-uid")), both(pool())},
			block:   block(0, "n1", "b0"), want: admitted(), writes: claimed,
		},
		"a pool must exist": {
			objects: []known{n1}, block: block(0, "n1", "b0"),
			want: forbidden(`spec.pool: AddressPool "p" does not exist: create it first`),
		},
		"a pool that is being deleted gives out no more blocks": {
			objects: []known{n1, both(pool(drains))}, block: block(0, "n1", "b0"),
			want: forbidden(`spec.pool: AddressPool "p" is being deleted and gives out no more blocks: use another pool`),
		},
		"a node must exist": {
			objects: []known{both(pool())}, block: block(0, "n1", "b0"),
			want: invalid(`spec.node: Invalid value: "n1": Node "n1" does not exist`, `spec.node, FieldValueInvalid: Invalid value: "n1": Node "n1" does not exist`),
		},
		"the addresses must be those of pool and index": {
			objects: []known{n1, both(pool())}, block: block(0, "n1", "b0", subnet("10.0.0.4/30")),
			want: invalid(`spec.ipv4: Invalid value: "10.0.0.4/30": must be 10.0.0.0/30, or left out: it follows from pool and index`,
				`spec.ipv4, FieldValueInvalid: Invalid value: "10.0.0.4/30": must be 10.0.0.0/30, or left out: it follows from pool and index`),
		},
		"all that is wrong is said at once": {
			objects: []known{both(pool())}, block: block(0, "n1", "b0", subnet("10.0.0.4/30"), fixture.Entry(7, "", fixture.External("router"))),
			want: invalid(`[spec.ipv4: Invalid value: "10.0.0.4/30": must be 10.0.0.0/30, or left out: it follows from pool and index, `+
				`spec.node: Invalid value: "n1": Node "n1" does not exist, `+
				`spec.allocations[0].handle: Required value: name this hand-out, so that exactly it can be given back, `+
				`spec.allocations[0].offset: Invalid value: "7": must be 0 to 3: blocks of AddressPool "p" have 2^2 addresses]`,
				`spec.ipv4, FieldValueInvalid: Invalid value: "10.0.0.4/30": must be 10.0.0.0/30, or left out: it follows from pool and index`,
				`spec.node, FieldValueInvalid: Invalid value: "n1": Node "n1" does not exist`,
				`spec.allocations[0].handle, FieldValueRequired: Required value: name this hand-out, so that exactly it can be given back`,
				`spec.allocations[0].offset, FieldValueInvalid: Invalid value: "7": must be 0 to 3: blocks of AddressPool "p" have 2^2 addresses`),
		},
		"a name that another node has is refused before the claim is spent": {
			objects: []known{n1, both(pool()), both(block(0, "n2", "b9"))}, block: block(0, "n1", "b0"),
			want: answer{Code: http.StatusConflict, Message: `addressblocks.ipam.oakum.dev "p-0" already exists`},
		},
		"a second block must wait until the first is full": {
			objects: []known{n1, both(pool()), both(block(1, "n1", "b1", fixture.Reservations(0, 2)))},
			block:   block(0, "n1", "b0"), want: second,
		},
		"a second block comes when the first is full": {
			objects: []known{n1, both(pool()), both(block(1, "n1", "b1", full))},
			block:   block(0, "n1", "b0"), want: admitted(), writes: claimed,
		},
		"an address that cools down is not free": {
			objects: []known{n1, both(pool()), both(block(1, "n1", "b1", fixture.Reservations(0, 2), cooling(3, time.Second)))},
			block:   block(0, "n1", "b0"), want: admitted(), writes: claimed,
		},
		"an address that has cooled down is free": {
			objects: []known{n1, both(pool()), both(block(1, "n1", "b1", fixture.Reservations(0, 2), cooling(3, 0)))},
			block:   block(0, "n1", "b0"), want: second,
		},
		"a reserved address is not free": {
			objects: []known{n1, both(pool(fixture.Reserved("10.0.0.4-10.0.0.7"))), both(block(1, "n1", "b1"))},
			block:   block(0, "n1", "b0"), want: admitted(), writes: claimed,
		},
		"a first block that is being deleted has no room": {
			objects: []known{n1, both(pool()), both(block(1, "n1", "b1", going))},
			block:   block(0, "n1", "b0"), want: admitted(), writes: claimed,
		},
		"a first block that has filled up unseen by the cache is full": {
			objects: []known{n1, both(pool()), cached(block(1, "n1", "b1")), live(block(1, "n1", "b1", full))},
			block:   block(0, "n1", "b0"), want: admitted(), writes: claimed,
		},
		"a first block that has gone unseen by the cache is gone": {
			objects: []known{n1, both(pool()), cached(block(1, "n1", "b1"))},
			block:   block(0, "n1", "b0"), want: admitted(), writes: claimed,
		},
		"a first block that is another node's by now is not in the way": {
			objects: []known{n1, both(pool()), cached(block(1, "n1", "b1")), live(block(1, "n2", "b2"))},
			block:   block(0, "n1", "b0"), want: admitted(), writes: claimed,
		},
		"other nodes' blocks are not in the way": {
			objects: []known{n1, both(pool()), both(block(1, "n2", "b1"))},
			block:   block(0, "n1", "b0"), want: admitted(), writes: claimed,
		},
		"a block may come with its first allocation": {
			objects: []known{n1, both(pool())},
			block:   block(0, "n1", "b0", fixture.Entry(1, "r", fixture.External("router"))), want: admitted(), writes: claimed,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := newDoor(t, enforce(), tt.objects...)
			r := request(t, admissionv1.Create, nil, tt.block, true)
			expect(t, "answer to a dry run", tt.want, d.judge(t, ValidateBlockPath, r))
			expect(t, "writes of a dry run", nil, d.writes)
			expect(t, "metric of a dry run", nil, d.counted(t))
			*r.DryRun = false
			expect(t, "answer", tt.want, d.judge(t, ValidateBlockPath, r))
			expect(t, "writes", tt.writes, d.writes)
		})
	}
}

func TestAddressBlockDelete(t *testing.T) {
	d := newDoor(t, enforce())
	r := request(t, admissionv1.Delete, block(0, "n1", "b0", fixture.Reservations(0, 1)), nil, false)
	expect(t, "answer", admitted(), d.judge(t, ValidateBlockPath, r))
}
