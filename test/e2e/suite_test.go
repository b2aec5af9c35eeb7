//go:build e2e

// Package e2e plays on a real node with the real Whereabouts: what leaks without Oakum does not leak with it.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/backends/whereabouts"
	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/e2e/cluster"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard()) // Clients that watch would complain that there is none.
	os.Exit(m.Run())
}

// guarded are the settings under which Oakum guards Whereabouts with a short patience.
const guarded = `
backends:
  whereabouts: {mode: Enforce, defaultNetwork: true}
audit: {interval: 1s, gracePeriod: 2s, quarantine: 4s}
finalizers: {pods: {deadline: 1m}}
leaderElection: {enabled: false}
`

// town is a cluster with one node, in which pods are given addresses by Whereabouts.
type town struct {
	*cluster.Cluster
	t       *testing.T
	records client.Client
	manager *controlplane.Manager
	binary  string
}

// found starts a cluster that has Oakum's manifests for Whereabouts, and no manager.
func found(t *testing.T) *town {
	t.Helper()
	// The path of a kubelet's socket is short, and that of a test's folder is not.
	dir, err := os.MkdirTemp("", "e2e") //nolint:usetesting // for the reason above
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Start(t.Context(), dir, cluster.Options{Components: []string{"whereabouts", "pods"}})
	if err != nil {
		t.Fatal(err)
	}
	w := &town{Cluster: c, t: t}
	t.Cleanup(func() {
		w.unguard()
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("its logs are in %s", dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	root, err := controlplane.Root()
	if err != nil {
		t.Fatal(err)
	}
	scheme, err := controlplane.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	w.binary = filepath.Join(root, "bin", "oakum")
	if w.records, err = client.New(c.Admin, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	w.must(whereabouts.AddToScheme(scheme))
	return w
}

func (w *town) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// guard starts Oakum's manager.
func (w *town) guard(settings string) {
	w.t.Helper()
	manager, err := w.StartManager(w.t.Context(), w.binary, settings)
	w.must(err)
	w.manager = manager
}

// unguard stops Oakum's manager, if one runs.
func (w *town) unguard() {
	w.t.Helper()
	if w.manager == nil {
		return
	}
	if err := w.manager.Stop(); err != nil {
		w.t.Error(err)
	}
	w.manager = nil
}

// eventually waits until there is no error.
func (w *town) eventually(what string, try func(ctx context.Context) error) {
	w.t.Helper()
	if err := cluster.Await(w.t.Context(), try); err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
}

// run makes pods and waits until each has an address.
func (w *town) run(pods ...*corev1.Pod) {
	w.t.Helper()
	for _, p := range pods {
		w.must(w.Client.Create(w.t.Context(), p))
	}
	for _, p := range pods {
		w.running(p)
	}
}

// running waits until a pod runs, and reads it.
func (w *town) running(p *corev1.Pod) {
	w.t.Helper()
	w.eventually(p.Name+" runs", func(ctx context.Context) error {
		if err := w.Client.Get(ctx, client.ObjectKeyFromObject(p), p); err != nil {
			return err
		}
		if p.Status.Phase != corev1.PodRunning || p.Status.PodIP == "" {
			return fmt.Errorf("%s is %s, with the address %q", p.Name, p.Status.Phase, p.Status.PodIP)
		}
		return nil
	})
}

// gone waits until pods do not exist any more.
func (w *town) gone(pods ...*corev1.Pod) {
	w.t.Helper()
	for _, p := range pods {
		w.eventually(p.Name+" is gone", func(ctx context.Context) error {
			var now corev1.Pod
			switch err := w.Client.Get(ctx, client.ObjectKeyFromObject(p), &now); {
			case apierrors.IsNotFound(err), err == nil && now.UID != p.UID:
				return nil
			case err != nil:
				return err
			}
			return fmt.Errorf("%s is there, %s, with the finalizers %v", now.Name, now.Status.Phase, now.Finalizers)
		})
	}
}

// delete deletes pods, with a grace period that they do not need.
func (w *town) delete(pods ...*corev1.Pod) {
	w.t.Helper()
	for _, p := range pods {
		w.must(client.IgnoreNotFound(w.Client.Delete(w.t.Context(), p, client.GracePeriodSeconds(5))))
	}
}

// recorded tells who has which address by Whereabouts' records, as "10.0.0.1 default/web", and after each whether a part of
// the record is missing. It is sorted.
func (w *town) recorded(ctx context.Context) ([]string, error) {
	var pools whereabouts.IPPoolList
	var reservations whereabouts.OverlappingRangeIPReservationList
	err := errors.Join(
		w.records.List(ctx, &pools, client.InNamespace(metav1.NamespaceSystem)),
		w.records.List(ctx, &reservations, client.InNamespace(metav1.NamespaceSystem)),
	)
	if err != nil {
		return nil, err
	}
	reserved := map[string]string{}
	for _, r := range reservations.Items {
		reserved[r.Name] = r.Spec.PodRef
	}
	var lines []string
	for _, p := range pools.Items {
		subnet, err := netip.ParsePrefix(p.Spec.Range)
		if err != nil {
			return nil, err
		}
		for offset, e := range p.Spec.Allocations {
			addr := subnet.Masked().Addr()
			for range number(offset) {
				addr = addr.Next()
			}
			name := strings.ReplaceAll(addr.String(), ":", "-")
			if strings.HasSuffix(name, "-") {
				name += "0"
			}
			line := addr.String() + " " + e.PodRef
			if reserved[name] != e.PodRef {
				line += " (no reservation)"
			}
			delete(reserved, name)
			lines = append(lines, line)
		}
	}
	for name, ref := range reserved {
		lines = append(lines, name+" "+ref+" (no entry)")
	}
	slices.Sort(lines)
	return lines, nil
}

func number(text string) (n int) {
	_, _ = fmt.Sscan(text, &n) // What is no number is 0.
	return n
}

// expect waits until the records are these.
func (w *town) expect(what string, want ...string) {
	w.t.Helper()
	slices.Sort(want)
	w.eventually(what, func(ctx context.Context) error {
		got, err := w.recorded(ctx)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("recorded are %q, want %q", got, want)
		}
		return err
	})
}

// stays looks for a while, and fails if the records change.
func (w *town) stays(what string, d time.Duration, want ...string) {
	w.t.Helper()
	slices.Sort(want)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for until := time.After(d); ; {
		select {
		case <-until:
			return
		case <-tick.C:
			got, err := w.recorded(w.t.Context())
			w.must(err)
			if !slices.Equal(got, want) {
				w.t.Fatalf("%s: recorded are %q, want %q", what, got, want)
			}
		}
	}
}
