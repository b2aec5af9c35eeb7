package webhooks

import (
	"net/http"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/fixture"
)

// breach is a write that breaks one rule and no other.
type breach struct {
	objects []known
	verb    admissionv1.Operation
	old     client.Object
	object  client.Object
	// code is what it is refused with; why is what is wrong.
	code int32
	why  string
}

func breaches() map[ipam.Rule]breach {
	n1, p := both(node("n1-uid")), both(pool())
	router := fixture.Entry(1, "r", fixture.External("router"))
	wide := fixture.Pool("p", fixture.Network("p"), fixture.Subnet("10.0.0.0/16", ""))
	return map[ipam.Rule]breach{
		ipam.PoolMalformed: {
			verb: admissionv1.Create, object: fixture.Pool("p", fixture.Subnet("10.0.0.1/24", "")), code: http.StatusUnprocessableEntity,
			why: `spec.subnets[0].ipv4: Invalid value: "10.0.0.1/24": must have no host bits set: did you mean 10.0.0.0/24?`,
		},
		ipam.PoolOverlap: {
			objects: []known{live(fixture.Pool("q", fixture.Network("p"), fixture.Subnet("10.0.0.0/8", "")))},
			verb:    admissionv1.Create, object: pool(), code: http.StatusUnprocessableEntity,
			why: `spec.subnets[0].ipv4: Invalid value: "10.0.0.0/24": must not overlap AddressPool "q" of network "p" (10.0.0.0/8)`,
		},
		ipam.PoolShrink: {
			verb: admissionv1.Update, old: wide, object: pool(), code: http.StatusUnprocessableEntity,
			why: `spec.subnets[0]: Invalid value: "10.0.0.0/24": must stay 10.0.0.0/16: subnets can be appended, not changed or removed`,
		},
		ipam.PoolDraining: {
			objects: []known{n1}, verb: admissionv1.Create, object: block(0, "n1", "b0"), code: http.StatusForbidden,
			why: `spec.pool: AddressPool "p" does not exist: create it first`,
		},
		ipam.PoolInUse: {
			objects: []known{both(block(0, "n1", "b0", router))}, verb: admissionv1.Delete, old: pool(), code: http.StatusForbidden,
			why: "1 block with 1 allocation remain; deletion completes when they have drained",
		},
		ipam.BlockMalformed: {
			objects: []known{p}, verb: admissionv1.Create, object: block(0, "n1", "b0"), code: http.StatusUnprocessableEntity,
			why: `spec.node: Invalid value: "n1": Node "n1" does not exist`,
		},
		ipam.SecondUnfilledBlock: {
			objects: []known{n1, p, both(block(1, "n1", "b1"))}, verb: admissionv1.Create, object: block(0, "n1", "b0"), code: http.StatusForbidden,
			why: `spec.node: node "n1" has free addresses in AddressBlock "p-1": take one of those`,
		},
		ipam.AllocationUnowned: {
			objects: []known{n1, p}, verb: admissionv1.Update, old: block(0, "n1", "b0"), object: block(0, "n1", "b0", fixture.Entry(1, "", fixture.External("router"))),
			code: http.StatusUnprocessableEntity,
			why:  `spec.allocations[0].handle: Required value: name this hand-out, so that exactly it can be given back`,
		},
		ipam.AllocationConflict: {
			objects: []known{n1, p, both(block(1, "n1", "b1", fixture.Entry(0, "r", fixture.External("switch"))))},
			verb:    admissionv1.Update, old: block(0, "n1", "b0"), object: block(0, "n1", "b0", router), code: http.StatusForbidden,
			why: `spec.allocations[0].handle: belongs to External switch in AddressBlock "p-1": use a handle of its own for each hand-out`,
		},
		ipam.AllocationOwner: {
			objects: []known{n1, p}, verb: admissionv1.Update, old: block(0, "n1", "b0"),
			object: block(0, "n1", "b0", fixture.Entry(1, "web-0", fixture.OfPod(pod("web-0", "n1", "u1")))), code: http.StatusUnprocessableEntity,
			why: `spec.allocations[0].attributes.name: Invalid value: "web-0": Pod default/web-0 does not exist`,
		},
	}
}

// path is where the breach is judged, kind and name what it is about.
func (b breach) path() (path, kind, name string) {
	for _, o := range []client.Object{b.object, b.old} {
		switch o := o.(type) {
		case *v1alpha1.AddressPool:
			return ValidatePoolPath, "AddressPool", o.Name
		case *v1alpha1.AddressBlock:
			return ValidateBlockPath, "AddressBlock", o.Name
		}
	}
	return "", "", ""
}

// Each rule has its effect in each mode, and whatever effect is set for it under Enforce.
func TestEffectOfEachRule(t *testing.T) {
	tests := map[string]struct {
		mode config.Mode
		// set is the effect that is set for the rule; none if it is empty.
		set, want config.Effect
	}{
		"Enforce refuses":                                   {config.ModeEnforce, "", config.EffectDeny},
		"Enforce refuses where it is set":                   {config.ModeEnforce, config.EffectDeny, config.EffectDeny},
		"Enforce warns where it is set":                     {config.ModeEnforce, config.EffectWarn, config.EffectWarn},
		"Enforce is silent where it is set":                 {config.ModeEnforce, config.EffectOff, config.EffectOff},
		"Warn warns":                                        {config.ModeWarn, "", config.EffectWarn},
		"Warn warns of what Enforce would refuse":           {config.ModeWarn, config.EffectDeny, config.EffectWarn},
		"Warn is silent where it is set":                    {config.ModeWarn, config.EffectOff, config.EffectOff},
		"Observe is silent":                                 {config.ModeObserve, "", config.EffectOff},
		"Observe is silent about what Enforce would refuse": {config.ModeObserve, config.EffectDeny, config.EffectOff},
		"Off is silent":                                     {config.ModeOff, config.EffectDeny, config.EffectOff},
	}
	for rule, b := range breaches() {
		for name, tt := range tests {
			if rule == ipam.PoolInUse && tt.want == config.EffectDeny {
				if tt.set != "" {
					continue // The configuration does not let this be set.
				}
				tt.want = config.EffectWarn
			}
			t.Run(string(rule)+": "+name, func(t *testing.T) {
				settings := config.Backend{Mode: tt.mode, PodFinalizers: true, Rules: map[string]config.Effect{}}
				if tt.set != "" {
					settings.Rules[string(rule)] = tt.set
				}
				path, kind, object := b.path()
				var want answer
				var heard, counted []string
				switch tt.want {
				case config.EffectDeny:
					want = answer{Code: b.code, Message: kind + `.ipam.oakum.dev "` + object + `" is invalid: ` + b.why}
					if b.code == http.StatusForbidden {
						want.Again = rule == ipam.SecondUnfilledBlock
						want.Message = strings.ToLower(kind) + `s.ipam.oakum.dev "` + object + `" is forbidden: ` + b.why
					}
				case config.EffectWarn:
					want = admitted(string(rule) + ": " + b.why)
					heard = []string{"Warning AdmissionWarning Admit " + string(rule) + ": " + b.why + " {kind=" + kind + ",apiVersion=ipam.oakum.dev/v1alpha1}"}
				case config.EffectOff:
					want = admitted()
				}
				if tt.want != config.EffectOff {
					counted = []string{`oakum_admission_total{backend="native",effect="` + string(tt.want) + `",rule="` + string(rule) + `"} 1`}
				}
				d := newDoor(t, settings, b.objects...)
				dry := d.judge(t, path, request(t, b.verb, b.old, b.object, true))
				dry.Causes = nil
				expect(t, "answer to a dry run", want, dry)
				expect(t, "Events of a dry run", nil, d.heard())
				expect(t, "metric of a dry run", nil, d.counted(t))
				got := d.judge(t, path, request(t, b.verb, b.old, b.object, false))
				got.Causes = nil
				expect(t, "answer", want, got)
				expect(t, "Events", heard, d.heard())
				expect(t, "metric", counted, d.counted(t))
			})
		}
	}
}

func TestEveryRuleHasABreach(t *testing.T) {
	for _, rule := range []ipam.Rule{
		ipam.PoolMalformed, ipam.PoolOverlap, ipam.PoolShrink, ipam.PoolDraining, ipam.PoolInUse, ipam.BlockMalformed,
		ipam.SecondUnfilledBlock, ipam.AllocationUnowned, ipam.AllocationConflict, ipam.AllocationOwner,
	} {
		if _, ok := breaches()[rule]; !ok {
			t.Errorf("no write breaks %s", rule)
		}
	}
}

func TestAWarningIsAboutTheObject(t *testing.T) {
	want := &corev1.ObjectReference{APIVersion: "ipam.oakum.dev/v1alpha1", Kind: "AddressBlock", Name: "p-0", UID: "b0"}
	expect[runtime.Object](t, "reference", want, blockSubject(block(0, "n1", "b0")).reference())
}

func TestNoEventSaysThatARefusedWriteWasAdmitted(t *testing.T) {
	settings := enforce()
	settings.Rules = map[string]config.Effect{string(ipam.BlockMalformed): config.EffectWarn}
	d := newDoor(t, settings, both(pool(drains)))
	want := forbidden(`spec.pool: AddressPool "p" is being deleted and gives out no more blocks: use another pool`)
	want.Warnings = []string{`block-malformed: spec.node: Invalid value: "n1": Node "n1" does not exist`}
	expect(t, "answer", want, d.judge(t, ValidateBlockPath, request(t, admissionv1.Create, nil, block(0, "n1", "b0"), false)))
	expect(t, "Events", nil, d.heard())
	expect(t, "metric", []string{`oakum_admission_total{backend="native",effect="Deny",rule="pool-draining"} 1`}, d.counted(t))
}

// What cannot be found out is refused only where a breach would be.
func TestWhatCannotBeJudged(t *testing.T) {
	const why = `reading AddressPool "p": the API server is on fire`
	tests := map[config.Mode]answer{
		config.ModeEnforce: unjudged(why),
		config.ModeWarn:    admitted("not judged: " + why),
		config.ModeObserve: admitted(),
		config.ModeOff:     admitted(),
	}
	for mode, want := range tests {
		t.Run(string(mode), func(t *testing.T) {
			d := newDoor(t, config.Backend{Mode: mode})
			d.records.broken = wrapped(`reading AddressPool "p"`)
			d.before["list AddressPoolList"] = func() error { return d.records.broken }
			taken := block(0, "n1", "b0", fixture.Entry(1, "r", fixture.External("router")))
			expect(t, "answer to a new block", want, d.judge(t, ValidateBlockPath, request(t, admissionv1.Create, nil, taken, false)))
			expect(t, "answer to an allocation", want, d.judge(t, ValidateBlockPath, request(t, admissionv1.Update, block(0, "n1", "b0"), taken, false)))
		})
	}
}

// A cache that knows a block of the wanted name for a moment too long is no reason to refuse where nothing is refused.
func TestNothingIsRefusedWhereNothingIsJudged(t *testing.T) {
	for _, mode := range []config.Mode{config.ModeOff, config.ModeObserve, config.ModeWarn} {
		d := newDoor(t, config.Backend{Mode: mode}, both(node("n1-uid")), both(pool()), cached(block(0, "n2", "b9")))
		expect(t, "answer under "+string(mode), admitted(), d.judge(t, ValidateBlockPath, request(t, admissionv1.Create, nil, block(0, "n1", "b0"), false)))
	}
}
