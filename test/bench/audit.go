package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends/calico"
	"github.com/oakum-dev/oakum/test/controlplane"
	"github.com/oakum-dev/oakum/test/fixture"
	fixturecalico "github.com/oakum-dev/oakum/test/fixture/calico"
)

const (
	// auditRounds is how many rounds the audit is measured in.
	auditRounds = 5
	// leaving is how many pods end in a round, one after the other.
	leaving = 10
)

// size is that of a cluster: how many nodes have a full block of 64 addresses each, and how long the manager waits between two runs,
// in which the plain lists are made.
type size struct {
	nodes int
	quiet time.Duration
}

// sizes grow tenfold, to 100,032 hand-outs.
func sizes() []size {
	return []size{{16, 2 * time.Second}, {157, 4 * time.Second}, {1563, 10 * time.Second}}
}

// audits are what was measured in a cluster of one size.
type audits struct {
	pods                    int
	run, work, pod, podWork sides
	// resident is the memory that the manager has in the end, in bytes.
	resident float64
}

// audit compares a run of the manager's audit of Calico, and what the manager does when one pod ends, with full lists of the
// objects that they are about, in clusters of three sizes. The second figure of each is processor time: the manager's, and that of
// the process that lists.
func (r *report) audit(ctx context.Context, dir string) error {
	for _, s := range sizes() {
		measured, err := auditOf(ctx, dir, s)
		if err != nil {
			return err
		}
		r.grown = append(r.grown, measured)
	}
	largest := r.grown[len(r.grown)-1]
	r.row("Audit", "≤ 0.5", largest.run)
	r.row("AuditWork", "", largest.work)
	r.row("PodEnds", "≤ 0.01", largest.pod)
	r.row("PodEndsWork", "", largest.podWork)
	return nil
}

func auditOf(ctx context.Context, dir string, s size) (_ audits, err error) {
	root, err := controlplane.Root()
	if err != nil {
		return audits{}, err
	}
	plane, err := start(dir, fmt.Sprintf("audit-%d", s.nodes), controlplane.Options{})
	defer func() { err = errors.Join(err, plane.Stop()) }()
	if err != nil {
		return audits{}, err
	}
	c, err := newCrowd(ctx, plane, root, s.nodes)
	if err != nil {
		return audits{}, err
	}
	settings := fmt.Sprintf("backends: {calico: {mode: Enforce}}\naudit: {interval: %s, gracePeriod: 1h, quarantine: 2h}\n", s.quiet)
	manager, err := plane.StartManager(ctx, filepath.Join(root, "bin", "oakum"), settings)
	if err != nil {
		return audits{}, err
	}
	defer manager.Kill()
	c.metrics = fmt.Sprintf("https://127.0.0.1:%d/metrics", manager.Metrics)
	if err := c.settled(ctx); err != nil {
		return audits{}, fmt.Errorf("waiting for the manager to settle: %w", err)
	}
	m := audits{pods: s.nodes * fixturecalico.BlockSize}
	for round := range auditRounds + 1 {
		audited, err := c.audited(ctx)
		if err != nil {
			return m, err
		}
		var lists [2]cost
		for i := range lists {
			if lists[i], err = c.listed(ctx); err != nil {
				return m, err
			}
			if _, err := c.audited(ctx); err != nil {
				return m, err
			}
		}
		left, err := c.left(ctx)
		if err != nil {
			return m, err
		}
		if round == 0 {
			continue // caches and connections warm up
		}
		for _, s := range []struct {
			wall, work *sides
			with       cost
		}{{&m.run, &m.work, audited}, {&m.pod, &m.podWork, left}} {
			s.wall.add(s.with.wall, lists[0].wall, lists[1].wall)
			s.work.add(s.with.work, lists[0].work, lists[1].work)
		}
	}
	last, err := c.scrape(ctx)
	m.resident = last.resident
	return m, err
}

// cost is what something takes on the clock and of the processors, in nanoseconds.
type cost struct{ wall, work float64 }

// crowd is a large cluster of Calico's.
type crowd struct {
	client  client.Client
	metrics string
	token   string
	https   http.Client
	// gone is how many pods have ended.
	gone int
}

func newCrowd(ctx context.Context, plane *controlplane.ControlPlane, root string, nodes int) (*crowd, error) {
	if err := plane.Apply(ctx, filepath.Join(root, "test", "fixture", "calico", "crd", "v1.yaml")); err != nil {
		return nil, err
	}
	if err := calico.AddToScheme(plane.Client.Scheme()); err != nil {
		return nil, err
	}
	c := &crowd{client: plane.Client}
	c.https.Transport = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, controlplane.Deadline, true, func(ctx context.Context) (bool, error) {
		_, err := c.listed(ctx)
		return err == nil && c.client.List(ctx, &calico.IPAMHandleList{}) == nil, nil
	})
	if err != nil {
		return nil, fmt.Errorf("waiting for Calico's kinds: %w", err)
	}
	if err := plant(ctx, plane, nodes); err != nil {
		return nil, err
	}
	// After this write a list has all that was planted.
	pool := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"cidr": "10.64.0.0/14", "blockSize": int64(26)}}}
	pool.SetGroupVersionKind(calico.V1.WithKind("IPPool"))
	pool.SetName("crowd")
	if err := c.client.Create(ctx, pool); err != nil {
		return nil, fmt.Errorf("creating a pool of Calico's: %w", err)
	}
	return c, c.authenticate(ctx)
}

// plant writes the nodes and all that there is of them. Oakum's finalizer is on every pod, as it would be after a while, and
// so is what the API server adds to a pod's spec: it would add it to the first write of a finalizer, which then is none alone.
func plant(ctx context.Context, plane *controlplane.ControlPlane, nodes int) error {
	whole := fixture.Pod("whole", "")
	if err := plane.Client.Create(ctx, whole, client.DryRunAll); err != nil {
		return fmt.Errorf("asking what a pod lacks: %w", err)
	}
	held := func(p *corev1.Pod) {
		node := p.Spec.NodeName
		p.Spec, p.Finalizers = *whole.Spec.DeepCopy(), []string{v1alpha1.AddressesFinalizer}
		p.Spec.NodeName = node
	}
	crowd := fixturecalico.Crowd{Scheme: plane.Client.Scheme(), Pods: fixturecalico.BlockSize, Knobs: []func(*corev1.Pod){held}}
	const planters = 4
	var group sync.WaitGroup
	var failures [planters]error
	for worker := range planters {
		group.Go(func() {
			for i := worker; i < nodes && failures[worker] == nil; i += planters {
				objects, err := crowd.Node(i)
				if err == nil {
					err = plane.Plant(ctx, objects...)
				}
				failures[worker] = err
			}
		})
	}
	group.Wait()
	return errors.Join(failures[:]...)
}

// authenticate makes an account that may read metrics.
func (c *crowd) authenticate(ctx context.Context) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "bench"}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "oakum-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: account.Namespace, Name: account.Name}},
	}
	for _, o := range []client.Object{account, binding} {
		if err := c.client.Create(ctx, o); err != nil {
			return fmt.Errorf("making an account: %w", err)
		}
	}
	granted := &authenticationv1.TokenRequest{}
	if err := c.client.SubResource("token").Create(ctx, account, granted); err != nil {
		return fmt.Errorf("making an account: %w", err)
	}
	c.token = granted.Status.Token
	return nil
}

// lists are empty lists of all that the audit judges by. It has no use for the handles, so nobody lists them here.
func (*crowd) lists() []client.ObjectList {
	return []client.ObjectList{&corev1.PodList{}, &corev1.NodeList{}, &calico.IPAMBlockList{}, &calico.BlockAffinityList{}, &calico.IPPoolList{}}
}

// listed lists all of that once, unpaged.
func (c *crowd) listed(ctx context.Context) (cost, error) {
	began, before := time.Now(), ownWork()
	for _, list := range c.lists() {
		if err := c.client.List(ctx, list); err != nil {
			return cost{}, fmt.Errorf("listing: %w", err)
		}
	}
	return cost{float64(time.Since(began).Nanoseconds()), ownWork() - before}, nil
}

// ownWork is the processor time of this process.
func ownWork() float64 {
	var u syscall.Rusage
	// The only error is that the arguments are wrong.
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return float64(u.Utime.Nano() + u.Stime.Nano())
}

// settled returns when the manager has looked at every pod once, and has nothing to do any more.
func (c *crowd) settled(ctx context.Context) error {
	before := -1.0
	return wait.PollUntilContextTimeout(ctx, 3*time.Second, 10*controlplane.Deadline, false, func(ctx context.Context) (bool, error) {
		now, err := c.scrape(ctx)
		idle := now.reconciling == before && now.audits > 0
		before = now.reconciling
		return idle, err
	})
}

// audited waits until the manager has audited once more, and returns what that took. The processor time is that of all that the
// manager did meanwhile.
func (c *crowd) audited(ctx context.Context) (cost, error) {
	before, err := c.scrape(ctx)
	if err != nil {
		return cost{}, err
	}
	var after reading
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, 2*controlplane.Deadline, false, func(ctx context.Context) (bool, error) {
		after, err = c.scrape(ctx)
		return after.audits > before.audits, err
	})
	runs := after.audits - before.audits
	return cost{(after.auditing - before.auditing) / runs, (after.work - before.work) / runs}, err
}

// left has some pods end, one after the other, and waits until Oakum has given back the address of each and let it go. It
// returns the time in the pods' controller for one of them, and the processor time for all that the manager did for it.
func (c *crowd) left(ctx context.Context) (cost, error) {
	before, err := c.scrape(ctx)
	if err != nil {
		return cost{}, err
	}
	for range leaving {
		if err := c.leave(ctx, fixture.Pod(fixturecalico.Pod(c.gone), "")); err != nil {
			return cost{}, fmt.Errorf("ending a pod: %w", err)
		}
		c.gone++
	}
	after, err := c.scrape(ctx)
	return cost{(after.reconciling - before.reconciling) / leaving, (after.work - before.work) / leaving}, err
}

// leave ends a pod.
func (c *crowd) leave(ctx context.Context, p *corev1.Pod) error {
	if err := c.client.Get(ctx, client.ObjectKeyFromObject(p), p); err != nil {
		return err
	}
	fixture.Ended(p)
	if err := c.client.Status().Update(ctx, p); err != nil {
		return err
	}
	if err := c.client.Delete(ctx, p, client.GracePeriodSeconds(0)); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, controlplane.Deadline, true, func(ctx context.Context) (bool, error) {
		return apierrors.IsNotFound(c.client.Get(ctx, client.ObjectKeyFromObject(p), p)), nil
	})
}

// reading is what the manager says of itself: how many audits there were, and the nanoseconds in them, in the controller of
// pods and of the processors, since it started; and its memory in bytes.
type reading struct{ audits, auditing, reconciling, work, resident float64 }

func (c *crowd) scrape(ctx context.Context) (reading, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.metrics, nil)
	if err != nil {
		return reading{}, err
	}
	request.Header.Set("Authorization", "Bearer "+c.token)
	response, err := c.https.Do(request)
	if err != nil {
		return reading{}, fmt.Errorf("reading the manager's metrics: %w", err)
	}
	defer response.Body.Close() //nolint:errcheck // It was only read.
	if response.StatusCode != http.StatusOK {
		return reading{}, fmt.Errorf("reading the manager's metrics: %s", response.Status)
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return reading{}, fmt.Errorf("reading the manager's metrics: %w", err)
	}
	metrics := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), " "); found && !strings.HasPrefix(line, "#") {
			// What is no number is none of those that are asked for.
			metrics[name], _ = strconv.ParseFloat(value, 64)
		}
	}
	return reading{
		audits:      metrics[`oakum_audit_duration_seconds_count{backend="calico"}`],
		auditing:    metrics[`oakum_audit_duration_seconds_sum{backend="calico"}`] * 1e9,
		reconciling: metrics[`controller_runtime_reconcile_time_seconds_sum{controller="pod"}`] * 1e9,
		work:        metrics["process_cpu_seconds_total"] * 1e9,
		resident:    metrics["process_resident_memory_bytes"],
	}, nil
}
