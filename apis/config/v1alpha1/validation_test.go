package v1alpha1

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestValidate(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Configuration)
		// want is what Validate says, in its order.
		want []string
	}{
		"the defaults are valid": {
			change: func(*Configuration) {},
		},
		"a configuration of nothing but zeros is wrong in each required setting": {
			change: func(c *Configuration) { *c = Configuration{} },
			want: []string{
				`apiVersion: Required value: must be "config.oakum.dev/v1alpha1"`,
				`kind: Required value: must be "Configuration"`,
				`namespace: Invalid value: "": must be the name of a namespace: at most 63 lower case letters, digits and inner hyphens`,
				`backends.native.mode: Required value: must be one of "Off", "Observe", "Warn", "Enforce"`,
				`backends.whereabouts.mode: Required value: must be one of "Off", "Observe", "Warn", "Enforce"`,
				`backends.coil.mode: Required value: must be one of "Off", "Observe", "Warn", "Enforce"`,
				`backends.calico.mode: Required value: must be one of "Off", "Observe", "Warn", "Enforce"`,
				`backends.whereabouts.namespace: Invalid value: "": must be the name of a namespace: at most 63 lower case letters, digits and inner hyphens`,
				`finalizers.pods.deadline: Invalid value: "0s": must be 1s to 24h0m0s`,
				`finalizers.pods.backfillPerSecond: Invalid value: 0: must be 1 to 1000`,
				`finalizers.nodes.deadline: Invalid value: "0s": must be 1s to 5m0s`,
				`audit.gracePeriod: Invalid value: "0s": must be more than 0s`,
				`audit.interval: Invalid value: "0s": must be at least 1s`,
				`audit.pace.minimum: Invalid value: 0: must be at least 1, or nothing is ever released`,
				`leaderElection.leaseDuration: Invalid value: "0s": must be at least 1s: a Lease counts whole seconds`,
				`leaderElection.retryPeriod: Invalid value: "0s": must be more than 0s`,
				`leaderElection.renewDeadline: Invalid value: "0s": must be more than 1.2 times retryPeriod (0s), or there is no second try`,
				`metrics.bindAddress: Invalid value: "": must be host:port such as ":8443" or "127.0.0.1:8443", or "0" for no server`,
				`health.bindAddress: Invalid value: "": must be host:port such as ":8443" or "127.0.0.1:8443", or "0" for no server`,
				`webhook.port: Invalid value: 0: must be 1 to 65535`,
				`webhook.certDir: Required value: must be the folder of tls.crt and tls.key`,
				`debug.pprofBindAddress: Invalid value: "": must be a loopback address such as "127.0.0.1:6060", which kubectl port-forward reaches, or "0" for no server`,
				`log.level: Required value: must be one of "debug", "info", "error"`,
			},
		},
		"profiles are for the pod itself": {
			change: func(c *Configuration) { c.Debug.PprofBindAddress = ":6060" },
			want: []string{
				`debug.pprofBindAddress: Invalid value: ":6060": must be a loopback address such as "127.0.0.1:6060", which kubectl port-forward reaches, or "0" for no server`,
			},
		},
		"namespaces are DNS labels": {
			change: func(c *Configuration) {
				c.Namespace = "Oakum"
				c.Finalizers.Pods.ExcludedNamespaces = []string{"kube-system", "kube_system"}
				c.LeaderElection.Namespace = "a.b"
			},
			want: []string{
				`namespace: Invalid value: "Oakum": must be the name of a namespace: at most 63 lower case letters, digits and inner hyphens`,
				`finalizers.pods.excludedNamespaces[1]: Invalid value: "kube_system": must be the name of a namespace: at most 63 lower case letters, digits and inner hyphens`,
				`leaderElection.namespace: Invalid value: "a.b": must be the name of a namespace: at most 63 lower case letters, digits and inner hyphens`,
			},
		},
		"Whereabouts' writes that add an address are never refused": {
			change: func(c *Configuration) {
				c.Backends.Whereabouts.Rules = map[string]Effect{"allocation-unowned": EffectDeny, "pool-in-use": EffectWarn}
			},
			want: []string{
				`backends.whereabouts.rules[allocation-unowned]: Invalid value: "Deny": must be Warn or Off: Whereabouts starts the pod all the same, on an address that no IPPool knows`,
				`backends.whereabouts.rules[pool-in-use]: Unsupported value: "pool-in-use": supported values: "allocation-unowned", "pool-overlap"`,
			},
		},
		"coild is not kept waiting for a block that it needs": {
			change: func(c *Configuration) {
				c.Backends.Coil.Rules = map[string]Effect{"second-unfilled-block": EffectDeny, "stale-block-request": EffectDeny, "pool-in-use": EffectWarn}
			},
			want: []string{
				`backends.coil.rules[pool-in-use]: Unsupported value: "pool-in-use": supported values: "pool-overlap", "second-unfilled-block", "stale-block-request"`,
				`backends.coil.rules[second-unfilled-block]: Invalid value: "Deny": must be Warn or Off: coild waits for the block, and every other pod of that node and pool waits behind it`,
			},
		},
		"Calico gets every block that it needs": {
			change: func(c *Configuration) {
				c.Backends.Calico.Rules = map[string]Effect{
					"allocation-unowned": EffectWarn, "block-structure": EffectOff, "block-overlap": EffectWarn, "pool-in-use": EffectWarn, "pool-overlap": EffectOff, "second-unfilled-block": EffectDeny,
				}
			},
			want: []string{
				`backends.calico.rules[second-unfilled-block]: Invalid value: "Deny": must be Warn or Off: Calico has reasons to claim another block that no record tells, and the pod would not start`,
			},
		},
		"no Node is held for a backend that knows none": {
			change: func(c *Configuration) { c.Finalizers.Nodes.Backends = []string{"whereabouts", "coil", "calico"} },
			want: []string{
				`finalizers.nodes.backends[0]: Unsupported value: "whereabouts": supported values: "native"`,
				`finalizers.nodes.backends[1]: Unsupported value: "coil": supported values: "native"`,
				`finalizers.nodes.backends[2]: Unsupported value: "calico": supported values: "native"`,
			},
		},
		"a rule must be one of the backend's, with an effect that it can have": {
			change: func(c *Configuration) {
				c.Backends.Native.Rules = map[string]Effect{
					"pool-in-use":  EffectDeny,
					"pool-overlap": "deny",
					"block-in-use": EffectWarn,
					"block-in-us":  EffectWarn,
					"pool-shrink":  EffectOff,
				}
			},
			want: []string{
				`backends.native.rules[block-in-us]: Unsupported value: "block-in-us": supported values: "allocation-conflict", "allocation-owner", "allocation-unowned", "block-in-use", "block-malformed", "node-writer", "pool-draining", "pool-in-use", "pool-malformed", "pool-overlap", "pool-shrink", "second-unfilled-block"`,
				`backends.native.rules[pool-in-use]: Invalid value: "Deny": must be Warn or Off: a pool may always be deleted, and goes when its blocks have drained`,
				`backends.native.rules[pool-overlap]: Unsupported value: "deny": supported values: "Deny", "Warn", "Off"`,
			},
		},
		"deadlines and the backfill have upper bounds": {
			change: func(c *Configuration) {
				c.Finalizers.Pods.Deadline = metav1.Duration{Duration: 25 * time.Hour}
				c.Finalizers.Pods.BackfillPerSecond = 1001
				c.Finalizers.Nodes.Deadline = metav1.Duration{Duration: 10 * time.Minute}
			},
			want: []string{
				`finalizers.pods.deadline: Invalid value: "25h0m0s": must be 1s to 24h0m0s`,
				`finalizers.pods.backfillPerSecond: Invalid value: 1001: must be 1 to 1000`,
				`finalizers.nodes.deadline: Invalid value: "10m0s": must be 1s to 5m0s`,
			},
		},
		"a backend that holds Nodes must be one that Oakum knows": {
			change: func(c *Configuration) { c.Finalizers.Nodes.Backends = []string{"native", "cilium", ""} },
			want: []string{
				`finalizers.nodes.backends[1]: Unsupported value: "cilium": supported values: "native"`,
				`finalizers.nodes.backends[2]: Required value: must be "native"`,
			},
		},
		"what is not proven must not wait less than what is": {
			change: func(c *Configuration) { c.Audit.Quarantine = metav1.Duration{Duration: time.Minute} },
			want: []string{
				`audit.quarantine: Invalid value: "1m0s": must be at least gracePeriod (5m0s): what is not proven waits no less than what is`,
			},
		},
		"a pace is a part of the whole": {
			change: func(c *Configuration) { c.Audit.Pace.Fraction = 1.5 },
			want:   []string{`audit.pace.fraction: Invalid value: 1.5: must be 0 to 1`},
		},
		"a leader must give up before another one takes over": {
			change: func(c *Configuration) { c.LeaderElection.RenewDeadline = c.LeaderElection.LeaseDuration },
			want: []string{
				`leaderElection.leaseDuration: Invalid value: "15s": must be more than renewDeadline (15s), or there are two leaders at times`,
			},
		},
		"a leader must be able to try twice": {
			change: func(c *Configuration) { c.LeaderElection.RetryPeriod = metav1.Duration{Duration: 9 * time.Second} },
			want: []string{
				`leaderElection.renewDeadline: Invalid value: "10s": must be more than 1.2 times retryPeriod (9s), or there is no second try`,
			},
		},
		"the longest period of all does not overflow": {
			change: func(c *Configuration) { c.LeaderElection.RetryPeriod = metav1.Duration{Duration: math.MaxInt64} },
			want: []string{
				`leaderElection.renewDeadline: Invalid value: "10s": must be more than 1.2 times retryPeriod (2562047h47m16.854775807s), or there is no second try`,
			},
		},
		"an address needs a host that can be one and a port": {
			change: func(c *Configuration) {
				c.Metrics.BindAddress = "8443"
				c.Health.BindAddress = "a b:8081"
				c.Webhook.Host = "all of them"
				c.Webhook.Port = 70000
			},
			want: []string{
				`metrics.bindAddress: Invalid value: "8443": must be host:port such as ":8443" or "127.0.0.1:8443", or "0" for no server`,
				`health.bindAddress: Invalid value: "a b:8081": must be host:port such as ":8443" or "127.0.0.1:8443", or "0" for no server`,
				`webhook.host: Invalid value: "all of them": must be an IP address, a DNS name, or "" for every interface`,
				`webhook.port: Invalid value: 70000: must be 1 to 65535`,
			},
		},
		"a port must fit 16 bits": {
			change: func(c *Configuration) { c.Metrics.BindAddress = "localhost:65536" },
			want: []string{
				`metrics.bindAddress: Invalid value: "localhost:65536": must be host:port such as ":8443" or "127.0.0.1:8443", or "0" for no server`,
			},
		},
		"a manager that makes its certificates itself reads no files": {
			change: func(c *Configuration) {
				c.Webhook = Webhook{Port: 9443, SelfSigned: &SelfSigned{SecretName: "oakum.webhook-ca", ServiceName: "oakum"}}
			},
		},
		"a manager that makes its certificates itself needs names for a Secret and a Service": {
			change: func(c *Configuration) {
				c.Webhook.SelfSigned = &SelfSigned{SecretName: "Oakum", ServiceName: "oakum.svc"}
			},
			want: []string{
				`webhook.selfSigned.secretName: Invalid value: "Oakum": must be the name of a Secret, such as oakum-webhook-ca: at most 253 lower case letters, digits, and inner hyphens and dots`,
				`webhook.selfSigned.serviceName: Invalid value: "oakum.svc": must be the name of a Service, such as oakum: at most 63 lower case letters, digits and inner hyphens, with a letter first`,
			},
		},
		"the level is one of three": {
			change: func(c *Configuration) { c.Log.Level = "warning" },
			want:   []string{`log.level: Unsupported value: "warning": supported values: "debug", "info", "error"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := Default()
			test.change(c)
			var got []string
			for _, err := range c.Validate() {
				got = append(got, err.Error())
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
		})
	}
}
