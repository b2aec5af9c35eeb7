package calico

import (
	"strings"

	"github.com/oakum-dev/oakum/ipam"
)

// What attributes are called.
const (
	attrPod       = "pod"
	attrNamespace = "namespace"
	attrNode      = "node"
	attrType      = "type"
	attrService   = "service"
	attrVMI       = "vmi-name"
	attrVM        = "vm-uid"
)

// ofMachine separates the network from the virtual machine in a handle.
const ofMachine = ".vmi."

// Windows is the name of the owner of what Windows keeps for itself in each block of one of its nodes.
const Windows = "Windows"

func isWindows(handle string) bool { return strings.EqualFold(handle, "windows-reserved-ipam-handle") }

// handle returns the handle without what follows a carriage return, which a migration from host-local wrote there.
func (a Attribute) handle() string {
	handle, _, _ := strings.Cut(a.HandleID, "\r")
	return handle
}

// empty tells whether nothing at all says whose an address with this attribute is.
func (a Attribute) empty() bool {
	return a.handle() == "" && len(a.Secondary) == 0 && len(a.AlternateOwnerAttrs) == 0
}

// owner returns whose an address with this attribute is, and whether that names its addresses itself; the zero Owner if
// neither handle nor attributes tell, or if they contradict each other.
func (a Attribute) owner() (owner ipam.Owner, named bool) {
	handle := a.handle()
	if isWindows(handle) {
		return ipam.Owner{Kind: ipam.OwnerExternal, Name: Windows}, false
	}
	if o := a.vm(handle); o != (ipam.Owner{}) {
		return o, false
	}
	if node, ok := a.tunnel(handle); ok {
		if node == "" {
			return ipam.Owner{}, false
		}
		return ipam.Owner{Kind: ipam.OwnerNode, Name: node, Node: node}, true
	}
	if service, namespace := a.Secondary[attrService], a.Secondary[attrNamespace]; service != "" && namespace != "" {
		return ipam.Owner{Kind: ipam.OwnerService, Namespace: namespace, Name: service}, false
	}
	return a.pod(handle), false
}

// vm returns the virtual machine that has the address; the zero Owner if none does. During a migration the handle alone
// tells.
func (a Attribute) vm(handle string) ipam.Owner {
	if name, namespace := a.Secondary[attrVMI], a.Secondary[attrNamespace]; name != "" && namespace != "" {
		return ipam.Owner{Kind: ipam.OwnerVirtualMachine, Namespace: namespace, Name: name, UID: a.Secondary[attrVM]}
	}
	_, machine, ok := strings.Cut(handle, ofMachine)
	namespace, name, whole := strings.Cut(machine, ".")
	if !ok || !whole || namespace == "" || name == "" || a.Secondary[attrPod] != "" && handle == a.Secondary[attrNamespace]+"."+a.Secondary[attrPod] {
		return ipam.Owner{}
	}
	return ipam.Owner{Kind: ipam.OwnerVirtualMachine, Namespace: namespace, Name: name}
}

// tunnel tells whether the address is a node's tunnel's, and which node's; that is empty if handle and attributes
// contradict each other.
func (a Attribute) tunnel(handle string) (node string, ok bool) {
	if a.Secondary[attrPod] != "" {
		return "", false
	}
	byType, typed := tunnelOf(func(t tunnel) bool { return string(t.kind) == a.Secondary[attrType] })
	byName, bears := tunnelOf(func(t tunnel) bool { return strings.HasPrefix(handle, t.handle) })
	switch {
	case !typed && !bears:
		return "", false
	case !bears && handle != "", typed && bears && byType != byName:
		return "", true
	case !bears:
		return a.Secondary[attrNode], true
	}
	node = strings.TrimPrefix(handle, byName.handle)
	if told := a.Secondary[attrNode]; told != "" && told != node {
		return "", true
	}
	return node, true
}

// pod returns the pod that has the address; the zero Owner if none is told.
func (a Attribute) pod(handle string) ipam.Owner {
	o := ipam.Owner{Kind: ipam.OwnerPod, Namespace: a.Secondary[attrNamespace], Name: a.Secondary[attrPod], Node: a.Secondary[attrNode]}
	sandbox := handle[strings.LastIndexByte(handle, '.')+1:]
	switch {
	case o.Name != "" && o.Namespace != "":
		if handle != o.Namespace+"."+o.Name && sandbox != handle && isHex(sandbox) {
			o.ContainerID = sandbox
		}
		return o
	case len(a.Secondary) > 0, len(sandbox) >= 8 && isHex(sandbox), strings.Contains(handle, ofMachine):
		return ipam.Owner{}
	}
	// Before there were attributes, the handle was the pod's namespace and name.
	o.Namespace, o.Name, _ = strings.Cut(handle, ".")
	if o.Namespace == "" || o.Name == "" {
		return ipam.Owner{}
	}
	return o
}

func isHex(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune("0123456789abcdef", r) })
}

// common returns whose a hand-out is of which two places name an owner. What they do not agree on counts as not told, but
// for the name of a pod: a handle names one sandbox, and so one pod.
func common(a, b ipam.Owner) ipam.Owner {
	switch {
	case a == b:
		return a
	case a.Kind != b.Kind, a.Kind != ipam.OwnerPod && key(a) != key(b):
		return ipam.Owner{}
	}
	if a.Node != b.Node {
		a.Node = ""
	}
	if a.UID != b.UID {
		a.UID = ""
	}
	return a
}
