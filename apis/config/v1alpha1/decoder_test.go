package v1alpha1

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const header = "apiVersion: config.oakum.dev/v1alpha1\nkind: Configuration\n"

func TestDecode(t *testing.T) {
	for name, test := range map[string]struct {
		file string
		// want changes the default configuration into the one that the file makes.
		want func(*Configuration)
	}{
		"a file without settings leaves every default": {
			file: header,
			want: func(*Configuration) {},
		},
		"settings without a value leave the defaults": {
			file: header + "backends:\n  native:\nfinalizers:\n  pods: {deadline: , excludedNamespaces: ~}\nnamespace: null\n",
			want: func(*Configuration) {},
		},
		"one setting leaves its neighbours alone": {
			file: header + "backends: {native: {mode: Warn}}\naudit: {quarantine: 1h}\n",
			want: func(c *Configuration) {
				c.Backends.Native.Mode = ModeWarn
				c.Audit.Quarantine = metav1.Duration{Duration: time.Hour}
			},
		},
		"a part that is off by default stays so without a value": {
			file: header + "webhook: {selfSigned: ~}\n",
			want: func(*Configuration) {},
		},
		"the mode Off is a word, not the YAML 1.1 boolean": {
			file: header + "backends: {native: {mode: Off}}\n",
			want: func(c *Configuration) { c.Backends.Native.Mode = ModeOff },
		},
		"false, empty strings and empty lists are kept where they mean something": {
			file: header + `
backends: {native: {podFinalizers: false}}
finalizers: {pods: {excludedNamespaces: []}, nodes: {backends: []}}
leaderElection: {enabled: false, namespace: ""}
metrics: {bindAddress: "0", secure: false}
health: {bindAddress: "0"}
webhook: {host: ""}
`,
			want: func(c *Configuration) {
				c.Backends.Native.PodFinalizers = false
				c.Finalizers.Pods.ExcludedNamespaces = []string{}
				c.Finalizers.Nodes.Backends = []string{}
				c.LeaderElection.Enabled = false
				c.Metrics = Metrics{BindAddress: "0"}
				c.Health.BindAddress = "0"
			},
		},
		"every setting can be set": {
			file: header + `
namespace: network
backends:
  native:
    mode: Observe
    rules: {second-unfilled-block: Warn, pool-in-use: "Off", pool-overlap: Deny}
    podFinalizers: false
  whereabouts: {mode: Warn, rules: {allocation-unowned: Off, pool-overlap: Deny}, podFinalizers: false, namespace: cni, defaultNetwork: true}
  coil: {mode: Enforce, rules: {stale-block-request: Warn, second-unfilled-block: Off}, podFinalizers: false, restartCoild: true}
  calico: {mode: Warn, rules: {pool-in-use: Warn, second-unfilled-block: Off}, podFinalizers: false}
finalizers:
  pods: {deadline: 1h30m, excludedNamespaces: [a, b], backfillPerSecond: 7}
  nodes: {backends: [native], deadline: 45s}
  nodeDeletionMeansFenced: true
audit: {interval: 30s, gracePeriod: 1m, quarantine: 2m, pace: {fraction: 0.25, minimum: 5}}
leaderElection: {enabled: true, namespace: leases, leaseDuration: 60s, renewDeadline: 40s, retryPeriod: 5s}
metrics: {bindAddress: "127.0.0.1:9090", secure: false, certDir: /metrics}
health: {bindAddress: "[::1]:9091"}
webhook: {host: fd00::1, port: 10250, certDir: /webhook, selfSigned: {secretName: ca, serviceName: door}}
log: {level: debug}
debug: {pprofBindAddress: "[::1]:6060"}
`,
			want: func(c *Configuration) {
				*c = Configuration{
					TypeMeta:  c.TypeMeta,
					Namespace: "network",
					Backends: Backends{
						Native: Backend{
							Mode:  ModeObserve,
							Rules: map[string]Effect{"second-unfilled-block": EffectWarn, "pool-in-use": EffectOff, "pool-overlap": EffectDeny},
						},
						Whereabouts: Whereabouts{
							Backend:   Backend{Mode: ModeWarn, Rules: map[string]Effect{"allocation-unowned": EffectOff, "pool-overlap": EffectDeny}},
							Namespace: "cni", DefaultNetwork: true,
						},
						Coil: Coil{
							Backend:      Backend{Mode: ModeEnforce, Rules: map[string]Effect{"stale-block-request": EffectWarn, "second-unfilled-block": EffectOff}},
							RestartCoild: true,
						},
						Calico: Calico{Backend{Mode: ModeWarn, Rules: map[string]Effect{"pool-in-use": EffectWarn, "second-unfilled-block": EffectOff}}},
					},
					Finalizers: Finalizers{
						Pods: PodFinalizers{
							Deadline:           metav1.Duration{Duration: 90 * time.Minute},
							ExcludedNamespaces: []string{"a", "b"},
							BackfillPerSecond:  7,
						},
						Nodes:                   NodeFinalizers{Backends: []string{"native"}, Deadline: metav1.Duration{Duration: 45 * time.Second}},
						NodeDeletionMeansFenced: true,
					},
					Audit: Audit{
						Interval:    metav1.Duration{Duration: 30 * time.Second},
						GracePeriod: metav1.Duration{Duration: time.Minute},
						Quarantine:  metav1.Duration{Duration: 2 * time.Minute},
						Pace:        Pace{Fraction: 0.25, Minimum: 5},
					},
					LeaderElection: LeaderElection{
						Enabled:       true,
						Namespace:     "leases",
						LeaseDuration: metav1.Duration{Duration: time.Minute},
						RenewDeadline: metav1.Duration{Duration: 40 * time.Second},
						RetryPeriod:   metav1.Duration{Duration: 5 * time.Second},
					},
					Metrics: Metrics{BindAddress: "127.0.0.1:9090", CertDir: "/metrics"},
					Health:  Health{BindAddress: "[::1]:9091"},
					Webhook: Webhook{
						Host: "fd00::1", Port: 10250, CertDir: "/webhook",
						SelfSigned: &SelfSigned{SecretName: "ca", ServiceName: "door"},
					},
					Log:   Log{Level: LevelDebug},
					Debug: Debug{PprofBindAddress: "[::1]:6060"},
				}
			},
		},
		"an anchor may be used again": {
			file: header + "audit: {gracePeriod: &wait 20m, quarantine: *wait}\n",
			want: func(c *Configuration) {
				c.Audit.GracePeriod = metav1.Duration{Duration: 20 * time.Minute}
				c.Audit.Quarantine = metav1.Duration{Duration: 20 * time.Minute}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := Default()
			test.want(want)
			got, err := Decode([]byte(test.file))
			if err != nil {
				t.Fatalf("Decode: %v", err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("configuration (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		file string
		want string
	}{
		"an empty file": {
			file: "# nothing yet\n",
			want: `holds nothing: must begin with apiVersion: config.oakum.dev/v1alpha1 and kind: Configuration`,
		},
		"a document without content": {
			file: "---\n",
			want: `holds nothing: must begin with apiVersion: config.oakum.dev/v1alpha1 and kind: Configuration`,
		},
		"a second document": {
			file: header + "---\n" + header,
			want: `line 3: a second document begins: must hold one only`,
		},
		"what is no YAML": {
			file: header + "log:\n\tlevel: info\n",
			want: `reading the document: yaml: line 4: found character that cannot start any token`,
		},
		"what follows the document and is no YAML": {
			file: header + "---\n- a\n@",
			want: `reading what follows the document: yaml: line 5: found character that cannot start any token`,
		},
		"a list": {
			file: "- a\n",
			want: `line 1: must be a mapping that begins with apiVersion: config.oakum.dev/v1alpha1 and kind: Configuration`,
		},
		"a file that does not say what it is": {
			file: "log: {level: debug}\n",
			want: `apiVersion: Required value: must be "config.oakum.dev/v1alpha1"; kind: Required value: must be "Configuration"`,
		},
		"another kind of file, without a word on its keys": {
			file: "apiVersion: v1\nkind: ConfigMap\ndata: {a: b}\n",
			want: `line 1: apiVersion: Unsupported value: "v1": supported values: "config.oakum.dev/v1alpha1"; ` +
				`line 2: kind: Unsupported value: "ConfigMap": supported values: "Configuration"`,
		},
		"unknown keys, all of them": {
			file: header + "logs: {}\nbackends:\n  native:\n    mod: Warn\n    podfinalizers: true\n",
			want: `line 3: Unsupported value: "logs": supported values: "apiVersion", "audit", "backends", "debug", "finalizers", "health", "kind", "leaderElection", "log", "metrics", "namespace", "webhook"; ` +
				`line 6: backends.native: Unsupported value: "mod": supported values: "mode", "podFinalizers", "rules"; ` +
				`line 7: backends.native: Unsupported value: "podfinalizers": supported values: "mode", "podFinalizers", "rules"`,
		},
		"a merge key": {
			file: header + "log: &log {level: info}\nhealth: {<<: *log}\n",
			want: `line 4: health: Unsupported value: "<<": supported values: "bindAddress"`,
		},
		"duplicate keys, of settings and of rules": {
			file: header + "kind: Configuration\nbackends:\n  native:\n    mode: Warn\n    rules:\n      pool-overlap: Warn\n      pool-overlap: Off\n    mode: Off\n",
			want: `line 3: Duplicate value: "kind": is in line 2 already: keep one; ` +
				`line 9: backends.native.rules: Duplicate value: "pool-overlap": is in line 8 already: keep one; ` +
				`line 10: backends.native: Duplicate value: "mode": is in line 6 already: keep one`,
		},
		"values of the wrong type, each with its field": {
			file: header + `
namespace: 5
backends: [native]
finalizers:
  pods: {deadline: 30, excludedNamespaces: kube-system, backfillPerSecond: 1.5}
  nodes: {deadline: half a minute, backends: [true]}
  nodeDeletionMeansFenced: yes
leaderElection: true
webhook: {port: "9443", certDir: {}}
log: {level: [info]}
`,
			want: `line 4: namespace: Invalid value: "5": must be a string: put it in quotes; ` +
				`line 5: backends: Invalid value: "[...]": must be a mapping; ` +
				`line 7: finalizers.pods.deadline: Invalid value: "30": must be a duration such as 30s or 5m; ` +
				`line 7: finalizers.pods.excludedNamespaces: Invalid value: "kube-system": must be a list; ` +
				`line 7: finalizers.pods.backfillPerSecond: Invalid value: "1.5": must be a whole number; ` +
				`line 8: finalizers.nodes.deadline: Invalid value: "half a minute": must be a duration such as 30s or 5m; ` +
				`line 8: finalizers.nodes.backends[0]: Invalid value: "true": must be a string: put it in quotes; ` +
				`line 9: finalizers.nodeDeletionMeansFenced: Invalid value: "yes": must be true or false; ` +
				`line 10: leaderElection: Invalid value: "true": must be a mapping; ` +
				`line 11: webhook.port: Invalid value: "9443": must be a whole number; ` +
				`line 11: webhook.certDir: Invalid value: "{...}": must be a string: put it in quotes; ` +
				`line 12: log.level: Invalid value: "[...]": must be a string: put it in quotes`,
		},
		"an alias to its own parent": {
			file: header + "backends: &all {native: *all}\n",
			want: `line 3: backends.native: Unsupported value: "native": supported values: "mode", "podFinalizers", "rules"`,
		},
		"a key with a line break, in one line": {
			file: header + "backends: {native: {rules: {\"a\\nb\": 1}}}\n",
			want: `line 3: backends.native.rules[a\nb]: Invalid value: "1": must be a string: put it in quotes`,
		},
		"settings that are not valid, with their lines where they have one": {
			file: header + "backends:\n  native:\n    mode: enforce\n    rules:\n      pool-in-use: Deny\nleaderElection:\n  leaseDuration: 9s\n",
			want: `line 5: backends.native.mode: Unsupported value: "enforce": supported values: "Off", "Observe", "Warn", "Enforce"; ` +
				`line 7: backends.native.rules[pool-in-use]: Invalid value: "Deny": must be Warn or Off: a pool may always be deleted, and goes when its blocks have drained; ` +
				`line 9: leaderElection.leaseDuration: Invalid value: "9s": must be more than renewDeadline (10s), or there are two leaders at times`,
		},
		"a rule without an effect": {
			file: header + "backends: {native: {rules: {pool-overlap: }}}\n",
			want: `line 3: backends.native.rules[pool-overlap]: Required value: must be one of "Deny", "Warn", "Off"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Decode([]byte(test.file))
			if err == nil {
				t.Fatalf("Decode: no error, but %+v", got)
			}
			if diff := cmp.Diff(test.want, err.Error()); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzDecode holds Decode to what callers rely on: it never panics, an error is one line, and a configuration that it
// returns is valid and survives being written and read again.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		"",
		string(write(f, Default())),
		header,
		header + "---\n" + header,
		header + "backends: {native: {mode: Off, rules: {pool-overlap: Warn}, podFinalizers: false}}\n",
		header + "finalizers: {pods: {deadline: 1m, excludedNamespaces: [\"\\u2028\"]}}\n",
		header + "audit: {gracePeriod: &a 5m, quarantine: *a}\nbackends: &b {native: *b}\n",
		header + "webhook: {certDir: \"\\x85\\ufeff\", port: !!int \"1\"}\nlog: !!null {}\n",
		header + "webhook: {selfSigned: {secretName: a.b, serviceName: c}}\n",
		header + "? {a: b}\n: c\n? [d]\n: e\n<<: {}\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := Decode(data)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("an error of several lines: %v", err)
			}
			return
		}
		if errs := first.Validate(); len(errs) > 0 {
			t.Fatalf("decoded, but not valid: %v", errs.ToAggregate())
		}
		written := write(t, first)
		second, err := Decode(written)
		if err != nil {
			t.Fatalf("reading what was written: %v\n%s", err, written)
		}
		if diff := cmp.Diff(first, second); diff != "" {
			t.Errorf("written and read again (-first +second):\n%s", diff)
		}
	})
}

// write returns the file of a configuration, its keys being those of the JSON tags.
func write(t testing.TB, c *Configuration) []byte {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatalf("writing JSON: %v", err)
	}
	var settings map[string]any
	if err := json.Unmarshal(text, &settings); err != nil {
		t.Fatalf("reading JSON: %v", err)
	}
	file, err := yaml.Marshal(settings)
	if err != nil {
		t.Fatalf("writing YAML: %v", err)
	}
	return file
}
