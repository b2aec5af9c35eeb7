package calico_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/oakum-dev/oakum/backends/backendtest"
	"github.com/oakum-dev/oakum/backends/calico"
)

// claim is a node's to a block.
func claim(served schema.GroupVersion, node, cidr, state string) string {
	no := `"false"`
	if served == calico.V3 {
		no = "false"
	}
	return fmt.Sprintf("{kind: BlockAffinity, metadata: {name: %s-%s, creationTimestamp: 2026-11-30T12:00:00Z}, spec: {cidr: %q, node: %s, state: %q, type: host, deleted: %s}}",
		node, nameOf(cidr), cidr, node, state, no)
}

// blocksOf returns the blocks and claims with their affinities and states, but for those of the store's own.
func blocksOf(t *testing.T, s *store) []string {
	t.Helper()
	var found []string
	for name, object := range s.stored(t) {
		spec, _ := object["spec"].(map[string]any)
		switch object["kind"] {
		case "IPAMBlock":
			if a, _ := spec["affinity"].(string); !slices.ContainsFunc(blocks(), func(b spotted) bool { return b.cidr == spec["cidr"] }) {
				found = append(found, strings.TrimSpace(name+" "+a))
			}
		case "BlockAffinity":
			found = append(found, fmt.Sprintf("%s %v", name, spec["state"]))
		}
	}
	return slices.Sorted(slices.Values(found))
}

func TestAbandon(t *testing.T) {
	const other, third = "10.0.0.16/29", "10.0.0.24/29"
	for group, served := range groups() {
		mine := func(cidr string) string { return claim(served, "worker-3", cidr, "confirmed") }
		tests := map[string]struct {
			objects []string
			left    []string
			writes  int
		}{
			"G24 an empty block goes with its claim":      {objects: []string{blockOf(cidr, affinity), mine(cidr)}, writes: 5},
			"G30 one with only what Windows keeps does":   {objects: []string{blockOf(cidr, affinity, 0, "{handle_id: windows-reserved-ipam-handle}"), mine(cidr)}, writes: 5},
			"a block that was used by others is nobody's": {objects: []string{blockOf(cidr, affinity, 1, "{handle_id: a.bc}"), mine(cidr)}, writes: 4, left: []string{"IPAMBlock/10-0-0-8-29"}},
			"all of its blocks go": {
				objects: []string{blockOf(cidr, affinity), mine(cidr), blockOf(other, affinity), mine(other)}, writes: 10,
			},
			"other nodes' do not": {
				objects: []string{blockOf(cidr, "host:worker-4"), claim(served, "worker-4", cidr, "confirmed")},
				left:    []string{"BlockAffinity/worker-4-10-0-0-8-29 confirmed", "IPAMBlock/10-0-0-8-29 host:worker-4"},
			},
			"a claim to another node's block goes alone": {
				objects: []string{blockOf(cidr, "host:worker-4"), mine(cidr)}, writes: 3, left: []string{"IPAMBlock/10-0-0-8-29 host:worker-4"},
			},
			"a claim without a block goes":                  {objects: []string{mine(cidr)}, writes: 3},
			"a block without a claim goes":                  {objects: []string{blockOf(cidr, affinity)}, writes: 2},
			"a claim that was being given up goes":          {objects: []string{claim(served, "worker-3", cidr, "pendingDeletion")}, writes: 2},
			"a block that is marked as deleted is not kept": {objects: []string{strings.Replace(blockOf(third, affinity), "deleted: false", "deleted: true", 1)}, left: []string{"IPAMBlock/10-0-0-24-29 host:worker-3"}},
		}
		for name, tt := range tests {
			t.Run(group+": "+name, func(t *testing.T) {
				for stop := 0; stop <= tt.writes; stop++ {
					s := newStore(t, served, tt.objects...)
					stopped := fmt.Errorf("stopped after %d writes", stop)
					s.always = func(c backendtest.Call) error {
						if c == backendtest.Write && len(s.writes) >= stop {
							return stopped
						}
						return nil
					}
					if err := s.backend.Abandon(t.Context(), "worker-3"); (err != nil) != (stop < tt.writes) {
						t.Errorf("stopped after %d writes of %d, it says %v", stop, tt.writes, err)
					}
					s.always = nil
					check(t, s.backend.Abandon(t.Context(), "worker-3"))
					got := slices.DeleteFunc(blocksOf(t, s), func(text string) bool {
						// What was marked and is not gone counts as absent, and is for Mend.
						spec, _ := s.stored(t)[strings.Fields(text)[0]]["spec"].(map[string]any)
						return spec["deleted"] == true && !slices.Contains(tt.left, text)
					})
					if diff := diff(tt.left, got); diff != "" {
						t.Errorf("stopped after %d writes, what is left (-want +got):\n%s", stop, diff)
					}
				}
			})
		}
	}
	if err := newStore(t, calico.V1).backend.Abandon(t.Context(), ""); err == nil {
		t.Error("blocks that are nobody's were abandoned")
	}
}

// A pod that takes an address of a block in the last moment keeps it.
func TestAbandonedBlocksKeepWhatIsTaken(t *testing.T) {
	for write := 1; write <= 5; write++ {
		s := newStore(t, calico.V1, blockOf(cidr, affinity), claim(calico.V1, "worker-3", cidr, "confirmed"))
		writes := 0
		s.always = func(c backendtest.Call) error {
			if c == backendtest.Write {
				if writes++; writes == write && s.stored(t)["IPAMBlock/10-0-0-8-29"] != nil {
					all := s.stored(t)
					spec := all["IPAMBlock/10-0-0-8-29"]["spec"].(map[string]any)
					if spec["deleted"] == false { // Else it is absent for everybody.
						s.plant(t, blockOf(cidr, affinity, 1, "{handle_id: a.bc}"), handleOf("a.bc", cidr, 1))
					}
				}
			}
			return nil
		}
		check(t, s.backend.Abandon(t.Context(), "worker-3"))
		taken := s.stored(t)["IPAMHandle/a.bc"] != nil
		left := slices.Collect(maps.Keys(s.stored(t)))
		if taken != slices.Contains(left, "IPAMBlock/10-0-0-8-29") {
			t.Errorf("before write %d an address was taken: %t, and what is left is %v", write, taken, left)
		}
	}
}

func TestTrim(t *testing.T) {
	const other, elsewhere = "10.0.0.16/29", "fd00::8/125"
	mine := func(cidr string) string { return claim(calico.V1, "worker-3", cidr, "confirmed") }
	used := []any{1, "{handle_id: a.bc}"}
	tests := map[string]struct {
		objects []string
		// between happens between two looks that are a grace apart, and last before the first write.
		between, last func(*testing.T, *store)
		left          []string
	}{
		"an empty block goes while the node has another": {
			objects: []string{blockOf(cidr, affinity), mine(cidr), blockOf(other, affinity, used...), mine(other)},
			left:    []string{"BlockAffinity/worker-3-10-0-0-16-29 confirmed", "IPAMBlock/10-0-0-16-29 host:worker-3"},
		},
		"of two empty ones the node keeps one": {
			objects: []string{blockOf(cidr, affinity), mine(cidr), blockOf(other, affinity), mine(other)},
			left:    []string{"BlockAffinity/worker-3-10-0-0-16-29 confirmed", "IPAMBlock/10-0-0-16-29 host:worker-3"},
		},
		"one of another pool does not count": {
			objects: []string{blockOf(cidr, affinity), mine(cidr), blockOf(elsewhere, affinity, used...), mine(elsewhere)},
			left: []string{
				"BlockAffinity/worker-3-10-0-0-8-29 confirmed", "BlockAffinity/worker-3-fd00--8-125 confirmed",
				"IPAMBlock/10-0-0-8-29 host:worker-3", "IPAMBlock/fd00--8-125 host:worker-3",
			},
		},
		"one that was used in between stays for another grace": {
			objects: []string{blockOf(cidr, affinity), mine(cidr), blockOf(other, affinity, used...), mine(other)},
			between: func(t *testing.T, s *store) {
				s.plant(t, blockOf(cidr, affinity, 1, "{handle_id: a.bc}"))
				s.plant(t, blockOf(cidr, affinity))
			},
			left: []string{
				"BlockAffinity/worker-3-10-0-0-16-29 confirmed", "BlockAffinity/worker-3-10-0-0-8-29 confirmed",
				"IPAMBlock/10-0-0-16-29 host:worker-3", "IPAMBlock/10-0-0-8-29 host:worker-3",
			},
		},
		"one that is used in the last moment stays the node's": {
			objects: []string{blockOf(cidr, affinity), mine(cidr), blockOf(other, affinity, used...), mine(other)},
			last:    func(t *testing.T, s *store) { s.plant(t, blockOf(cidr, affinity, 1, "{handle_id: a.bc}")) },
			left: []string{
				"BlockAffinity/worker-3-10-0-0-16-29 confirmed", "BlockAffinity/worker-3-10-0-0-8-29 confirmed",
				"IPAMBlock/10-0-0-16-29 host:worker-3", "IPAMBlock/10-0-0-8-29 host:worker-3",
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, calico.V1, tt.objects...)
			before := blocksOf(t, s)
			check(t, s.backend.Trim(t.Context()))
			if diff := diff(before, blocksOf(t, s)); diff != "" {
				t.Errorf("one look was enough (-before +after):\n%s", diff)
			}
			s.now = s.now.Add(grace)
			if tt.between != nil {
				tt.between(t, s)
			}
			if tt.last != nil {
				s.Before(backendtest.Write, func() error {
					tt.last(t, s)
					return nil
				})
			}
			check(t, s.backend.Trim(t.Context()))
			if diff := diff(tt.left, blocksOf(t, s)); diff != "" {
				t.Errorf("what is left (-want +got):\n%s", diff)
			}
		})
	}
}
