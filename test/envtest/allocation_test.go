package envtest

import (
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

func TestAllocationOwner(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "owner")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.100.0.0/24", "")))
	node, other := s.node(s.name), s.node(s.name+"-other")
	b := s.block(fixture.Reservations(0, 0))
	elsewhere := fixture.Block(s.name, 1, other.Name, fixture.Reservations(0, 0))
	s.create(elsewhere)

	web := s.pod(s.name, node.Name)
	pending := fixture.Pod(s.name+"-pending", "")
	s.create(pending)
	finished := s.pod(s.name+"-finished", node.Name, fixture.Ended)
	host := s.pod(s.name+"-host", node.Name, fixture.HostNetwork)
	ending := s.pod(s.name+"-ending", node.Name)
	s.wants(answer{}, s.client.Delete(t.Context(), ending))
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: s.name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}
	s.create(service)
	ofService := v1alpha1.Attributes{Type: v1alpha1.OwnerService, Namespace: "default", Name: s.name, UID: service.UID}
	const stranger = types.UID("6f0c11d2-0000-4000-8000-000000000000")

	for name, tt := range map[string]struct {
		attributes v1alpha1.Attributes
		change     func(*v1alpha1.Attributes)
		block      *v1alpha1.AddressBlock
		field      string
		// wrong is the message if the value can never be right, untimely if it is right at another time.
		wrong, untimely string
	}{
		"a pod that does not exist": {
			attributes: fixture.OfPod(web), change: func(a *v1alpha1.Attributes) { a.Name += "-9" },
			field: "name", wrong: `Invalid value: "NAME-9": Pod default/NAME-9 does not exist`,
		},
		"a pod that only bears the name": {
			attributes: fixture.OfPod(web), change: func(a *v1alpha1.Attributes) { a.UID = stranger },
			field: "uid", wrong: `Invalid value: "` + string(stranger) + `": Pod default/NAME has uid ` + string(web.UID) + `: a pod of the same name is another owner`,
		},
		"a pod of another node": {
			attributes: fixture.OfPod(web), change: func(a *v1alpha1.Attributes) { a.Node = other.Name }, block: elsewhere,
			field: "node", wrong: `Invalid value: "NAME-other": Pod default/NAME runs on node "NAME": take an address from a block of that node`,
		},
		"a pod whose record names another node than the block's": {
			attributes: fixture.OfPod(web), block: elsewhere,
			field: "node", wrong: `Invalid value: "NAME": must be the block's spec.node (NAME-other)`,
		},
		"a pod without a network of its own": {
			attributes: fixture.OfPod(host),
			field:      "name", wrong: `Invalid value: "NAME-host": Pod default/NAME-host shares its node's network and has no address of its own`,
		},
		"a pod that no node has": {
			attributes: fixture.OfPod(pending), change: func(a *v1alpha1.Attributes) { a.Node = node.Name },
			field: "node", untimely: `Pod default/NAME-pending is not scheduled yet`,
		},
		"a pod that is finished": {
			attributes: fixture.OfPod(finished),
			field:      "name", untimely: `Pod default/NAME-finished is finished (Succeeded)`,
		},
		"a pod that is being deleted": {
			attributes: fixture.OfPod(ending),
			field:      "name", untimely: `Pod default/NAME-ending is being deleted`,
		},
		"a node that only bears the name": {
			attributes: fixture.OfNode(node), change: func(a *v1alpha1.Attributes) { a.UID = stranger },
			field: "uid", wrong: `Invalid value: "` + string(stranger) + `": Node NAME has uid ` + string(node.UID) + `: a node of the same name is another owner`,
		},
		"a node that is not the block's": {
			attributes: fixture.OfNode(node), change: func(a *v1alpha1.Attributes) { a.Node = other.Name }, block: elsewhere,
			field: "name", wrong: `Invalid value: "NAME": must be the block's spec.node (NAME-other)`,
		},
		"a service that does not exist": {
			attributes: ofService, change: func(a *v1alpha1.Attributes) { a.Name += "-9" },
			field: "name", wrong: `Invalid value: "NAME-9": Service default/NAME-9 does not exist`,
		},
		"a service that only bears the name": {
			attributes: ofService, change: func(a *v1alpha1.Attributes) { a.UID = stranger },
			field: "uid", wrong: `Invalid value: "` + string(stranger) + `": Service default/NAME has uid ` + string(service.UID) + `: an object of the same name is another owner`,
		},
		"a virtual machine where there is no such kind": {
			attributes: v1alpha1.Attributes{Type: v1alpha1.OwnerVirtualMachine, Namespace: "default", Name: s.name, UID: stranger},
			field:      "name", wrong: `Invalid value: "NAME": VirtualMachine default/NAME does not exist`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.change != nil {
				tt.change(&tt.attributes)
			}
			if tt.block == nil {
				tt.block = b
			}
			field := "spec.allocations[1].attributes." + tt.field
			want := answer{
				Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
				Message: invalidTake + `"` + tt.block.Name + `" is invalid: ` + field + `: ` + tt.wrong,
				Causes:  []metav1.StatusCause{wrong(field, tt.wrong)},
			}
			if tt.untimely != "" {
				want = answer{
					Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
					Message: noTake + `"` + tt.block.Name + `" is forbidden: ` + field + `: ` + tt.untimely,
				}
			}
			s := s.in(t)
			s.wants(want, s.take(tt.block, fixture.Entry(1, "h", tt.attributes)))
		})
	}

	s.wants(answer{}, s.take(b,
		fixture.Entry(1, "pod", fixture.OfPod(web)), fixture.Entry(2, "node", fixture.OfNode(node)), fixture.Entry(3, "service", ofService)))
}

func TestAllocationForANodeThatIsGoing(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "going")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.100.0.0/24", "")))
	node := s.node(s.name, func(n *corev1.Node) { n.Finalizers = []string{"example.org/wait"} })
	b := s.block(fixture.Reservations(0, 0))
	s.wants(answer{}, s.client.Delete(t.Context(), node))
	s.soon(answer{
		Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
		Message: noTake + `"NAME-0" is forbidden: spec.allocations[1].attributes.name: Node NAME is being deleted`,
	}, func() error { return s.dry().take(b, fixture.Entry(1, "h", fixture.OfNode(node))) })
}

func TestAllocationConflict(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "conflict")
	s.create(
		fixture.Pool(s.name, fixture.Subnet("10.100.0.0/24", "fd00:100::/120"), fixture.Reserved("fd00:100::1")),
		fixture.Pool(s.name+"-b", fixture.Network(s.name), fixture.Subnet("10.101.0.0/24", "")),
		fixture.Pool(s.name+"-c", fixture.Subnet("10.100.0.0/24", "")),
	)
	s.node(s.name)
	b := s.block(fixture.Entry(0, "mine", fixture.External("router")))
	same, elsewhere := fixture.Block(s.name+"-b", 0, s.name), fixture.Block(s.name+"-c", 0, s.name)
	s.create(same, elsewhere)

	s.wants(answer{
		Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: invalidTake + `"NAME-0" is invalid: [` +
			`spec.allocations[1].offset: Invalid value: "4": must be 0 to 3: blocks of AddressPool "NAME" have 2^2 addresses, ` +
			`spec.allocations[2].offset: Invalid value: "1": 10.100.0.1, fd00:100::1 is reserved by AddressPool "NAME": take another offset]`,
		Causes: []metav1.StatusCause{
			wrong("spec.allocations[1].offset", `Invalid value: "4": must be 0 to 3: blocks of AddressPool "NAME" have 2^2 addresses`),
			wrong("spec.allocations[2].offset", `Invalid value: "1": 10.100.0.1, fd00:100::1 is reserved by AddressPool "NAME": take another offset`),
		},
	}, s.take(b, fixture.Reservations(4, 4), fixture.Reservations(1, 1)))

	// A handle is one owner's in its network, and may be had again by the same owner or elsewhere.
	handle := fixture.Entry(0, "mine", fixture.External("switch"))
	s.soon(answer{
		Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
		Message: noTake + `"NAME-b-0" is forbidden: spec.allocations[0].handle: belongs to External router in AddressBlock "NAME-0": ` +
			`use a handle of its own for each hand-out`,
	}, func() error { return s.dry().take(same, handle) })
	s.wants(answer{}, s.take(same, fixture.Entry(0, "mine", fixture.External("router"))))
	s.wants(answer{}, s.take(elsewhere, handle))
}

func TestNewBlockIsJudgedWithItsAllocations(t *testing.T) {
	t.Parallel()
	s := shared.scene(t, "born")
	s.create(fixture.Pool(s.name, fixture.Subnet("10.100.0.0/24", "")))
	node := s.node(s.name)
	gone := v1alpha1.Attributes{Type: v1alpha1.OwnerPod, Namespace: "default", Name: s.name, UID: "6f0c", Node: node.Name}
	s.wants(answer{
		Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: invalidNew + `"NAME-0" is invalid: spec.allocations[0].attributes.name: Invalid value: "NAME": Pod default/NAME does not exist`,
		Causes:  []metav1.StatusCause{wrong("spec.allocations[0].attributes.name", `Invalid value: "NAME": Pod default/NAME does not exist`)},
	}, s.client.Create(t.Context(), fixture.Block(s.name, 0, s.name, fixture.Entry(0, "h", gone))))

	// The refusal has not spent the node's claim.
	pod := s.pod(s.name, node.Name)
	s.wants(answer{}, s.client.Create(t.Context(), fixture.Block(s.name, 1, s.name, fixture.Entry(0, "h", fixture.OfPod(pod)))))
	s.held(pod)
}
