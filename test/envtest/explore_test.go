package envtest

import (
	"cmp"
	"fmt"
	"os"
	"strings"; "testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"
)

func startControlPlane(t *testing.T) *rest.Config {
	environment := &envtest.Environment{
		CRDDirectoryPaths:     []string{"/work/main/config/crd"},
		ErrorIfCRDPathMissing: true,
		BinaryAssetsDirectory: cmp.Or(os.Getenv("KUBEBUILDER_ASSETS"), "/work/main/bin/control-plane"),
	}
	t.Cleanup(func() { environment.Stop() })
	c, err := environment.Start()
	if err != nil {
		t.Fatal(err)
	}
	return c
}
func obj(t *testing.T, s string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte("apiVersion: ipam.oakum.dev/v1alpha1\n"+s), &u.Object); err != nil {
		t.Fatal(err, s)
	}
	return u
}
func TestExplore(t *testing.T) {
	c, err := client.New(startControlPlane(t), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	pool := func(s string) string { return "kind: AddressPool\nmetadata: {name: p}\nspec: " + s }
	block := func(s string) string {
		return "kind: AddressBlock\nmetadata: {name: p-3}\nspec: {pool: p, index: 3, node: n" + s + "}"
	}
	pod := `attributes: {type: Pod, namespace: d, name: w, uid: u, node: n}`
	for _, w := range [][2]string{ {"", func() string { var s []string; for i := range 63 { s = append(s, fmt.Sprintf(`{ipv4: 10.%d.0.0/16, ipv6: "fd00::%x:0/112"}`, 100+i, 0x1000+i)) }; return pool("{subnets: ["+strings.Join(s, ", ")+`, {ipv4: 10.162.0.0/16, ipv6: "fd00::2000:0/112"}]}`) }()},
		{"", pool("{subnets: [{ipv4: 10.0.0.1/16}, {ipv4: fd00::/64}, {ipv6: FD00::/112}, {}, {ipv4: nope, ipv6: 10.0.0.0/8}]}")},
		{"", pool("{subnets: [{ipv4: 10.0.0.0/16, ipv6: 'fd00::/64'}]}")},
		{"", pool("{subnets: [{ipv4: 10.0.0.0/16}, {ipv4: 10.1.0.0/16}, {ipv4: 10.1.3.0/24}]}")},
		{"", pool("{subnets: [{ipv4: 10.0.0.0/16,ipv6: 'fd00::/112'}, {ipv4: 10.1.0.0/16,ipv6: 'fd00::/112'}]}")},
		{"", pool("{subnets: [{ipv4: 10.0.0.0/28}]}")},
		{"", pool("{subnets: [{ipv6: 'fd00::/124'}]}")},
		{"", pool("{subnets: []}")},
		{"", pool("{}")},
		{"", pool("{subnets: [{ipv4: 10.0.0.0/16}, {ipv6: 'fd00::/64'}], blockSizeBits: 9, network: '', cooldown: -5s}")},
		{"", pool("{subnets: [{ipv4: 10.0.0.0/16}], cooldown: -5s, reserved: [a, 10.0.0.1, 10.0.0.1/8, '10.0.0.1-fd00::', 10.0.0.1-10.0.0.2, '-', 10.0.0.1-, 1.2.3.4-1.2.3.4-1.2.3.4, '::ffff:1.2.3.4']}")},
		{"", pool("{subnets: [{ipv4: 10.0.0.0/16}], reserved: [10.0.0.1,10.0.0.1]}")},
		{"", pool("{subnets: [{ipv4: 10.0.0.0/16}], cooldown: 5}")},
		{"", pool("{subnets: [{ipv4: 10.0.0.0/16}], cooldown: forever and a day or so}")},
		{"", pool("{subnets: [{ipv4: 10.0.0.0/16}], foo: 1}")},
		{pool("{subnets: [{ipv4: 10.0.0.0/16}, {ipv4: 10.1.0.0/16}]}"), pool("{subnets: [{ipv4: 10.0.0.0/16}], network: x, blockSizeBits: 4}")},
		{pool("{subnets: [{ipv4: 10.0.0.0/16}, {ipv4: 10.1.0.0/16}]}"), pool("{subnets: [{ipv4: 10.1.0.0/16}, {ipv4: 10.0.0.0/16}]}")},
		{"", block("4")},
		{"", "kind: AddressBlock\nmetadata: {name: p-03}\nspec: {pool: p, index: 3, node: n}"},
		{"", "kind: AddressBlock\nmetadata: {name: p-03}\nspec: {}"},
		{"", block(", ipv4: 10.0.0.1/27, ipv6: 'fd00::1/123'")},
		{"", block(", ipv4: x, ipv6: 10.0.0.0/27")},
		{"", block(", allocations: [{offset: 3}]")},
		{"", block(", allocations: [{offset: 3, handle: '', attributes: {}}]")},
		{"", block(", allocations: [{offset: 3, handle: 'a b', attributes: {type: Pod}}, {offset: 300, handle: a, attributes: {type: Foo}}]")},
		{"", block(", allocations: [{offset: 3, handle: a, attributes: {type: Pod, name: x}}, {offset: 4, handle: b, attributes: {type: Node, name: x}}, {offset: 5, handle: b, attributes: {type: External, name: ''}}]")},
		{"", block(", allocations: [{offset: 3, handle: a, " + pod + "}, {offset: 3, handle: b, " + pod + "}]")},
		{"", block(", allocations: [{handle: a, " + pod + "}]")},
		{"", block(", cooling: [{offset: 3, until: tomorrow}, {offset: 4}]")},
		{block(", ipv4: 10.0.0.0/27, allocations: [{offset: 3, handle: a, " + pod + "}]"), block(", ipv4: 10.0.0.0/27, allocations: [{offset: 3, handle: b, attributes: {type: Service, namespace: d2, name: w2, uid: u2, node: n2}}]")},
		{block(", ipv4: 10.0.0.0/27, allocations: [{offset: 3, handle: a, " + pod + "}]"), block("x, ipv6: 'fd00::/123', allocations: [{offset: 3, handle: a, attributes: {type: Pod, name: w}}]")},
		{block(", ipv4: 10.0.0.0/27, allocations: [{offset: 3, handle: a, " + pod + "}]"), block(", ipv4: 10.0.0.32/27, allocations: [{offset: 3}]")},
	} {
		var err error
		if w[0] == "" {
			err = c.Create(t.Context(), obj(t, w[1]), client.DryRunAll)
		} else {
			old := obj(t, w[0])
			if err := c.Create(t.Context(), old); err != nil {
				t.Fatal(err)
			}
			n := obj(t, w[1])
			n.SetResourceVersion(old.GetResourceVersion())
			err = c.Update(t.Context(), n, client.DryRunAll)
			c.Delete(t.Context(), old)
		}
		fmt.Printf("== %s\n -> %s\n %v\n", w[0], w[1], err)
	}
}
