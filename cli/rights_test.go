package cli

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	config "github.com/oakum-dev/oakum/apis/config/v1alpha1"
)

// sentences are rights one by one.
func sentences(rights []Right) map[string]bool {
	all := map[string]bool{}
	for _, q := range questions(rights) {
		all[sentence(q)] = true
	}
	return all
}

// The roles in config/ are for every mode at once. They are generated from markers, and a table gives what each mode needs.
func TestTheRolesAreWhatTheModesNeed(t *testing.T) {
	everything := func(m config.Mode) config.Backend { return config.Backend{Mode: m, PodFinalizers: true} }
	needed := map[string]bool{}
	for _, mode := range []config.Mode{config.ModeOff, config.ModeObserve, config.ModeWarn, config.ModeEnforce} {
		for _, selfSigned := range []*config.SelfSigned{nil, {SecretName: "oakum-webhook-ca", ServiceName: "oakum"}} {
			settings := config.Default()
			settings.Backends.Native = everything(mode)
			settings.Backends.Whereabouts.Backend = everything(mode)
			settings.Backends.Coil = config.Coil{Backend: everything(mode), RestartCoild: true}
			settings.Backends.Calico.Backend = everything(mode)
			settings.Webhook.SelfSigned = selfSigned
			maps.Copy(needed, sentences(Rights(settings)))
		}
	}
	given := map[string]bool{}
	for _, folder := range []string{"rbac", "selfsigned"} {
		text, err := os.ReadFile(filepath.Join("..", "config", folder, "role.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			var role rbacv1.Role
			if err := yaml.Unmarshal([]byte(document), &role); err != nil {
				t.Fatal(err)
			}
			for _, rule := range role.Rules {
				maps.Copy(given, sentences([]Right{{role.Namespace, rule}}))
			}
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(needed)), slices.Sorted(maps.Keys(given))); diff != "" {
		t.Errorf("rights (-needed +given):\n%s", diff)
	}
}

func TestRights(t *testing.T) {
	off := func() *config.Configuration {
		c := config.Default()
		c.Backends = config.Backends{
			Native:      config.Backend{Mode: config.ModeOff},
			Whereabouts: config.Whereabouts{Backend: config.Backend{Mode: config.ModeOff}},
			Coil:        config.Coil{Backend: config.Backend{Mode: config.ModeOff}},
			Calico:      config.Calico{Backend: config.Backend{Mode: config.ModeOff}},
		}
		c.Metrics.Secure, c.LeaderElection.Enabled = false, false
		return c
	}
	tests := map[string]struct {
		change func(*config.Configuration)
		// want is what is needed beyond everything being off.
		want []string
	}{
		"nothing more when everything is off": {change: func(*config.Configuration) {}},
		"Coil is observed": {
			change: func(c *config.Configuration) { c.Backends.Coil.Mode = config.ModeObserve },
			want: []string{
				"create leakreports.ipam.oakum.dev",
				"get addressblocks.coil.cybozu.com", "get addresspools.coil.cybozu.com", "get blockrequests.coil.cybozu.com", "get leakreports.ipam.oakum.dev",
				"list addressblocks.coil.cybozu.com", "list addresspools.coil.cybozu.com", "list blockrequests.coil.cybozu.com",
				"patch leakreports.ipam.oakum.dev/status",
				"watch addressblocks.coil.cybozu.com", "watch addresspools.coil.cybozu.com", "watch blockrequests.coil.cybozu.com",
			},
		},
		"native warns": {
			change: func(c *config.Configuration) { c.Backends.Native.Mode = config.ModeWarn },
			want: []string{
				`create addressblocks.ipam.oakum.dev "oakum-self-check-0"`, "create leakreports.ipam.oakum.dev",
				"get leakreports.ipam.oakum.dev", "get services", "get virtualmachines.kubevirt.io",
				"list servicecidrs.networking.k8s.io", "patch leakreports.ipam.oakum.dev/status",
			},
		},
		"the leader's Lease is elsewhere": {
			change: func(c *config.Configuration) {
				c.LeaderElection = config.LeaderElection{Enabled: true, Namespace: "leases"}
			},
			want: []string{
				"create events in namespace leases", "create leases.coordination.k8s.io in namespace leases",
				"get leases.coordination.k8s.io in namespace leases", "patch events in namespace leases", "update leases.coordination.k8s.io in namespace leases",
			},
		},
		"metrics are for those who may": {
			change: func(c *config.Configuration) { c.Metrics.Secure = true },
			want:   []string{"create subjectaccessreviews.authorization.k8s.io", "create tokenreviews.authentication.k8s.io"},
		},
		"there are no metrics": {change: func(c *config.Configuration) { c.Metrics = config.Metrics{BindAddress: "0", Secure: true} }},
		"the Secret has another name": {
			change: func(c *config.Configuration) {
				c.Webhook.SelfSigned = &config.SelfSigned{SecretName: "ca", ServiceName: "door"}
			},
			want: []string{
				"create secrets in namespace oakum-system",
				`get mutatingwebhookconfigurations.admissionregistration.k8s.io "oakum"`,
				`get mutatingwebhookconfigurations.admissionregistration.k8s.io "oakum-pods"`,
				`get mutatingwebhookconfigurations.admissionregistration.k8s.io "oakum-whereabouts"`,
				`get secrets "ca" in namespace oakum-system`,
				`get validatingwebhookconfigurations.admissionregistration.k8s.io "oakum"`,
				`get validatingwebhookconfigurations.admissionregistration.k8s.io "oakum-calico"`,
				`get validatingwebhookconfigurations.admissionregistration.k8s.io "oakum-coil"`,
				`get validatingwebhookconfigurations.admissionregistration.k8s.io "oakum-whereabouts"`,
				`patch mutatingwebhookconfigurations.admissionregistration.k8s.io "oakum"`,
				`patch mutatingwebhookconfigurations.admissionregistration.k8s.io "oakum-pods"`,
				`patch mutatingwebhookconfigurations.admissionregistration.k8s.io "oakum-whereabouts"`,
				`patch validatingwebhookconfigurations.admissionregistration.k8s.io "oakum"`,
				`patch validatingwebhookconfigurations.admissionregistration.k8s.io "oakum-calico"`,
				`patch validatingwebhookconfigurations.admissionregistration.k8s.io "oakum-coil"`,
				`patch validatingwebhookconfigurations.admissionregistration.k8s.io "oakum-whereabouts"`,
				`update secrets "ca" in namespace oakum-system`,
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			least, settings := sentences(Rights(off())), off()
			tt.change(settings)
			more := sentences(Rights(settings))
			maps.DeleteFunc(more, func(right string, _ bool) bool { return least[right] })
			if diff := cmp.Diff(tt.want, slices.Sorted(maps.Keys(more))); diff != "" {
				t.Errorf("rights (-want +got):\n%s", diff)
			}
		})
	}
}
