package webhooks

import (
	"context"
	"net/netip"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/fixture"
)

func TestAffinity(t *testing.T) { // B35
	const (
		wish    = "example.org/addresses"
		overlap = `block-overlap: spec.cidr: Invalid value: "10.0.0.0/27": must not overlap block "old" (10.0.0.0/26) of node "n2", or addresses would be given out twice: remove that block when nobody has an address of it`
		taken   = `block-overlap: spec.cidr: block "same" (10.0.0.0/27) belongs to node "n2": claim another one`
		room    = `second-unfilled-block: node "n1" has 3 free addresses in block "first" already: one block could be left over`
	)
	block := func(name, prefix, node string, free int) ipam.AffineBlock {
		return ipam.AffineBlock{Name: name, Prefix: netip.MustParsePrefix(prefix), Pool: "p", Holder: ipam.Holder{Name: node}, Confirmed: true, Free: free}
	}
	first, old, same := block("first", "10.0.1.0/27", "n1", 3), block("old", "10.0.0.0/26", "n2", 1), block("same", "10.0.0.0/27", "n2", 1)
	given := same
	given.Confirmed = false
	asking := func(annotation string) *corev1.Pod {
		p := fixture.Pod("asks", "n1")
		p.Annotations = map[string]string{wish: annotation}
		return p
	}
	n1, waiting := fixture.Node("n1"), fixture.Pod("waits", "n1")
	tunnel := fixture.Node("n1")
	tunnel.Annotations = map[string]string{"projectcalico.org/IPv4IPIPTunnelAddr": "10.0.0.9"}
	ranged := fixture.Node("n1")
	ranged.Spec.PodCIDRs = []string{"10.0.0.0/24"}
	another := func(name string) *corev1.Pod { return fixture.Pod(name, "n1") }
	host, elsewhere := another("host"), fixture.Pod("elsewhere", "n2", fixture.Running("10.0.0.5"))
	host.Spec.HostNetwork = true
	warn := config.Backend{Mode: config.ModeWarn}
	with := func(rules map[string]config.Effect) config.Backend {
		return config.Backend{Mode: config.ModeEnforce, Rules: rules}
	}
	tests := map[string]struct {
		settings config.Backend
		// cached are the blocks as the cache has them; live those that have changed meanwhile, nil for one that is gone.
		cached []ipam.AffineBlock
		live   map[string]*ipam.AffineBlock
		around []client.Object
		known  bool
		// broken is what cannot be found out.
		broken string
		dryRun bool
		want   reply
	}{
		"the node's first block":                                   {settings: enforce(), around: []client.Object{n1, waiting}, want: passed(0)},
		"one that shares addresses with another":                   {settings: enforce(), cached: []ipam.AffineBlock{old}, want: refused(overlap)},
		"one that is another node's":                               {settings: enforce(), cached: []ipam.AffineBlock{same}, want: refused(taken)},
		"one that only the cache takes for another node's":         {settings: enforce(), cached: []ipam.AffineBlock{same}, live: map[string]*ipam.AffineBlock{"same": &given}, want: passed(0)},
		"one whose like has gone meanwhile":                        {settings: enforce(), cached: []ipam.AffineBlock{old}, live: map[string]*ipam.AffineBlock{"old": nil}, want: passed(0)},
		"one that shares addresses, where that is off":             {settings: with(map[string]config.Effect{"block-overlap": config.EffectOff}), cached: []ipam.AffineBlock{old}, broken: "block", want: passed(0)},
		"in Warn nothing is refused":                               {settings: warn, cached: []ipam.AffineBlock{old}, want: passed(1, overlap)},
		"a claim that exists is left to storage":                   {settings: enforce(), cached: []ipam.AffineBlock{old}, known: true, want: passed(0)},
		"a second block":                                           {settings: enforce(), cached: []ipam.AffineBlock{first}, around: []client.Object{n1, waiting, host, elsewhere}, want: passed(1, room)},
		"a second block in a dry run":                              {settings: enforce(), cached: []ipam.AffineBlock{first}, around: []client.Object{n1, waiting}, dryRun: true, want: passed(0, room)},
		"a second block, where that is off":                        {settings: with(map[string]config.Effect{"second-unfilled-block": config.EffectOff}), cached: []ipam.AffineBlock{first}, broken: "node", want: passed(0)},
		"a second block beside one that pods may have filled":      {settings: enforce(), cached: []ipam.AffineBlock{first}, around: []client.Object{n1, waiting, another("a"), another("b"), another("c")}, want: passed(0)},
		"a second block for a pod that asks for it":                {settings: enforce(), cached: []ipam.AffineBlock{first}, around: []client.Object{n1, asking(`["10.0.0.5"]`)}, want: passed(0)},
		"a second block, and a pod asks for another":               {settings: enforce(), cached: []ipam.AffineBlock{first}, around: []client.Object{n1, asking(`["10.0.1.5"]`)}, want: passed(1, room)},
		"a second block for a pod whose wish is not read":          {settings: enforce(), cached: []ipam.AffineBlock{first}, around: []client.Object{n1, asking("10.0.1.5")}, want: passed(0)},
		"a second block in which a pod has an address":             {settings: enforce(), cached: []ipam.AffineBlock{first}, around: []client.Object{n1, fixture.Pod("has", "n1", fixture.Running("10.0.0.5"))}, want: passed(0)},
		"a second block in which the node has an address":          {settings: enforce(), cached: []ipam.AffineBlock{first}, around: []client.Object{tunnel, waiting}, want: passed(0)},
		"a second block of the node's own range":                   {settings: enforce(), cached: []ipam.AffineBlock{first}, around: []client.Object{ranged, waiting}, want: passed(0)},
		"a second block of a node that Kubernetes calls otherwise": {settings: enforce(), cached: []ipam.AffineBlock{first}, around: []client.Object{waiting}, want: passed(0)},
		"in Observe nobody looks":                                  {settings: config.Backend{Mode: config.ModeObserve}, broken: "claim", want: passed(0)},
		"what cannot be read is admitted":                          {settings: enforce(), broken: "claim", want: passed(0, "not judged: reading the BlockAffinity: the API server is on fire")},
		"what may exist is admitted":                               {settings: enforce(), cached: []ipam.AffineBlock{old}, broken: "known", want: passed(0, "not judged: the API server is on fire")},
		"what cannot be compared is admitted":                      {settings: enforce(), broken: "blocks", want: passed(0, "not judged: the API server is on fire")},
		"what cannot be looked at once more is admitted":           {settings: enforce(), cached: []ipam.AffineBlock{old}, broken: "block", want: passed(0, "not judged: the API server is on fire")},
		"a node that cannot be read may have its reasons":          {settings: enforce(), cached: []ipam.AffineBlock{first}, broken: "node", want: passed(0, `not judged: reading node "n1": the API server is on fire`)},
		"pods that cannot be listed may have theirs":               {settings: enforce(), cached: []ipam.AffineBlock{first}, around: []client.Object{n1}, broken: "pods", want: passed(0, `not judged: listing the pods on node "n1": the API server is on fire`)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			total, err := NewAdmissionTotal(prometheus.NewRegistry())
			check(t, err)
			recorder := &events.FakeRecorder{Events: make(chan string, 10)}
			failing := func(what string) error {
				if tt.broken == what {
					return broken()
				}
				return nil
			}
			live := fake.NewClientBuilder().WithObjects(tt.around...).
				WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).
				WithInterceptorFuncs(interceptor.Funcs{
					Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
						if err := failing("node"); err != nil {
							return err
						}
						return c.Get(ctx, key, o, options...)
					},
					List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, options ...client.ListOption) error {
						if err := failing("pods"); err != nil {
							return err
						}
						return c.List(ctx, l, options...)
					},
				}).Build()
			w := Affinity{
				Kind: "BlockAffinity", Resource: "blockaffinities", Live: live, Wish: wish, Effects: NewEffects("calico", tt.settings, total, recorder),
				Read: func(_ context.Context, raw []byte) (ipam.Affinity, error) {
					expect(t, "object", "the claim", string(raw))
					return ipam.Affinity{Holder: ipam.Holder{Name: "n1"}, Block: netip.MustParsePrefix("10.0.0.0/27"), Pool: "p"}, failing("claim")
				},
				Known: func(_ context.Context, name string) (bool, error) {
					expect(t, "claim", "n1-10-0-0-0-27", name)
					return tt.known, failing("known")
				},
				Blocks: func(context.Context) ([]ipam.AffineBlock, error) { return tt.cached, failing("blocks") },
				Block: func(_ context.Context, name string) (*ipam.AffineBlock, error) {
					if now, changed := tt.live[name]; changed {
						return now, failing("block")
					}
					for _, b := range tt.cached {
						if b.Name == name {
							return &b, failing("block")
						}
					}
					return nil, failing("block")
				},
			}
			got := w.Handle(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
				Name: "n1-10-0-0-0-27", DryRun: &tt.dryRun, Object: runtime.RawExtension{Raw: []byte("the claim")},
			}})
			expect(t, "reply", tt.want, replied(got, recorder))
		})
	}
}
