package envtest

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/backends/calico"
	"github.com/oakum-dev/oakum/cli"
	fixturecalico "github.com/oakum-dev/oakum/test/fixture/calico"
)

const (
	// A large cluster of Calico's: so many nodes with a full block each.
	largeBlocks, largeSize = 1000, fixturecalico.BlockSize
	largePool              = "large"
)

// large is what Calico records of a large cluster, node by node: the Node, its block with the claim to it, and a handle for
// each address. So many of the addresses of each are a pod's that is there.
func (s *scene) large(pods int) {
	s.t.Helper()
	crowd := fixturecalico.Crowd{Scheme: s.client.Scheme(), Pods: pods}
	var group sync.WaitGroup
	for worker := range 4 {
		group.Go(func() {
			for i := worker; i < largeBlocks; i += 4 {
				objects, err := crowd.Node(i)
				if err == nil {
					err = s.Plant(s.t.Context(), objects...)
				}
				if err != nil {
					s.t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	// After this write a list has all that was planted.
	s.create(s.calico(calico.V1, "IPPool", largePool, "{cidr: 10.64.0.0/14, blockSize: 26}"))
}

// stored is an object of Calico's with the fields that the API server wants beside those that Oakum reads.
func (s *scene) stored(o client.Object) *unstructured.Unstructured {
	s.t.Helper()
	object, err := fixturecalico.Stored(s.client.Scheme(), o)
	if err != nil {
		s.t.Fatal(err)
	}
	return object
}

// TestCalicoAtScale looks at 64,000 hand-outs in 1,000 blocks, nearly all of which have leaked.
func TestCalicoAtScale(t *testing.T) {
	t.Parallel()
	p := calicoTown(t)
	s := p.scene(t, "scale")
	s.large(1)
	t.Run("check lists each kind once", func(t *testing.T) { testCalicoCheckIsFrugal(s.in(t)) })
	t.Run("the manager's memory is bounded", func(t *testing.T) { testCalicoManagerIsFrugal(s.in(t)) })
}

// testCalicoManagerIsFrugal lets the manager audit twice, with nothing to release yet, and looks what memory that took.
func testCalicoManagerIsFrugal(s *scene) {
	token := s.metricsReader()
	m := s.start(s.t, "backends: {calico: {mode: Enforce, podFinalizers: false}}\naudit: {interval: 5s, gracePeriod: 30m, quarantine: 1h}\n")
	first := s.calicoReported(time.Time{}, time.Second) // A new report tells of no run yet.
	s.t.Logf("the first run took %s", first.LastRun.FinishedAt.Sub(first.LastRun.StartedAt.Time))
	s.calicoReported(first.LastRun.StartedAt.Time, time.Second)
	now, most, err := m.Resident()
	if err != nil {
		s.t.Fatal(err)
	}
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	s.t.Cleanup(c.CloseIdleConnections)
	code, body, err := request(c, fmt.Sprintf("https://127.0.0.1:%d/metrics", m.Metrics), token)
	if err != nil || code != http.StatusOK {
		s.t.Fatal(code, err)
	}
	_, text, _ := strings.Cut(body, "\ngo_gc_heap_live_bytes ")
	text, _, _ = strings.Cut(text, "\n")
	live, err := strconv.ParseFloat(text, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Logf("%.0f MB marked in the last collection, %d MB resident, %d MB at most", live/1e6, now/1e6, most/1e6)
	if live > 180e6 {
		s.t.Errorf("%.0f MB are in use", live/1e6)
	}
	if most > 400e6 {
		s.t.Errorf("%d MB were resident", most/1e6)
	}
}

func testCalicoCheckIsFrugal(s *scene) {
	asked := make(chan string, 1000)
	kubeconfig := s.watched(s.t, asked)
	began := time.Now()
	got, state := s.oakum(s.t, kubeconfig, "check", "--backend", calico.Name, "-o", "json")
	took := time.Since(began)
	close(asked)
	var report cli.Report
	if err := json.Unmarshal([]byte(got.Stdout), &report); err != nil {
		s.t.Fatalf("%d, %s: %v", got.Code, got.Stderr, err)
	}
	const leaked = largeBlocks * (largeSize - 1)
	want := []cli.PoolReport{{Backend: calico.Name, Name: largePool, Capacity: 1 << 18, Allocated: largeBlocks * largeSize, InUse: largeBlocks, Leaked: leaked}}
	if diff := gocmp.Diff(want, report.Pools, cmpopts.IgnoreFields(cli.PoolReport{}, "Blocks")); diff != "" || len(report.Leaks) != leaked || len(report.Problems) > 0 {
		s.t.Errorf("%d leaks, problems %v, pools (-want +got):\n%s", len(report.Leaks), report.Problems, diff)
	}
	work, rss := state.UserTime()+state.SystemTime(), state.SysUsage().(*syscall.Rusage).Maxrss/1024
	s.t.Logf("%s, of which %s of work, and %d MiB", took, work, rss)
	if rss > 500 {
		s.t.Errorf("it took %d MiB", rss)
	}
	if work > 8*time.Second {
		s.t.Errorf("it took %s of work", work)
	}
	lists := map[string]int{}
	for list := range asked {
		lists[list]++
	}
	same(s.t, "lists", map[string]int{
		"blockaffinities all": 1, "ipamblocks all": 1, "ipamhandles all": 1, "ippools all": 1, "ipreservations all": 1,
		"nodes 500 first": 1, "nodes 500 next": 1, "pods 500 first": 1, "pods 500 next": 1,
	}, lists)
}
