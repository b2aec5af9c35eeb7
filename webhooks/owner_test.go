package webhooks

import (
	"errors"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

func deleted(p *corev1.Pod) {
	p.DeletionTimestamp = terminating()
	p.Finalizers = append(p.Finalizers, "example.org/guard")
}

func alreadyHeld(p *corev1.Pod) { p.Finalizers = append(p.Finalizers, v1alpha1.AddressesFinalizer) }

func mirror(p *corev1.Pod) {
	metav1.SetMetaDataAnnotation(&p.ObjectMeta, corev1.MirrorPodAnnotationKey, "hash")
}

// holds is the write that puts the finalizer on a pod.
func holds(uid string) string {
	return `patch Pod {"metadata":{"finalizers":["ipam.oakum.dev/addresses"],"uid":"` + uid + `"}}`
}

// takes is an entry for whoever has these attributes.
func takes(attributes v1alpha1.Attributes) *v1alpha1.AddressBlock {
	return block(0, "n1", "b0", fixture.Entry(1, "h1", attributes))
}

// problem is a refusal for one wrong value of the first entry.
func problem(path, why string) answer {
	path = "spec.allocations[0]." + path
	return invalid(path+": "+why, path+", FieldValueInvalid: "+why)
}

// untimely is a refusal for one value of the first entry that is right, but not now.
func untimely(path, why string) answer { return forbidden("spec.allocations[0]." + path + ": " + why) }

func TestOwners(t *testing.T) {
	web, running := pod("web-0", "n1", "u1"), fixture.Running("10.0.0.1")
	held := []string{holds("u1")}
	ofService := v1alpha1.Attributes{Type: v1alpha1.OwnerService, Namespace: "default", Name: "web", UID: "s1"}
	ofMachine := v1alpha1.Attributes{Type: v1alpha1.OwnerVirtualMachine, Namespace: "default", Name: "db", UID: "v1"}
	service := func(uid types.UID) known {
		return live(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: uid}})
	}
	going := node("n1-uid")
	going.DeletionTimestamp, going.Finalizers = terminating(), []string{"example.org/guard"}
	tests := map[string]struct {
		objects []known
		of      v1alpha1.Attributes
		want    answer
		writes  []string
	}{
		"a pod that runs":                      {[]known{both(pod("web-0", "n1", "u1", running))}, fixture.OfPod(web), admitted(), held},
		"a pod that the cache does not know":   {[]known{live(web)}, fixture.OfPod(web), admitted(), held},
		"a pod that has been scheduled since":  {[]known{cached(pod("web-0", "", "u1")), live(web)}, fixture.OfPod(web), admitted(), held},
		"a pod that has been recreated since":  {[]known{cached(pod("web-0", "n1", "u0")), live(web)}, fixture.OfPod(web), admitted(), held},
		"a pod that waits for its address":     {[]known{both(pod("web-0", "n1", "u1", alreadyHeld))}, fixture.OfPod(web), admitted(), held},
		"a pod of an excluded namespace":       {[]known{both(pod("kube-system/dns", "n1", "u1"))}, fixture.OfPod(pod("kube-system/dns", "n1", "u1")), admitted(), nil},
		"a pod that is not there":              {nil, fixture.OfPod(web), problem("attributes.name", `Invalid value: "web-0": Pod default/web-0 does not exist`), nil},
		"a pod that the cache knows too long":  {[]known{cached(pod("web-0", "n1", "u1", deleted))}, fixture.OfPod(web), problem("attributes.name", `Invalid value: "web-0": Pod default/web-0 does not exist`), nil},
		"another pod of that name":             {[]known{both(pod("web-0", "n1", "u2"))}, fixture.OfPod(web), problem("attributes.uid", `Invalid value: "u1": Pod default/web-0 has uid u2: a pod of the same name is another owner`), nil},
		"a pod of another node":                {[]known{both(pod("web-0", "n2", "u1"))}, fixture.OfPod(web), problem("attributes.node", `Invalid value: "n1": Pod default/web-0 runs on node "n2": take an address from a block of that node`), nil},
		"a pod in its node's network":          {[]known{both(pod("web-0", "n1", "u1", fixture.HostNetwork))}, fixture.OfPod(web), problem("attributes.name", `Invalid value: "web-0": Pod default/web-0 shares its node's network and has no address of its own`), nil},
		"a mirror pod":                         {[]known{both(pod("web-0", "n1", "u1", mirror))}, fixture.OfPod(web), problem("attributes.name", `Invalid value: "web-0": Pod default/web-0 shares its node's network and has no address of its own`), nil},
		"a pod that is being deleted":          {[]known{both(pod("web-0", "n1", "u1", deleted))}, fixture.OfPod(web), untimely("attributes.name", "Pod default/web-0 is being deleted"), nil},
		"a pod that has ended":                 {[]known{both(pod("web-0", "n1", "u1", fixture.Ended))}, fixture.OfPod(web), untimely("attributes.name", "Pod default/web-0 is finished (Succeeded)"), nil},
		"a pod that is not scheduled":          {[]known{both(pod("web-0", "", "u1"))}, fixture.OfPod(web), untimely("attributes.node", "Pod default/web-0 is not scheduled yet"), nil},
		"a node":                               {nil, fixture.OfNode(node("n1-uid")), admitted(), nil},
		"a node that has been recreated since": {[]known{live(node("n1-new")), cached(node("n1-uid"))}, fixture.OfNode(node("n1-new")), admitted(), nil},
		"another node of that name":            {nil, fixture.OfNode(node("n1-old")), problem("attributes.uid", `Invalid value: "n1-old": Node n1 has uid n1-uid: a node of the same name is another owner`), nil},
		"a node that is being deleted":         {[]known{both(going)}, fixture.OfNode(node("n1-uid")), untimely("attributes.name", "Node n1 is being deleted"), nil},
		"a service":                            {[]known{service("s1")}, ofService, admitted(), nil},
		"another service of that name":         {[]known{service("s2")}, ofService, problem("attributes.uid", `Invalid value: "s1": Service default/web has uid s2: an object of the same name is another owner`), nil},
		"a service that is not there":          {nil, ofService, problem("attributes.name", `Invalid value: "web": Service default/web does not exist`), nil},
		"a virtual machine that is not there":  {nil, ofMachine, problem("attributes.name", `Invalid value: "db": VirtualMachine default/db does not exist`), nil},
		"whoever reserves an address by hand":  {nil, fixture.External("router"), admitted(), nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			objects := append([]known{both(pool())}, tt.objects...)
			if !hasNode(tt.objects) {
				objects = append(objects, both(node("n1-uid")))
			}
			d := newDoor(t, enforce(), objects...)
			r := request(t, admissionv1.Update, block(0, "n1", "b0"), takes(tt.of), true)
			expect(t, "answer to a dry run", tt.want, d.judge(t, ValidateBlockPath, r))
			expect(t, "writes of a dry run", nil, d.writes)
			*r.DryRun = false
			expect(t, "answer", tt.want, d.judge(t, ValidateBlockPath, r))
			expect(t, "writes", tt.writes, d.writes)
			if len(tt.writes) > 0 {
				expect(t, "finalizers", []string{v1alpha1.AddressesFinalizer}, d.finalizers(t, "web-0"))
			}
		})
	}
}

func hasNode(objects []known) bool {
	for _, o := range objects {
		if _, ok := o.Object.(*corev1.Node); ok {
			return true
		}
	}
	return false
}

// finalizers returns those of a pod that must be there.
func (d *door) finalizers(t *testing.T, name string) []string {
	var p corev1.Pod
	check(t, d.api.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: name}, &p))
	return p.Finalizers
}

// The cache says that pod web-0 (uid u1) is alive. What the API server makes of the patch decides.
func TestHoldingAPod(t *testing.T) {
	resource := schema.GroupResource{Resource: "pods"}
	refused := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "web-0", field.ErrorList{field.Forbidden(field.NewPath("metadata", "finalizers"), "no new finalizers can be added if the object is being deleted")})
	webhook := apierrors.NewForbidden(resource, "web-0", errors.New(`admission webhook "pods.example.org" denied the request: never`))
	const putting = "putting finalizer ipam.oakum.dev/addresses on pod default/web-0: "
	tests := map[string]struct {
		// live is the pod as it is; nil if it is gone.
		live *corev1.Pod
		// patched is the API server's answer to the patch; what the fake one says if it is nil.
		patched error
		want    answer
	}{
		"it is alive": {pod("web-0", "n1", "u1"), nil, admitted()},
		"it is gone (404)": {
			nil, nil, problem("attributes.name", `Invalid value: "web-0": Pod default/web-0 does not exist`),
		},
		"it is being deleted, and gets no finalizer (422)": {
			pod("web-0", "n1", "u1", deleted), refused, untimely("attributes.name", "Pod default/web-0 is being deleted"),
		},
		"it is being deleted, and has the finalizer already": {
			pod("web-0", "n1", "u1", deleted, alreadyHeld), nil, untimely("attributes.name", "Pod default/web-0 is being deleted"),
		},
		"it has ended, and has the finalizer already": {
			pod("web-0", "n1", "u1", alreadyHeld, fixture.Ended), nil, untimely("attributes.name", "Pod default/web-0 is finished (Succeeded)"),
		},
		"it is another one (422)": {
			pod("web-0", "n1", "u2"), refused, problem("attributes.uid", `Invalid value: "u1": Pod default/web-0 has uid u2: a pod of the same name is another owner`),
		},
		"it runs elsewhere": {
			pod("web-0", "n2", "u1"), nil, problem("attributes.node", `Invalid value: "n1": Pod default/web-0 runs on node "n2": take an address from a block of that node`),
		},
		"nothing is wrong with it, yet the patch is (422)": {pod("web-0", "n1", "u1"), refused, unjudged(putting + refused.Error())},
		"nothing is wrong with it, yet it is not found (404)": {
			pod("web-0", "n1", "u1"), apierrors.NewNotFound(resource, "web-0"), unjudged(putting + `pods "web-0" not found`),
		},
		"another webhook refuses the patch (403)": {pod("web-0", "n1", "u1"), webhook, unjudged(putting + webhook.Error())},
		"others write it all the time (409)": {
			pod("web-0", "n1", "u1"), apierrors.NewConflict(resource, "web-0", errors.New("again")),
			unjudged(putting + `Operation cannot be fulfilled on pods "web-0": again`),
		},
		"the API server does not answer": {pod("web-0", "n1", "u1"), broken(), unjudged(putting + "the API server is on fire")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			objects := []known{both(pool()), both(node("n1-uid")), cached(pod("web-0", "n1", "u1"))}
			if tt.live != nil {
				objects = append(objects, live(tt.live))
			}
			d := newDoor(t, enforce(), objects...)
			d.before["patch Pod"] = func() error { return tt.patched }
			r := request(t, admissionv1.Update, block(0, "n1", "b0"), takes(fixture.OfPod(pod("web-0", "n1", "u1"))), false)
			expect(t, "answer", tt.want, d.judge(t, ValidateBlockPath, r))
		})
	}
}

func TestAPodThatCannotBeLookedAtAfterwards(t *testing.T) {
	d := newDoor(t, enforce(), both(pool()), both(node("n1-uid")), cached(pod("web-0", "n1", "u1")))
	d.before["get Pod"] = broken
	r := request(t, admissionv1.Update, block(0, "n1", "b0"), takes(fixture.OfPod(pod("web-0", "n1", "u1"))), false)
	expect(t, "answer", unjudged("reading pod default/web-0: the API server is on fire"), d.judge(t, ValidateBlockPath, r))
}

func TestSeveralPodsInOneWrite(t *testing.T) {
	web, db := fixture.OfPod(pod("web-0", "n1", "u1")), fixture.OfPod(pod("db-0", "n1", "u2"))
	both := []known{both(pool()), both(node("n1-uid")), both(pod("web-0", "n1", "u1")), both(pod("db-0", "n1", "u2"))}
	tests := map[string]struct {
		objects []known
		entries []v1alpha1.Attributes
		want    answer
		writes  []string
	}{
		"each pod is held":                      {both, []v1alpha1.Attributes{web, db}, admitted(), []string{holds("u1"), holds("u2")}},
		"a pod with two addresses is held once": {both, []v1alpha1.Attributes{web, web}, admitted(), []string{holds("u1")}},
		"none is held if one is not there": {
			both[:3],
			[]v1alpha1.Attributes{web, db},
			invalid(`spec.allocations[1].attributes.name: Invalid value: "db-0": Pod default/db-0 does not exist`,
				`spec.allocations[1].attributes.name, FieldValueInvalid: Invalid value: "db-0": Pod default/db-0 does not exist`),
			nil,
		},
		"none is held if an address is not to be had": {
			both,
			[]v1alpha1.Attributes{web, db, web, web, web},
			invalid(`spec.allocations[4].offset: Invalid value: "4": must be 0 to 3: blocks of AddressPool "p" have 2^2 addresses`,
				`spec.allocations[4].offset, FieldValueInvalid: Invalid value: "4": must be 0 to 3: blocks of AddressPool "p" have 2^2 addresses`),
			nil,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := newDoor(t, enforce(), tt.objects...)
			b := block(0, "n1", "b0")
			for i, attributes := range tt.entries {
				fixture.Entry(int32(i), "h-"+attributes.Name, attributes)(b)
			}
			expect(t, "answer", tt.want, d.judge(t, ValidateBlockPath, request(t, admissionv1.Update, block(0, "n1", "b0"), b, false)))
			expect(t, "writes", tt.writes, d.writes)
		})
	}
}

func TestAPodIsHeldOnlyWherePodsAre(t *testing.T) {
	deny, off := map[string]config.Effect{}, map[string]config.Effect{"allocation-owner": config.EffectOff}
	tests := map[string]struct {
		settings config.Backend
		want     []string
	}{
		"Enforce":                            {config.Backend{Mode: config.ModeEnforce, PodFinalizers: true, Rules: deny}, []string{holds("u1")}},
		"Enforce that does not judge owners": {config.Backend{Mode: config.ModeEnforce, PodFinalizers: true, Rules: off}, []string{holds("u1")}},
		"Enforce without pod finalizers":     {config.Backend{Mode: config.ModeEnforce}, nil},
		"Warn":                               {config.Backend{Mode: config.ModeWarn, PodFinalizers: true}, nil},
		"Observe":                            {config.Backend{Mode: config.ModeObserve, PodFinalizers: true}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := newDoor(t, tt.settings, both(pool()), both(node("n1-uid")), both(pod("web-0", "n1", "u1")))
			r := request(t, admissionv1.Update, block(0, "n1", "b0"), takes(fixture.OfPod(pod("web-0", "n1", "u1"))), false)
			expect(t, "answer", admitted(), d.judge(t, ValidateBlockPath, r))
			expect(t, "writes", tt.want, d.writes)
		})
	}
}

func TestOwnersThatCannotBeRead(t *testing.T) {
	tests := map[string]struct {
		call string
		of   v1alpha1.Attributes
		want string
	}{
		"a pod":     {"get Pod", fixture.OfPod(pod("web-0", "n1", "u1")), "reading pod default/web-0: the API server is on fire"},
		"a node":    {"get Node", fixture.OfNode(node("n1-uid")), "reading node n1: the API server is on fire"},
		"a service": {"get PartialObjectMetadata", v1alpha1.Attributes{Type: v1alpha1.OwnerService, Namespace: "default", Name: "web", UID: "s1"}, "looking for Service default/web (uid s1): the API server is on fire"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := newDoor(t, enforce(), both(pool()))
			d.before[tt.call] = broken
			expect(t, "answer", unjudged(tt.want), d.judge(t, ValidateBlockPath, request(t, admissionv1.Update, block(0, "n1", "b0"), takes(tt.of), false)))
		})
	}
}
