//go:build e2e

package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/backends/whereabouts"
)

// looks is after how many runs of the audit, a second apart, whatever it takes for a leak would have been given back: with
// guarded that takes four seconds at the most, and one run.
const looks = 9

// gauge reads the manager's metrics.
type gauge struct {
	w     *town
	token string
	http  *http.Client
}

// gauge makes a reader of the metrics, who may read them and nothing else.
func (w *town) gauge() gauge {
	w.t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, GenerateName: "gauge-"}}
	w.must(w.Client.Create(w.t.Context(), account))
	w.must(w.Client.Create(w.t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: account.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "oakum-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: account.Namespace, Name: account.Name}},
	}))
	granted := &authenticationv1.TokenRequest{}
	w.must(w.Client.SubResource("token").Create(w.t.Context(), account, granted))
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	w.t.Cleanup(c.CloseIdleConnections)
	return gauge{w, granted.Status.Token, c}
}

// read returns the value of the series with that name and those labels, as the metrics spell them; 0 if there is none.
func (g gauge) read(ctx context.Context, series string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/metrics", g.w.manager.Metrics), nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+g.token)
	resp, err := g.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close() //nolint:errcheck // It was only read.
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return 0, errors.Join(err, fmt.Errorf("the answer to a question about metrics is %s: %s", resp.Status, text))
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, nil
}

// runs counts the runs of the audit of Whereabouts' records, whether they failed or not.
func (g gauge) runs(ctx context.Context) (int, error) {
	n, err := g.read(ctx, `oakum_audit_duration_seconds_count{backend="whereabouts"}`)
	return int(n), err
}

// survives checks that not a byte of Whereabouts' records changes, and no sandbox ends, while the audit runs n times.
func (w *town) survives(what string, g gauge, n int) {
	w.t.Helper()
	ctx := w.t.Context()
	records, err := w.everything(ctx)
	w.must(err)
	sandboxes, err := w.Sandboxes()
	w.must(err)
	before := -1
	w.eventually(what+": the audit has run", func(ctx context.Context) error {
		now, err := w.everything(ctx)
		w.must(err)
		if diff := gocmp.Diff(records, now); diff != "" {
			w.t.Fatalf("%s: the records have changed (-before +now):\n%s", what, diff)
		}
		runs, err := g.runs(ctx)
		if before < 0 && err == nil {
			before = runs
		}
		if err == nil && runs < before+n {
			err = fmt.Errorf("it has run %d times of %d", runs-before, n)
		}
		return err
	})
	now, err := w.Sandboxes()
	w.must(err)
	if diff := gocmp.Diff(sandboxes, now); diff != "" {
		w.t.Fatalf("%s: what runs has changed (-before +now):\n%s", what, diff)
	}
	w.t.Logf("%s: %d records are untouched after %d runs of the audit", what, len(records), n)
}

// everything returns all that Whereabouts has recorded, with the identities of the objects.
func (w *town) everything(ctx context.Context) ([]string, error) {
	var pools whereabouts.IPPoolList
	var reservations whereabouts.OverlappingRangeIPReservationList
	err := errors.Join(
		w.records.List(ctx, &pools, client.InNamespace(metav1.NamespaceSystem)),
		w.records.List(ctx, &reservations, client.InNamespace(metav1.NamespaceSystem)),
	)
	var lines []string
	for _, p := range pools.Items {
		for _, offset := range slices.Sorted(maps.Keys(p.Spec.Allocations)) {
			e := p.Spec.Allocations[offset]
			lines = append(lines, fmt.Sprintf("%s of %s: sandbox %s of %s, %s", offset, p.Name, e.ID, e.PodRef, e.IfName))
		}
	}
	for _, r := range reservations.Items {
		lines = append(lines, fmt.Sprintf("reservation %s, uid %s: %s, %s", r.Name, r.UID, r.Spec.PodRef, r.Spec.IfName))
	}
	slices.Sort(lines)
	return lines, err
}

// reported reads the LeakReport of Whereabouts of a run that began from now on.
func (w *town) reported() v1alpha1.LeakReportStatus {
	w.t.Helper()
	now := time.Now()
	var report v1alpha1.LeakReport
	w.eventually("a run is reported", func(ctx context.Context) error {
		err := w.Client.Get(ctx, client.ObjectKey{Name: whereabouts.Name}, &report)
		// The API has whole seconds.
		if began := report.Status.LastRun.StartedAt.Time; err == nil && !began.After(now) {
			err = fmt.Errorf("the last run that is reported began at %s, which is not after %s", began, now)
		}
		return err
	})
	return report.Status
}

// counts waits until a report has these counts.
func (w *town) counts(what string, want v1alpha1.LeakReportRun) {
	w.t.Helper()
	w.eventually(what, func(ctx context.Context) error {
		var report v1alpha1.LeakReport
		err := w.Client.Get(ctx, client.ObjectKey{Name: whereabouts.Name}, &report)
		got := report.Status.LastRun
		got.StartedAt, got.FinishedAt = metav1.Time{}, metav1.Time{}
		if diff := gocmp.Diff(want, got); err == nil && diff != "" {
			err = fmt.Errorf("the report (-want +got):\n%s", diff)
		}
		return err
	})
}

// says waits until a condition of the LeakReport has that status and a message with that text.
func (w *town) says(t v1alpha1.ConditionType, status metav1.ConditionStatus, text string) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("the report's condition %s is %s", t, status), func(ctx context.Context) error {
		var report v1alpha1.LeakReport
		if err := w.Client.Get(ctx, client.ObjectKey{Name: whereabouts.Name}, &report); err != nil {
			return err
		}
		c := meta.FindStatusCondition(report.Status.Conditions, string(t))
		if c == nil || c.Status != status || !strings.Contains(c.Message, text) {
			return fmt.Errorf("it is %+v, want a message with %q", c, text)
		}
		return nil
	})
}
