package ipam

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRatchet(t *testing.T) {
	unowned := Problem{AllocationUnowned, Missing, "spec.allocations[0].handle", "", "name it"}
	moved := Problem{AllocationUnowned, Missing, "spec.allocations[7].handle", "", "name it"}
	reserved := Problem{AllocationConflict, Wrong, "spec.allocations[0].offset", "3", "10.0.0.3 is reserved"}
	other := Problem{AllocationConflict, Wrong, "spec.allocations[0].offset", "4", "10.0.0.4 is reserved"}
	untimely := Problem{AllocationConflict, Untimely, "spec.allocations[0].offset", "3", "10.0.0.3 is reserved"}

	tests := map[string]struct {
		before, now []Problem
		want        []Problem
	}{
		"an object without problems has none": {},
		"what is new is a problem": {
			now:  []Problem{unowned, reserved},
			want: []Problem{unowned, reserved},
		},
		"what was there before is nobody's fault now": {
			before: []Problem{unowned, reserved},
			now:    []Problem{reserved, unowned},
		},
		"what is gone does not matter": {
			before: []Problem{unowned, reserved},
			now:    []Problem{unowned},
		},
		"a problem may move in its list": {
			before: []Problem{unowned},
			now:    []Problem{moved},
		},
		"the same problem once more is one more": {
			before: []Problem{unowned},
			now:    []Problem{unowned, moved, moved},
			want:   []Problem{moved, moved},
		},
		"the same rule with another value is another problem": {
			before: []Problem{reserved},
			now:    []Problem{other},
			want:   []Problem{other},
		},
		"the same value with another fault is another problem": {
			before: []Problem{reserved},
			now:    []Problem{untimely},
			want:   []Problem{untimely},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, Ratchet(tt.before, tt.now)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}
