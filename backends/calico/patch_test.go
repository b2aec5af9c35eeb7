package calico

import (
	"encoding/json"
	"fmt"
	"maps"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"gomodules.xyz/jsonpatch/v2"

	"github.com/oakum-dev/oakum/test/fixture"
)

// FuzzBlockPatch gives addresses back in a block of which more is stored than is known here. I7.
func FuzzBlockPatch(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0}, uint16(0b0010), false, "unknown")
	f.Add([]byte{1, 2, 3, 0, 1, 2, 9, 9}, uint16(0b00110101), false, `"}`)
	f.Add([]byte{1, 1, 2, 5, 5, 5}, uint16(0b111), true, "")
	f.Add([]byte{8, 1, 2}, uint16(0b110), true, "~1")
	f.Fuzz(func(t *testing.T, owners []byte, mask uint16, cooldown bool, unknown string) {
		unknown = fixture.Text(unknown)
		before, ordinals := whole(owners, mask)
		object := fixture.Parsed(t, fixture.JSON(t, map[string]any{"metadata": map[string]any{"name": "b"}, "spec": before}))
		spec := object["spec"].(map[string]any)
		object["unknown"], spec["unknown"] = unknown, unknown
		for i := range before.Attributes {
			spec["attributes"].([]any)[i].(map[string]any)["unknown"] = fmt.Sprint(i, unknown)
		}
		stored := &IPAMBlock{}
		data := fixture.JSON(t, object)
		decode(t, data, stored)
		after, err := blockOf(stored.Spec).without(ordinals, noon(), cooldown)
		if err != nil {
			t.Fatal(err)
		}
		patch := fixture.JSON(t, read(stored).patch(after))
		patched := fixture.Patched(t, data, patch)

		got := &IPAMBlock{}
		decode(t, fixture.JSON(t, patched), got)
		if diff := gocmp.Diff(after.IPAMBlockSpec, got.Spec, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("the block after %s (-want +got):\n%s", patch, diff)
		}
		for i, a := range patched["spec"].(map[string]any)["attributes"].([]any) {
			var want any
			if i < len(after.kept) {
				want = spec["attributes"].([]any)[after.kept[i]].(map[string]any)["unknown"]
			}
			if got := a.(map[string]any)["unknown"]; got != want {
				t.Errorf("what is not known of attribute %d is %v after %s, want %v", i, got, patch, want)
			}
		}
		if diff := gocmp.Diff(others(object), others(patched)); diff != "" {
			t.Errorf("the rest of the block after %s (-want +got):\n%s", patch, diff)
		}
	})
}

// others returns what a release does not change.
func others(object map[string]any) map[string]any {
	object, spec := maps.Clone(object), maps.Clone(object["spec"].(map[string]any))
	for _, known := range []string{"allocations", "unallocated", "attributes", "sequenceNumber", "sequenceNumberForAllocation"} {
		delete(spec, known)
	}
	object["spec"] = spec
	return object
}

// FuzzHandlePatch makes counts others.
func FuzzHandlePatch(f *testing.F) {
	f.Add("10.0.0.0/26", "fd00::/122", 3, 1, 2, 0, "unknown")
	f.Add("~", "/", 1, 1, 0, 0, "")
	f.Add("", "~1~0", 0, 2, 1, 2, `"`)
	f.Fuzz(func(t *testing.T, a, b string, a1, b1, a2, b2 int, unknown string) {
		a, b, unknown = fixture.Text(a), fixture.Text(b), fixture.Text(unknown)
		counts := func(nA, nB int) map[string]int {
			all := map[string]int{a: nA, b: nB}
			maps.DeleteFunc(all, func(_ string, n int) bool { return n <= 0 })
			return all
		}
		data := fixture.JSON(t, map[string]any{
			"metadata": map[string]any{"name": "h"}, "unknown": unknown,
			"spec": map[string]any{"handleID": "h", "block": counts(a1, b1), "unknown": unknown},
		})
		stored := &IPAMHandle{}
		decode(t, data, stored)
		want := fixture.Parsed(t, data)
		want["spec"].(map[string]any)["block"] = fixture.Parsed(t, fixture.JSON(t, counts(a2, b2)))
		patch := fixture.JSON(t, append([]jsonpatch.Operation{}, stored.patch(counts(a2, b2))...))
		if diff := gocmp.Diff(want, fixture.Patched(t, data, patch)); diff != "" {
			t.Errorf("the handle after %s (-want +got):\n%s", patch, diff)
		}
	})
}

func decode(t *testing.T, data []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}
