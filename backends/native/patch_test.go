package native

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/ipam"
	"github.com/oakum-dev/oakum/test/fixture"
)

// FuzzRemoval gives a hand-out back in a block of which more is stored than is known here. Each byte is an entry: it tells
// whose it is, and sometimes that it has the offset of another one. I6, I7.
func FuzzRemoval(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3}, uint8(1), "unknown")
	f.Add([]byte{1, 1, 1}, uint8(1), `"}],"x":[{`)
	f.Add([]byte{2, 1, 9, 65, 1}, uint8(1), "")
	f.Add([]byte{}, uint8(0), "~1")
	f.Fuzz(func(t *testing.T, owners []byte, whose uint8, unknown string) {
		unknown = fixture.Text(unknown)
		whose %= 4
		a := ipam.Allocation{Handle: fmt.Sprint("h", whose), Owner: ipam.Owner{Kind: ipam.OwnerExternal, Name: fmt.Sprint("n", whose)}}
		var entries []any
		for i, b := range owners[:min(len(owners), 64)] {
			owner, offset := b%4, i
			if b >= 64 {
				offset = int(b) % 8
			}
			if owner == whose {
				a.Places = append(a.Places, ipam.Place{Block: "p-0", Offset: offset})
			}
			entries = append(entries, map[string]any{
				"offset": offset, "handle": fmt.Sprint("h", owner), "unknown": unknown,
				"attributes": map[string]any{"type": "External", "name": fmt.Sprint("n", owner), "unknown": []string{unknown}},
			})
		}
		object := fixture.JSON(t, map[string]any{
			"metadata": map[string]any{"name": "p-0", "resourceVersion": "7", "labels": map[string]string{unknown: "x"}},
			"spec":     map[string]any{"pool": "p", "node": "n1", "allocations": entries, "unknown": unknown},
			"status":   map[string]any{"unknown": unknown},
		})
		var block v1alpha1.AddressBlock
		if err := json.Unmarshal(object, &block); err != nil {
			t.Fatal(err)
		}

		r := &release{allocation: a}
		patch, left := removal([]*release{r}, block)
		want := fixture.Parsed(t, object)
		if len(left) == 0 {
			if one := slices.Contains(owners, whose) && slices.Max(owners) < 64; one {
				t.Errorf("no patch takes %s out: %v", a.Handle, r.err)
			}
			return
		}
		spec := want["spec"].(map[string]any)
		spec["allocations"] = slices.DeleteFunc(spec["allocations"].([]any), func(e any) bool { return e.(map[string]any)["handle"] == a.Handle })
		if diff := cmp.Diff(want, fixture.Patched(t, object, patch)); diff != "" {
			t.Errorf("the block after %s (-want +got):\n%s", patch, diff)
		}
	})
}
