package envtest

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
)

// startControlPlane starts an API server that has our custom resource definitions and nothing else of ours, and stops
// it when the test ends.
func startControlPlane(t *testing.T) *rest.Config {
	t.Helper()
	environment := &envtest.Environment{
		CRDDirectoryPaths:     []string{"../../config/crd"},
		ErrorIfCRDPathMissing: true,
		BinaryAssetsDirectory: cmp.Or(os.Getenv("KUBEBUILDER_ASSETS"), "../../bin/control-plane"),
	}
	t.Cleanup(func() {
		if err := environment.Stop(); err != nil {
			t.Errorf("stopping the control plane: %v", err)
		}
	})
	config, err := environment.Start()
	if err != nil {
		t.Fatalf("starting the control plane: %v", err)
	}
	return config
}

func TestSchema(t *testing.T) {
	config := startControlPlane(t)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apiextensionsv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatalf("building the scheme: %v", err)
		}
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatalf("connecting: %v", err)
	}
	t.Run("refuses", func(t *testing.T) { schemaRefuses(t, c) })
	t.Run("admits", func(t *testing.T) { schemaAdmits(t, c) })
	t.Run("forgives what was written before", func(t *testing.T) { schemaForgives(t, c) })
	t.Run("gives every entry an owner of its own", func(t *testing.T) { schemaMerges(t, c) })
	t.Run("selects blocks by node and pool", func(t *testing.T) { schemaSelects(t, c) })
	t.Run("prints columns", func(t *testing.T) { schemaPrints(t, c, config) })
}

// pool and block are manifests. The keys of a block come after those that it must have.
func pool(spec string) string {
	return "{kind: AddressPool, metadata: {name: p}, spec: " + spec + "}"
}

func block(keys string) string {
	return named("p-3", "pool: p, index: 3, node: worker-1"+keys)
}

func named(name, keys string) string {
	return "{kind: AddressBlock, metadata: {name: " + name + "}, spec: {" + keys + "}}"
}

const (
	ofPod      = "attributes: {type: Pod, namespace: default, name: web-0, uid: 6f0c, node: worker-1}"
	ofNode     = "attributes: {type: Node, name: worker-1, uid: 9a1b, node: worker-1}"
	ofVM       = "attributes: {type: VirtualMachine, namespace: default, name: vm, uid: 77aa}"
	ofService  = "attributes: {type: Service, namespace: default, name: web, uid: 11cc}"
	ofExternal = "attributes: {type: External, name: border router}"
)

const unchecked = `, <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation]`

func schemaRefuses(t *testing.T, c client.Client) {
	const (
		badPool  = `AddressPool.ipam.oakum.dev "p" is invalid: `
		badBlock = `AddressBlock.ipam.oakum.dev "p-3" is invalid: `
		given    = `must not change while the address is allocated: remove the entry first`
	)
	long := strings.Repeat("x", 254)
	for name, test := range map[string]struct {
		// old is what is there already; without it, new is created.
		old, new string
		want     string
	}{
		"a pool without subnets": {
			new:  pool(`{}`),
			want: badPool + `[spec.subnets: Required value` + unchecked,
		},
		"a pool with an empty list of subnets": {
			new:  pool(`{subnets: []}`),
			want: badPool + `spec.subnets: Invalid value: 0: spec.subnets in body should have at least 1 items`,
		},
		"a subnet of no family": {
			new:  pool(`{subnets: [{}]}`),
			want: badPool + `spec.subnets[0]: Required value: must have ipv4, ipv6 or both`,
		},
		"an IPv4 subnet that is no CIDR": {
			new:  pool(`{subnets: [{ipv4: 10.100.0.0}]}`),
			want: badPool + `spec.subnets[0].ipv4: Invalid value: "10.100.0.0": must be an IPv4 CIDR such as 10.100.0.0/16`,
		},
		"an IPv4 subnet that is IPv6": {
			new:  pool(`{subnets: [{ipv4: "fd00::/112"}]}`),
			want: badPool + `spec.subnets[0].ipv4: Invalid value: "fd00::/112": must be an IPv4 CIDR such as 10.100.0.0/16`,
		},
		"an IPv6 subnet that is IPv4": {
			new:  pool(`{subnets: [{ipv6: 10.100.0.0/16}]}`),
			want: badPool + `spec.subnets[0].ipv6: Invalid value: "10.100.0.0/16": must be an IPv6 CIDR such as fd00:100::/112`,
		},
		"an IPv6 subnet that is IPv4 in disguise": {
			new:  pool(`{subnets: [{ipv6: "::ffff:10.100.0.0/112"}]}`),
			want: badPool + `spec.subnets[0].ipv6: Invalid value: "::ffff:10.100.0.0/112": must be an IPv6 CIDR such as fd00:100::/112`,
		},
		"an IPv4 subnet with host bits": {
			new:  pool(`{subnets: [{ipv4: 10.100.0.1/16}]}`),
			want: badPool + `spec.subnets[0].ipv4: Invalid value: "10.100.0.1/16": must be canonical, with no host bits set: did you mean 10.100.0.0/16?`,
		},
		"an IPv6 subnet in another spelling": {
			new:  pool(`{subnets: [{ipv6: "FD00:0::/112"}]}`),
			want: badPool + `spec.subnets[0].ipv6: Invalid value: "FD00:0::/112": must be canonical, with no host bits set: did you mean fd00::/112?`,
		},
		"an IPv4 subnet that is too long to be one": {
			new:  pool(`{subnets: [{ipv4: "010.0000.0000.0000/16"}]}`),
			want: badPool + `[spec.subnets[0].ipv4: Too long: may not be more than 18 bytes` + unchecked,
		},
		"an IPv6 subnet that is too long to be one": {
			new:  pool(`{subnets: [{ipv6: "00fd00:0000:0000:0000:0000:0000:0000:0000/112"}]}`),
			want: badPool + `[spec.subnets[0].ipv6: Too long: may not be more than 43 bytes` + unchecked,
		},
		"a pair of unequal size": {
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/16, ipv6: "fd00::/64"}]}`),
			want: badPool + `spec.subnets[0].ipv6: Invalid value: fd00::/64 must have as many host bits as 10.100.0.0/16, so that addresses come in pairs: use /112`,
		},
		"an IPv4 subnet narrower than a block": {
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/27}, {ipv4: 10.101.0.0/28}]}`),
			want: badPool + `spec.subnets: Invalid value: 10.101.0.0/28 must not be narrower than a block of 2^5 addresses: widen it or lower spec.blockSizeBits`,
		},
		"an IPv6 subnet narrower than a block": {
			new:  pool(`{subnets: [{ipv6: "fd00::/121"}], blockSizeBits: 8}`),
			want: badPool + `spec.subnets: Invalid value: fd00::/121 must not be narrower than a block of 2^8 addresses: widen it or lower spec.blockSizeBits`,
		},
		"subnets of different families": {
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/16}, {ipv4: 10.101.0.0/16, ipv6: "fd00::/112"}]}`),
			want: badPool + `spec.subnets: Invalid value: must all have the same families: ipv4, ipv6, or both`,
		},
		"IPv4 subnets that overlap": {
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/16}, {ipv4: 10.101.0.0/16}, {ipv4: 10.100.7.0/24}]}`),
			want: badPool + `spec.subnets: Invalid value: 10.100.7.0/24 must not overlap 10.100.0.0/16`,
		},
		"IPv6 subnets that overlap": {
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/16, ipv6: "fd00::/112"}, {ipv4: 10.101.0.0/16, ipv6: "fd00::/112"}]}`),
			want: badPool + `spec.subnets: Invalid value: fd00::/112 must not overlap fd00::/112`,
		},
		"a subnet appended over another": {
			old:  pool(`{subnets: [{ipv4: 10.100.0.0/16}]}`),
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/16}, {ipv4: 10.0.0.0/8}]}`),
			want: badPool + `spec.subnets: Invalid value: 10.0.0.0/8 must not overlap 10.100.0.0/16`,
		},
		"a subnet removed": {
			old:  pool(`{subnets: [{ipv4: 10.100.0.0/16}, {ipv4: 10.101.0.0/16}]}`),
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/16}]}`),
			want: badPool + `spec.subnets: Forbidden: must keep 10.101.0.0/16 in its place: append, never change or remove`,
		},
		"a subnet widened": {
			old:  pool(`{subnets: [{ipv6: "fd00::/112"}]}`),
			new:  pool(`{subnets: [{ipv6: "fd00::/108"}]}`),
			want: badPool + `spec.subnets: Forbidden: must keep fd00::/112 in its place: append, never change or remove`,
		},
		"subnets in another order": {
			old:  pool(`{subnets: [{ipv4: 10.100.0.0/16}, {ipv4: 10.101.0.0/16}]}`),
			new:  pool(`{subnets: [{ipv4: 10.101.0.0/16}, {ipv4: 10.100.0.0/16}]}`),
			want: badPool + `spec.subnets: Forbidden: must keep 10.100.0.0/16 in its place: append, never change or remove`,
		},
		"more subnets than a pool can have": {
			new:  pool(`{subnets: [` + strings.Repeat("{ipv4: 10.100.0.0/16}, ", 65) + `]}`),
			want: badPool + `[spec.subnets: Too many: 65: must have at most 64 items` + unchecked,
		},
		"a network without a name": {
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/16}], network: ""}`),
			want: badPool + `spec.network: Invalid value: "": spec.network in body should be at least 1 chars long`,
		},
		"a network with an endless name": {
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/16}], network: ` + long[:64] + `}`),
			want: badPool + `[spec.network: Too long: may not be more than 63 bytes` + unchecked,
		},
		"another network": {
			old:  pool(`{subnets: [{ipv4: 10.100.0.0/16}], network: blue}`),
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/16}]}`),
			want: badPool + `spec.network: Forbidden: must stay blue: create another pool for another network`,
		},
		"blocks of 2^9 addresses": {
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/16}], blockSizeBits: 9}`),
			want: badPool + `spec.blockSizeBits: Invalid value: 9: spec.blockSizeBits in body should be less than or equal to 8`,
		},
		"blocks of 2^-1 addresses": {
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/16}], blockSizeBits: -1}`),
			want: badPool + `spec.blockSizeBits: Invalid value: -1: spec.blockSizeBits in body should be greater than or equal to 0`,
		},
		"another size of blocks": {
			old:  pool(`{subnets: [{ipv4: 10.100.0.0/16}], blockSizeBits: 0}`),
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/16}]}`),
			want: badPool + `spec.blockSizeBits: Forbidden: must stay 0, since blocks are counted by it: create another pool for another size`,
		},
		"a reservation that is none": {
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/16}], reserved: [10.100.0.1, 10.100.0.1-]}`),
			want: badPool + `spec.reserved[1]: Invalid value: "10.100.0.1-": must be an address, a CIDR or first-last`,
		},
		"a reserved CIDR with host bits": {
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/16}], reserved: [10.100.0.1/24]}`),
			want: badPool + `spec.reserved[0]: Invalid value: "10.100.0.1/24": must have no host bits set: did you mean 10.100.0.0/24?`,
		},
		"a reserved range from one family to the other": {
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/16}], reserved: ["10.100.0.1-fd00::"]}`),
			want: badPool + `spec.reserved[0]: Invalid value: "10.100.0.1-fd00::": must not mix IPv4 and IPv6`,
		},
		"a reservation twice": {
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/16}], reserved: [10.100.0.1, 10.100.0.1]}`),
			want: badPool + `spec.reserved[1]: Duplicate value: "10.100.0.1"`,
		},
		"more reservations than a pool can have": {
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/16}], reserved: [` + strings.Repeat("10.100.0.1, ", 65) + `]}`),
			want: badPool + `[spec.reserved: Too many: 65: must have at most 64 items, spec.reserved[1]: Duplicate value: "10.100.0.1"` + unchecked,
		},
		"a reservation that is too long to be one": {
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/16}], reserved: [` + long[:80] + `]}`),
			want: badPool + `[spec.reserved[0]: Too long: may not be more than 79 bytes` + unchecked,
		},
		"a cooldown below zero": {
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/16}], cooldown: -1s}`),
			want: badPool + `spec.cooldown: Invalid value: "-1s": must be a duration of 0s or more, such as 30s or 1m30s`,
		},
		"a cooldown that is no duration": {
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/16}], cooldown: 30 seconds}`),
			want: badPool + `spec.cooldown: Invalid value: "30 seconds": must be a duration of 0s or more, such as 30s or 1m30s`,
		},
		"a cooldown that overflows": {
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/16}], cooldown: 9999999h}`),
			want: badPool + `spec.cooldown: Invalid value: "9999999h": must be a duration of 0s or more, such as 30s or 1m30s`,
		},
		"a cooldown in more parts than a sum can take": {
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/16}], cooldown: 999999h999999h999999h}`),
			want: badPool + `[spec.cooldown: Too long: may not be more than 16 bytes` + unchecked,
		},

		"a block without an index": {
			new:  named("p-3", "pool: p, node: worker-1"),
			want: badBlock + `[spec.index: Required value` + unchecked,
		},
		"a block without a pool": {
			new:  named("p-3", "index: 3, node: worker-1"),
			want: badBlock + `[spec.pool: Required value` + unchecked,
		},
		"a block of a pool without a name": {
			new: named("p-3", `pool: "", index: 3, node: worker-1`),
			want: badBlock + `[spec.pool: Invalid value: "": spec.pool in body should be at least 1 chars long, ` +
				`metadata: Invalid value: name must be -3: <spec.pool>-<spec.index>]`,
		},
		"a block of a pool with an endless name": {
			new:  named("p-3", "pool: "+long[:243]+", index: 3, node: worker-1"),
			want: badBlock + `[spec.pool: Too long: may not be more than 242 bytes` + unchecked,
		},
		"a block without a node": {
			new:  named("p-3", "pool: p, index: 3"),
			want: badBlock + `[spec.node: Required value` + unchecked,
		},
		"a block of a node without a name": {
			new:  named("p-3", `pool: p, index: 3, node: ""`),
			want: badBlock + `spec.node: Invalid value: "": spec.node in body should be at least 1 chars long`,
		},
		"a block of a node with an endless name": {
			new:  named("p-3", "pool: p, index: 3, node: "+long),
			want: badBlock + `[spec.node: Too long: may not be more than 253 bytes` + unchecked,
		},
		"a block with an index below zero": {
			new:  named("p--1", "pool: p, index: -1, node: worker-1"),
			want: `AddressBlock.ipam.oakum.dev "p--1" is invalid: spec.index: Invalid value: -1: spec.index in body should be greater than or equal to 0`,
		},
		"a block with an index that leaves 31 bits": {
			new: named("p-2147483648", "pool: p, index: 2147483648, node: worker-1"),
			want: `AddressBlock.ipam.oakum.dev "p-2147483648" is invalid: [<nil>: Invalid value: "": Checked value must be of type integer with format int32 in spec.index, ` +
				`spec.index: Invalid value: 2147483648: spec.index in body should be less than or equal to 2147483647]`,
		},
		"a block named after another index": {
			new:  named("p-3", "pool: p, index: 30, node: worker-1"),
			want: badBlock + `metadata: Invalid value: name must be p-30: <spec.pool>-<spec.index>`,
		},
		"a block named with a leading zero": {
			new:  named("p-03", "pool: p, index: 3, node: worker-1"),
			want: `AddressBlock.ipam.oakum.dev "p-03" is invalid: metadata: Invalid value: name must be p-3: <spec.pool>-<spec.index>`,
		},
		"a block named after another pool": {
			new:  named("q-3", "pool: p, index: 3, node: worker-1"),
			want: `AddressBlock.ipam.oakum.dev "q-3" is invalid: metadata: Invalid value: name must be p-3: <spec.pool>-<spec.index>`,
		},
		"a block of another pool": {
			old:  block(""),
			new:  named("p-3", "pool: q, index: 3, node: worker-1"),
			want: badBlock + `spec.pool: Forbidden: must stay p: create another block`,
		},
		"a block with another index": {
			old:  block(""),
			new:  named("p-3", "pool: p, index: 4, node: worker-1"),
			want: badBlock + `spec.index: Forbidden: must stay 3: create another block`,
		},
		"a block of another node": {
			old:  block(""),
			new:  named("p-3", "pool: p, index: 3, node: worker-2"),
			want: badBlock + `spec.node: Forbidden: must stay worker-1: create another block`,
		},
		"a block with an IPv4 address in place of a CIDR": {
			new:  block(", ipv4: 10.100.0.96"),
			want: badBlock + `spec.ipv4: Invalid value: "10.100.0.96": must be an IPv4 CIDR such as 10.100.2.32/27, or left out`,
		},
		"a block with an IPv4 CIDR for IPv6": {
			new:  block(", ipv6: 10.100.0.96/27"),
			want: badBlock + `spec.ipv6: Invalid value: "10.100.0.96/27": must be an IPv6 CIDR such as fd00:100::220/123, or left out`,
		},
		"a block with an IPv4 CIDR that is too long to be one": {
			new:  block(`, ipv4: "010.0000.0000.0000/27"`),
			want: badBlock + `[spec.ipv4: Too long: may not be more than 18 bytes` + unchecked,
		},
		"a block with an IPv6 CIDR that is too long to be one": {
			new:  block(`, ipv6: "00fd00:0000:0000:0000:0000:0000:0000:0060/123"`),
			want: badBlock + `[spec.ipv6: Too long: may not be more than 43 bytes` + unchecked,
		},
		"a block with IPv4 host bits": {
			new:  block(`, ipv4: 10.100.0.97/27`),
			want: badBlock + `spec.ipv4: Invalid value: "10.100.0.97/27": must be canonical, with no host bits set: did you mean 10.100.0.96/27?`,
		},
		"a block with IPv6 host bits": {
			new:  block(`, ipv6: "fd00::61/123"`),
			want: badBlock + `spec.ipv6: Invalid value: "fd00::61/123": must be canonical, with no host bits set: did you mean fd00::60/123?`,
		},
		"a block with other IPv4 addresses": {
			old:  block(", ipv4: 10.100.0.96/27"),
			new:  block(", ipv4: 10.100.0.64/27"),
			want: badBlock + `spec.ipv4: Forbidden: must not change: it follows from pool and index`,
		},
		"a block with other IPv6 addresses": {
			old:  block(`, ipv6: "fd00::60/123"`),
			new:  block(`, ipv6: "fd00::40/123"`),
			want: badBlock + `spec.ipv6: Forbidden: must not change: it follows from pool and index`,
		},
		"a block that loses its IPv4 addresses": {
			old:  block(", ipv4: 10.100.0.96/27"),
			new:  block(""),
			want: badBlock + `spec.ipv4: Forbidden: must not change: it follows from pool and index`,
		},
		"a block that gains IPv6 addresses": {
			old:  block(", ipv4: 10.100.0.96/27"),
			new:  block(`, ipv4: 10.100.0.96/27, ipv6: "fd00::60/123"`),
			want: badBlock + `spec.ipv6: Forbidden: must not change: it follows from pool and index`,
		},

		"I5: an allocation without an offset": {
			new:  block(", allocations: [{handle: a, " + ofPod + "}]"),
			want: badBlock + `[spec.allocations[0].offset: Required value` + unchecked,
		},
		"I5: an allocation beyond any block": {
			new:  block(", allocations: [{offset: 256, handle: a, " + ofPod + "}]"),
			want: badBlock + `spec.allocations[0].offset: Invalid value: 256: spec.allocations[0].offset in body should be less than or equal to 255`,
		},
		"I5: an allocation before the block": {
			new:  block(", allocations: [{offset: -1, handle: a, " + ofPod + "}]"),
			want: badBlock + `spec.allocations[0].offset: Invalid value: -1: spec.allocations[0].offset in body should be greater than or equal to 0`,
		},
		"I5: one address for two": {
			new:  block(", allocations: [{offset: 1, handle: a, " + ofPod + "}, {offset: 1, handle: b, " + ofNode + "}]"),
			want: badBlock + `spec.allocations[1]: Duplicate value: {"offset":1}`,
		},
		"I5: an allocation without a handle": {
			new:  block(", allocations: [{offset: 1, " + ofPod + "}]"),
			want: badBlock + `spec.allocations[0].handle: Required value: name this hand-out, so that exactly it can be given back`,
		},
		"I5: an allocation with an empty handle": {
			new:  block(`, allocations: [{offset: 1, handle: "", ` + ofPod + "}]"),
			want: badBlock + `spec.allocations[0].handle: Required value: name this hand-out, so that exactly it can be given back`,
		},
		"I5: a handle with a space": {
			new:  block(", allocations: [{offset: 1, handle: a b, " + ofPod + "}]"),
			want: badBlock + `spec.allocations[0].handle: Invalid value: "a b": must be 1 to 253 printable ASCII characters without spaces`,
		},
		"I5: an endless handle": {
			new:  block(", allocations: [{offset: 1, handle: " + long + ", " + ofPod + "}]"),
			want: badBlock + `[spec.allocations[0].handle: Too long: may not be more than 253 bytes` + unchecked,
		},
		"I5: more allocations than a block can have": {
			new:  block(", allocations: [" + strings.Repeat("{offset: 1}, ", 257) + "]"),
			want: badBlock + `[spec.allocations: Too many: 257: must have at most 256 items, spec.allocations[1]: Duplicate value: {"offset":1}` + unchecked,
		},
		"I5: an allocation without attributes": {
			new:  block(", allocations: [{offset: 1, handle: a}]"),
			want: badBlock + `spec.allocations[0].attributes: Required value: say whose the address is, or it can never be proven free`,
		},
		"I5: an owner without a type": {
			new:  block(", allocations: [{offset: 1, handle: a, attributes: {name: web-0}}]"),
			want: badBlock + `spec.allocations[0].attributes.type: Required value: one of Pod, Node, VirtualMachine, Service and External`,
		},
		"I5: an owner of an unknown type": {
			new:  block(", allocations: [{offset: 1, handle: a, attributes: {type: Job, name: web-0}}]"),
			want: badBlock + `[spec.allocations[0].attributes.type: Unsupported value: "Job": supported values: "Pod", "Node", "VirtualMachine", "Service", "External"` + unchecked,
		},
		"I5: an owner without a name": {
			new:  block(", allocations: [{offset: 1, handle: a, attributes: {type: External}}]"),
			want: badBlock + `spec.allocations[0].attributes.name: Required value: name the owner; for External say what the address is for`,
		},
		"I5: an owner with an empty name": {
			new:  block(`, allocations: [{offset: 1, handle: a, attributes: {type: External, name: ""}}]`),
			want: badBlock + `spec.allocations[0].attributes.name: Invalid value: "": spec.allocations[0].attributes.name in body should be at least 1 chars long`,
		},
		"I5: an owner with an endless name": {
			new:  block(", allocations: [{offset: 1, handle: a, attributes: {type: External, name: " + long + "}}]"),
			want: badBlock + `[spec.allocations[0].attributes.name: Too long: may not be more than 253 bytes` + unchecked,
		},
		"I5: an owner with an empty namespace": {
			new:  block(`, allocations: [{offset: 1, handle: a, attributes: {type: Service, namespace: "", name: web, uid: 11cc}}]`),
			want: badBlock + `spec.allocations[0].attributes.namespace: Invalid value: "": spec.allocations[0].attributes.namespace in body should be at least 1 chars long`,
		},
		"I5: an owner with an endless namespace": {
			new:  block(", allocations: [{offset: 1, handle: a, attributes: {type: Service, namespace: " + long[:64] + ", name: web, uid: 11cc}}]"),
			want: badBlock + `[spec.allocations[0].attributes.namespace: Too long: may not be more than 63 bytes` + unchecked,
		},
		"I5: an owner with an empty UID": {
			new:  block(`, allocations: [{offset: 1, handle: a, attributes: {type: Service, namespace: default, name: web, uid: ""}}]`),
			want: badBlock + `spec.allocations[0].attributes.uid: Invalid value: "": spec.allocations[0].attributes.uid in body should be at least 1 chars long`,
		},
		"I5: an owner with an endless UID": {
			new:  block(", allocations: [{offset: 1, handle: a, attributes: {type: Service, namespace: default, name: web, uid: " + long[:129] + "}}]"),
			want: badBlock + `[spec.allocations[0].attributes.uid: Too long: may not be more than 128 bytes` + unchecked,
		},
		"I5: an owner on a node without a name": {
			new:  block(`, allocations: [{offset: 1, handle: a, attributes: {type: Node, name: worker-1, uid: 9a1b, node: ""}}]`),
			want: badBlock + `spec.allocations[0].attributes.node: Invalid value: "": spec.allocations[0].attributes.node in body should be at least 1 chars long`,
		},
		"I5: an owner on a node with an endless name": {
			new:  block(", allocations: [{offset: 1, handle: a, attributes: {type: Node, name: worker-1, uid: 9a1b, node: " + long + "}}]"),
			want: badBlock + `[spec.allocations[0].attributes.node: Too long: may not be more than 253 bytes` + unchecked,
		},
		"I5: a Pod without a namespace": {
			new:  block(", allocations: [{offset: 1, handle: a, attributes: {type: Pod, name: web-0, uid: 6f0c, node: worker-1}}]"),
			want: badBlock + `spec.allocations[0].attributes.namespace: Required value: required for type Pod, VirtualMachine and Service`,
		},
		"I5: a Pod without a UID": {
			new:  block(", allocations: [{offset: 1, handle: a, attributes: {type: Pod, namespace: default, name: web-0, node: worker-1}}]"),
			want: badBlock + `spec.allocations[0].attributes.uid: Required value: required for type Pod, Node, VirtualMachine and Service: a name alone is no identity`,
		},
		"I5: a Pod without a node": {
			new:  block(", allocations: [{offset: 1, handle: a, attributes: {type: Pod, namespace: default, name: web-0, uid: 6f0c}}]"),
			want: badBlock + `spec.allocations[0].attributes.node: Required value: required for type Pod and Node`,
		},
		"I5: a Node without a UID": {
			new:  block(", allocations: [{offset: 1, handle: a, attributes: {type: Node, name: worker-1, node: worker-1}}]"),
			want: badBlock + `spec.allocations[0].attributes.uid: Required value: required for type Pod, Node, VirtualMachine and Service: a name alone is no identity`,
		},
		"I5: a Node without a node": {
			new:  block(", allocations: [{offset: 1, handle: a, attributes: {type: Node, name: worker-1, uid: 9a1b}}]"),
			want: badBlock + `spec.allocations[0].attributes.node: Required value: required for type Pod and Node`,
		},
		"I5: a VirtualMachine without a namespace": {
			new:  block(", allocations: [{offset: 1, handle: a, attributes: {type: VirtualMachine, name: vm, uid: 77aa}}]"),
			want: badBlock + `spec.allocations[0].attributes.namespace: Required value: required for type Pod, VirtualMachine and Service`,
		},
		"I5: a Service without a UID": {
			new:  block(", allocations: [{offset: 1, handle: a, attributes: {type: Service, namespace: default, name: web}}]"),
			want: badBlock + `spec.allocations[0].attributes.uid: Required value: required for type Pod, Node, VirtualMachine and Service: a name alone is no identity`,
		},
		"I5: notes without end": {
			new:  block(", allocations: [{offset: 1, handle: a, attributes: {type: External, name: router, extra: {" + strings.Repeat("k", 64) + ": x}}}]"),
			want: badBlock + `spec.allocations[0].attributes.extra: Invalid value: must have keys of at most 63 and values of at most 256 characters`,
		},
		"I5: a handle changed": {
			old:  block(", allocations: [{offset: 1, handle: a, " + ofPod + "}]"),
			new:  block(", allocations: [{offset: 1, handle: b, " + ofPod + "}]"),
			want: badBlock + `spec.allocations[0].handle: Forbidden: ` + given,
		},
		"I5: an owner's type changed": {
			old:  block(", allocations: [{offset: 1, handle: a, attributes: {type: VirtualMachine, namespace: default, name: web, uid: 11cc}}]"),
			new:  block(", allocations: [{offset: 1, handle: a, attributes: {type: Service, namespace: default, name: web, uid: 11cc}}]"),
			want: badBlock + `spec.allocations[0].attributes.type: Forbidden: ` + given,
		},
		"I5: an owner's namespace changed": {
			old:  block(", allocations: [{offset: 1, handle: a, " + ofVM + "}]"),
			new:  block(", allocations: [{offset: 1, handle: a, attributes: {type: VirtualMachine, namespace: other, name: vm, uid: 77aa}}]"),
			want: badBlock + `spec.allocations[0].attributes.namespace: Forbidden: ` + given,
		},
		"I5: an owner's name changed": {
			old:  block(", allocations: [{offset: 1, handle: a, " + ofExternal + "}]"),
			new:  block(", allocations: [{offset: 1, handle: a, attributes: {type: External, name: another router}}]"),
			want: badBlock + `spec.allocations[0].attributes.name: Forbidden: ` + given,
		},
		"I5: an owner's UID changed": {
			old:  block(", allocations: [{offset: 1, handle: a, " + ofVM + "}]"),
			new:  block(", allocations: [{offset: 1, handle: a, attributes: {type: VirtualMachine, namespace: default, name: vm, uid: 88bb}}]"),
			want: badBlock + `spec.allocations[0].attributes.uid: Forbidden: ` + given,
		},
		"I5: an owner's node changed": {
			old:  block(", allocations: [{offset: 1, handle: a, " + ofPod + "}]"),
			new:  block(", allocations: [{offset: 1, handle: a, attributes: {type: Pod, namespace: default, name: web-0, uid: 6f0c, node: worker-2}}]"),
			want: badBlock + `spec.allocations[0].attributes.node: Forbidden: ` + given,
		},
		"I5: the UID of a reservation removed": {
			old:  block(", allocations: [{offset: 1, handle: a, attributes: {type: External, name: router, uid: 5e5e}}]"),
			new:  block(", allocations: [{offset: 1, handle: a, attributes: {type: External, name: router}}]"),
			want: badBlock + `spec.allocations[0].attributes.uid: Forbidden: ` + given,
		},

		"more cooling entries than a block can have": {
			new:  block(", cooling: [" + strings.Repeat("{offset: 1, until: \"2026-11-30T12:00:30Z\"}, ", 257) + "]"),
			want: badBlock + `[spec.cooling: Too many: 257: must have at most 256 items, spec.cooling[1]: Duplicate value: {"offset":1}` + unchecked,
		},
		"a cooling entry without an offset": {
			new:  block(`, cooling: [{until: "2026-11-30T12:00:30Z"}]`),
			want: badBlock + `[spec.cooling[0].offset: Required value` + unchecked,
		},
		"a cooling entry beyond any block": {
			new:  block(`, cooling: [{offset: 256, until: "2026-11-30T12:00:30Z"}]`),
			want: badBlock + `spec.cooling[0].offset: Invalid value: 256: spec.cooling[0].offset in body should be less than or equal to 255`,
		},
		"a cooling entry before the block": {
			new:  block(`, cooling: [{offset: -1, until: "2026-11-30T12:00:30Z"}]`),
			want: badBlock + `spec.cooling[0].offset: Invalid value: -1: spec.cooling[0].offset in body should be greater than or equal to 0`,
		},
		"a cooling entry without an end": {
			new:  block(", cooling: [{offset: 1}]"),
			want: badBlock + `[spec.cooling[0].until: Required value` + unchecked,
		},
		"a cooling entry with an end that is no time": {
			new:  block(", cooling: [{offset: 1, until: tomorrow}]"),
			want: badBlock + `[spec.cooling[0].until: Invalid value: "tomorrow": spec.cooling[0].until in body must be of type date-time: "tomorrow"` + unchecked,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := write(t, c, test.old, manifest(t, test.new))
			if got == nil {
				t.Fatal("the write was admitted")
			}
			if diff := gocmp.Diff(test.want, got.Error()); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
		})
	}
}

func schemaAdmits(t *testing.T, c client.Client) {
	var subnets, entries []string
	for i := range 64 {
		subnets = append(subnets, fmt.Sprintf(`{ipv4: 10.%d.0.0/16, ipv6: "fd00::%x:0/112"}`, 100+i, 0x1000+i))
	}
	name := strings.Repeat("x", 253)
	for i := range 256 {
		entries = append(entries, fmt.Sprintf("{offset: %d, handle: %s, attributes: {type: Pod, namespace: %s, name: %s, uid: %s, node: %s}}",
			i, name, name[:63], name, name[:128], name))
	}
	for name, test := range map[string]struct {
		old, new string
		// want is the spec that the API server answers with.
		want string
	}{
		"a pool gets its defaults": {
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/16}]}`),
			want: `{subnets: [{ipv4: 10.100.0.0/16}], network: default, blockSizeBits: 5, cooldown: 30s}`,
		},
		"zeros are no defaults": {
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/32}], blockSizeBits: 0, cooldown: 0s}`),
			want: `{subnets: [{ipv4: 10.100.0.0/32}], network: default, blockSizeBits: 0, cooldown: 0s}`,
		},
		"subnets as narrow as a block, in pairs, with every kind of reservation": {
			new: pool(`{subnets: [{ipv4: 10.100.0.0/24, ipv6: "fd00::/120"}, {ipv4: 10.100.1.0/24, ipv6: "fd00::100/120"}], network: blue,
				blockSizeBits: 8, cooldown: 1h30m0.5s, reserved: [10.100.0.1, 10.100.0.8/29, 10.100.0.20-10.100.0.29, "fd00::1", "fd00::-fd00::5"]}`),
			want: `{subnets: [{ipv4: 10.100.0.0/24, ipv6: "fd00::/120"}, {ipv4: 10.100.1.0/24, ipv6: "fd00::100/120"}], network: blue,
				blockSizeBits: 8, cooldown: 1h30m0.5s, reserved: [10.100.0.1, 10.100.0.8/29, 10.100.0.20-10.100.0.29, "fd00::1", "fd00::-fd00::5"]}`,
		},
		"subnets are appended, reservations and cooldown change": {
			old:  pool(`{subnets: [{ipv4: 10.100.0.0/16}], reserved: [10.100.0.1]}`),
			new:  pool(`{subnets: [{ipv4: 10.100.0.0/16}, {ipv4: 10.101.0.0/16}], reserved: [10.101.0.1], cooldown: 1m}`),
			want: `{subnets: [{ipv4: 10.100.0.0/16}, {ipv4: 10.101.0.0/16}], reserved: [10.101.0.1], network: default, blockSizeBits: 5, cooldown: 1m}`,
		},
		"a block with owners of every type": {
			new: named("a.b-2147483647", `pool: a.b, index: 2147483647, node: worker-1, ipv4: 10.100.0.96/27, ipv6: "fd00::60/123", allocations: [
				{offset: 0, handle: "!~", `+ofPod+`}, {offset: 1, handle: b, `+ofNode+`}, {offset: 2, handle: c, `+ofVM+`},
				{offset: 3, handle: d, `+ofService+`}, {offset: 255, handle: e, `+ofExternal+`}]`),
			want: `{pool: a.b, index: 2147483647, node: worker-1, ipv4: 10.100.0.96/27, ipv6: "fd00::60/123", allocations: [
				{offset: 0, handle: "!~", ` + ofPod + `}, {offset: 1, handle: b, ` + ofNode + `}, {offset: 2, handle: c, ` + ofVM + `},
				{offset: 3, handle: d, ` + ofService + `}, {offset: 255, handle: e, ` + ofExternal + `}]}`,
		},
		"an address is given back and cools down, another is taken, notes change": {
			old: block(`, allocations: [{offset: 1, handle: a, ` + ofPod + `},
				{offset: 2, handle: b, attributes: {type: External, name: router, extra: {note: old}}}]`),
			new: block(`, allocations: [{offset: 2, handle: b, attributes: {type: External, name: router, extra: {rack: "7"}}},
				{offset: 3, handle: c, ` + ofPod + `}], cooling: [{offset: 1, until: "2026-11-30T12:00:30Z"}]`),
			want: `{pool: p, index: 3, node: worker-1, allocations: [{offset: 2, handle: b, attributes: {type: External, name: router, extra: {rack: "7"}}},
				{offset: 3, handle: c, ` + ofPod + `}], cooling: [{offset: 1, until: "2026-11-30T12:00:30Z"}]}`,
		},
		"a pool has as many subnets as it can": {
			old:  pool(`{subnets: [` + strings.Join(subnets[:63], ", ") + `]}`),
			new:  pool(`{subnets: [` + strings.Join(subnets, ", ") + `]}`),
			want: `{subnets: [` + strings.Join(subnets, ", ") + `], network: default, blockSizeBits: 5, cooldown: 30s}`,
		},
		"a block has as many entries as it can": {
			old:  block(`, allocations: [` + strings.Join(entries[:255], ", ") + `]`),
			new:  block(`, allocations: [` + strings.Join(entries, ", ") + `]`),
			want: `{pool: p, index: 3, node: worker-1, allocations: [` + strings.Join(entries, ", ") + `]}`,
		},
		"an offset goes to another owner in one write, its entry standing elsewhere": {
			old: block(`, allocations: [{offset: 1, handle: a, ` + ofPod + `}, {offset: 2, handle: b, ` + ofExternal + `}]`),
			new: block(`, allocations: [{offset: 2, handle: b, ` + ofExternal + `}, {offset: 1, handle: a, ` + ofPod + `}]`),
			want: `{pool: p, index: 3, node: worker-1, allocations: [{offset: 2, handle: b, ` + ofExternal + `},
				{offset: 1, handle: a, ` + ofPod + `}]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			object := manifest(t, test.new)
			if err := write(t, c, test.old, object); err != nil {
				t.Fatalf("the write was refused: %v", err)
			}
			var want map[string]any
			decode(t, test.want, &want)
			if diff := gocmp.Diff(want, object.Object["spec"]); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
		})
	}
}

// legacyPool and legacyBlock break every rule that an object could break which was written before the rule was made.
const (
	legacyPool = `{kind: AddressPool, metadata: {name: legacy, finalizers: [ipam.oakum.dev/blocks]}, spec: {
		subnets: [{ipv4: 10.100.0.1/16}, {ipv4: 10.100.0.0/30}, {}, {ipv6: nonsense}],
		reserved: [nobody], cooldown: for ever}}`
	legacyBlock = `{kind: AddressBlock, metadata: {name: legacy, finalizers: [ipam.oakum.dev/allocations]}, spec: {
		pool: p, index: 3, node: worker-1, ipv4: 10.100.0.1/27, allocations: [
		{offset: 0}, {offset: 1, handle: "", attributes: {}}, {offset: 2, handle: a b, attributes: {type: Wizard}},
		{offset: 3, handle: a, attributes: {type: Pod, name: web-0}}, {offset: 4, handle: b, ` + ofPod + `}, {offset: 999, handle: c, ` + ofPod + `}]}}`
)

func schemaForgives(t *testing.T, c client.Client) {
	plant(t, c, legacyPool, legacyBlock)
	const (
		aPool    = "AddressPool"
		aBlock   = "AddressBlock"
		badBlock = `AddressBlock.ipam.oakum.dev "legacy" is invalid: `
	)
	for name, test := range map[string]struct {
		kind string
		// patch is a JSON patch; without it the object is deleted.
		patch, subresource string
		// want is the message; empty if the write is admitted.
		want string
	}{
		"a pool is labelled": {
			kind: aPool, patch: `[{op: add, path: /metadata/labels, value: {team: network}}]`,
		},
		"a pool's finalizer is removed": {
			kind: aPool, patch: `[{op: remove, path: /metadata/finalizers}]`,
		},
		"a pool's status is written": {
			kind: aPool, patch: `[{op: add, path: /status, value: {blocks: 1}}]`, subresource: "status",
		},
		"a pool is deleted": {
			kind: aPool,
		},
		"a pool's cooldown is corrected": {
			kind: aPool, patch: `[{op: replace, path: /spec/cooldown, value: 30s}]`,
		},
		"a pool's reservations are corrected": {
			kind: aPool, patch: `[{op: replace, path: /spec/reserved, value: [10.100.0.1]}]`,
		},

		"a block is labelled": {
			kind: aBlock, patch: `[{op: add, path: /metadata/labels, value: {team: network}}]`,
		},
		"a block's finalizer is removed": {
			kind: aBlock, patch: `[{op: remove, path: /metadata/finalizers}]`,
		},
		"a block's status is written": {
			kind: aBlock, patch: `[{op: add, path: /status, value: {free: 1}}]`, subresource: "status",
		},
		"a block is deleted": {
			kind: aBlock,
		},
		"I8: a block gives back everything": {
			kind: aBlock, patch: `[{op: remove, path: /spec/allocations}]`,
		},
		"I8: a block gives back an entry of which nothing is known": {
			kind: aBlock, patch: `[{op: remove, path: /spec/allocations/0}]`,
		},
		"I8: a block gives back an entry of which all is empty": {
			kind: aBlock, patch: `[{op: remove, path: /spec/allocations/1}]`,
		},
		"I8: a block gives back an entry of an impossible owner": {
			kind: aBlock, patch: `[{op: remove, path: /spec/allocations/2}]`,
		},
		"I8: a block gives back an entry of an owner without a UID": {
			kind: aBlock, patch: `[{op: remove, path: /spec/allocations/3}]`,
		},
		"I8: a block gives back an entry with nothing wrong": {
			kind: aBlock, patch: `[{op: remove, path: /spec/allocations/4}]`,
		},
		"I8: a block gives back an entry beyond its end": {
			kind: aBlock, patch: `[{op: remove, path: /spec/allocations/5}]`,
		},
		"I8: a block gives back one entry and lets it cool down": {
			kind: aBlock, patch: `[{op: remove, path: /spec/allocations/0}, {op: add, path: /spec/cooling, value: [{offset: 0, until: "2026-11-30T12:00:30Z"}]}]`,
		},
		"a block takes another entry": {
			kind: aBlock, patch: `[{op: add, path: /spec/allocations/-, value: {offset: 5, handle: d, ` + ofPod + `}}]`,
		},
		"I5: a block takes no other entry without a handle": {
			kind: aBlock, patch: `[{op: add, path: /spec/allocations/-, value: {offset: 5, ` + ofPod + `}}]`,
			want: badBlock + `spec.allocations[6].handle: Required value: name this hand-out, so that exactly it can be given back`,
		},
		"I5: an entry is completed": {
			kind: aBlock, patch: `[{op: replace, path: /spec/allocations/0, value: {offset: 0, handle: d, ` + ofPod + `}}]`,
		},
		"I5: an entry is not half completed": {
			kind: aBlock, patch: `[{op: replace, path: /spec/allocations/0, value: {offset: 0, handle: d}}]`,
			want: badBlock + `spec.allocations[0].attributes: Required value: say whose the address is, or it can never be proven free`,
		},
		"I5: what an incomplete entry knows of its owner does not change": {
			kind: aBlock, patch: `[{op: replace, path: /spec/allocations/3, value: {offset: 3, handle: a, attributes: {type: Pod, namespace: default, name: web-1, uid: 6f0c, node: worker-1}}}]`,
			want: badBlock + `spec.allocations[3].attributes.name: Forbidden: must not change while the address is allocated: remove the entry first`,
		},
		"I5: an entry does not lose its attributes": {
			kind: aBlock, patch: `[{op: remove, path: /spec/allocations/4/attributes}]`,
			want: badBlock + `spec.allocations[4].attributes: Required value: say whose the address is, or it can never be proven free`,
		},
		"notes are taken on an entry with nothing wrong": {
			kind: aBlock, patch: `[{op: add, path: /spec/allocations/4/attributes/extra, value: {rack: "7"}}]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			object := manifest(t, "{kind: "+test.kind+", metadata: {name: legacy}}")
			patch, err := yaml.YAMLToJSON([]byte(test.patch))
			if err != nil {
				t.Fatalf("reading the patch: %v", err)
			}
			switch {
			case test.patch == "":
				err = c.Delete(t.Context(), object, client.DryRunAll)
			case test.subresource != "":
				err = c.SubResource(test.subresource).Patch(t.Context(), object, client.RawPatch(types.JSONPatchType, patch), client.DryRunAll)
			default:
				err = c.Patch(t.Context(), object, client.RawPatch(types.JSONPatchType, patch), client.DryRunAll)
			}
			var got string
			if err != nil {
				got = err.Error()
			}
			if diff := gocmp.Diff(test.want, got); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
		})
	}
}

// schemaMerges has two clients apply one entry each of the same block, and one of them withdraw its own.
func schemaMerges(t *testing.T, c client.Client) {
	apply := func(manager, allocations string) *unstructured.Unstructured {
		t.Helper()
		object := manifest(t, block(", allocations: ["+allocations+"]"))
		if err := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(manager)); err != nil {
			t.Fatalf("applying as %s: %v", manager, err)
		}
		return object
	}
	t.Cleanup(func() { remove(t, c, manifest(t, block(""))) })
	apply("one", "{offset: 1, handle: a, "+ofPod+"}")
	apply("two", "{offset: 2, handle: b, "+ofExternal+"}")
	got := apply("one", "")
	var want map[string]any
	decode(t, "{pool: p, index: 3, node: worker-1, allocations: [{offset: 2, handle: b, "+ofExternal+"}]}", &want)
	if diff := gocmp.Diff(want, got.Object["spec"]); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
}

func schemaSelects(t *testing.T, c client.Client) {
	for _, m := range []string{
		named("p-0", "pool: p, index: 0, node: worker-1"),
		named("p-1", "pool: p, index: 1, node: worker-2"),
		named("q-0", "pool: q, index: 0, node: worker-1"),
	} {
		create(t, c, m)
	}
	for name, test := range map[string]struct {
		fields client.MatchingFields
		want   []string
	}{
		"by node":           {client.MatchingFields{"spec.node": "worker-1"}, []string{"p-0", "q-0"}},
		"by pool":           {client.MatchingFields{"spec.pool": "p"}, []string{"p-0", "p-1"}},
		"by both":           {client.MatchingFields{"spec.node": "worker-1", "spec.pool": "p"}, []string{"p-0"}},
		"by another node":   {client.MatchingFields{"spec.node": "worker-3"}, nil},
		"by part of a name": {client.MatchingFields{"spec.node": "worker"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var list v1alpha1.AddressBlockList
			if err := c.List(t.Context(), &list, test.fields); err != nil {
				t.Fatalf("listing: %v", err)
			}
			var got []string
			for _, b := range list.Items {
				got = append(got, b.Name)
			}
			slices.Sort(got)
			if diff := gocmp.Diff(test.want, got); diff != "" {
				t.Errorf("blocks (-want +got):\n%s", diff)
			}
		})
	}
}

// schemaPrints compares what kubectl get shows: each column with its cell, those of -o wide marked.
func schemaPrints(t *testing.T, c client.Client, config *rest.Config) {
	setStatus := func(m, status string) {
		t.Helper()
		object := create(t, c, m)
		var value map[string]any
		decode(t, status, &value)
		object.Object["status"] = value
		if err := c.Status().Update(t.Context(), object); err != nil {
			t.Fatalf("writing the status: %v", err)
		}
	}
	setStatus(pool(`{subnets: [{ipv4: 10.100.0.0/16, ipv6: "fd00::/112"}]}`),
		`{blocks: 0, capacity: 65536, allocated: 0, conditions: [{type: Ready, status: "True", reason: Available, message: "", lastTransitionTime: "2026-11-30T12:00:30Z"}]}`)
	setStatus(block(`, ipv4: 10.100.0.96/27, ipv6: "fd00::60/123"`), `{allocated: 0, free: 32}`)
	for name, test := range map[string]struct {
		path string
		want map[string]any
	}{
		"a pool": {
			path: "/apis/ipam.oakum.dev/v1alpha1/addresspools/p",
			want: map[string]any{
				"Name": "p", "Blocks": int64(0), "Allocated": int64(0), "Capacity": int64(65536), "Ready": "True",
				"Subnets (wide)": `[{"ipv4":"10.100.0.0/16","ipv6":"fd00::/112"}]`,
			},
		},
		"a block": {
			path: "/apis/ipam.oakum.dev/v1alpha1/addressblocks/p-3",
			want: map[string]any{
				"Name": "p-3", "Pool": "p", "Node": "worker-1", "IPv4": "10.100.0.96/27", "IPv6": "fd00::60/123",
				"Allocated": int64(0), "Free": int64(32),
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var table metav1.Table
			get(t, config, test.path, &table)
			got := map[string]any{}
			for i, column := range table.ColumnDefinitions {
				header := column.Name
				if column.Priority > 0 {
					header += " (wide)"
				}
				got[header] = table.Rows[0].Cells[i]
			}
			age, shown := got["Age"]
			if !shown || age == "" {
				t.Errorf("the age is %v", age)
			}
			delete(got, "Age")
			if diff := gocmp.Diff(test.want, got); diff != "" {
				t.Errorf("columns (-want +got):\n%s", diff)
			}
		})
	}
}

// get reads an object as the table that kubectl shows.
func get(t *testing.T, config *rest.Config, path string, table *metav1.Table) {
	t.Helper()
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, v1alpha1.SchemeGroupVersion)
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatalf("building the scheme of tables: %v", err)
	}
	config = rest.CopyConfig(config)
	config.GroupVersion = &v1alpha1.SchemeGroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	reader, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		t.Fatalf("connecting: %v", err)
	}
	err = reader.Get().AbsPath(path).SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(t.Context()).Into(table)
	if err != nil {
		t.Fatalf("reading the table: %v", err)
	}
}

// plant creates objects that the schema does not admit, by loosening it until they are there.
func plant(t *testing.T, c client.Client, manifests ...string) {
	t.Helper()
	var crds apiextensionsv1.CustomResourceDefinitionList
	if err := c.List(t.Context(), &crds); err != nil {
		t.Fatalf("listing the definitions: %v", err)
	}
	keep := true
	// A LeakReport has a status alone, in which nothing is required.
	crds.Items = slices.DeleteFunc(crds.Items, func(crd apiextensionsv1.CustomResourceDefinition) bool { return crd.Spec.Names.Kind == "LeakReport" })
	for _, crd := range crds.Items {
		loose := crd.DeepCopy()
		loose.Spec.Versions[0].Schema.OpenAPIV3Schema = &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &keep}
		loose.Spec.Versions[0].SelectableFields = nil
		setSchema(t, c, loose)
	}
	for _, m := range manifests {
		object := manifest(t, m)
		await(t, "the loosened schema", func(ctx context.Context) bool { return c.Create(ctx, object.DeepCopy()) == nil })
		t.Cleanup(func() { remove(t, c, object) })
	}
	for _, crd := range crds.Items {
		setSchema(t, c, &crd)
		probe := manifest(t, "{kind: "+crd.Spec.Names.Kind+", metadata: {name: probe}}")
		await(t, "the strict schema", func(ctx context.Context) bool {
			return apierrors.IsInvalid(c.Create(ctx, probe.DeepCopy(), client.DryRunAll))
		})
	}
}

// setSchema gives a definition the versions of another.
func setSchema(t *testing.T, c client.Client, like *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	var crd apiextensionsv1.CustomResourceDefinition
	await(t, "the definition", func(ctx context.Context) bool {
		if err := c.Get(ctx, client.ObjectKeyFromObject(like), &crd); err != nil {
			t.Fatalf("reading definition %s: %v", like.Name, err)
		}
		crd.Spec.Versions = like.Spec.Versions
		err := c.Update(ctx, &crd)
		if err != nil && !apierrors.IsConflict(err) {
			t.Fatalf("writing definition %s: %v", like.Name, err)
		}
		return err == nil
	})
}

func await(t *testing.T, what string, done func(context.Context) bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		return done(ctx), nil
	})
	if err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}

// write updates old, which it creates first, or creates the object if there is no old one. The answer replaces the
// object. Of the write that is tried nothing stays.
func write(t *testing.T, c client.Client, old string, object *unstructured.Unstructured) error {
	t.Helper()
	if old == "" {
		return c.Create(t.Context(), object, client.DryRunAll)
	}
	object.SetResourceVersion(create(t, c, old).GetResourceVersion())
	return c.Update(t.Context(), object, client.DryRunAll)
}

// create creates an object that goes when the test ends.
func create(t *testing.T, c client.Client, m string) *unstructured.Unstructured {
	t.Helper()
	object := manifest(t, m)
	if err := c.Create(t.Context(), object); err != nil {
		t.Fatalf("creating %s: %v", m, err)
	}
	t.Cleanup(func() { remove(t, c, object) })
	return object
}

// remove deletes an object for good, and proves thereby that nothing in it stands in the way.
func remove(t *testing.T, c client.Client, object *unstructured.Unstructured) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`))
	if err := c.Patch(ctx, object, patch); err != nil {
		t.Errorf("removing the finalizers of %s: %v", object.GetName(), err)
	}
	if err := c.Delete(ctx, object); err != nil {
		t.Errorf("deleting %s: %v", object.GetName(), err)
	}
}

func manifest(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	decode(t, text, &object.Object)
	object.SetAPIVersion(v1alpha1.SchemeGroupVersion.String())
	return object
}

// decode reads YAML as objects have it, with whole numbers as int64.
func decode(t *testing.T, text string, into *map[string]any) {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text))
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		t.Fatalf("reading %s: %v", text, err)
	}
}
