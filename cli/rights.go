package cli

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
)

// Right is a rule of RBAC that the manager needs, in one namespace, or in the whole cluster where that is empty.
type Right struct {
	Namespace string
	rbacv1.PolicyRule
}

// Rights is all that the manager may do, and all that it needs, with these settings. What it needs while a mode is left, to take
// finalizers off, it needs in every mode.
func Rights(settings *config.Configuration) []Right {
	b, here := settings.Backends, settings.Namespace
	anything := on(b.Native) || on(b.Whereabouts.Backend) || on(b.Coil.Backend) || on(b.Calico.Backend)
	always := []Right{
		// What is listed here is watched, and carries finalizers. A foreign backend needs the witness too, and that a pod which
		// it holds is proven to have no address in our own kinds.
		right("", "pods,nodes", "get,list,watch,patch"),
		right(v1alpha1.Group, "addresspools,addressblocks", "get,list,watch,patch"),
		right(v1alpha1.Group, "addresspools/status,addressblocks/status", "patch"),
		right(v1alpha1.Group, "addresses", "release,release-unattended"), // Policies ask for it where a finalizer comes off.
		right("events.k8s.io", "events", "create,patch"),
		right("coordination.k8s.io", "leases", "get,list,watch,create,update,delete").in(here), // Claims to blocks.
	}
	return slices.Concat(
		always,
		when(anything, right(v1alpha1.Group, "leakreports", "get,create"), right(v1alpha1.Group, "leakreports/status", "patch")),
		when(on(b.Native) || on(b.Calico.Backend), right("", "services", "get"), right("kubevirt.io", "virtualmachines", "get")), // They own addresses.
		when(judged(b.Native), right("networking.k8s.io", "servicecidrs", "list"),
			right(v1alpha1.Group, "addressblocks", "create").named(checkName)), // No more than a dry run: see selfCheck.
		when(enforced(b.Native), right(v1alpha1.Group, "addressblocks", "delete")),
		whereaboutsRights(b.Whereabouts), coilRights(b.Coil), calicoRights(b.Calico),
		when(settings.Metrics.Secure && settings.Metrics.BindAddress != "0",
			right("authentication.k8s.io", "tokenreviews", "create"), right("authorization.k8s.io", "subjectaccessreviews", "create")),
		electionRights(settings), selfSignedRights(settings),
	)
}

func whereaboutsRights(w config.Whereabouts) []Right {
	const group = "whereabouts.cni.cncf.io"
	return slices.Concat(
		[]Right{right(group, "ippools", "get,list,watch,patch")}, // In every mode the patch takes the finalizer off.
		when(on(w.Backend),
			right(group, "overlappingrangeipreservations,nodeslicepools", "get,list,watch"),
			right("k8s.cni.cncf.io", "network-attachment-definitions", "get,list,watch")),
		when(enforced(w.Backend), right(group, "overlappingrangeipreservations", "delete")),
	)
}

func coilRights(c config.Coil) []Right {
	const group = "coil.cybozu.com"
	return slices.Concat(
		when(on(c.Backend), right(group, "addresspools,addressblocks,blockrequests", "get,list,watch")),
		when(enforced(c.Backend), right(group, "addressblocks", "patch,delete")),
		when(enforced(c.Backend) && c.RestartCoild, right("", "pods/eviction", "create")),
	)
}

func calicoRights(c config.Calico) []Right {
	const groups = "crd.projectcalico.org,projectcalico.org"
	return slices.Concat(
		when(on(c.Backend),
			right(groups, "ipamblocks,blockaffinities,ipamhandles,ippools,ipreservations", "get,list,watch"),
			right("crd.projectcalico.org", "ipamconfigs", "get"),
			right("projectcalico.org", "ipamconfigurations", "get")),
		when(enforced(c.Backend),
			right(groups, "ipamblocks,blockaffinities,ipamhandles", "patch,delete"),
			right(groups, "ipamhandles", "create")),
	)
}

// electionRights are those of who wants to lead, in the namespace of the leader's Lease, which may be another one.
func electionRights(settings *config.Configuration) []Right {
	namespace := settings.LeaderElection.Namespace
	if namespace == "" {
		namespace = settings.Namespace
	}
	return when(settings.LeaderElection.Enabled,
		right("coordination.k8s.io", "leases", "get,create,update").in(namespace),
		right("", "events", "create,patch").in(namespace))
}

func selfSignedRights(settings *config.Configuration) []Right {
	s := settings.Webhook.SelfSigned
	if s == nil {
		return nil
	}
	const group = "admissionregistration.k8s.io"
	mutating, validating := registrations()
	return []Right{
		right("", "secrets", "create").in(settings.Namespace), // RBAC cannot name what is created.
		right("", "secrets", "get,update").named(s.SecretName).in(settings.Namespace),
		right(group, "mutatingwebhookconfigurations", "get,patch").named(mutating...),
		right(group, "validatingwebhookconfigurations", "get,patch").named(validating...),
	}
}

// right makes a Right from lists with commas. The empty string is the group of core kinds.
func right(groups, resources, verbs string) Right {
	return Right{PolicyRule: rbacv1.PolicyRule{
		APIGroups: strings.Split(groups, ","), Resources: strings.Split(resources, ","), Verbs: strings.Split(verbs, ","),
	}}
}

// in returns the Right for one namespace.
func (r Right) in(namespace string) Right {
	r.Namespace = namespace
	return r
}

// named returns the Right for objects with these names alone.
func (r Right) named(names ...string) Right {
	r.ResourceNames = names
	return r
}

func when(needed bool, rights ...Right) []Right {
	if !needed {
		return nil
	}
	return rights
}

// on tells whether anything is done about a backend; judged, whether its writes are, and enforced, whether it is written.
func on(b config.Backend) bool       { return b.Mode != config.ModeOff }
func judged(b config.Backend) bool   { return b.Mode == config.ModeWarn || enforced(b) }
func enforced(b config.Backend) bool { return b.Mode == config.ModeEnforce }
