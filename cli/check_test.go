package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/fixture"
)

func TestCheck(t *testing.T) {
	tests := map[string]struct {
		objects []client.Object
		forbid  []client.ObjectList
		output  string
		want    string
	}{
		"an empty cluster has no pools and no leaks": {
			output: "table",
			want: `
No pools.

No leaks.
`,
		},
		"a table has a line for each pool and each leak": {
			objects: town(),
			output:  "table",
			want: `
BACKEND   POOL      NETWORK   BLOCKS   CAPACITY   ALLOCATED   IN USE   UNPROVEN   LEAKED
native    default   blue      3        16         5           2        1          2
native    spare     spare     0        8          0           0        0          0

ADDRESS            OWNER                             NODE   REASON      WHY
10.0.0.1,fd00::1   Pod default/gone (uid uid-gone)   n1     OwnerGone   Pod default/gone (uid uid-gone) does not exist
10.0.0.5,fd00::5   Pod default/lost (uid uid-lost)   n2     NodeGone    node "n2" is gone, and nobody says that the machine is off
`,
		},
		"a wide table tells record and evidence too": {
			objects: town(),
			output:  "wide",
			want: `
BACKEND   POOL      NETWORK   BLOCKS   CAPACITY   ALLOCATED   IN USE   UNPROVEN   LEAKED
native    default   blue      3        16         5           2        1          2
native    spare     spare     0        8          0           0        0          0

ADDRESS            OWNER                             NODE   REASON      WHY                                                          VERDICT      EVIDENCE   BLOCKS      HANDLE
10.0.0.1,fd00::1   Pod default/gone (uid uid-gone)   n1     OwnerGone   Pod default/gone (uid uid-gone) does not exist               Orphan       E10        default-0   gone-eth0
10.0.0.5,fd00::5   Pod default/lost (uid uid-lost)   n2     NodeGone    node "n2" is gone, and nobody says that the machine is off   Quarantine   E6         default-1   lost-eth0
`,
		},
		"stored records that break a rule are problems": {
			objects: []client.Object{
				fixture.Pool("default", fixture.Subnet("10.0.0.0/28", "")),
				fixture.Pool("twin", fixture.Network("default"), fixture.Subnet("10.0.0.8/29", "")),
				block(0, "n1", "10.0.0.0/30", "", fixture.Entry(1, "", v1alpha1.Attributes{})),
				fixture.Block("lost", 7, "n1"),
			},
			output: "table",
			want: `
BACKEND   POOL      NETWORK   BLOCKS   CAPACITY   ALLOCATED   IN USE   UNPROVEN   LEAKED
native    default   default   1        16         1           0        1          0
native    twin      default   0        8          0           0        0          0

No leaks.

OBJECT                     RULE                 FIELD                            PROBLEM
AddressPool "default"      pool-overlap         spec.subnets[0].ipv4             must not overlap AddressPool "twin" of network "default" (10.0.0.8/29)
AddressBlock "default-0"   allocation-unowned   spec.allocations[0].handle       name this hand-out, so that exactly it can be given back
AddressBlock "default-0"   allocation-unowned   spec.allocations[0].attributes   say whose the address is, or it can never be proven free
AddressBlock "lost-7"      block-malformed      spec.pool                        AddressPool "lost" does not exist
`,
		},
		"an address that another pod uses is drift, and no leak": {
			objects: []client.Object{
				fixture.Pool("default", fixture.Subnet("10.0.0.0/30", "")), fixture.Node("n1"),
				fixture.Pod("other", "n1", fixture.UID("uid-other"), fixture.Running("10.0.0.1")),
				block(0, "n1", "10.0.0.0/30", "", fixture.Entry(1, "gone-eth0", ofPod("gone", "n1"))),
			},
			output: "table",
			want: `
BACKEND   POOL      NETWORK   BLOCKS   CAPACITY   ALLOCATED   IN USE   UNPROVEN   LEAKED
native    default   default   1        4          1           1        0          0

No leaks.

ADDRESS    RECORDED FOR                      NODE   DRIFT
10.0.0.1   Pod default/gone (uid uid-gone)   n1     10.0.0.1 is in use by Pod default/other (uid uid-other)
`,
		},
		"who may not list nodes is told so, and still sees the rest": {
			objects: town(),
			forbid:  []client.ObjectList{&corev1.NodeList{}},
			output:  "table",
			want: `
BACKEND   POOL      NETWORK   BLOCKS   CAPACITY   ALLOCATED   IN USE   UNPROVEN   LEAKED
native    default   blue      3        16         5           2        3          0
native    spare     spare     0        8          0           0        0          0

No leaks in what could be read.

Not read: nodes: NodeList is forbidden: you may not
`,
		},
		"who may list nothing is told of everything": {
			objects: town(),
			forbid:  []client.ObjectList{&v1alpha1.AddressPoolList{}, &v1alpha1.AddressBlockList{}, &corev1.PodList{}, &corev1.NodeList{}},
			output:  "table",
			want: `
No pools.

No leaks in what could be read.

Not read: pools: AddressPoolList.ipam.oakum.dev is forbidden: you may not

Not read: blocks: listing AddressBlocks: AddressBlockList.ipam.oakum.dev is forbidden: you may not

Not read: pods: PodList is forbidden: you may not

Not read: nodes: NodeList is forbidden: you may not
`,
		},
		"JSON has every list, also the empty ones": {
			output: "json",
			want: `
{
  "pools": [],
  "leaks": [],
  "drifts": [],
  "problems": [],
  "missing": []
}
`,
		},
		"JSON has the fields of the table and more": {
			objects: leaky(),
			output:  "json",
			want: `
{
  "pools": [
    {
      "backend": "native",
      "name": "default",
      "network": "default",
      "blocks": 1,
      "capacity": 4,
      "allocated": 1,
      "inUse": 0,
      "unproven": 0,
      "leaked": 1
    }
  ],
  "leaks": [
    {
      "backend": "native",
      "addresses": [
        "10.0.0.1"
      ],
      "handle": "gone-eth0",
      "owner": "Pod default/gone (uid uid-gone)",
      "node": "n1",
      "blocks": [
        "default-0"
      ],
      "verdict": "Orphan",
      "reason": "OwnerGone",
      "evidence": "E10",
      "detail": "Pod default/gone (uid uid-gone) does not exist"
    }
  ],
  "drifts": [],
  "problems": [],
  "missing": []
}
`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			funcs := interceptor.Funcs{}
			if tt.forbid != nil {
				funcs = forbid(tt.forbid...)
			}
			var out bytes.Buffer
			if err := look(t, serve(t, funcs, tt.objects...)).report().print(&out, tt.output); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.TrimPrefix(tt.want, "\n"), out.String()); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}

// leaky is a cluster with one pool, and one address that has leaked.
func leaky() []client.Object {
	return []client.Object{
		fixture.Pool("default", fixture.Subnet("10.0.0.0/30", "")),
		fixture.Node("n1"),
		block(0, "n1", "10.0.0.0/30", "", fixture.Entry(1, "gone-eth0", ofPod("gone", "n1"))),
	}
}

func TestYAMLSaysWhatJSONSays(t *testing.T) {
	report := look(t, serve(t, interceptor.Funcs{}, town()...)).report()
	var asJSON, asYAML bytes.Buffer
	for output, out := range map[string]*bytes.Buffer{"json": &asJSON, "yaml": &asYAML} {
		if err := report.print(out, output); err != nil {
			t.Fatal(err)
		}
	}
	var fromJSON, fromYAML Report
	if err := json.Unmarshal(asJSON.Bytes(), &fromJSON); err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(asYAML.Bytes(), &fromYAML); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(report, fromJSON); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(report, fromYAML); diff != "" {
		t.Errorf("YAML (-want +got):\n%s", diff)
	}
}

func TestAHandOutInTwoBlocksIsOneLeakAndTwoAddresses(t *testing.T) {
	report := look(t, serve(t, interceptor.Funcs{},
		fixture.Pool("default", fixture.Subnet("10.0.0.0/29", "")),
		fixture.Node("n1"),
		block(0, "n1", "10.0.0.0/30", "", fixture.Entry(3, "gone-eth0", ofPod("gone", "n1"))),
		block(1, "n1", "10.0.0.4/30", "", fixture.Entry(0, "gone-eth0", ofPod("gone", "n1"))),
	)).report()
	want := Report{
		Pools: []PoolReport{{Backend: "native", Name: "default", Network: "default", Blocks: 2, Capacity: 8, Allocated: 2, Leaked: 2}},
		Leaks: []AllocationReport{{
			Backend: "native", Addresses: []string{"10.0.0.3", "10.0.0.4"}, Handle: "gone-eth0", Owner: "Pod default/gone (uid uid-gone)",
			Node: "n1", Blocks: []string{"default-0", "default-1"},
			Verdict: ipam.Orphan, Reason: ipam.OwnerGone, Evidence: "E10", Detail: "Pod default/gone (uid uid-gone) does not exist",
		}},
		Drifts: []AllocationReport{}, Problems: []recordProblem{}, Missing: []string{},
	}
	if diff := cmp.Diff(want, report); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}

// answer is what a command line was answered.
type answer struct {
	Code           int
	Stdout, Stderr string
}

// command runs a command against a cluster that a test made up, as Run does against a real one.
func command(t *testing.T, c client.Client, build func(*connection) *cobra.Command, args ...string) answer {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := build(&connection{to: func() (client.Client, error) { return c, nil }})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	return answer{exit(cmd.ExecuteContext(t.Context()), &stderr), stdout.String(), stderr.String()}
}

func TestCheckExits(t *testing.T) {
	tests := map[string]struct {
		client *server
		args   []string
		want   answer
	}{
		"with 0 if nothing has leaked": {
			client: serve(t, interceptor.Funcs{}),
			want:   answer{Stdout: "No pools.\n\nNo leaks.\n"},
		},
		"with 1 if something has": {
			client: serve(t, interceptor.Funcs{}, leaky()...),
			want: answer{Code: 1, Stderr: "oakum: leaks were found\n", Stdout: strings.TrimPrefix(`
BACKEND   POOL      NETWORK   BLOCKS   CAPACITY   ALLOCATED   IN USE   UNPROVEN   LEAKED
native    default   default   1        4          1           0        0          1

ADDRESS    OWNER                             NODE   REASON      WHY
10.0.0.1   Pod default/gone (uid uid-gone)   n1     OwnerGone   Pod default/gone (uid uid-gone) does not exist
`, "\n")},
		},
		"with 2 if something could not be read, whatever was found": {
			client: serve(t, forbid(&corev1.NodeList{})),
			want: answer{
				Code: 2, Stderr: "oakum: not everything could be read: nodes: NodeList is forbidden: you may not\n",
				Stdout: "No pools.\n\nNo leaks in what could be read.\n\nNot read: nodes: NodeList is forbidden: you may not\n",
			},
		},
		"with 2 if the API server fails": {
			client: serve(t, fail(errors.New("etcd is on holiday"))),
			want:   answer{Code: 2, Stderr: "oakum: not everything could be read: listing AddressPools: etcd is on holiday\n"},
		},
		"with 1 and a list of what there is for an output that it does not know": {
			client: serve(t, interceptor.Funcs{}),
			args:   []string{"-o", "xml"},
			want:   answer{Code: 1, Stderr: "oakum: --output \"xml\": must be one of table, wide, json, yaml\n"},
		},
		"with 1 for a backend that it does not know": {
			client: serve(t, interceptor.Funcs{}),
			args:   []string{"--backend", "dhcp"},
			want:   answer{Code: 1, Stderr: "oakum: --backend \"dhcp\": must be one of native, whereabouts, coil, calico\n"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, command(t, tt.client, newCheck, tt.args...)); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}
}
