package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

func TestAPlanListsWhatLeakedAndWhereItStood(t *testing.T) {
	var out bytes.Buffer
	if err := printJSON(&out, look(t, serve(t, interceptor.Funcs{}, leaky()...)).plan(time.Date(2026, 11, 30, 13, 0, 0, 5, time.FixedZone("", 3600)))); err != nil {
		t.Fatal(err)
	}
	want := `{
  "version": 1,
  "at": "2026-11-30T12:00:00Z",
  "releases": [
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
      "detail": "Pod default/gone (uid uid-gone) does not exist",
      "revisions": [
        "999"
      ],
      "ownerUID": "uid-gone"
    }
  ]
}
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
}

func TestAPlanOfWhatCouldNotAllBeReadSaysSo(t *testing.T) {
	got := command(t, serve(t, forbid(&corev1.PodList{})), newPlan)
	var plan Plan
	if err := json.Unmarshal([]byte(got.Stdout), &plan); err != nil {
		t.Fatal(err)
	}
	got.Stdout, plan.At = "", time.Time{}
	if diff := cmp.Diff(Plan{Version: 1, Releases: []PlannedRelease{}}, plan); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	want := answer{Code: 2, Stderr: "oakum: not everything could be read: pods: PodList is forbidden: you may not\n"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
}

// TestRelease makes a plan of a cluster in which pods gone and lost leaked their addresses, changes something, and
// carries the plan out.
func TestRelease(t *testing.T) {
	const (
		gone  = "10.0.0.1,fd00::1 (handle gone-eth0, Pod default/gone (uid uid-gone))"
		lost  = "10.0.0.5,fd00::5 (handle lost-eth0, Pod default/lost (uid uid-lost))"
		bye   = ": Pod default/gone (uid uid-gone) does not exist\n"
		away  = `: node "n2" is gone, and nobody says that the machine is off` + "\n"
		short = "oakum: not everything in the plan was given back: 1 of 2 were skipped\n"
	)
	tests := map[string]struct {
		change func(t *testing.T, c client.Client)
		// then happens between the second look at everything and the last one.
		then func(ctx context.Context, c client.Client) error
		args []string
		want answer
		// left are the handles that are still recorded.
		left []string
	}{
		"without a change everything in the plan goes, and nothing else": {
			want: answer{Stdout: "released " + gone + bye + "released " + lost + away},
			left: []string{"live-eth0", "router", "silent-eth0"},
		},
		"a dry run changes nothing": {
			args: []string{"--dry-run"},
			want: answer{Stdout: "would release " + gone + bye + "would release " + lost + away},
			left: []string{"live-eth0", "gone-eth0", "router", "lost-eth0", "silent-eth0"},
		},
		"a neighbour that comes into the block does not matter": {
			change: func(t *testing.T, c client.Client) {
				rewrite(t, c, func(b *v1alpha1.AddressBlock) { fixture.Entry(3, "other", fixture.External("printer"))(b) })
			},
			want: answer{Stdout: "released " + gone + bye + "released " + lost + away},
			left: []string{"live-eth0", "router", "other", "silent-eth0"},
		},
		"a neighbour that leaves the block does not matter": {
			change: func(t *testing.T, c client.Client) {
				rewrite(t, c, func(b *v1alpha1.AddressBlock) { b.Spec.Allocations = b.Spec.Allocations[1:] })
			},
			want: answer{Stdout: "released " + gone + bye + "released " + lost + away},
			left: []string{"router", "silent-eth0"},
		},
		"an owner that is back keeps its address": {
			change: func(t *testing.T, c client.Client) { add(t, c, second()) },
			want: answer{
				Code: 1, Stderr: short,
				Stdout: "skipped " + gone + ": Pod default/gone (uid uid-gone) is alive\n" + "released " + lost + away,
			},
			left: []string{"live-eth0", "gone-eth0", "router", "silent-eth0"},
		},
		"an owner that is back at the last moment keeps its address": {
			then: func(ctx context.Context, c client.Client) error { return c.Create(ctx, second()) },
			want: answer{
				Code: 1, Stderr: short,
				Stdout: "skipped " + gone + ": Pod default/gone (uid uid-gone) is alive\n" + "released " + lost + away,
			},
			left: []string{"live-eth0", "gone-eth0", "router", "silent-eth0"},
		},
		"an owner whose node is silent by now keeps its address": {
			change: func(t *testing.T, c client.Client) {
				if err := c.Status().Update(t.Context(), fixture.Node("n1", fixture.NotReady)); err != nil {
					t.Fatal(err)
				}
			},
			want: answer{
				Code: 1, Stderr: short,
				Stdout: "skipped " + gone + ": Pod default/gone (uid uid-gone) does not exist, and node \"n1\" is not ready: the sandbox may still run\n" +
					"released " + lost + away,
			},
			left: []string{"live-eth0", "gone-eth0", "router", "silent-eth0"},
		},
		"an address that was given back is skipped": {
			change: func(t *testing.T, c client.Client) {
				rewrite(t, c, func(b *v1alpha1.AddressBlock) { b.Spec.Allocations = b.Spec.Allocations[:1] })
			},
			want: answer{Code: 1, Stderr: short, Stdout: "skipped " + gone + ": it is not recorded any more\n" + "released " + lost + away},
			left: []string{"live-eth0", "silent-eth0"},
		},
		"an address that another owner has by now is skipped": {
			change: func(t *testing.T, c client.Client) {
				rewrite(t, c, func(b *v1alpha1.AddressBlock) { b.Spec.Allocations[1].Attributes = ofPod("next", "n1") })
			},
			want: answer{
				Code: 1, Stderr: short,
				Stdout: "skipped " + gone + ": it belongs to Pod default/next (uid uid-next) now\n" + "released " + lost + away,
			},
			left: []string{"live-eth0", "gone-eth0", "router", "silent-eth0"},
		},
		"a hand-out that has moved to another place is skipped": {
			change: func(t *testing.T, c client.Client) {
				rewrite(t, c, func(b *v1alpha1.AddressBlock) { b.Spec.Allocations[1].Offset = 3 })
			},
			want: answer{
				Code: 1, Stderr: short,
				Stdout: "skipped " + gone + ": it has other addresses now: 10.0.0.3,fd00::3\n" + "released " + lost + away,
			},
			left: []string{"live-eth0", "gone-eth0", "router", "silent-eth0"},
		},
		"a hand-out that another one replaces at the last moment is skipped": {
			then: func(ctx context.Context, c client.Client) error {
				var b v1alpha1.AddressBlock
				if err := c.Get(ctx, client.ObjectKey{Name: "default-0"}, &b); err != nil {
					return err
				}
				b.Spec.Allocations[1].Handle = "next-eth0"
				return c.Update(ctx, &b)
			},
			want: answer{
				Code: 1, Stderr: short,
				Stdout: "skipped " + gone + ": another hand-out is there by now\n" + "released " + lost + away,
			},
			left: []string{"live-eth0", "next-eth0", "router", "silent-eth0"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			moment := tt.then
			c := serve(t, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if then := moment; then != nil { // The first single object that release reads is at the last look.
					moment = nil
					if err := then(ctx, c); err != nil {
						return err
					}
				}
				return c.Get(ctx, key, o, opts...)
			}}, town()...)
			moment = nil
			plan := planOf(t, c)
			if tt.change != nil {
				tt.change(t, c)
			}
			moment = tt.then
			if diff := cmp.Diff(tt.want, command(t, c, newRelease, append(tt.args, "--from-plan", plan)...)); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.left, handles(t, c)); diff != "" {
				t.Errorf("handles that are left (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReleaseGivesNothingBackWhereItCannotSee(t *testing.T) {
	plan := planOf(t, serve(t, interceptor.Funcs{}, town()...))
	for name, tt := range map[string]struct {
		funcs interceptor.Funcs
		want  answer
	}{
		"since it may not list pods": {
			forbid(&corev1.PodList{}),
			answer{Code: 2, Stderr: "oakum: not everything could be read: pods: PodList is forbidden: you may not\n"},
		},
		"since it may not list blocks": {
			forbid(&v1alpha1.AddressBlockList{}),
			answer{Code: 2, Stderr: "oakum: not everything could be read: blocks: listing AddressBlocks: AddressBlockList.ipam.oakum.dev is forbidden: you may not\n"},
		},
		"since the API server fails": {
			fail(errors.New("etcd is on holiday")),
			answer{Code: 2, Stderr: "oakum: not everything could be read: listing AddressPools: etcd is on holiday\n"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			funcs := tt.funcs
			funcs.Patch = func(_ context.Context, _ client.WithWatch, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
				t.Errorf("%T %s was written", o, o.GetName())
				return nil
			}
			if diff := cmp.Diff(tt.want, command(t, serve(t, funcs, town()...), newRelease, "--from-plan", plan)); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAReleaseThatFailsIsNamedAndTheOthersGo(t *testing.T) {
	c := serve(t, interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
		if o.GetName() == "default-0" {
			return errors.New("no")
		}
		return c.Patch(ctx, o, p, opts...)
	}}, town()...)
	want := answer{
		Code: 1, Stderr: "oakum: not everything in the plan was given back: 1 of 2 were skipped\n",
		Stdout: `skipped 10.0.0.1,fd00::1 (handle gone-eth0, Pod default/gone (uid uid-gone)): ` +
			`releasing gone-eth0 of Pod default/gone (uid uid-gone) in AddressBlock "default-0": no` + "\n" +
			`released 10.0.0.5,fd00::5 (handle lost-eth0, Pod default/lost (uid uid-lost)): node "n2" is gone, and nobody says that the machine is off` + "\n",
	}
	if diff := cmp.Diff(want, command(t, c, newRelease, "--from-plan", planOf(t, c))); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
}

func TestPlanFilesAreReadStrictly(t *testing.T) {
	for name, tt := range map[string]struct{ text, stderr string }{
		"an empty plan does nothing":       {`{"version": 1, "releases": []}`, ""},
		"a file that is no plan":           {`addresses`, "oakum: reading the plan -: invalid character 'a' looking for beginning of value: write one with the command plan\n"},
		"a field that nobody knows":        {`{"version": 1, "force": true}`, "oakum: reading the plan -: json: unknown field \"force\": write one with the command plan\n"},
		"a plan of another version":        {`{"version": 2}`, "oakum: reading the plan -: version: 2: must be 1: write one with the command plan of this version\n"},
		"the JSON of check, which is none": {`{"leaks": []}`, "oakum: reading the plan -: json: unknown field \"leaks\": write one with the command plan\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, stderr bytes.Buffer
			plan, err := readPlan("-", strings.NewReader(tt.text))
			if err == nil {
				err = plan.carryOut(t.Context(), serve(t, interceptor.Funcs{}), scope{}, false, &out, io.Discard)
			}
			want := answer{Stderr: tt.stderr, Stdout: "The plan is empty.\n"}
			if tt.stderr != "" {
				want.Code, want.Stdout = 1, ""
			}
			code := exit(err, &stderr)
			if diff := cmp.Diff(want, answer{code, out.String(), stderr.String()}); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}
}

// planOf writes the plan of a cluster to a file.
func planOf(t *testing.T, c client.Client) (file string) {
	t.Helper()
	got := command(t, c, newPlan)
	if got.Code != 0 {
		t.Fatal(got)
	}
	file = filepath.Join(t.TempDir(), "plan.json")
	if err := os.WriteFile(file, []byte(got.Stdout), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// handles lists what is recorded.
func handles(t *testing.T, c client.Client) (found []string) {
	t.Helper()
	var blocks v1alpha1.AddressBlockList
	if err := c.List(t.Context(), &blocks); err != nil {
		t.Fatal(err)
	}
	for _, b := range blocks.Items {
		for _, a := range b.Spec.Allocations {
			found = append(found, a.Handle)
		}
	}
	return found
}

// rewrite changes block default-0.
func rewrite(t *testing.T, c client.Client, change func(*v1alpha1.AddressBlock)) {
	t.Helper()
	var b v1alpha1.AddressBlock
	if err := c.Get(t.Context(), client.ObjectKey{Name: "default-0"}, &b); err != nil {
		t.Fatal(err)
	}
	change(&b)
	overwrite(t, c, &b)
}

func overwrite(t *testing.T, c client.Client, o client.Object) {
	t.Helper()
	if err := c.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

func add(t *testing.T, c client.Client, o client.Object) {
	t.Helper()
	if err := c.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}
