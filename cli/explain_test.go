package cli

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

func TestExplain(t *testing.T) {
	const gone = `
Address:   10.0.0.1, fd00::1
Handle:    gone-eth0
Record:    native backend, pool default, block default-0, offset 1, revision 999
Owner:     Pod default/gone (uid uid-gone)
Node:      n1
Seen:      no pod default/gone
Seen:      node "n1" (uid ), Ready True
Verdict:   Orphan (OwnerGone, E10): Pod default/gone (uid uid-gone) does not exist
Then:      released after two sightings a grace apart (audit.gracePeriod, 5m by default)
`
	const live = `
Address:   10.0.0.0, fd00::
Handle:    live-eth0
Record:    native backend, pool default, block default-0, offset 0, revision 999
Owner:     Pod default/live (uid uid-live)
Node:      n1
Seen:      pod default/live (uid uid-live) is Running, on node "n1", PodReadyToStartContainers True
Seen:      10.0.0.0 is named by Pod default/live (uid uid-live)
Seen:      fd00:: is named by Pod default/live (uid uid-live)
Seen:      node "n1" (uid ), Ready True
Verdict:   Keep (InUse, E11): Pod default/live (uid uid-live) is alive
Then:      stays allocated
`
	tests := map[string]struct {
		subject string
		objects []client.Object
		forbid  client.ObjectList
		code    int
		stdout  string
		stderr  string
	}{
		"an address":                       {subject: "10.0.0.1", stdout: gone},
		"the IPv6 address of a pair":       {subject: "fd00::1", stdout: gone},
		"an IPv6 address in its long form": {subject: "FD00:0::0001", stdout: gone},
		"an IPv4 address in an IPv6 one":   {subject: "::ffff:10.0.0.1", stdout: gone},
		"a handle":                         {subject: "gone-eth0", stdout: gone},
		"a pod that is gone":               {subject: "default/gone", stdout: gone},
		"a pod that lives":                 {subject: "default/live", stdout: live},
		"a reservation by hand, without a row": {subject: "router", stdout: `
Address:   10.0.0.2, fd00::2
Handle:    router
Record:    native backend, pool default, block default-0, offset 2, revision 999
Owner:     External border router
Verdict:   Keep (Reserved): reserved by hand for "border router"
Then:      stays allocated
`},
		"an owner whose node is gone": {subject: "lost-eth0", stdout: `
Address:   10.0.0.5, fd00::5
Handle:    lost-eth0
Record:    native backend, pool default, block default-1, offset 1, revision 999
Owner:     Pod default/lost (uid uid-lost)
Node:      n2
Seen:      no pod default/lost
Seen:      no node "n2"
Verdict:   Quarantine (NodeGone, E6): node "n2" is gone, and nobody says that the machine is off
Then:      released after two sightings a quarantine apart (audit.quarantine, 15m by default)
`},
		"an owner whose node is silent": {subject: "default/silent", stdout: `
Address:   10.0.0.8, fd00::8
Handle:    silent-eth0
Record:    native backend, pool default, block default-2, offset 0, revision 999
Owner:     Pod default/silent (uid uid-silent)
Node:      n3
Seen:      no pod default/silent
Seen:      node "n3" (uid ), Ready Unknown
Verdict:   Keep (NodeNotReady, E10b): Pod default/silent (uid uid-silent) does not exist, and node "n3" is not ready: the sandbox may still run
Then:      stays allocated
`},
		"an owner who runs on another node than recorded": {
			subject: "10.0.0.1",
			objects: []client.Object{
				fixture.Pool("default", fixture.Subnet("10.0.0.0/30", "")), fixture.Node("n1"), fixture.Node("n2"),
				fixture.Pod("gone", "n2", fixture.UID("uid-gone"), fixture.Running("10.0.0.1")),
				block(0, "n1", "10.0.0.0/30", "", fixture.Entry(1, "gone-eth0", ofPod("gone", "n1"))),
			},
			stdout: `
Address:   10.0.0.1
Handle:    gone-eth0
Record:    native backend, pool default, block default-0, offset 1, revision 999
Owner:     Pod default/gone (uid uid-gone)
Node:      n1
Seen:      pod default/gone (uid uid-gone) is Running, on node "n2", PodReadyToStartContainers True
Seen:      10.0.0.1 is named by Pod default/gone (uid uid-gone)
Seen:      node "n1" (uid ), Ready True
Verdict:   Keep (InUse, E11): Pod default/gone (uid uid-gone) is alive
Drift:     the address is used by another owner, or on another node, than the record says
Then:      stays allocated
`,
		},
		"two hand-outs of one pod": {
			subject: "default/gone",
			objects: append(leaky(), block(1, "n1", "10.0.0.4/30", "", fixture.Entry(0, "gone-eth1", ofPod("gone", "n1")))),
			stdout: `
Address:   10.0.0.1
Handle:    gone-eth0
Record:    native backend, pool default, block default-0, offset 1, revision 999
Owner:     Pod default/gone (uid uid-gone)
Node:      n1
Seen:      no pod default/gone
Seen:      node "n1" (uid ), Ready True
Verdict:   Orphan (OwnerGone, E10): Pod default/gone (uid uid-gone) does not exist
Then:      released after two sightings a grace apart (audit.gracePeriod, 5m by default)

Address:   10.0.0.4
Handle:    gone-eth1
Record:    native backend, pool default, block default-1, offset 0, revision 999
Owner:     Pod default/gone (uid uid-gone)
Node:      n1
Seen:      no pod default/gone
Seen:      node "n1" (uid ), Ready True
Verdict:   Orphan (OwnerGone, E10): Pod default/gone (uid uid-gone) does not exist
Then:      released after two sightings a grace apart (audit.gracePeriod, 5m by default)
`,
		},
		"an address that is reserved, in a block": {subject: "10.0.0.4", stdout: `
10.0.0.4 belongs to pool default and is not allocated.
The pool reserves it, so it is never handed out.
It lies in block default-1 of node n2.
`},
		"an address that is free, in a block":  {subject: "fd00::3", stdout: "\nfd00::3 belongs to pool default and is not allocated.\nIt lies in block default-0 of node n1.\n"},
		"an address that is free, in no block": {subject: "10.0.0.15", stdout: "\n10.0.0.15 belongs to pool default and is not allocated.\n"},
		"an address that two networks have": {
			subject: "10.0.0.2",
			objects: []client.Object{
				fixture.Pool("default", fixture.Subnet("10.0.0.0/30", "")), fixture.Pool("other", fixture.Subnet("10.0.0.0/30", "")),
				block(0, "n1", "10.0.0.0/30", ""),
			},
			stdout: `
10.0.0.2 belongs to pool default and is not allocated.
It lies in block default-0 of node n1.
10.0.0.2 belongs to pool other and is not allocated.
`,
		},
		"an address of no pool": {subject: "10.9.9.9", code: 1, stderr: "oakum: 10.9.9.9 belongs to no pool\n"},
		"nothing that is known": {
			subject: "nobody", code: 1,
			stderr: "oakum: nothing is recorded for \"nobody\": give an address, a handle, or a pod as NAMESPACE/NAME\n",
		},
		"a pod, for who may not list pods": {
			subject: "default/silent", forbid: &corev1.PodList{}, code: 2,
			stdout: `
Address:   10.0.0.8, fd00::8
Handle:    silent-eth0
Record:    native backend, pool default, block default-2, offset 0, revision 999
Owner:     Pod default/silent (uid uid-silent)
Node:      n3
Seen:      pods were not read
Seen:      node "n3" (uid ), Ready Unknown
Verdict:   Keep (OwnerUnknown): nobody here can tell about Pod default/silent (uid uid-silent)
Then:      stays allocated
`,
			stderr: "oakum: not everything could be read: pods: PodList is forbidden: you may not\n",
		},
		"an address, for who may not list blocks": {
			subject: "10.0.0.1", forbid: &v1alpha1.AddressBlockList{}, code: 2,
			stderr: "oakum: not everything could be read: blocks: listing AddressBlocks: AddressBlockList.ipam.oakum.dev is forbidden: you may not\n",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			funcs := interceptor.Funcs{}
			if tt.forbid != nil {
				funcs = forbid(tt.forbid)
			}
			if tt.objects == nil {
				tt.objects = town()
			}
			want := answer{tt.code, strings.TrimPrefix(tt.stdout, "\n"), tt.stderr}
			if diff := cmp.Diff(want, command(t, serve(t, funcs, tt.objects...), newExplain, tt.subject)); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}
}
