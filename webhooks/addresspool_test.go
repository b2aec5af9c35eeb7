package webhooks

import (
	"net/http"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

func TestAddressPoolDefault(t *testing.T) {
	guarded := func(finalizers ...string) func(*v1alpha1.AddressPool) {
		return func(p *v1alpha1.AddressPool) { p.Finalizers = finalizers }
	}
	tests := map[string]struct {
		mode config.Mode
		pool *v1alpha1.AddressPool
		want string
	}{
		"the finalizer goes on a new pool": {
			config.ModeEnforce, pool(), `[{"op":"add","path":"/metadata/finalizers","value":["ipam.oakum.dev/blocks"]}]`,
		},
		"beside those of others": {
			config.ModeEnforce, pool(guarded("example.org/guard")),
			`[{"op":"add","path":"/metadata/finalizers","value":["example.org/guard","ipam.oakum.dev/blocks"]}]`,
		},
		"once":                        {config.ModeEnforce, pool(guarded("ipam.oakum.dev/blocks")), ""},
		"not where nothing is held":   {config.ModeWarn, pool(), ""},
		"nor where nothing is judged": {config.ModeObserve, pool(), ""},
		"nor where nothing is done":   {config.ModeOff, pool(), ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := newDoor(t, config.Backend{Mode: tt.mode})
			expect(t, "patch", tt.want, d.mutate(t, MutatePoolPath, request(t, admissionv1.Create, nil, tt.pool, false)))
		})
	}
}

// refusedPool is how a pool p is refused: for one wrong value, or because it is not the time.
func refusedPool(code int32, why string) answer {
	if code == http.StatusForbidden {
		return answer{Code: code, Message: `addresspools.ipam.oakum.dev "p" is forbidden: ` + why}
	}
	return answer{Code: code, Message: `AddressPool.ipam.oakum.dev "p" is invalid: ` + why}
}

func caused(a answer, causes ...string) answer {
	a.Causes = causes
	return a
}

func unjudged(why string) answer {
	return answer{Code: http.StatusInternalServerError, Message: "Internal error occurred: " + why, Causes: []string{", : " + why}}
}

func TestAddressPoolCreate(t *testing.T) {
	of := func(network string, subnets ...string) *v1alpha1.AddressPool {
		p := fixture.Pool("p", fixture.Network(network))
		for _, s := range subnets {
			fixture.Subnet(s, "")(p)
		}
		return p
	}
	n1 := node("n1-uid")
	n1.Spec.PodCIDRs = []string{"10.244.1.0/24"}
	services := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/12", "unreadable"}}}
	other := fixture.Pool("other", fixture.Network("blue"), fixture.Subnet("10.0.0.0/8", ""))
	const overlap = `spec.subnets[1].ipv4: Invalid value: "10.1.0.0/16": must not overlap AddressPool "other" of network "blue" (10.0.0.0/8)`
	const hostBits = `spec.subnets[0].ipv4: Invalid value: "10.0.0.1/24": must have no host bits set: did you mean 10.0.0.0/24?`
	tests := map[string]struct {
		objects []known
		pool    *v1alpha1.AddressPool
		broken  string
		want    answer
	}{
		"a pool beside others": {[]known{live(other)}, of("blue", "192.168.0.0/16"), "", admitted()},
		"an overlap names both sides": {
			[]known{live(other)},
			of("blue", "192.168.0.0/16", "10.1.0.0/16"), "",
			caused(refusedPool(422, overlap), `spec.subnets[1].ipv4, FieldValueInvalid: Invalid value: "10.1.0.0/16": must not overlap AddressPool "other" of network "blue" (10.0.0.0/8)`),
		},
		"an overlap of two networks": {[]known{live(other)}, of("red", "10.1.0.0/16"), "", admitted()},
		"what the schema let pass": {
			nil, of("blue", "10.0.0.1/24"), "",
			caused(refusedPool(422, hostBits), `spec.subnets[0].ipv4, FieldValueInvalid: Invalid value: "10.0.0.1/24": must have no host bits set: did you mean 10.0.0.0/24?`),
		},
		"a pool over what Kubernetes itself uses is worth a warning": {
			[]known{both(n1), live(services)},
			of("default", "10.0.0.0/8"), "",
			admitted(`pool-overlap: the pool overlaps Node "n1" (10.244.1.0/24): give it a network of its own unless you mean it`,
				`pool-overlap: the pool overlaps ServiceCIDR "kubernetes" (10.96.0.0/12): give it a network of its own unless you mean it`),
		},
		"but not in a network of its own": {[]known{both(n1), live(services)}, of("blue", "10.0.0.0/8"), "", admitted()},
		"nor beside it":                   {[]known{both(n1), live(services)}, of("default", "192.168.0.0/16"), "", admitted()},
		"nor on top of a refusal": {
			[]known{both(n1), live(services)},
			of("default", "10.0.0.1/24"), "",
			caused(refusedPool(422, hostBits), `spec.subnets[0].ipv4, FieldValueInvalid: Invalid value: "10.0.0.1/24": must have no host bits set: did you mean 10.0.0.0/24?`),
		},
		"a list of pools that fails leaves the overlap open": {
			nil, of("blue", "10.0.0.0/8"), "list AddressPoolList", unjudged("listing the pools: the API server is on fire"),
		},
		"what is worth a warning alone is no reason to refuse": {
			nil, of("default", "10.0.0.0/8"), "list ServiceCIDRList", admitted("not judged: listing the ServiceCIDRs: the API server is on fire"),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := newDoor(t, enforce(), tt.objects...)
			d.before[tt.broken] = broken
			expect(t, "answer", tt.want, d.judge(t, ValidatePoolPath, request(t, admissionv1.Create, nil, tt.pool, false)))
		})
	}
}

func TestAddressPoolUpdate(t *testing.T) {
	as := func(knobs ...func(*v1alpha1.AddressPool)) *v1alpha1.AddressPool {
		return fixture.Pool("p", append([]func(*v1alpha1.AddressPool){fixture.Network("blue")}, knobs...)...)
	}
	subnet := func(ipv4 string) func(*v1alpha1.AddressPool) { return fixture.Subnet(ipv4, "") }
	slow := fixture.Cooldown(time.Minute)
	labelled := func(p *v1alpha1.AddressPool) { p.Labels = map[string]string{"team": "network"} }
	other := live(fixture.Pool("other", fixture.Network("blue"), subnet("10.1.0.0/16")))
	n1 := fixture.Node("n1", func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.244.1.0/24"} })
	const (
		overlap  = `must not overlap AddressPool "other" of network "blue" (10.1.0.0/16)`
		given    = `spec.reserved[1]: 10.0.0.2 in AddressBlock "p-0" is allocated to External router: give it back first`
		hostBits = `must have no host bits set: did you mean 10.0.0.0/24?`
	)
	tests := map[string]struct {
		objects  []known
		old, new *v1alpha1.AddressPool
		broken   string
		want     answer
	}{
		"a change of labels is not looked at": {nil, as(subnet("10.0.0.0/24")), as(subnet("10.0.0.0/24"), labelled), "list AddressPoolList", admitted()},
		"another cooldown":                    {nil, as(subnet("10.0.0.0/24")), as(subnet("10.0.0.0/24"), slow), "", admitted()},
		"a subnet more":                       {nil, as(subnet("10.0.0.0/24")), as(subnet("10.0.0.0/24"), subnet("10.2.0.0/24")), "", admitted()},
		"a subnet more that overlaps": {
			[]known{other},
			as(subnet("10.0.0.0/24")), as(subnet("10.0.0.0/24"), subnet("10.1.2.0/24")), "",
			caused(refusedPool(422, `spec.subnets[1].ipv4: Invalid value: "10.1.2.0/24": `+overlap), `spec.subnets[1].ipv4, FieldValueInvalid: Invalid value: "10.1.2.0/24": `+overlap),
		},
		"an overlap from before does not stop another change": {
			[]known{other}, as(subnet("10.1.2.0/24")), as(subnet("10.1.2.0/24"), slow), "", admitted(),
		},
		"nor does a subnet that makes no sense": {nil, as(subnet("10.0.0.1/24")), as(subnet("10.0.0.1/24"), slow), "", admitted()},
		"but a second one does": {
			nil, as(subnet("10.0.0.1/24")), as(subnet("10.0.0.1/24"), subnet("10.0.0.2/24")), "",
			caused(refusedPool(422, `spec.subnets[1].ipv4: Invalid value: "10.0.0.2/24": `+hostBits), `spec.subnets[1].ipv4, FieldValueInvalid: Invalid value: "10.0.0.2/24": `+hostBits),
		},
		"a subnet less": {
			nil, as(subnet("10.0.0.0/24"), subnet("10.2.0.0/24")), as(subnet("10.0.0.0/24")), "",
			caused(refusedPool(422, `spec.subnets[1]: Invalid value: "": must stay 10.2.0.0/24: subnets can be appended, not changed or removed`),
				`spec.subnets[1], FieldValueInvalid: Invalid value: "": must stay 10.2.0.0/24: subnets can be appended, not changed or removed`),
		},
		"an address that is free may become reserved": {
			[]known{both(block(0, "n1", "b0", fixture.Reservations(3, 3)))},
			as(subnet("10.0.0.0/24"), fixture.Reserved("10.0.0.1")), as(subnet("10.0.0.0/24"), fixture.Reserved("10.0.0.1", "10.0.0.2")), "", admitted(),
		},
		"an address that is handed out may not": {
			[]known{live(block(0, "n1", "b0", fixture.Entry(2, "r", fixture.External("router"))))},
			as(subnet("10.0.0.0/24"), fixture.Reserved("10.0.0.1")), as(subnet("10.0.0.0/24"), fixture.Reserved("10.0.0.1", "10.0.0.2")), "",
			refusedPool(403, given),
		},
		"what is handed out cannot be read": {
			nil, as(subnet("10.0.0.0/24")), as(subnet("10.0.0.0/24"), fixture.Reserved("10.0.0.1")), "records",
			unjudged("listing AddressBlocks: the API server is on fire"),
		},
		"a warning from before is not repeated": {
			[]known{both(n1)}, as(fixture.Network("default"), subnet("10.244.0.0/16")), as(fixture.Network("default"), subnet("10.244.0.0/16"), slow), "", admitted(),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := newDoor(t, enforce(), append(tt.objects, live(tt.old))...)
			d.before[tt.broken] = broken
			if tt.broken == "records" {
				d.records.broken = wrapped("listing AddressBlocks")
			}
			expect(t, "answer", tt.want, d.judge(t, ValidatePoolPath, request(t, admissionv1.Update, tt.old, tt.new, false)))
		})
	}
}

func TestAddressPoolDelete(t *testing.T) {
	tests := map[string]struct {
		objects []known
		broken  error
		want    answer
	}{
		"a pool without blocks goes": {want: admitted()},
		"whoever deletes a pool is told what it waits for": {
			[]known{both(block(0, "n1", "b0", fixture.Reservations(0, 3))), both(block(1, "n2", "b1", fixture.Reservations(0, 0))), both(block(2, "n3", "b2"))},
			nil,
			admitted("pool-in-use: 3 blocks with 5 allocations remain; deletion completes when they have drained"),
		},
		"other pools' blocks do not count": {[]known{both(fixture.Block("q", 0, "n1"))}, nil, admitted()},
		"a deletion is not refused because blocks cannot be counted": {
			nil, wrapped("listing AddressBlocks"), admitted("not judged: listing AddressBlocks: the API server is on fire"),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := newDoor(t, enforce(), tt.objects...)
			d.records.broken = tt.broken
			expect(t, "answer", tt.want, d.judge(t, ValidatePoolPath, request(t, admissionv1.Delete, pool(), nil, false)))
		})
	}
}

func TestWhatIsNoPoolIsABadRequest(t *testing.T) {
	d := newDoor(t, enforce())
	for _, path := range []string{MutatePoolPath, ValidatePoolPath, MutateBlockPath, ValidateBlockPath} {
		for _, raw := range []string{"", "[", `{"spec":7}`} {
			r := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: []byte(raw)}}}
			if got := d.judge(t, path, r); got.Code != http.StatusBadRequest {
				t.Errorf("%s answers %+v to %q", path, got, raw)
			}
		}
	}
}
