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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/backends/calico"
	"github.com/oakum-dev/oakum/cli"
	"github.com/oakum-dev/oakum/test/fixture"
)

const (
	// A large cluster of Calico's: so many nodes with a full block each.
	largeBlocks, largeSize = 1000, 64
	largePool              = "large"
)

// large is what Calico records of a large cluster, node by node: the Node, its block with the claim to it, and a handle for
// each address. So many of the addresses of each are a pod's that is there.
func (s *scene) large(pods int) {
	s.t.Helper()
	var group sync.WaitGroup
	for worker := range 4 {
		group.Go(func() {
			for i := worker; i < largeBlocks; i += 4 {
				if err := s.Plant(s.t.Context(), s.largeNode(i, pods)...); err != nil {
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

func (s *scene) largeNode(index, pods int) []client.Object {
	at := index * largeSize
	node := fmt.Sprintf("node-%04d", index)
	l := lot{cidr: fmt.Sprintf("10.%d.%d.%d/26", 64+at>>16, at>>8&255, at&255), node: node, taken: map[int]calico.Attribute{}}
	objects := []client.Object{fixture.Node(node)}
	for o := range largeSize {
		pod := fmt.Sprintf("frontend-7d4f9c6b58-%05d", at+o)
		handle := fmt.Sprintf("k8s-pod-network.%064x", (at+o)*7919)
		l.taken[o] = calico.Attribute{HandleID: handle, Secondary: map[string]string{
			"namespace": "default", "pod": pod, "node": node, "timestamp": "2026-11-30 12:40:46.393856399 +0000 UTC",
		}}
		objects = append(objects, s.stored(&calico.IPAMHandle{
			ObjectMeta: metav1.ObjectMeta{Name: handle}, Spec: calico.IPAMHandleSpec{HandleID: handle, Block: map[string]int{l.cidr: 1}},
		}))
		if o < pods {
			objects = append(objects, fixture.Pod(pod, node, fixture.Running(fmt.Sprintf("10.%d.%d.%d", 64+at>>16, at>>8&255, at&255+o))))
		}
	}
	return append(objects,
		s.calico(calico.V1, "BlockAffinity", node+"-"+dashed(l.cidr), fmt.Sprintf(`{cidr: %q, node: %s, state: confirmed, type: host, deleted: "false"}`, l.cidr, node)),
		s.stored(l.block(s.t)))
}

// stored is an object of Calico's with the fields that the API server wants beside those that Oakum reads.
func (s *scene) stored(o client.Object) *unstructured.Unstructured {
	s.t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		s.t.Fatal(err)
	}
	object := &unstructured.Unstructured{Object: content}
	kinds, _, err := s.client.Scheme().ObjectKinds(o)
	if err != nil {
		s.t.Fatal(err)
	}
	object.SetGroupVersionKind(kinds[0])
	if kinds[0].Kind == "IPAMBlock" {
		content["spec"].(map[string]any)["strictAffinity"] = false
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
	first := s.calicoReported(time.Time{}, 0)
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
