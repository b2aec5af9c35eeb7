package main

import (
	"fmt"
	"strconv"
)

// acts is the play. Nothing runs on the nodes: what a kubelet would report is written by hand, through the status
// subresource, as a kubelet does it.
func acts() []act {
	return []act{
		{"A pool and a node's first block", []call{
			{in: `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "worker-1"}}`, args: "create -f -", want: "node/worker-1 created"},
			{in: `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "worker-2"}}`, args: "create -f -", want: "node/worker-2 created"},
			{args: `patch node worker-1 --subresource=status -p '{"status":{"conditions":[{"type":"Ready","status":"True"}]}}'`, want: `node/worker-1 patched`},
			{args: `patch node worker-2 --subresource=status -p '{"status":{"conditions":[{"type":"Ready","status":"True"}]}}'`, want: `node/worker-2 patched`},
			{args: "create -f -", in: `
apiVersion: ipam.oakum.dev/v1alpha1
kind: AddressPool
metadata: {name: demo}
spec:
  blockSizeBits: 2
  subnets: [{ipv4: 10.100.0.0/24, ipv6: "fd00:100::/120"}]
  reserved: [10.100.0.0]
  cooldown: 60s`, want: "addresspool.ipam.oakum.dev/demo created"},
			{
				why:  "the finalizer holds the pool until its last block is gone",
				args: `get addresspool demo -o jsonpath={.metadata.finalizers}`, want: `\["ipam.oakum.dev/blocks"\]`,
			},
			{args: "create -f -", in: `
apiVersion: ipam.oakum.dev/v1alpha1
kind: AddressBlock
metadata: {name: demo-0}
spec: {pool: demo, index: 0, node: worker-1}`, want: "addressblock.ipam.oakum.dev/demo-0 created"},
			{
				why:  "its addresses follow from pool and index, and are filled in",
				args: `get addressblock demo-0 -o jsonpath='{.metadata.finalizers} {.spec.ipv4} {.spec.ipv6}'`,
				want: `\["ipam.oakum.dev/allocations"\] 10.100.0.0/30 fd00:100::/126`,
			},
		}},
		{"An allocation for a running pod", []call{
			{args: "create -f -", in: pod("web-0", "worker-1"), want: "pod/web-0 created"},
			{args: "patch pod web-0 --subresource=status -p '" + running + "'", want: "pod/web-0 patched"},
			{args: "get pod web-0 -o jsonpath={.metadata.uid}", keep: "WEB0", want: ".+"},
			{
				args: `patch addressblock demo-0 --type=json -p '[{"op":"add","path":"/spec/allocations","value":[` + entry(1, "web-0", "${WEB0}", "worker-1") + `]}]'`,
				want: "addressblock.ipam.oakum.dev/demo-0 patched",
			},
			{why: "the pod waits for its address now", args: `get pod web-0 -o jsonpath={.metadata.finalizers}`, want: `\["ipam.oakum.dev/addresses"\]`},
		}},
		{"Allocations that could only end as leaks", []call{
			{
				why:  "without a handle",
				args: add(`{"offset":2,"attributes":{"type":"External","name":"router"}}`), refused: true,
				want: `.*spec.allocations\[1\].handle: Required value: name this hand-out, so that exactly it can be given back`,
			},
			{
				why:  "without attributes",
				args: add(`{"offset":2,"handle":"h2"}`), refused: true,
				want: `.*spec.allocations\[1\].attributes: Required value: say whose the address is, or it can never be proven free`,
			},
			{
				why:  "for a pod that does not exist",
				args: add(entry(2, "web-9", "1234", "worker-1")), refused: true,
				want: `.*spec.allocations\[1\].attributes.name: Invalid value: "web-9": Pod default/web-9 does not exist`,
			},
			{args: "create -f -", in: pod("other-0", "worker-2"), want: "pod/other-0 created"},
			{args: "get pod other-0 -o jsonpath={.metadata.uid}", keep: "OTHER0", want: ".+"},
			{
				why:  "for a pod of another node",
				args: add(entry(2, "other-0", "${OTHER0}", "worker-1")), refused: true,
				want: `.*spec.allocations\[1\].attributes.node: Invalid value: "worker-1": Pod default/other-0 runs on node "worker-2": take an address from a block of that node`,
			},
			{
				why:  "at a reserved offset",
				args: add(external(0)), refused: true,
				want: `.*spec.allocations\[1\].offset: Invalid value: "0": 10.100.0.0, fd00:100:: is reserved by AddressPool "demo": take another offset`,
			},
			{args: add(external(2)), want: ".* patched"},
			{args: `patch addressblock demo-0 --type=json -p '[{"op":"remove","path":"/spec/allocations/1"}]'`, want: ".* patched"},
			{
				why:  "at an offset that was given back a moment ago",
				args: add(external(2)), refused: true,
				want: `.*spec.allocations\[1\].offset: 10.100.0.2, fd00:100::2 was given back and may be taken again at \S+: take another offset`,
			},
		}},
		{"A second block for the node", []call{
			{
				why:  "the first one has room",
				args: "create -f -", in: block("demo", 1, "worker-1"), refused: true,
				want: `.*node "worker-1" has free addresses in AddressBlock "demo-0": take one of those`,
			},
			{args: add(external(3)), want: ".* patched"},
			{why: "now it is full: one allocated, one reserved, one cooling down, one just taken", args: "create -f -", in: block("demo", 1, "worker-1"), want: ".*demo-1 created"},
		}},
		{"Pools that make no sense", []call{
			{
				why:  "one that overlaps another",
				args: "create -f -", in: pool("overlap", `subnets: [{ipv4: 10.100.0.128/25}]`), refused: true,
				want: `.*spec.subnets\[0\].ipv4: Invalid value: "10.100.0.128/25": must not overlap AddressPool "demo" of network "default" \(10.100.0.0/24\)`,
			},
			{
				why:  "one that shrinks",
				args: `patch addresspool demo --type=json -p '[{"op":"replace","path":"/spec/subnets/0/ipv4","value":"10.100.0.0/25"},{"op":"replace","path":"/spec/subnets/0/ipv6","value":"fd00:100::/121"}]'`,
				want: `.*spec.subnets.*append.*`, refused: true,
			},
			{
				why:  "one with host bits",
				args: "create -f -", in: pool("malformed", `subnets: [{ipv4: 10.1.2.3/24}]`), refused: true,
				want: `.*spec.subnets\[0\].ipv4: Invalid value: .*10.1.2.0/24.*`,
			},
		}},
	}
}

const running = `{"status":{"phase":"Running","conditions":[{"type":"PodReadyToStartContainers","status":"True"}],` +
	`"containerStatuses":[{"name":"main","image":"app","imageID":"","ready":true,"restartCount":0,"state":{"running":{}}}]}}`

func pod(name, node string) string {
	return `
apiVersion: v1
kind: Pod
metadata: {name: ` + name + `}
spec:
  nodeName: ` + node + `
  terminationGracePeriodSeconds: 3
  containers: [{name: main, image: app}]`
}

func block(pool string, index int, node string) string {
	n := strconv.Itoa(index)
	return `{"apiVersion": "ipam.oakum.dev/v1alpha1", "kind": "AddressBlock", "metadata": {"name": "` + pool + "-" + n +
		`"}, "spec": {"pool": "` + pool + `", "index": ` + n + `, "node": "` + node + `"}}`
}

func pool(name, spec string) string {
	return "\napiVersion: ipam.oakum.dev/v1alpha1\nkind: AddressPool\nmetadata: {name: " + name + "}\nspec:\n  " + spec
}

func entry(offset int, name, uid, node string) string {
	return fmt.Sprintf(`{"offset":%d,"handle":"%s-eth0","attributes":{"type":"Pod","namespace":"default","name":"%s","uid":"%s","node":"%s"}}`, offset, uid, name, uid, node)
}

func external(offset int) string {
	return fmt.Sprintf(`{"offset":%d,"handle":"router-%d","attributes":{"type":"External","name":"router"}}`, offset, offset)
}

// add appends an allocation to the first block.
func add(entry string) string {
	return `patch addressblock demo-0 --type=json -p '[{"op":"add","path":"/spec/allocations/-","value":` + entry + `}]'`
}
