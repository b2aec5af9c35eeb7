package calico_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/backends/backendtest"
	"github.com/oakum-dev/oakum/backends/calico"
)

const web = "{handle_id: a.bc, secondary: {pod: web-0, namespace: default, node: worker-3}}"

// young is an object in YAML that was created two seconds ago.
func young(object string) string { return strings.ReplaceAll(object, "12:00:00", "12:59:58") }

// marked is an object in YAML that is marked as deleted.
func marked(object string) string {
	return strings.NewReplacer("deleted: false", "deleted: true", `deleted: "false"`, `deleted: "true"`).Replace(object)
}

func texts(problems []backends.Problem) []string {
	var found []string
	for _, p := range problems {
		found = append(found, fmt.Sprintf("%s: %s %s %s: %s", p.Rule, p.Record.Kind, p.Record.Name, p.Field, p.Message))
	}
	return found
}

func TestProblems(t *testing.T) {
	block := func(rest string) string {
		return "{kind: IPAMBlock, metadata: {name: 10-0-0-8-29}, spec: {cidr: 10.0.0.8/29, affinity: 'host:worker-3', " + rest + "}}"
	}
	mine := func(state string) string { return claim(calico.V1, "worker-3", cidr, state) }
	unmade := `allocation-conflict: IPAMBlock 10-0-0-8-29 spec.attributes: handle a.bc has 1 in 10.0.0.8/29, and there is no such IPAMHandle: Calico would not give it back; Oakum makes one`
	none := `allocation-conflict: IPAMHandle a.bc spec.block: counts 1 in 10.0.0.8/29, and no block has an address under it: Oakum deletes it`
	tests := map[string]struct {
		objects []string
		want    []string
		// mended: Mend ends it, and left is what there is then of what it may touch.
		mended bool
		left   []string
	}{
		"none where all is well": {
			objects: []string{
				blockOf(cidr, affinity, 0, "{handle_id: windows-reserved-ipam-handle}", 1, web, 2, `{releasedAt: "2026-11-30T12:43:06Z"}`), handleOf("a.bc", cidr, 1), mine("confirmed"),
				blockOf("10.0.0.16/29", affinity), claim(calico.V1, "worker-3", "10.0.0.16/29", ""),
			},
		},
		"an index out of range": {
			objects: []string{block("allocations: [0, 2, -1, null, null, null, null, null], unallocated: [3, 4, 5, 6, 7], attributes: [" + web + "]"), handleOf("a.bc", cidr, 1)},
			want: []string{
				"block-malformed: IPAMBlock 10-0-0-8-29 spec.allocations[1]: points to attribute 2 of 1: it is neither judged nor released, and kube-controllers may crash on it; correct it by hand",
				"block-malformed: IPAMBlock 10-0-0-8-29 spec.allocations[2]: points to attribute -1 of 1: it is neither judged nor released, and kube-controllers may crash on it; correct it by hand",
			},
		},
		"an address that is handed out and free": {
			objects: []string{block("allocations: [0, null, null, null, null, null, null, null], unallocated: [1, 0], attributes: [" + web + "]"), handleOf("a.bc", cidr, 1)},
			want:    []string{"allocation-conflict: IPAMBlock 10-0-0-8-29 spec.allocations[0]: is handed out, and in spec.unallocated too: it may be handed out twice; take it out there by hand"},
		},
		"a CIDR that cannot be read": {
			objects: []string{strings.Replace(block("allocations: [], unallocated: [], attributes: []"), "10.0.0.8/29", "10.0.0.9/29", 1)},
			want:    []string{`block-malformed: IPAMBlock 10-0-0-8-29 spec.cidr: "10.0.0.9/29" is no CIDR without host bits: its addresses are neither judged nor released`},
		},
		"more addresses than the CIDR has": {
			objects: []string{block("allocations: [null], unallocated: [0], attributes: []")},
			want:    []string{"block-malformed: IPAMBlock 10-0-0-8-29 spec.allocations: has 1 addresses, and 10.0.0.8/29 has 8"},
		},
		"an entry that tells no owner": {
			objects: []string{blockOf(cidr, affinity, 1, "{secondary: {note: mine}}", 2, "{}")},
			want: []string{
				`allocation-unowned: IPAMBlock 10-0-0-8-29 spec.allocations[1]: 10.0.0.9, handle "": neither handle nor attributes tell whose it is, or they contradict each other: it is kept until somebody gives it back by hand`,
				`allocation-unowned: IPAMBlock 10-0-0-8-29 spec.allocations[2]: 10.0.0.10: neither handle nor attributes tell whose it is: that is settled when node worker-3, in whose block it lies, names its tunnel's address, or is gone`,
			},
		},
		"a handle of two owners": {
			objects: []string{
				blockOf(cidr, affinity, 1, web, 2, "{handle_id: a.bc, secondary: {pod: web-1, namespace: default, node: worker-3}}"), handleOf("a.bc", cidr, 2),
			},
			want: []string{"allocation-conflict: IPAMBlock 10-0-0-8-29 spec.allocations[2]: is of Pod default/web-1, and handle a.bc is of Pod default/web-0 elsewhere: they are given back together or not at all"},
		},
		"a handle that no block mentions": {
			objects: []string{handleOf("a.bc", cidr, 1)}, want: []string{none}, mended: true,
		},
		"G26 a young one is none": {objects: []string{young(handleOf("a.bc", cidr, 1))}, left: []string{"IPAMHandle/a.bc"}},
		"a handle that counts nothing at all": {
			objects: []string{"{kind: IPAMHandle, metadata: {name: a.bc, creationTimestamp: 2026-11-30T12:00:00Z}, spec: {handleID: a.bc}}"},
			want:    []string{"allocation-conflict: IPAMHandle a.bc spec.block: counts none, and no block has an address under it: Oakum deletes it"}, mended: true,
		},
		"a handle that counts wrongly": {
			objects: []string{blockOf(cidr, affinity, 1, web), handleOf("a.bc", cidr, 3, "10.0.0.16/29", 1)},
			want:    []string{"allocation-conflict: IPAMHandle a.bc spec.block: counts 1 in 10.0.0.16/29, 3 in 10.0.0.8/29, and the blocks have 1 in 10.0.0.8/29: Oakum counts again"},
			mended:  true, left: []string{"IPAMHandle/a.bc"},
		},
		"a handle without an object": {objects: []string{blockOf(cidr, affinity, 1, web)}, want: []string{unmade}, mended: true, left: []string{"IPAMHandle/a.bc"}},
		"G28 a handle that goes on after a carriage return has the object": {
			objects: []string{blockOf(cidr, affinity, 1, `{handle_id: "a.bc\r\neth0", secondary: {pod: web-0, namespace: default}}`), handleOf("a.bc", cidr, 1)},
			left:    []string{"IPAMHandle/a.bc"},
		},
		"objects that were marked as deleted and stayed": {
			objects: []string{marked(blockOf(cidr, affinity)), marked(handleOf("a.bc", cidr, 1)), marked(mine("pendingDeletion"))},
			want: []string{
				"block-malformed: IPAMBlock 10-0-0-8-29 spec.deleted: is true, and the object is still there: Oakum deletes it",
				"block-malformed: IPAMHandle a.bc spec.deleted: is true, and the object is still there: Oakum deletes it",
				"block-malformed: BlockAffinity worker-3-10-0-0-8-29 spec.deleted: is true, and the object is still there: Oakum deletes it",
			},
			mended: true,
		},
		"a claim that is pending, for a block that is the node's": {
			objects: []string{blockOf(cidr, affinity), mine("pending")},
			want:    []string{"block-malformed: BlockAffinity worker-3-10-0-0-8-29 spec.state: is pending, and stays so: Oakum confirms it if block 10.0.0.8/29 is of node worker-3, and else deletes it"},
			mended:  true, left: []string{"BlockAffinity/worker-3-10-0-0-8-29 confirmed"},
		},
		"for one that is another node's": {
			objects: []string{blockOf(cidr, "host:worker-4"), mine("pending")},
			want:    []string{"block-malformed: BlockAffinity worker-3-10-0-0-8-29 spec.state: is pending, and stays so: Oakum confirms it if block 10.0.0.8/29 is of node worker-3, and else deletes it"},
			mended:  true,
		},
		"for one that is not there": {
			objects: []string{mine("pending")},
			want:    []string{"block-malformed: BlockAffinity worker-3-10-0-0-8-29 spec.state: is pending, and stays so: Oakum confirms it if block 10.0.0.8/29 is of node worker-3, and else deletes it"},
			mended:  true,
		},
		"one that is being given up, and whose block has been used since": {
			objects: []string{blockOf(cidr, affinity, 1, web), handleOf("a.bc", cidr, 1), mine("pendingDeletion")},
			want:    []string{"block-malformed: BlockAffinity worker-3-10-0-0-8-29 spec.state: is pendingDeletion, and stays so: Oakum confirms it if block 10.0.0.8/29 is of node worker-3, and else deletes it"},
			mended:  true, left: []string{"BlockAffinity/worker-3-10-0-0-8-29 confirmed", "IPAMHandle/a.bc"},
		},
		"one that is being given up, and whose block is empty": {
			objects: []string{blockOf(cidr, affinity), mine("pendingDeletion")},
			want:    []string{"block-malformed: BlockAffinity worker-3-10-0-0-8-29 spec.state: is pendingDeletion, and stays so: Oakum confirms it if block 10.0.0.8/29 is of node worker-3, and else deletes it"},
			mended:  true,
		},
		"a claim that is pending and young is none": {objects: []string{young(mine("pending"))}, left: []string{"BlockAffinity/worker-3-10-0-0-8-29 pending"}},
		"a claim to what is no block": {
			objects: []string{claim(calico.V1, "worker-3", "nonsense", "pending")},
			want:    []string{`block-malformed: BlockAffinity worker-3-nonsense spec: is pending for "nonsense", and not a node's claim to a block: look at it by hand`},
			left:    []string{"BlockAffinity/worker-3-nonsense pending"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, calico.V1, tt.objects...)
			problems, err := s.backend.Problems(t.Context())
			check(t, err)
			if diff := diff(tt.want, texts(problems)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
			before := s.stored(t)
			if mended, err := s.backend.Mend(t.Context()); err != nil || len(mended) > 0 {
				t.Errorf("the first look mended %v, %v", mended, err)
			}
			s.now = s.now.Add(grace - time.Second)
			if mended, err := s.backend.Mend(t.Context()); err != nil || len(mended) > 0 {
				t.Errorf("it mended %v before the grace was over, %v", mended, err)
			}
			if diff := diff(before, s.stored(t)); diff != "" {
				t.Errorf("something was written (-before +after):\n%s", diff)
			}
			s.now = s.now.Add(time.Second)
			mended, err := s.backend.Mend(t.Context())
			check(t, err)
			if !tt.mended {
				tt.want = nil
			}
			if diff := diff(tt.want, texts(mended)); diff != "" {
				t.Errorf("mended (-want +got):\n%s", diff)
			}
			if tt.mended {
				whole(t, s)
				s.now = s.now.Add(time.Hour)
				if problems, err := s.backend.Problems(t.Context()); err != nil || len(problems) > 0 {
					t.Errorf("after it was mended: %v, %v", texts(problems), err)
				}
				if diff := diff(tt.left, handlesAndClaims(t, s)); diff != "" {
					t.Errorf("what is left (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func handlesAndClaims(t *testing.T, s *store) []string {
	t.Helper()
	found := slices.DeleteFunc(blocksOf(t, s), func(text string) bool { return strings.HasPrefix(text, "IPAMBlock/") })
	for name := range s.stored(t) {
		if strings.HasPrefix(name, "IPAMHandle/") {
			found = append(found, name)
		}
	}
	return slices.Sorted(slices.Values(found))
}

// What has changed between two looks is looked at anew, and what changes in the last moment is left alone.
func TestMendTouchesNothingThatChanged(t *testing.T) {
	tests := map[string]struct {
		objects []string
		event   func(*testing.T, *store)
		last    bool
	}{
		"a handle that was written in between": {
			objects: []string{handleOf("a.bc", cidr, 1)},
			event:   func(t *testing.T, s *store) { s.plant(t, handleOf("a.bc", cidr, 2)) },
		},
		"a handle that is written in the last moment": {
			objects: []string{handleOf("a.bc", cidr, 1)}, last: true,
			event: func(t *testing.T, s *store) { s.plant(t, handleOf("a.bc", cidr, 2)) },
		},
		"a handle that is wrong otherwise by now": {
			objects: []string{blockOf(cidr, affinity, 1, web), handleOf("a.bc", cidr, 3)},
			event:   func(t *testing.T, s *store) { s.plant(t, blockOf(cidr, affinity, 1, web, 2, web)) },
		},
		"a handle that is made in the last moment": {
			objects: []string{blockOf(cidr, affinity, 1, web)}, last: true,
			event: func(t *testing.T, s *store) { s.plant(t, handleOf("a.bc", cidr, 1)) },
		},
		"a claim that is confirmed in the last moment": {
			objects: []string{blockOf(cidr, affinity), claim(calico.V1, "worker-3", cidr, "pending")}, last: true,
			event: func(t *testing.T, s *store) { s.plant(t, claim(calico.V1, "worker-3", cidr, "confirmed")) },
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, calico.V1, tt.objects...)
			_, err := s.backend.Mend(t.Context())
			check(t, err)
			s.now = s.now.Add(grace)
			var before backendtest.Objects
			happen := func() error {
				tt.event(t, s)
				before = s.stored(t)
				return nil
			}
			if tt.last {
				s.Before(backendtest.Write, happen)
			} else {
				check(t, happen())
			}
			_, err = s.backend.Mend(t.Context())
			check(t, err)
			if diff := diff(before, s.stored(t)); diff != "" {
				t.Errorf("something was written (-before +after):\n%s", diff)
			}
		})
	}
}

func TestMendGoesOnAfterAFailure(t *testing.T) {
	s := newStore(t, calico.V1, handleOf("a.bc", cidr, 1), handleOf("a.cd", cidr, 1))
	_, err := s.backend.Mend(t.Context())
	check(t, err)
	s.now = s.now.Add(grace)
	broken := errors.New("the API server is on fire")
	s.Before(backendtest.Write, func() error { return broken })
	mended, err := s.backend.Mend(t.Context())
	if len(mended) != 1 || mended[0].Record.Name != "a.cd" || !errors.Is(err, broken) {
		t.Errorf("it mended %v and says %v, want a.cd and %v", texts(mended), err, broken)
	}
}

// archive is an API server with nothing but handles, which it lists in pages.
type archive struct {
	client.Client
	handles map[string]*calico.IPAMHandle
	names   []string
	lists   int
	largest int
}

func (a *archive) List(_ context.Context, l client.ObjectList, options ...client.ListOption) error {
	handles, ok := l.(*calico.IPAMHandleList)
	if !ok {
		return nil
	}
	var o client.ListOptions
	o.ApplyOptions(options)
	first, _ := strconv.Atoi(o.Continue)
	last := len(a.names)
	if o.Limit > 0 {
		last = min(last, first+int(o.Limit))
	}
	for _, name := range a.names[first:last] {
		if h := a.handles[name]; h != nil {
			handles.Items = append(handles.Items, *h)
		}
	}
	if last < len(a.names) {
		handles.Continue = strconv.Itoa(last)
	}
	a.lists++
	a.largest = max(a.largest, len(handles.Items))
	return nil
}

func (a *archive) Patch(_ context.Context, o client.Object, p client.Patch, _ ...client.PatchOption) error {
	data, err := p.Data(o)
	if err == nil && strings.Contains(string(data), `"path":"/spec/deleted","value":true`) {
		a.handles[o.GetName()].Spec.Deleted = true
	}
	return err
}

func (a *archive) Delete(_ context.Context, o client.Object, _ ...client.DeleteOption) error {
	if !a.handles[o.GetName()].Spec.Deleted {
		return fmt.Errorf("%s is not marked as deleted", o.GetName())
	}
	delete(a.handles, o.GetName())
	return nil
}

func TestG26HandlesThatNoBlockMentionsGoPageByPage(t *testing.T) {
	const many = 30000
	now := time.Date(2026, 11, 30, 13, 0, 0, 0, time.UTC)
	a := &archive{handles: map[string]*calico.IPAMHandle{}}
	for n := range many + 1 {
		h := &calico.IPAMHandle{Spec: calico.IPAMHandleSpec{HandleID: fmt.Sprintf("k8s-pod-network.%064x", n), Block: map[string]int{cidr: 1}}}
		h.Name, h.UID, h.ResourceVersion, h.CreationTimestamp = h.Spec.HandleID, types.UID(strconv.Itoa(n)), "1", metav1.NewTime(now.Add(-time.Hour))
		if n == many {
			h.CreationTimestamp = metav1.NewTime(now.Add(grace - 2*time.Second))
		}
		a.handles[h.Name] = h
		a.names = append(a.names, h.Name)
	}
	b := calico.New(a, a, a, calico.V1, grace, func() time.Time { return now })
	problems, err := b.Problems(t.Context())
	check(t, err)
	if len(problems) != many || len(a.handles) != many+1 {
		t.Errorf("the dry run lists %d problems and leaves %d handles, want %d and %d", len(problems), len(a.handles), many, many+1)
	}
	a.lists, a.largest = 0, 0
	_, err = b.Mend(t.Context())
	check(t, err)
	_, err = b.Mend(t.Context())
	check(t, err)
	if a.lists != many/2000+1 || a.largest != 2000 {
		t.Errorf("%d lists of at most %d, want %d of 2000 in a grace", a.lists, a.largest, many/2000+1)
	}
	now = now.Add(grace)
	mended, err := b.Mend(t.Context())
	check(t, err)
	if left := slices.Collect(maps.Keys(a.handles)); len(mended) != many || len(left) != 1 || left[0] != a.names[many] {
		t.Errorf("%d were mended, want %d; what is left: %v", len(mended), many, left)
	}
}

// A cache that lags for longer than a grace shows twice what has not been true for long.
func TestWhatACacheShowsIsNotMendedWithoutALook(t *testing.T) {
	for group, served := range groups() {
		t.Run(group, func(t *testing.T) {
			s := newStore(t, served)
			s.plant(t, handleOf("a.bc", cidr, 1))
			thaw := s.Freeze(t)
			s.plant(t, blockOf(cidr, affinity, 0, web))
			before := s.stored(t)
			for range 3 {
				mended, err := s.backend.Mend(t.Context())
				check(t, err)
				if len(mended) > 0 {
					t.Errorf("mended %v", mended)
				}
				s.now = s.now.Add(grace)
			}
			thaw()
			after := s.stored(t)
			if diff := diff(before["IPAMHandle/a.bc"], after["IPAMHandle/a.bc"]); diff != "" {
				t.Errorf("the handle (-before +after):\n%s", diff)
			}
		})
	}
}

// G24: a node is gone, with its pods and its tunnel.
func TestG24NothingIsLeftOfANodeThatIsGone(t *testing.T) {
	for group, served := range groups() {
		t.Run(group, func(t *testing.T) {
			s := newStore(t, served)
			empty := s.stored(t)
			s.plant(t, blockOf(cidr, affinity,
				0, "{handle_id: ipip-tunnel-addr-worker-3, secondary: {node: worker-3, type: ipipTunnelAddress}}",
				1, web, 2, "{handle_id: a.cd, secondary: {pod: web-1, namespace: default, node: worker-3}}", 3, "{handle_id: a.de, secondary: {pod: web-2, namespace: default, node: worker-3}}"),
				handleOf("ipip-tunnel-addr-worker-3", cidr, 1), handleOf("a.bc", cidr, 1), handleOf("a.cd", cidr, 1), handleOf("a.de", cidr, 1),
				claim(served, "worker-3", cidr, "confirmed"))
			all, err := s.backend.Allocations(t.Context())
			check(t, err)
			for _, a := range all {
				check(t, s.backend.Release(t.Context(), a))
			}
			check(t, s.backend.Abandon(t.Context(), "worker-3"))
			if diff := diff(empty, s.stored(t)); diff != "" {
				t.Errorf("what is left (-want +got):\n%s", diff)
			}
		})
	}
}
