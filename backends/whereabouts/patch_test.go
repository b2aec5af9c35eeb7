package whereabouts

import (
	"encoding/json"
	"fmt"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/fixture"
)

// FuzzPatch takes entries out of an IPPool of which more is stored than is known here, and puts them back. Each byte tells
// whose an entry is. I6, I7.
func FuzzPatch(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3}, uint8(1), "u1", "web-0", "unknown")
	f.Add([]byte{1, 1}, uint8(1), "~1", `a"b`, "/")
	f.Add([]byte{}, uint8(0), "", "", "")
	f.Fuzz(func(t *testing.T, owners []byte, whose uint8, uid, name, unknown string) {
		uid, name, unknown = fixture.Text(uid), fixture.Text(name), fixture.Text(unknown)
		owners = owners[:min(len(owners), 64)]
		entries := map[string]any{}
		for i, b := range owners {
			entries[strconv.Itoa(i)] = map[string]any{
				"id": fmt.Sprint(uid, b%4), "podref": fmt.Sprint("default/", name, b%4), "ifname": "eth0", "unknown": unknown,
			}
		}
		data := fixture.JSON(t, map[string]any{
			"metadata": map[string]any{"name": "p", "resourceVersion": "7"}, "unknown": unknown,
			"spec": map[string]any{"range": "10.0.0.0/24", "allocations": entries, "unknown": []string{unknown}},
		})
		object := &IPPool{}
		if err := json.Unmarshal(data, object); err != nil {
			t.Fatal(err)
		}
		p := vocabulary{}.pool(object)
		var a ipam.Allocation
		var spots []spot
		want := fixture.Parsed(t, data)
		for i, b := range owners {
			if b%4 != whose%4 {
				continue
			}
			e := object.Spec.Allocations[strconv.Itoa(i)]
			a.Owner = ipam.Owner{Kind: ipam.OwnerPod, Namespace: "default", Name: e.PodRef[len("default/"):], UID: e.ID}
			spots = append(spots, spot{pool: p, offset: i})
			delete(want["spec"].(map[string]any)["allocations"].(map[string]any), strconv.Itoa(i))
		}
		if spots == nil {
			return
		}
		patch := fixture.JSON(t, removal(a, spots))
		got := fixture.Patched(t, data, patch)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the pool after %s (-want +got):\n%s", patch, diff)
		}
		// The first entry comes back, as it is known here.
		e, _ := spots[0].entry()
		patch = fixture.JSON(t, addition(spots[0], e))
		want["spec"].(map[string]any)["allocations"].(map[string]any)[strconv.Itoa(spots[0].offset)] = fixture.Parsed(t, fixture.JSON(t, e))
		if diff := cmp.Diff(want, fixture.Patched(t, fixture.JSON(t, got), patch)); diff != "" {
			t.Errorf("the pool after %s (-want +got):\n%s", patch, diff)
		}
	})
}
