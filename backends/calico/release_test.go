package calico_test

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/backends/backendtest"
	"github.com/oakum-dev/oakum/backends/calico"
	"github.com/oakum-dev/oakum/ipam"
)

// whole fails the test unless all that is stored agrees, as calicoctl ipam check wants it, and more: every address is free
// or has a valid attribute, every attribute is somebody's, and every handle counts what the blocks have.
func whole(t testing.TB, s *store) {
	t.Helper()
	counts, handles := map[string]map[string]int64{}, map[string]map[string]int64{}
	stored := s.stored(t)
	for name, object := range stored {
		spec, _ := object["spec"].(map[string]any)
		switch object["kind"] {
		case "IPAMBlock":
			for _, complaint := range complaints(spec, counts) {
				t.Errorf("%s: %s", name, complaint)
			}
		case "IPAMHandle":
			id := spec["handleID"].(string)
			handles[id] = map[string]int64{}
			for cidr, n := range spec["block"].(map[string]any) {
				handles[id][cidr] = n.(int64)
			}
			if spec["deleted"] == true {
				t.Errorf("%s is marked as deleted and still there", name)
			}
		}
	}
	if diff := diff(counts, handles); diff != "" {
		t.Errorf("handles (-as the blocks have them +as they count):\n%s", diff)
	}
}

// complaints returns what is wrong in a block, and counts its handles.
func complaints(spec map[string]any, counts map[string]map[string]int64) []string {
	var wrong []string
	attributes, cidr := spec["attributes"].([]any), spec["cidr"].(string)
	used, free := map[int64]bool{}, map[any]bool{}
	for _, o := range spec["unallocated"].([]any) {
		if free[o] {
			wrong = append(wrong, fmt.Sprintf("%v is free twice", o))
		}
		free[o] = true
	}
	sequences, _ := spec["sequenceNumberForAllocation"].(map[string]any)
	for o, index := range spec["allocations"].([]any) {
		number, numbered := sequences[strconv.Itoa(o)]
		if index == nil {
			if !free[int64(o)] || numbered {
				wrong = append(wrong, fmt.Sprintf("%d is not handed out, is free: %t, and has a number: %t", o, free[int64(o)], numbered))
			}
			continue
		}
		i := index.(int64)
		if i < 0 || i >= int64(len(attributes)) {
			wrong = append(wrong, fmt.Sprintf("%d points to attribute %d of %d", o, i, len(attributes)))
			continue
		}
		used[i] = true
		handle, _ := attributes[i].(map[string]any)["handle_id"].(string)
		handle, _, _ = strings.Cut(handle, "\r")
		if free[int64(o)] || numbered && number.(int64) >= spec["sequenceNumber"].(int64) {
			wrong = append(wrong, fmt.Sprintf("%d is handed out, is free: %t, and has number %v of %v", o, free[int64(o)], number, spec["sequenceNumber"]))
		}
		if handle == "" || handle == "windows-reserved-ipam-handle" {
			continue
		}
		if counts[handle] == nil {
			counts[handle] = map[string]int64{}
		}
		counts[handle][cidr]++
	}
	if len(used) != len(attributes) {
		wrong = append(wrong, fmt.Sprintf("%d of %d attributes are somebody's", len(used), len(attributes)))
	}
	if spec["deleted"] == true {
		wrong = append(wrong, "it is marked as deleted and still there")
	}
	return wrong
}

const cooling = "{kind: IPAMConfig, metadata: {name: default}, spec: {ipCooldownSeconds: 600}}"

// find returns the hand-out with that handle.
func find(t testing.TB, s *store, handle string) ipam.Allocation {
	t.Helper()
	all, err := s.backend.Allocations(t.Context())
	check(t, err)
	i := slices.IndexFunc(all, func(a ipam.Allocation) bool { return a.Handle == handle })
	if i < 0 {
		t.Fatalf("no hand-out has handle %s", handle)
	}
	return all[i]
}

func TestRelease(t *testing.T) {
	const (
		web   = "{handle_id: a.bc, secondary: {pod: web-0, namespace: default, node: worker-3}}"
		other = "{handle_id: a.cd, secondary: {pod: web-1, namespace: default, node: worker-3}}"
	)
	unowned := "unowned/10.0.0.9/" + strconv.FormatInt(sequence, 10)
	tests := map[string]struct {
		objects []string
		handle  string
		// event happens between the sighting and the release.
		event func(*testing.T, *store)
		want  string
		stale bool
		// left are the objects of which something is left, beside those of the empty store, and writes how many were sent.
		left   []string
		writes int
	}{
		"the last address of a block that is nobody's takes the block along": {
			objects: []string{blockOf(cidr, "", 1, web), handleOf("a.bc", cidr, 1)}, handle: "a.bc", writes: 4,
		},
		"what Windows keeps for itself does not hold it": {
			objects: []string{blockOf(cidr, "", 0, "{handle_id: windows-reserved-ipam-handle}", 1, web), handleOf("a.bc", cidr, 1)}, handle: "a.bc", writes: 4,
		},
		"an address that cools down does": {
			objects: []string{cooling, blockOf(cidr, "", 1, web), handleOf("a.bc", cidr, 1)}, handle: "a.bc", writes: 3,
			left: []string{"IPAMBlock/10-0-0-8-29", "IPAMConfig/default"},
		},
		"a block that is a node's stays": {
			objects: []string{blockOf(cidr, affinity, 1, web), handleOf("a.bc", cidr, 1)}, handle: "a.bc", writes: 3,
			left: []string{"IPAMBlock/10-0-0-8-29"},
		},
		"G28 a handle that goes on after a carriage return is the same": {
			objects: []string{blockOf(cidr, affinity, 1, `{handle_id: "a.bc\r\neth0", secondary: {pod: web-0, namespace: default}}`), handleOf("a.bc", cidr, 1)},
			handle:  "a.bc", writes: 3, left: []string{"IPAMBlock/10-0-0-8-29"},
		},
		"what has no handle needs none": {
			objects: []string{blockOf(cidr, affinity, 1, "{}", 2, "{}")}, handle: unowned, writes: 1,
			left: []string{"IPAMBlock/10-0-0-8-29"},
		},
		"a handle's capital letters are small in its object's name": {
			objects: []string{
				blockOf(cidr, affinity, 1, "{handle_id: net.Web, secondary: {pod: web-0, namespace: default}}"),
				"{kind: IPAMHandle, metadata: {name: net.web}, spec: {handleID: net.Web, block: {10.0.0.8/29: 1}, deleted: false}}",
			},
			handle: "net.Web", writes: 3, left: []string{"IPAMBlock/10-0-0-8-29"},
		},
		"the object of a handle in other letters is another's": {
			objects: []string{
				blockOf(cidr, affinity, 1, "{handle_id: net.Web, secondary: {pod: web-0, namespace: default}}"),
				"{kind: IPAMHandle, metadata: {name: net.web}, spec: {handleID: net.weB, block: {10.0.0.8/29: 1}, deleted: false}}",
			},
			handle: "net.Web", writes: 1, left: []string{"IPAMBlock/10-0-0-8-29", "IPAMHandle/net.web"},
		},
		"a handle that counts in other blocks stays for them": {
			objects: []string{blockOf(cidr, affinity, 1, web), handleOf("a.bc", cidr, 1, "10.0.0.16/29", 1)}, handle: "a.bc", writes: 2,
			left: []string{"IPAMBlock/10-0-0-8-29", "IPAMHandle/a.bc"},
		},
		"a handle that is missing is not missed": {
			objects: []string{blockOf(cidr, affinity, 1, web)}, handle: "a.bc", writes: 1, left: []string{"IPAMBlock/10-0-0-8-29"},
		},
		"a handle that can be no object's name has none": {
			objects: []string{blockOf(cidr, affinity, 1, "{handle_id: a/bc, secondary: {pod: web-0, namespace: default}}")}, handle: "a/bc", writes: 1,
			left: []string{"IPAMBlock/10-0-0-8-29"},
		},
		"a handle that is younger than the grace is left to Mend": {
			objects: []string{blockOf(cidr, affinity, 1, web), strings.ReplaceAll(handleOf("a.bc", cidr, 1), "12:00:00", "12:59:01")},
			handle:  "a.bc", writes: 1, left: []string{"IPAMBlock/10-0-0-8-29", "IPAMHandle/a.bc"},
		},
		"a sequence number that is another one keeps the address": {
			objects: []string{blockOf(cidr, affinity, 1, web), handleOf("a.bc", cidr, 1)}, handle: "a.bc",
			event: func(t *testing.T, s *store) {
				s.plant(t, blockOf(cidr, affinity, 2, other, 1, web))
			},
			stale: true, want: `address 1 of IPAMBlock "10-0-0-8-29" has handle "a.bc" and sequence number 1796042409651816332 now: the record has changed`,
			left: []string{"IPAMBlock/10-0-0-8-29", "IPAMHandle/a.bc"},
		},
		"another address under the handle in that block keeps both": {
			objects: []string{blockOf(cidr, affinity, 1, web), handleOf("a.bc", cidr, 1)}, handle: "a.bc",
			event: func(t *testing.T, s *store) {
				s.plant(t, blockOf(cidr, affinity, 1, web, 2, web), handleOf("a.bc", cidr, 2))
			},
			stale: true, want: "a.bc has 10.0.0.10 too by now: the record has changed",
			left: []string{"IPAMBlock/10-0-0-8-29", "IPAMHandle/a.bc"},
		},
		"another address under the handle in another block keeps both": {
			objects: []string{blockOf(cidr, affinity, 1, web), handleOf("a.bc", cidr, 1)}, handle: "a.bc",
			event: func(t *testing.T, s *store) {
				s.plant(t, blockOf("10.0.0.16/29", affinity, 2, web), handleOf("a.bc", cidr, 1, "10.0.0.16/29", 1))
			},
			stale: true, want: "a.bc has 10.0.0.18 too by now: the record has changed",
			left: []string{"IPAMBlock/10-0-0-16-29", "IPAMBlock/10-0-0-8-29", "IPAMHandle/a.bc"},
		},
		"an entry without a handle that got one stays": {
			objects: []string{blockOf(cidr, affinity, 1, "{}")}, handle: unowned,
			event: func(t *testing.T, s *store) {
				s.plant(t, blockOf(cidr, affinity, 1, web), handleOf("a.bc", cidr, 1))
			},
			stale: true, want: `address 1 of IPAMBlock "10-0-0-8-29" has handle "a.bc" and sequence number 1796042409651816331 now: the record has changed`,
			left: []string{"IPAMBlock/10-0-0-8-29", "IPAMHandle/a.bc"},
		},
		"what cools down already is free already": {
			objects: []string{blockOf(cidr, affinity, 1, web), handleOf("a.bc", cidr, 1)}, handle: "a.bc",
			event: func(t *testing.T, s *store) {
				s.plant(t, blockOf(cidr, affinity, 1, `{releasedAt: "2026-11-30T12:43:06Z"}`))
			},
			left: []string{"IPAMBlock/10-0-0-8-29", "IPAMHandle/a.bc"},
		},
		"a block that is marked as deleted has nothing": {
			objects: []string{blockOf(cidr, affinity, 1, web), handleOf("a.bc", cidr, 1)}, handle: "a.bc",
			event: func(t *testing.T, s *store) {
				s.plant(t, strings.Replace(blockOf(cidr, affinity, 1, web), "deleted: false", "deleted: true", 1))
			},
			left: []string{"IPAMBlock/10-0-0-8-29", "IPAMHandle/a.bc"},
		},
		"what Windows keeps for itself is not released": {
			objects: []string{blockOf(cidr, "", 0, "{handle_id: windows-reserved-ipam-handle}")}, handle: "windows-reserved-ipam-handle/10-0-0-8-29",
			want: "releasing windows-reserved-ipam-handle/10-0-0-8-29: it is reserved for Windows, and goes with its block",
			left: []string{"IPAMBlock/10-0-0-8-29"},
		},
		"one that was deleted and is not gone counts as released": {
			objects: []string{blockOf(cidr, "", 1, web), handleOf("a.bc", cidr, 1)}, handle: "a.bc", writes: 5,
			event: func(_ *testing.T, s *store) {
				lost := apierrors.NewConflict(schema.GroupResource{Resource: "ipamblocks"}, "10-0-0-8-29", errors.New("lost"))
				s.late = func() error {
					if strings.HasPrefix(s.writes[len(s.writes)-1], "DELETE 10-0-0-8-29") {
						return nil
					}
					s.late = nil
					return lost
				}
			},
			left: []string{"IPAMBlock/10-0-0-8-29"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, calico.V1)
			empty := s.stored(t)
			s.plant(t, tt.objects...)
			a := find(t, s, tt.handle)
			if tt.event != nil {
				tt.event(t, s)
			}
			text := ""
			err := s.backend.Release(t.Context(), a)
			if err != nil {
				text = err.Error()
			}
			if text != tt.want || errors.Is(err, backends.ErrStale) != tt.stale {
				t.Errorf("the error is %v, want %s", err, tt.want)
			}
			left := s.stored(t)
			maps.DeleteFunc(left, func(name string, _ map[string]any) bool { return empty[name] != nil })
			if diff := diff(tt.left, slices.Sorted(maps.Keys(left))); diff != "" {
				t.Errorf("what is left (-want +got):\n%s", diff)
			}
			if len(s.writes) != tt.writes && tt.event == nil {
				t.Errorf("%d writes, want %d:\n%s", len(s.writes), tt.writes, strings.Join(s.writes, "\n"))
			}
		})
	}
}

func TestWritesOfARelease(t *testing.T) {
	s := newStore(t, calico.V1, blockOf(cidr, "", 1, "{handle_id: a.bc, secondary: {pod: web-0, namespace: default}}"), handleOf("a.bc", cidr, 1))
	at := func(name string) (uid, version string) {
		u := &unstructured.Unstructured{Object: s.stored(t)[name]}
		return string(u.GetUID()), u.GetResourceVersion()
	}
	blockUID, block := at("IPAMBlock/10-0-0-8-29")
	handleUID, handle := at("IPAMHandle/a.bc")
	_, latest := at("IPPool/v6")
	last, err := strconv.Atoi(latest)
	check(t, err)
	check(t, s.backend.Release(t.Context(), find(t, s, "a.bc")))
	want := []string{
		`application/json-patch+json 10-0-0-8-29 [{"op":"replace","path":"/metadata/resourceVersion","value":"` + block + `"},` +
			`{"op":"add","path":"/spec/allocations","value":[null,null,null,null,null,null,null,null]},{"op":"add","path":"/spec/unallocated","value":[0,2,3,4,5,6,7,1]},` +
			`{"op":"remove","path":"/spec/attributes/0"},{"op":"remove","path":"/spec/sequenceNumberForAllocation/1"},` +
			`{"op":"add","path":"/spec/sequenceNumber","value":1796042409651816333},{"op":"add","path":"/spec/deleted","value":true}]`,
		"DELETE 10-0-0-8-29 uid " + blockUID + " revision " + strconv.Itoa(last+1),
		`application/json-patch+json a.bc [{"op":"replace","path":"/metadata/resourceVersion","value":"` + handle + `"},` +
			`{"op":"remove","path":"/spec/block/10.0.0.8~129"},{"op":"add","path":"/spec/deleted","value":true}]`,
		"DELETE a.bc uid " + handleUID + " revision " + strconv.Itoa(last+2),
	}
	if diff := diff(want, s.writes); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
}

// After a crash between any two writes, or after any write whose answer is lost, the release is complete once it was called
// again and Mend has looked twice.
func TestAReleaseThatStoppedHalfWayIsCompleted(t *testing.T) {
	stopped := errors.New("the API server is on fire")
	for name, served := range groups() {
		for _, crashes := range []bool{true, false} {
			for writes := 0; ; writes++ {
				s := newStore(t, served)
				s.HandOut(t, backendtest.Who{Name: 1}, backendtest.Spot{Record: 0, Address: 2})
				a := s.HandOut(t, backendtest.Who{}, backendtest.Spot{}, backendtest.Spot{Address: 1}, backendtest.Spot{Record: 1})
				done := true
				if crashes {
					s.always = func(c backendtest.Call) error {
						if c == backendtest.Read || len(s.writes) < writes {
							return nil
						}
						done = false
						return stopped
					}
				} else {
					s.late = func() error {
						if len(s.writes) != writes+1 {
							return nil
						}
						done = false
						return stopped
					}
				}
				err := s.backend.Release(t.Context(), a)
				s.always, s.late = nil, nil
				if done && err != nil {
					t.Errorf("%s: it was not stopped after %d writes, and says %v", name, writes, err)
				}
				check(t, s.backend.Release(t.Context(), a))
				for range 2 {
					_, err := s.backend.Mend(t.Context())
					check(t, err)
					s.now = s.now.Add(grace)
				}
				whole(t, s)
				if left, err := s.backend.Allocations(t.Context()); err != nil || len(left) != 1 {
					t.Errorf("%s: after %d writes, what is left: %v, %v", name, writes, left, err)
				}
				if done {
					break
				}
			}
		}
	}
}

// Whoever writes between a read and a write of the backend's loses nothing by it.
func TestConcurrentWritersLoseNothing(t *testing.T) {
	events := map[string]struct {
		event func(*testing.T, *store) []ipam.Allocation
		stale bool
	}{
		"a neighbour comes": {event: func(t *testing.T, s *store) []ipam.Allocation {
			return []ipam.Allocation{s.HandOut(t, backendtest.Who{Name: 4}, backendtest.Spot{Address: 3})}
		}},
		"a neighbour comes into the other block": {event: func(t *testing.T, s *store) []ipam.Allocation {
			return []ipam.Allocation{s.HandOut(t, backendtest.Who{Name: 4}, backendtest.Spot{Record: 1, Address: 3})}
		}},
		"a neighbour goes": {event: func(t *testing.T, s *store) []ipam.Allocation {
			s.GiveBack(t, backendtest.Spot{Address: 2})
			return nil
		}},
	}
	for name, tt := range events {
		t.Run(name, func(t *testing.T) {
			for write := 1; ; write++ {
				s := newStore(t, calico.V3)
				first := s.HandOut(t, backendtest.Who{Name: 1}, backendtest.Spot{Address: 2})
				a := s.HandOut(t, backendtest.Who{}, backendtest.Spot{}, backendtest.Spot{Address: 1}, backendtest.Spot{Record: 1})
				calls, want := 0, []ipam.Allocation{first}
				s.always = func(c backendtest.Call) error {
					if c != backendtest.Write {
						return nil
					}
					if calls++; calls == write {
						if came := tt.event(t, s); came != nil {
							want = append(want, came...)
						} else {
							want = nil
						}
					}
					return nil
				}
				check(t, s.backend.Release(t.Context(), a))
				if calls < write {
					return
				}
				whole(t, s)
				got, err := s.backend.Allocations(t.Context())
				check(t, err)
				if diff := diff(sorted(want), sorted(got)); diff != "" {
					t.Errorf("before write %d (-want +got):\n%s", write, diff)
				}
			}
		})
	}
}

// Property: whatever others have written into the objects survives a release, byte for byte (I7).
func TestForeignFieldsSurvive(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		s := newStore(t, calico.V1)
		if rapid.Bool().Draw(r, "cooldown") {
			s.plant(t, cooling)
		}
		all := s.stored(t)
		foreign := map[string]any{"known": rapid.Int64().Draw(r, "number"), "list": []any{rapid.String().Draw(r, "text"), nil, true}}
		for _, object := range all {
			if object["kind"] == "IPAMBlock" || object["kind"] == "IPAMHandle" {
				object["foreign"] = kruntime.DeepCopyJSON(foreign)
				object["spec"].(map[string]any)["foreign"] = kruntime.DeepCopyJSON(foreign)
				object["metadata"].(map[string]any)["annotations"] = map[string]any{"example.org/" + rapid.StringMatching("[a-z]{1,8}").Draw(r, "key"): rapid.String().Draw(r, "value")}
			}
		}
		s.store(t, all)
		var neighbours []ipam.Allocation
		for o := range rapid.IntRange(0, 3).Draw(r, "neighbours") {
			neighbours = append(neighbours, s.HandOut(t, backendtest.Who{Name: o + 1}, backendtest.Spot{Address: o + 2}))
		}
		decorate := func(all backendtest.Objects) {
			for _, a := range all["IPAMBlock/10-0-0-0-29"]["spec"].(map[string]any)["attributes"].([]any) {
				a.(map[string]any)["foreign"] = kruntime.DeepCopyJSON(foreign)
			}
		}
		a := s.HandOut(t, backendtest.Who{}, backendtest.Spot{Address: rapid.IntRange(0, 1).Draw(r, "address")})
		all = s.stored(t)
		decorate(all)
		s.store(t, all)
		before := s.stored(t)
		check(t, s.backend.Release(t.Context(), a))
		whole(t, s)
		after := s.stored(t)
		for name, object := range after {
			was := before[name]
			if name != "IPAMBlock/10-0-0-0-29" {
				if diff := diff(was, object); diff != "" {
					t.Errorf("%s (-before +after):\n%s", name, diff)
				}
				continue
			}
			for _, object := range []map[string]any{was, object} {
				unstructured.RemoveNestedField(object, "metadata", "resourceVersion")
			}
			spec, old := object["spec"].(map[string]any), was["spec"].(map[string]any)
			for _, n := range neighbours {
				of := func(spec map[string]any) any {
					return spec["attributes"].([]any)[spec["allocations"].([]any)[n.Places[0].Offset].(int64)]
				}
				if !reflect.DeepEqual(of(old), of(spec)) {
					t.Errorf("offset %d (-before +after):\n%s", n.Places[0].Offset, diff(of(old), of(spec)))
				}
				at := strconv.Itoa(n.Places[0].Offset)
				if diff := diff(old["sequenceNumberForAllocation"].(map[string]any)[at], spec["sequenceNumberForAllocation"].(map[string]any)[at]); diff != "" {
					t.Errorf("the number of offset %s (-before +after):\n%s", at, diff)
				}
			}
			for _, field := range []string{"allocations", "unallocated", "attributes", "sequenceNumber", "sequenceNumberForAllocation"} {
				delete(spec, field)
				delete(old, field)
			}
			if diff := diff(was, object); diff != "" {
				t.Errorf("%s (-before +after):\n%s", name, diff)
			}
		}
	})
}

func TestCooldown(t *testing.T) {
	tests := map[string]struct {
		served schema.GroupVersion
		config string
		want   string
	}{
		"v1, none":           {served: calico.V1},
		"v1, of ten minutes": {served: calico.V1, config: cooling, want: "2026-11-30T13:00:00Z"},
		"v1, of no time":     {served: calico.V1, config: "{kind: IPAMConfig, metadata: {name: default}, spec: {ipCooldownSeconds: 0}}"},
		"v3, of ten minutes": {
			served: calico.V3, want: "2026-11-30T13:00:00Z",
			config: "{kind: IPAMConfiguration, metadata: {name: default}, spec: {ipCooldownSeconds: 600}}",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, tt.served)
			if tt.config != "" {
				s.plant(t, tt.config)
			}
			s.now = s.now.Add(time.Millisecond)
			a := s.HandOut(t, backendtest.Who{}, backendtest.Spot{})
			check(t, s.backend.Release(t.Context(), a))
			whole(t, s)
			got := ""
			for _, attribute := range s.stored(t)["IPAMBlock/10-0-0-0-29"]["spec"].(map[string]any)["attributes"].([]any) {
				got, _ = attribute.(map[string]any)["releasedAt"].(string)
			}
			if got != tt.want {
				t.Errorf("it cools down since %q, want %q", got, tt.want)
			}
			if left, err := s.backend.Allocations(t.Context()); err != nil || len(left) > 0 {
				t.Errorf("what is left: %v, %v", left, err)
			}
		})
	}
}
