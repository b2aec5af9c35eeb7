package coil_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/oakum-dev/oakum/backends"
	"github.com/oakum-dev/oakum/ipam"
)

// release stores a block of node n1 and its neighbour, lets something happen to it before it is released or while that is
// about to write, and releases it.
func release(t *testing.T, while bool, happens func(*store)) (*store, error) {
	t.Helper()
	s := newStore(t, block("p-0", of("n1"), "ipv4: 10.0.0.0/32"), block("p-1", of("n1"), "ipv4: 10.0.0.1/32"))
	s.freeze(t)
	event := func() {
		if happens != nil {
			happens(s)
		}
	}
	if while {
		s.before = event
	} else {
		event()
	}
	return s, s.backend.Release(t.Context(), handOut("p-0", agent("n1"), "10.0.0.0"))
}

func TestRelease(t *testing.T) {
	const stays, goes = true, false
	relabel := func(key, value string) func(t *testing.T) func(*store) {
		return func(t *testing.T) func(*store) {
			return func(s *store) {
				s.change(t, "AddressBlock", "p-0", func(u *unstructured.Unstructured) {
					labels := u.GetLabels()
					labels[key] = value
					u.SetLabels(labels)
				})
			}
		}
	}
	change := func(f func(*unstructured.Unstructured)) func(t *testing.T) func(*store) {
		return func(t *testing.T) func(*store) {
			return func(s *store) { s.change(t, "AddressBlock", "p-0", f) }
		}
	}
	tests := map[string]struct {
		happens func(t *testing.T) func(*store)
		want    error
		stays   bool
	}{
		"a block of a node that is gone goes":                       {want: nil, stays: goes},
		"it goes although somebody else has written to it":          {happens: relabel("a", "b"), stays: goes},
		"it goes without Coil's finalizer too":                      {happens: change(func(u *unstructured.Unstructured) { u.SetFinalizers(nil) }), stays: goes},
		"what is gone is free already":                              {happens: change(nil), stays: goes},
		"a block that was made anew is another hand-out":            {happens: change(renew), want: backends.ErrStale, stays: stays},
		"a block that is another node's by now is another's":        {happens: relabel("coil.cybozu.com/node", "n2"), want: backends.ErrStale, stays: stays},
		"a block that somebody has reserved meanwhile is another's": {happens: relabel("coil.cybozu.com/reserved", "true"), want: backends.ErrStale, stays: stays},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for when, while := range map[string]bool{"before": false, "while the first write is under way": true} {
				t.Run(when, func(t *testing.T) {
					var happens func(*store)
					if tt.happens != nil {
						happens = tt.happens(t)
					}
					s, err := release(t, while, happens)
					if !errors.Is(err, tt.want) {
						t.Errorf("the error is %v, want %v", err, tt.want)
					}
					if left := s.get(t, "AddressBlock", "p-0") != nil; left != tt.stays {
						t.Errorf("whether it is left: %t", left)
					}
					if s.get(t, "AddressBlock", "p-1") == nil {
						t.Error("its neighbour went")
					}
				})
			}
		})
	}
}

func TestReleaseWritesTwiceAndLeavesWhatIsNotItsOwn(t *testing.T) { // B38, I7
	s := newStore(t, block("p-0", of("n1"), "ipv4: 10.0.0.0/32"))
	s.change(t, "AddressBlock", "p-0", foreign)
	want := s.get(t, "AddressBlock", "p-0")
	want.SetFinalizers([]string{"example.org/first", "example.org/last"})
	a := handOut("p-0", agent("n1"), "10.0.0.0")
	for range 2 { // The second finds the block in deletion, and nothing of Coil's on it.
		check(t, s.backend.Release(t.Context(), a))
	}
	writes := []string{
		fmt.Sprintf(`PATCH p-0 [{"op":"replace","path":"/metadata/resourceVersion","value":%q},`+
			`{"op":"test","path":"/metadata/uid","value":"uid-p-0"},{"op":"test","path":"/metadata/finalizers/1","value":"coil.cybozu.com"},`+
			`{"op":"remove","path":"/metadata/finalizers/1"}]`, want.GetResourceVersion()),
		"DELETE p-0 uid uid-p-0", "DELETE p-0 uid uid-p-0",
	}
	if diff := cmp.Diff(writes, s.writes); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	left := s.get(t, "AddressBlock", "p-0")
	if left.GetDeletionTimestamp() == nil {
		t.Error("it is not being deleted")
	}
	for _, u := range []*unstructured.Unstructured{want, left} {
		unstructured.RemoveNestedField(u.Object, "metadata", "deletionTimestamp")
		u.SetResourceVersion("")
	}
	if diff := cmp.Diff(want.Object, left.Object); diff != "" {
		t.Errorf("what is left (-want +got):\n%s", diff)
	}
}

func TestReleaseRefuses(t *testing.T) {
	tests := map[string]struct {
		stored []string
		owner  ipam.Owner
		want   string
	}{
		"a block under a coild that may run": {
			stored: []string{node("n1")}, owner: agent("n1"),
			want: `releasing AddressBlock "p-0": node "n1" exists, and a block is never deleted under its coild: restart that, and it gives back what it does not use`,
		},
		"a block that does not tell whose it is": {
			want: `releasing uid-p-0: its record does not tell whose it is: delete the block by hand once nobody uses it`,
		},
		"a reserved block": {
			owner: ipam.Owner{Kind: ipam.OwnerExternal, Name: "reserved"},
			want:  `releasing uid-p-0: its record does not tell whose it is: delete the block by hand once nobody uses it`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, append(tt.stored, block("p-0", of("n1"), "ipv4: 10.0.0.0/32"))...)
			err := s.backend.Release(t.Context(), handOut("p-0", tt.owner, "10.0.0.0"))
			if err == nil || err.Error() != tt.want {
				t.Errorf("the error is %v, want %s", err, tt.want)
			}
			if len(s.writes) > 0 {
				t.Errorf("it wrote %v", s.writes)
			}
		})
	}
	t.Run("a block whose node comes back while it writes", func(t *testing.T) {
		s, err := release(t, true, func(s *store) {
			s.plant(t, node("n1"))
			s.change(t, "AddressBlock", "p-0", foreign)
		})
		if err == nil || errors.Is(err, backends.ErrStale) {
			t.Errorf("the error is %v", err)
		}
		if left := s.get(t, "AddressBlock", "p-0"); left.GetDeletionTimestamp() != nil || len(left.GetFinalizers()) != 3 {
			t.Errorf("it has the finalizers %v", left.GetFinalizers())
		}
	})
	t.Run("to try for ever", func(t *testing.T) {
		s := newStore(t, block("p-0", of("n1"), "ipv4: 10.0.0.0/32"))
		n := 0
		s.always = func(write bool) error {
			if write {
				n++
				s.change(t, "AddressBlock", "p-0", func(u *unstructured.Unstructured) { u.SetGeneration(int64(n)) })
			}
			return nil
		}
		if err := s.backend.Release(t.Context(), handOut("p-0", agent("n1"), "10.0.0.0")); err == nil || n != 5 {
			t.Errorf("after %d attempts the error is %v", n, err)
		}
	})
}
