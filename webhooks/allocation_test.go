package webhooks

import (
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

func TestAddressBlockDefault(t *testing.T) {
	pair := fixture.Pool("p", fixture.Subnet("10.0.0.0/24", "fd00::/120"))
	families := func(ipv4, ipv6 string) func(*v1alpha1.AddressBlock) {
		return func(b *v1alpha1.AddressBlock) { b.Spec.IPv4, b.Spec.IPv6 = ipv4, ipv6 }
	}
	guarded := func(finalizers ...string) func(*v1alpha1.AddressBlock) {
		return func(b *v1alpha1.AddressBlock) { b.Finalizers = finalizers }
	}
	const held = `{"op":"add","path":"/metadata/finalizers","value":["ipam.oakum.dev/allocations"]}`
	tests := map[string]struct {
		mode  config.Mode
		block *v1alpha1.AddressBlock
		want  string
	}{
		"addresses and finalizer are filled in": {
			config.ModeEnforce, fixture.Block("p", 2, "n1"),
			`[{"op":"add","path":"/spec/ipv4","value":"10.0.0.8/30"},{"op":"add","path":"/spec/ipv6","value":"fd00::8/126"},` + held + `]`,
		},
		"addresses that are given stay, right or wrong": {
			config.ModeEnforce, fixture.Block("p", 2, "n1", families("10.9.9.0/30", "fd00::8/126")), `[` + held + `]`,
		},
		"finalizers of others stay": {
			config.ModeEnforce, fixture.Block("p", 2, "n1", families("10.0.0.8/30", "fd00::8/126"), guarded("example.org/guard")),
			`[{"op":"add","path":"/metadata/finalizers","value":["example.org/guard","ipam.oakum.dev/allocations"]}]`,
		},
		"what is complete is left alone": {
			config.ModeEnforce, fixture.Block("p", 2, "n1", families("10.0.0.8/30", "fd00::8/126"), guarded("ipam.oakum.dev/allocations")), "",
		},
		"a new block has nothing that cools down": {
			config.ModeEnforce, fixture.Block("p", 2, "n1", families("10.0.0.8/30", "fd00::8/126"), cooling(1, time.Hour)),
			`[{"op":"remove","path":"/spec/cooling"},` + held + `]`,
		},
		"an index that the pool does not have is for the next webhook to refuse": {
			config.ModeEnforce, fixture.Block("p", 64, "n1"), `[` + held + `]`,
		},
		"so is a pool that does not exist": {config.ModeEnforce, fixture.Block("q", 0, "n1"), `[` + held + `]`},
		"nothing is held where nothing is enforced": {
			config.ModeWarn, fixture.Block("p", 2, "n1"),
			`[{"op":"add","path":"/spec/ipv4","value":"10.0.0.8/30"},{"op":"add","path":"/spec/ipv6","value":"fd00::8/126"}]`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := newDoor(t, config.Backend{Mode: tt.mode}, both(pair))
			expect(t, "patch", tt.want, d.mutate(t, MutateBlockPath, request(t, admissionv1.Create, nil, tt.block, false)))
		})
	}
}

func TestCooling(t *testing.T) {
	waits := func(cooling string) string { return `[{"op":"add","path":"/spec/cooling","value":[` + cooling + `]}]` }
	const one = `{"offset":1,"until":"2026-11-30T12:00:30Z"}`
	taken := fixture.Reservations(0, 1)
	kept := fixture.Reservations(0, 0)
	tests := map[string]struct {
		old, new *v1alpha1.AddressBlock
		// gone: there is no pool of that name; broken: it cannot be read.
		gone   bool
		broken error
		want   string
	}{
		"what is given back cools down": {old: block(0, "n1", "b0", taken), new: block(0, "n1", "b0", kept), want: waits(one)},
		"what was given back before waits on": {
			old: block(0, "n1", "b0", taken, cooling(2, 5*time.Second)), new: block(0, "n1", "b0", kept, cooling(2, 5*time.Second)),
			want: waits(one + `,{"offset":2,"until":"2026-11-30T12:00:05Z"}`),
		},
		"a wait that is over is dropped": {
			old: block(0, "n1", "b0", taken, cooling(2, -time.Second)), new: block(0, "n1", "b0", taken, cooling(2, -time.Second)),
			want: `[{"op":"remove","path":"/spec/cooling"}]`,
		},
		"a client cannot end a wait": {
			old: block(0, "n1", "b0", cooling(2, 5*time.Second)), new: block(0, "n1", "b0"),
			want: waits(`{"offset":2,"until":"2026-11-30T12:00:05Z"}`),
		},
		"nor make one up": {
			old: block(0, "n1", "b0"), new: block(0, "n1", "b0", cooling(2, time.Hour)), want: `[{"op":"remove","path":"/spec/cooling"}]`,
		},
		"a client that is right is left alone": {
			old: block(0, "n1", "b0", taken), new: block(0, "n1", "b0", kept, cooling(1, 30*time.Second)), want: "",
		},
		"what stays taken does not cool down": {old: block(0, "n1", "b0", taken), new: block(0, "n1", "b0", taken), want: ""},
		"without its pool the block keeps the waits that it has": {
			old: block(0, "n1", "b0", taken, cooling(2, 5*time.Second)), new: block(0, "n1", "b0", kept), gone: true,
			want: waits(`{"offset":2,"until":"2026-11-30T12:00:05Z"}`),
		},
		"a give-back passes although the pool cannot be read": {
			old: block(0, "n1", "b0", taken, cooling(2, 5*time.Second)), new: block(0, "n1", "b0", kept), broken: wrapped(`reading AddressPool "p"`),
			want: waits(`{"offset":2,"until":"2026-11-30T12:00:05Z"}`),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := newDoor(t, enforce(), both(pool(fixture.Cooldown(30*time.Second))))
			if tt.gone {
				delete(d.records.pools, "p")
			}
			d.records.broken = tt.broken
			expect(t, "patch", tt.want, d.mutate(t, MutateBlockPath, request(t, admissionv1.Update, tt.old, tt.new, false)))
		})
	}
}

func TestAddressBlockUpdate(t *testing.T) {
	router, other := fixture.External("router"), fixture.External("switch")
	legacy := fixture.Entry(0, "", v1alpha1.Attributes{})
	takes := func(offset int32, knobs ...func(*v1alpha1.AddressBlock)) *v1alpha1.AddressBlock {
		return block(0, "n1", "b0", append(knobs, fixture.Entry(offset, "r", router))...)
	}
	red := fixture.Pool("red", fixture.Network("red"), fixture.Subnet("10.0.0.0/24", ""))
	inRed := fixture.Block("red", 0, "n2", subnet("10.0.0.0/30"), fixture.Entry(0, "r", other))
	gone := fixture.Block("gone", 0, "n2", subnet("10.9.0.0/30"), fixture.Entry(0, "r", other))
	empty := block(0, "n1", "b0")
	const shared = `belongs to External switch in AddressBlock "p-1": use a handle of its own for each hand-out`
	tests := map[string]struct {
		objects  []known
		old, new *v1alpha1.AddressBlock
		want     answer
	}{
		"a free address may be taken":                  {nil, empty, takes(1), admitted()},
		"an address that was given back":               {nil, block(0, "n1", "b0", cooling(1, 90*time.Second)), takes(1), forbidden("spec.allocations[0].offset: 10.0.0.1 was given back and may be taken again at 2026-11-30T12:01:30Z: take another offset")},
		"an address that has cooled down may be taken": {nil, block(0, "n1", "b0", cooling(1, 0)), takes(1), admitted()},
		"a reserved address": {
			[]known{cached(pool(fixture.Reserved("10.0.0.1")))},
			empty, takes(1),
			problem("offset", `Invalid value: "1": 10.0.0.1 is reserved by AddressPool "p": take another offset`),
		},
		"an address behind the block":     {nil, empty, takes(4), problem("offset", `Invalid value: "4": must be 0 to 3: blocks of AddressPool "p" have 2^2 addresses`)},
		"a handle of another owner":       {[]known{both(block(1, "n1", "b1", fixture.Entry(0, "r", other)))}, empty, takes(1), untimely("handle", shared)},
		"a handle of the same owner":      {[]known{both(block(1, "n1", "b1", fixture.Entry(0, "r", router)))}, empty, takes(1), admitted()},
		"a handle of another network":     {[]known{both(red), both(inRed)}, empty, takes(1), admitted()},
		"a handle in a pool that is gone": {[]known{both(gone)}, empty, takes(1), admitted()},
		"a handle for two owners at once": {
			nil, empty, takes(1, fixture.Entry(0, "r", other)),
			forbidden(`spec.allocations[0].handle: belongs to External router in AddressBlock "p-0": use a handle of its own for each hand-out; ` +
				`spec.allocations[1].handle: belongs to External switch in AddressBlock "p-0": use a handle of its own for each hand-out`),
		},
		"an entry from before is not judged again": {nil, block(0, "n1", "b0", legacy), takes(1, legacy), admitted()},
		"a second one like it is": {
			nil, block(0, "n1", "b0", legacy), block(0, "n1", "b0", legacy, fixture.Entry(1, "h", v1alpha1.Attributes{})),
			invalid("spec.allocations[1].attributes: Required value: say whose the address is, or it can never be proven free",
				"spec.allocations[1].attributes, FieldValueRequired: Required value: say whose the address is, or it can never be proven free"),
		},
		"a block that is being deleted": {
			nil, block(0, "n1", "b0", going), takes(1, going),
			forbidden(`spec.allocations[0]: AddressBlock "p-0" is being deleted: take an address from another block`),
		},
		"a block whose pool is being deleted": {[]known{cached(pool(drains))}, empty, takes(1), admitted()},
		"a block whose pool is gone": {
			[]known{both(red)},
			fixture.Block("q", 0, "n1"), fixture.Block("q", 0, "n1", fixture.Entry(1, "r", router)),
			answer{Code: 403, Message: `addressblocks.ipam.oakum.dev "q-0" is forbidden: spec.pool: AddressPool "q" does not exist: its blocks can only be given back`},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := newDoor(t, enforce(), append([]known{both(pool())}, tt.objects...)...)
			expect(t, "answer", tt.want, d.judge(t, ValidateBlockPath, request(t, admissionv1.Update, tt.old, tt.new, false)))
		})
	}
	// Nothing is read about these, so that they pass whatever is wrong elsewhere.
	noted := takes(1)
	noted.Spec.Allocations[0].Attributes.Extra = map[string]string{"rack": "7"}
	for name, b := range map[string]*v1alpha1.AddressBlock{
		"giving back passes":        block(0, "n1", "b0"),
		"a note passes":             noted,
		"what has not changed does": takes(1),
	} {
		t.Run(name, func(t *testing.T) {
			d := newDoor(t, enforce())
			d.records.broken = broken()
			expect(t, "answer", admitted(), d.judge(t, ValidateBlockPath, request(t, admissionv1.Update, takes(1), b, false)))
		})
	}
}

func TestRecordsThatCannotBeRead(t *testing.T) {
	router := fixture.Entry(1, "r", fixture.External("router"))
	objects := []known{both(node("n1-uid")), both(pool()), both(block(1, "n1", "b1", fixture.Entry(0, "r", fixture.External("router"))))}
	tests := map[string]struct {
		method string
		verb   admissionv1.Operation
		block  *v1alpha1.AddressBlock
	}{
		"the block's pool":                 {"Pool", admissionv1.Create, block(0, "n1", "b0")},
		"the node's other blocks":          {"Blocks", admissionv1.Create, block(0, "n1", "b0")},
		"another block, live":              {"LiveBlock", admissionv1.Create, block(0, "n1", "b0")},
		"a new block's handles":            {"Blocks", admissionv1.Create, block(0, "n1", "b0", router)},
		"an allocation's pool":             {"Pool", admissionv1.Update, block(0, "n1", "b0", router)},
		"an allocation's handle elsewhere": {"Blocks", admissionv1.Update, block(0, "n1", "b0", router)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := newDoor(t, enforce(), objects...)
			d.records.broken, d.records.method = wrapped("reading"), tt.method
			r := request(t, tt.verb, nil, tt.block, false)
			if tt.verb == admissionv1.Update {
				r = request(t, tt.verb, block(0, "n1", "b0"), tt.block, false)
			}
			expect(t, "answer", unjudged("reading: the API server is on fire"), d.judge(t, ValidateBlockPath, r))
			expect(t, "writes", nil, d.writes)
		})
	}
	t.Run("a new block's pool, before its addresses are filled in", func(t *testing.T) {
		d := newDoor(t, enforce(), objects...)
		d.records.broken = wrapped("reading")
		got := d.judge(t, MutateBlockPath, request(t, admissionv1.Create, nil, fixture.Block("p", 0, "n1"), false))
		expect(t, "answer", answer{Code: 500, Message: "reading: the API server is on fire"}, got)
	})
}
