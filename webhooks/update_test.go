package webhooks

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"

	"github.com/oakum-dev/oakum/apis/ipam/v1alpha1"
	"github.com/oakum-dev/oakum/test/fixture"
)

// FuzzUpdate writes a block anew, with other entries. An entry is two bytes, its offset and its handle; one that cools
// down is two bytes, its offset and for how long. I5, I8.
func FuzzUpdate(f *testing.F) {
	f.Add([]byte{1, 1, 2, 2}, []byte{1, 1}, []byte{})
	f.Add([]byte{1, 1, 2, 2}, []byte{1, 1, 2, 2, 5, 5}, []byte{5, 40})
	f.Add([]byte{1, 0, 19, 2}, []byte{1, 0, 19, 2}, []byte{})
	f.Add([]byte{}, []byte{3, 1, 18, 0}, []byte{9, 9})
	f.Add([]byte{4, 1}, []byte{4, 2}, []byte{4, 200})
	f.Fuzz(func(t *testing.T, had, has, cools []byte) {
		d := newDoor(t, enforce(), both(node("n1-uid")), both(fixture.Pool("p",
			fixture.Subnet("10.0.0.0/28", ""), fixture.BlockSize(4), fixture.Reserved("10.0.0.3"), fixture.Cooldown(30*time.Second))))
		old, next := block(0, "n1", "b0", subnet("10.0.0.0/28"), entriesOf(had)), block(0, "n1", "b0", subnet("10.0.0.0/28"), entriesOf(has))
		busy := map[int32]bool{3: true}
		for o, seconds := range pairs(cools) {
			wait := time.Duration(int(seconds)-100) * time.Second
			cooling(int32(o%20), wait)(old)
			busy[int32(o%20)] = busy[int32(o%20)] || wait > 0
		}
		before := map[int32]v1alpha1.Allocation{}
		for _, e := range old.Spec.Allocations {
			before[e.Offset] = e
		}
		want := true
		for _, e := range next.Spec.Allocations {
			if stood, there := before[e.Offset]; !there || stood.Handle != e.Handle {
				want = want && e.Handle != "" && e.Offset < 16 && !busy[e.Offset]
			}
			delete(before, e.Offset)
		}
		r := request(t, admissionv1.Update, old, next, false)
		if got := d.judge(t, ValidateBlockPath, r); (got.Code == http.StatusOK) != want {
			t.Errorf("the answer is %+v, and whether to admit %t", got, want)
		}

		patched := fixture.Parsed(t, r.Object.Raw)
		if response := d.serve(t, MutateBlockPath, review(t, admissionv1.Update, old, next)); len(response.Patch) > 0 {
			patched = fixture.Patched(t, r.Object.Raw, response.Patch)
		}
		waits, _ := patched["spec"].(map[string]any)["cooling"].([]any)
		for _, c := range waits {
			delete(before, offsetOf(c))
			for _, e := range next.Spec.Allocations {
				if e.Offset == offsetOf(c) {
					t.Errorf("%d is taken, and cools down", e.Offset)
				}
			}
		}
		for offset := range before {
			t.Errorf("%d was given back, and does not cool down", offset)
		}
		delete(patched["spec"].(map[string]any), "cooling")
		if diff := cmp.Diff(fixture.Parsed(t, r.Object.Raw), patched); diff != "" {
			t.Errorf("the rest of the block (-want +got):\n%s", diff)
		}
	})
}

// pairs yields the first and second of each two bytes, of which the firsts are different.
func pairs(bytes []byte) map[byte]byte {
	all := map[byte]byte{}
	for i := 1; i < len(bytes); i += 2 {
		all[bytes[i-1]] = bytes[i]
	}
	return all
}

// entriesOf adds entries with offsets below 20, each once.
func entriesOf(bytes []byte) func(*v1alpha1.AddressBlock) {
	return func(b *v1alpha1.AddressBlock) {
		taken := map[int32]bool{}
		for i := 1; i < len(bytes); i += 2 {
			offset, handle := int32(bytes[i-1]%20), fmt.Sprint("h", bytes[i]%8)
			if taken[offset] {
				continue
			}
			taken[offset] = true
			if handle == "h0" {
				handle = ""
			}
			fixture.Entry(offset, handle, fixture.External("of "+handle))(b)
		}
	}
}

func offsetOf(cooling any) int32 {
	var offset int32
	fmt.Sscan(fmt.Sprint(cooling.(map[string]any)["offset"]), &offset) //nolint:errcheck // It is a number.
	return offset
}
