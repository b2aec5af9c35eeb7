package whereabouts_test

import (
	"fmt"
	"testing"
)

func TestProblems(t *testing.T) {
	const web0 = "default/web-0"
	tests := map[string]struct {
		stored []string
		want   []string
	}{
		"none where all is well": {stored: []string{
			network("net7"), slicesOf("net7", "worker-1", "10.4.0.0/28", "", "10.4.0.16/28"),
			poolOf("10.2.0.0-24", "10.2.0.0/24", entry("7", sandbox1, web0)), poolOf("net7-worker-1-10.4.0.0-28", "10.4.0.0/28", entry("5", sandbox1, web0)),
			reserve("10.2.0.7", web0), reserve("10.2.0.8", web0), reserve("net7-10.4.0.5", web0),
		}},
		"an entry that does not tell whose it is": {
			stored: []string{poolOf("10.2.0.0-24", "10.2.0.0/24", entry("7", "", web0), entry("8", sandbox1, "web-0"))},
			want: []string{
				"allocation-unowned: IPPool 10.2.0.0-24 spec.allocations[7].id: is empty: the entry is kept for ever; if no pod needs it, remove it by hand",
				`allocation-unowned: IPPool 10.2.0.0-24 spec.allocations[8].podref: "web-0" is no namespace/name: the entry is kept for ever; if no pod needs it, remove it by hand`,
			},
		},
		"an offset that cannot be read, or leaves the range": {
			stored: []string{poolOf("10.2.0.0-24", "10.2.0.0/24", entry("256", sandbox1, web0), entry("x", sandbox1, web0))},
			want: []string{
				"allocation-conflict: IPPool 10.2.0.0-24 spec.allocations[256]: is no offset in 10.2.0.0/24: the entry is neither judged nor released; if no pod needs it, remove it by hand",
				"allocation-conflict: IPPool 10.2.0.0-24 spec.allocations[x]: is no offset in 10.2.0.0/24: the entry is neither judged nor released; if no pod needs it, remove it by hand",
			},
		},
		"a range that cannot be read": {
			stored: []string{poolOf("10.2.0.5-24", "10.2.0.5/24", entry("1", sandbox1, web0))},
			want:   []string{`pool-malformed: IPPool 10.2.0.5-24 spec.range: "10.2.0.5/24" is no CIDR without host bits: its 1 entries are neither judged nor released`},
		},
		"a reservation of no address that is known": {
			stored: []string{reserve("10.99.0.1", web0)},
			want:   []string{"allocation-conflict: OverlappingRangeIPReservation 10.99.0.1 metadata.name: is no address of any IPPool in a network that is known here: it cannot be judged, and is kept; if no pod needs it, delete it by hand"},
		},
		"a reservation that does not tell whose it is": {
			stored: []string{reserve("10.0.0.1", "web-0")},
			want:   []string{`allocation-unowned: OverlappingRangeIPReservation 10.0.0.1 spec.podref: "web-0" is no namespace/name: the reservation is kept for ever; if no pod needs it, delete it by hand`},
		},
		"a reservation that contradicts an entry": {
			stored: []string{poolOf("10.2.0.0-24", "10.2.0.0/24", entry("7", sandbox1, "default/web-1")), reserve("10.2.0.7", web0)},
			want:   []string{`allocation-conflict: OverlappingRangeIPReservation 10.2.0.7 spec.podref: is default/web-0, and the entry for 10.2.0.7 in IPPool "10.2.0.0-24" is of default/web-1: two pods may have one address`},
		},
		"B37 a slice that another node has got while the old node's pool has entries": {
			stored: []string{
				slicesOf("slices", "worker-2", "10.4.0.0/28"),
				poolOf("worker-1-10.4.0.0-28", "10.4.0.0/28", entry("5", sandbox1, web0), entry("6", sandbox1, web0)), poolOf("worker-2-10.4.0.0-28", "10.4.0.0/28", entry("7", sandbox2, "default/web-1")),
			},
			want: []string{`pool-overlap: IPPool worker-1-10.4.0.0-28 spec.allocations: 2 of its entries are in slice 10.4.0.0/28, which NodeSlicePool "slices" gives to node "worker-2": that node may hand out their addresses again; move their pods`},
		},
		"B37 slices of another size, some of whose nodes are not the old pool's": {
			stored: []string{
				slicesOf("net7", "worker-1", "10.4.0.0/29", "worker-2", "10.4.0.8/29"),
				poolOf("net7-worker-1-10.4.0.0-28", "10.4.0.0/28", entry("9", sandbox1, web0)),
			},
			want: []string{`pool-overlap: IPPool net7-worker-1-10.4.0.0-28 spec.allocations: 1 of its entries are in slice 10.4.0.8/29, which NodeSlicePool "net7" gives to node "worker-2": that node may hand out their addresses again; move their pods`},
		},
		"B37 a slice that nobody has got yet, and one in another network, do no harm": {stored: []string{
			network("net7"), network("net8"), slicesOf("net7", "", "10.4.0.0/28"), slicesOf("net8", "worker-2", "10.4.0.0/28"),
			poolOf("net7-worker-1-10.4.0.0-28", "10.4.0.0/28"), poolOf("net7-10.4.0.0-24", "10.4.0.0/24", entry("5", sandbox1, web0)),
		}},
		"a slice that cannot be read": {
			stored: []string{slicesOf("slices", "worker-1", "10.4.0.0")},
			want:   []string{`pool-malformed: NodeSlicePool slices status.allocations[0].sliceRange: "10.4.0.0" is no CIDR without host bits`},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			problems, err := newStore(t, tt.stored...).backend.Problems(t.Context())
			check(t, err)
			var got []string
			for _, p := range problems {
				got = append(got, fmt.Sprintf("%s: %s %s %s: %s", p.Rule, p.Record.Kind, p.Record.Name, p.Field, p.Message))
			}
			if diff := diff(tt.want, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}
