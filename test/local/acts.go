package main

import (
	"fmt"
	"time"
)

// acts is the play. Nothing runs on the nodes: what a kubelet would report is written by hand, through the status
// subresource, in the order in which a kubelet writes it.
func acts() []act {
	return []act{
		{"A pool and a node's first block", []call{
			created("node/worker-1", node("worker-1")),
			created("node/worker-2", node("worker-2")),
			report("node", "worker-1", ready),
			report("node", "worker-2", ready),
			created("addresspool.ipam.oakum.dev/demo", pool("demo", `
  blockSizeBits: 2
  subnets: [{ipv4: 10.100.0.0/24, ipv6: "fd00:100::/120"}]
  reserved: [10.100.0.0]
  cooldown: 60s`)),
			{
				why:  "a finalizer holds the pool until its last block is gone",
				args: get("addresspool", "demo", "{.metadata.finalizers}"), want: `\["ipam.oakum.dev/blocks"\]`,
			},
			created("addressblock.ipam.oakum.dev/demo-0", block("demo", 0, "worker-1")),
			{
				why:  "the block's addresses follow from pool and index, and are filled in",
				args: get("addressblock", "demo-0", "{.metadata.finalizers} {.spec.ipv4} {.spec.ipv6}"),
				want: `\["ipam.oakum.dev/allocations"\] 10.100.0.0/30 fd00:100::/126`,
			},
		}},
		{"An allocation for a running pod", []call{
			created("pod/web-0", pod("web-0", "worker-1")),
			report("pod", "web-0", running),
			uid("web-0", "WEB0"),
			take("demo-0", entry(1, "web-0", "${WEB0}", "worker-1")),
			{why: "the pod will wait for its address now", args: get("pod", "web-0", "{.metadata.finalizers}"), want: `\["ipam.oakum.dev/addresses"\]`},
		}},
		{"Allocations that could only end as leaks", []call{
			refused("without a handle", add("demo-0", `{"offset":2,"attributes":{"type":"External","name":"router"}}`),
				`.*spec.allocations\[1\].handle: Required value: name this hand-out, so that exactly it can be given back`),
			refused("without attributes", add("demo-0", `{"offset":2,"handle":"h2"}`),
				`.*spec.allocations\[1\].attributes: Required value: say whose the address is, or it can never be proven free`),
			refused("for a pod that does not exist", add("demo-0", entry(2, "web-9", "1234", "worker-1")),
				`.*spec.allocations\[1\].attributes.name: Invalid value: "web-9": Pod default/web-9 does not exist`),
			created("pod/other-0", pod("other-0", "worker-2")),
			uid("other-0", "OTHER0"),
			refused("for a pod of another node", add("demo-0", entry(2, "other-0", "${OTHER0}", "worker-1")),
				`.*Pod default/other-0 runs on node "worker-2": take an address from a block of that node`),
			refused("at a reserved offset", add("demo-0", external(0)),
				`.*spec.allocations\[1\].offset: Invalid value: .*10.100.0.0.* is reserved by AddressPool "demo": take another offset`),
			{args: add("demo-0", external(2)), want: ".* patched"},
			give("demo-0", 1),
			refused("at an offset that was given back a moment ago", add("demo-0", external(2)),
				`.*spec.allocations\[1\].offset: 10.100.0.2.* was given back and may be taken again at \S+: take another offset`),
		}},
		{"A second block for the node", []call{
			{
				why:  "the first one has room",
				args: create(), in: block("demo", 1, "worker-1"), refused: true,
				want: `.*node "worker-1" has free addresses in AddressBlock "demo-0": take one of those`,
			},
			{args: add("demo-0", external(3)), want: ".* patched"},
			{
				why:  "now it is full: one allocated, one reserved, one cooling down, one just taken",
				args: create(), in: block("demo", 1, "worker-1"), want: ".*demo-1 created",
			},
		}},
		{"Pools that make no sense", []call{
			{
				why:  "one that overlaps another",
				args: create(), in: pool("overlap", "\n  subnets: [{ipv4: 10.100.0.128/25}]"), refused: true,
				want: `.*spec.subnets\[0\].ipv4: Invalid value: "10.100.0.128/25": must not overlap AddressPool "demo" of network "default" \(10.100.0.0/24\)`,
			},
			refused("one that shrinks", []string{
				"patch", "addresspool", "demo", "--type=json", "-p",
				`[{"op":"replace","path":"/spec/subnets/0","value":{"ipv4":"10.100.0.0/25","ipv6":"fd00:100::/121"}}]`,
			}, `.*spec.subnets: Forbidden: must keep 10.100.0.0/24 in its place.*`),
			{
				why:  "one with host bits",
				args: create(), in: pool("malformed", "\n  subnets: [{ipv4: 10.1.2.3/24}]"), refused: true,
				want: `.*spec.subnets\[0\].ipv4: Invalid value: .*10.1.2.0/24.*`,
			},
		}},
		{"A pod ends", []call{
			{args: []string{"delete", "pod", "web-0", "--wait=false"}, want: `pod "web-0" deleted.*`},
			{
				why:  "its containers still run, so its address stays",
				args: get("addressblock", "demo-0", "{.spec.allocations[*].attributes.name}"), want: "web-0 router",
			},
			report("pod", "web-0", ended),
			{
				why:  "the sandbox is down, says the kubelet: the address is given back, and cools down",
				args: get("addressblock", "demo-0", "{.spec.allocations[*].attributes.name}, cooling {.spec.cooling[*].offset}"), want: "router, cooling 1 2", within: soon,
			},
			{
				why:  "the finalizer is off, before the kubelet deletes the pod for good",
				args: get("pod", "web-0", "{.metadata.name}{.metadata.finalizers}"), want: "web-0", within: soon,
			},
			{args: []string{"delete", "pod", "web-0", "--grace-period=0", "--force"}, want: `.*"web-0" force deleted.*`},
			{
				args: []string{"get", "events.events.k8s.io", "-o", `jsonpath={.items[?(@.reason=="AddressReleased")].note}`},
				want: `released 10.100.0.1,fd00:100::1 \(native, handle .*\): the kubelet reported the end of Pod default/web-0 .*`, within: soon,
			},
		}},
		{"A pod is deleted by force on a node that does not answer", []call{
			created("addresspool.ipam.oakum.dev/edge", pool("edge", "\n  network: edge\n  blockSizeBits: 1\n  subnets: [{ipv4: 10.200.0.0/28}]\n  cooldown: 0s")),
			created("addressblock.ipam.oakum.dev/edge-0", block("edge", 0, "worker-2")),
			created("pod/edge-0", pod("edge-0", "worker-2")),
			report("pod", "edge-0", running),
			uid("edge-0", "EDGE0"),
			take("edge-0", entry(0, "edge-0", "${EDGE0}", "worker-2")),
			report("node", "worker-2", silent),
			{args: []string{"delete", "pod", "edge-0", "--grace-period=0", "--force", "--wait=false"}, want: `.*"edge-0" force deleted.*`},
			{
				why:  "nothing proves that the pod does not run any more, so it is held, and says why",
				args: []string{"get", "events.events.k8s.io", "-o", `jsonpath={.items[?(@.reason=="AddressesHeld")].note}`},
				want: `waits to be proven gone: Pod default/edge-0 .* is going, and node "worker-2" is not ready: the sandbox may still run. Let go at .* at the latest`, within: soon,
			},
			{args: get("pod", "edge-0", "{.metadata.finalizers}"), want: `\["ipam.oakum.dev/addresses"\]`},
			{
				why:  "an administrator knows that the machine is off, and says so",
				args: []string{"taint", "node", "worker-2", "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"}, want: "node/worker-2 tainted",
			},
			{args: []string{"get", "pod", "edge-0"}, refused: true, want: `.*pods "edge-0" not found`, within: soon},
			{args: get("addressblock", "edge-0", "{.spec.allocations[*].handle}"), want: ""},
		}},
		{"A node is deleted", []call{
			created("node/worker-3", node("worker-3")),
			report("node", "worker-3", ready),
			created("addressblock.ipam.oakum.dev/demo-2", block("demo", 2, "worker-3")),
			created("addressblock.ipam.oakum.dev/edge-1", block("edge", 1, "worker-3")),
			{args: []string{"get", "node", "worker-3", "-o", "jsonpath={.metadata.uid}"}, want: ".+", keep: "WORKER3"},
			created("pod/last-0", pod("last-0", "worker-3")),
			report("pod", "last-0", running),
			uid("last-0", "LAST0"),
			take("demo-2", entry(0, "last-0", "${LAST0}", "worker-3")),
			{args: add("demo-2", `{"offset":1,"handle":"tunnel-worker-3","attributes":{"type":"Node","name":"worker-3","uid":"${WORKER3}","node":"worker-3"}}`), want: ".* patched"},
			{args: get("node", "worker-3", "{.metadata.finalizers}"), want: `\["ipam.oakum.dev/addresses"\]`, within: soon},
			{args: []string{"delete", "node", "worker-3", "--wait=false"}, want: `node "worker-3" deleted.*`},
			{why: "its empty block goes, and so does the node", args: []string{"get", "node", "worker-3"}, refused: true, want: ".*not found", within: 2 * time.Second},
			{args: []string{"get", "addressblock", "edge-1"}, refused: true, want: ".*not found"},
			{
				why:  "its own address and its pod's are not proven free by that: they stay",
				args: get("addressblock", "demo-2", "{.spec.allocations[*].attributes.name}"), want: "last-0 worker-3",
			},
		}},
		{"A pool is deleted", []call{
			take("edge-0", external(1)),
			{
				args: []string{"delete", "addresspool", "edge", "--wait=false"},
				want: `Warning: pool-in-use: 1 block with 1 allocation remain; deletion completes when they have drained\s+addresspool.* "edge" deleted.*`,
			},
			{
				args: get("addresspool", "edge", `{.status.conditions[?(@.type=="Draining")].message}`),
				want: "1 address in 1 block on 1 node remain", within: soon,
			},
			{args: create(), in: block("edge", 3, "worker-1"), refused: true, want: `.*AddressPool "edge" is being deleted and gives out no more blocks: use another pool`},
			give("edge-0", 0),
			{why: "the last allocation is gone: so is the block, and soon the pool", args: []string{"get", "addresspool", "edge"}, refused: true, want: ".*not found", within: 20 * time.Second},
		}},
		{"Somebody strips a finalizer", []call{
			created("pod/held-0", pod("held-0", "worker-1")),
			uid("held-0", "HELD0"),
			take("demo-1", entry(0, "held-0", "${HELD0}", "worker-1")),
			{args: []string{"create", "clusterrole", "pod-editor", "--verb=get,patch", "--resource=pods,pods/status"}, want: ".* created"},
			{args: []string{"create", "clusterrolebinding", "ed", "--clusterrole=pod-editor", "--user=ed"}, want: ".* created"},
			{
				why:  "the pod is deleted by force and hangs, since its kubelet has not reported its end",
				args: []string{"delete", "pod", "held-0", "--grace-period=0", "--force", "--wait=false"}, want: `.*"held-0" force deleted.*`,
			},
			refused("an editor", strip("--as=ed"),
				`.*Oakum takes its finalizer off when the addresses are free; ed may not release addresses: that takes the verb release on addresses.ipam.oakum.dev`),
			refused("a cluster-admin", strip(),
				`.*to take it off all the same, annotate the object first: ipam.oakum.dev/force-release=${HELD0}`),
			refused("through the status subresource", strip("--subresource=status"),
				`.*annotate the object first: ipam.oakum.dev/force-release=${HELD0}`),
			{args: []string{"annotate", "pod", "held-0", "ipam.oakum.dev/force-release=${HELD0}"}, want: "pod/held-0 annotated"},
			{why: "who says so twice means it", args: strip(), want: "pod/held-0 patched"},
		}},
		{"An address leaks, and comes back", []call{
			{
				why:  "the pod whose finalizer was stripped is gone, and nobody gave its address back",
				args: []string{"get", "pod", "held-0"}, refused: true, want: ".*not found",
			},
			{
				oakum: true, args: []string{"check"}, refused: true,
				want: `POOL +NETWORK +BLOCKS .*ADDRESS .*10.100.0.4,fd00:100::4 +Pod default/held-0 \(uid ${HELD0}\) +worker-1 +OwnerGone .*does not exist.*oakum: leaks were found`,
			},
			{
				oakum: true, args: []string{"explain", "10.100.0.4"},
				want: `Address: +10.100.0.4, fd00:100::4.*Owner: +Pod default/held-0 .*Seen: +no pod default/held-0\n.*node "worker-1" .*Ready True.*Verdict: +Orphan \(OwnerGone, E10\).*Then: +released after two sightings.*`,
			},
			{
				why:  "the audit has seen it, too, looks again after the grace, and gives it back",
				args: []string{"get", "events.events.k8s.io", "-A", "-o", `jsonpath={.items[?(@.reason=="IPAddressGarbageCollected")].note}`},
				want: `.*gave back 10.100.0.4,fd00:100::4 \(native, handle ${HELD0}-eth0\): Pod default/held-0 .* does not exist.*`, within: 20 * time.Second,
			},
			{args: []string{"get", "leakreport", "native"}, want: `NAME +MODE +ALLOCATIONS .*native +Enforce .*`},
		}},
	}
}

// soon is how long a reconciler may take on a busy machine.
const soon = 5 * time.Second

// What a kubelet and a node controller report.
const (
	ready   = `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`
	silent  = `{"status":{"conditions":[{"type":"Ready","status":"Unknown"}]}}`
	running = `{"status":{"phase":"Running","conditions":[{"type":"PodReadyToStartContainers","status":"True"}],` +
		`"containerStatuses":[{"name":"main","image":"app","imageID":"","ready":true,"restartCount":0,"state":{"running":{}}}]}}`
	ended = `{"status":{"phase":"Succeeded","conditions":[{"type":"PodReadyToStartContainers","status":"False"}],` +
		`"containerStatuses":[{"name":"main","image":"app","imageID":"","ready":false,"restartCount":0,"state":{"terminated":{"exitCode":0}}}]}}`
)

func create() []string { return []string{"create", "-f", "-"} }

func created(what, manifest string) call {
	return call{args: create(), in: manifest, want: what + " created"}
}

func refused(why string, args []string, want string) call {
	return call{why: why, args: args, want: want, refused: true}
}

func report(kind, name, status string) call {
	return call{args: []string{"patch", kind, name, "--subresource=status", "-p", status}, want: kind + "/" + name + " patched"}
}

func get(kind, name, path string) []string {
	return []string{"get", kind, name, "-o", "jsonpath=" + path}
}

func uid(pod, keep string) call {
	return call{args: get("pod", pod, "{.metadata.uid}"), want: ".+", keep: keep}
}

// take puts the first allocation into a block, add one more.
func take(block, entry string) call {
	return call{
		args: []string{"patch", "addressblock", block, "--type=json", "-p", `[{"op":"add","path":"/spec/allocations","value":[` + entry + `]}]`},
		want: ".*" + block + " patched",
	}
}

func add(block, entry string) []string {
	return []string{"patch", "addressblock", block, "--type=json", "-p", `[{"op":"add","path":"/spec/allocations/-","value":` + entry + `}]`}
}

func give(block string, i int) call {
	return call{
		args: []string{"patch", "addressblock", block, "--type=json", "-p", fmt.Sprintf(`[{"op":"remove","path":"/spec/allocations/%d"}]`, i)},
		want: ".*" + block + " patched",
	}
}

func strip(more ...string) []string {
	return append([]string{"patch", "pod", "held-0", "--type=json", "-p", `[{"op":"remove","path":"/metadata/finalizers"}]`}, more...)
}

func node(name string) string {
	return `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "` + name + `"}}`
}

func pod(name, node string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 3
  containers: [{name: main, image: app}]`, name, node)
}

func pool(name, spec string) string {
	return "\napiVersion: ipam.oakum.dev/v1alpha1\nkind: AddressPool\nmetadata: {name: " + name + "}\nspec:" + spec
}

func block(pool string, index int, node string) string {
	return fmt.Sprintf(`
apiVersion: ipam.oakum.dev/v1alpha1
kind: AddressBlock
metadata: {name: %s-%d}
spec: {pool: %s, index: %d, node: %s}`, pool, index, pool, index, node)
}

func entry(offset int, name, uid, node string) string {
	return fmt.Sprintf(`{"offset":%d,"handle":"%s-eth0","attributes":{"type":"Pod","namespace":"default","name":"%s","uid":"%s","node":"%s"}}`,
		offset, uid, name, uid, node)
}

func external(offset int) string {
	return fmt.Sprintf(`{"offset":%d,"handle":"router-%d","attributes":{"type":"External","name":"router"}}`, offset, offset)
}
