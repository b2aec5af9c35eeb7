package whereabouts

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

func TestReservationName(t *testing.T) {
	tests := map[string]struct{ network, addr, want string }{
		"an IPv4 address is its own name":                             {"", "10.0.0.5", "10.0.0.5"},
		"an IPv6 address has hyphens":                                 {"", "fd00::5", "fd00--5"},
		"an IPv6 address that ends in a colon gets a zero":            {"", "fd00::", "fd00--0"},
		"a network comes first":                                       {"net1", "10.0.0.5", "net1-10.0.0.5"},
		"a network comes first before an IPv6 address":                {"net1", "fd00::5", "net1-fd00--5"},
		"a network with a hyphen is no different":                     {"net-1", "fd00::", "net-1-fd00--0"},
		"an address that begins with colons begins with hyphens":      {"", "::5", "--5"},
		"an IPv4 address within IPv6 is written as whereabouts does":  {"", "::ffff:10.0.0.5", "10.0.0.5"},
		"an address with all of its groups has a hyphen between each": {"", "fd00:1:2:3:4:5:6:7", "fd00-1-2-3-4-5-6-7"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := reservationName(tt.network, netip.MustParseAddr(tt.addr)); got != tt.want {
				t.Errorf("the name is %q, want %q", got, tt.want)
			}
		})
	}
}

func TestReadings(t *testing.T) {
	tests := map[string]struct {
		name string
		want []string
	}{
		"L10 an IPv6 address":                                 {"fd00--5", []string{" fd00::5"}},
		"L10 an IPv6 address that ends in colons":             {"fd00--0", []string{" fd00::"}},
		"L10 an IPv4 address in a network":                    {"net1-10.0.0.5", []string{"net1 10.0.0.5"}},
		"L10 an IPv6 address in a network":                    {"net1-fd00--5", []string{"net1 fd00::5"}},
		"a network that could be part of an address":          {"fd00-a--5", []string{" fd00:a::5", "fd00 a::5"}},
		"a name that whereabouts would have written in full":  {"fd00--", nil},
		"an address that whereabouts would have written else": {"fd00--0-5", nil},
		"an IPv4 address within IPv6 can only be a network":   {"--ffff-10.0.0.5", []string{"--ffff 10.0.0.5"}},
		"leading zeros":     {"10.0.0.05", nil},
		"no address at all": {"web-0", nil},
		"nothing":           {"", nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for network, addr := range readings(tt.name) {
				got = append(got, network+" "+addr.String())
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("readings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNetworksOf(t *testing.T) {
	words := vocabulary{
		networks: map[string]bool{"net1": true, "net1-b": true, "blue": true},
		nodes:    map[string]bool{"worker-1": true, "blue": true},
	}
	tests := map[string]struct {
		pool, subnet string
		want         []string
	}{
		"the range alone is in no network":                              {"10.0.0.0-24", "10.0.0.0/24", []string{""}},
		"an IPv6 range alone is in no network":                          {"fd00---64", "fd00::/64", []string{""}},
		"a network that is known":                                       {"net1-10.0.0.0-24", "10.0.0.0/24", []string{"net1"}},
		"a network that is known, with an IPv6 range":                   {"net1-fd00---64", "fd00::/64", []string{"net1"}},
		"a network that is not known may be a node":                     {"net2-10.0.0.0-24", "10.0.0.0/24", []string{"net2", ""}},
		"a node that is known may be a network":                         {"worker-1-10.0.0.0-28", "10.0.0.0/28", []string{"", "worker-1"}},
		"a node and a network of one name":                              {"blue-10.0.0.0-28", "10.0.0.0/28", []string{"", "blue"}},
		"a node in a network":                                           {"net9-worker-1-10.0.0.0-28", "10.0.0.0/28", []string{"net9", "net9-worker-1", ""}},
		"a node that is gone, in a network that is known":               {"net1-worker-9-10.0.0.0-28", "10.0.0.0/28", []string{"net1", "net1-worker-9", ""}},
		"a network that is known, and begins as another one":            {"net1-b-10.0.0.0-28", "10.0.0.0/28", []string{"net1-b", "net1"}},
		"a name that somebody made up can be in no network and in each": {"mine", "10.0.0.0/24", []string{"", "blue", "net1", "net1-b"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, words.networksOf(tt.pool, netip.MustParsePrefix(tt.subnet))); diff != "" {
				t.Errorf("networks (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseOffset(t *testing.T) {
	tests := map[string]struct{ subnet, text, want string }{
		"the first address":                          {"10.0.0.0/24", "0", "10.0.0.0"},
		"the last address":                           {"10.0.0.0/24", "255", "10.0.0.255"},
		"one after the last":                         {"10.0.0.0/24", "256", ""},
		"one that wraps around in 32 bits":           {"10.0.0.0/24", "4294967301", ""},
		"a negative one":                             {"10.0.0.0/24", "-1", ""},
		"one that is no number":                      {"10.0.0.0/24", "five", ""},
		"one with a sign":                            {"10.0.0.0/24", "+5", ""},
		"one with a leading zero":                    {"10.0.0.0/24", "05", ""},
		"one that no int64 can hold":                 {"fd00::/32", "9223372036854775808", ""},
		"the last one that an int64 can hold":        {"fd00::/32", "9223372036854775807", "fd00::7fff:ffff:ffff:ffff"},
		"one in a range of a single address":         {"10.0.0.7/32", "0", "10.0.0.7"},
		"one after a range of a single address":      {"10.0.0.7/32", "1", ""},
		"one in all of IPv4":                         {"0.0.0.0/0", "4294967295", "255.255.255.255"},
		"one after all of IPv4":                      {"0.0.0.0/0", "4294967296", ""},
		"a range with host bits":                     {"10.0.0.5/24", "1", ""},
		"an IPv4 range within IPv6":                  {"::ffff:10.0.0.0/120", "1", ""},
		"a range that is none":                       {"10.0.0.0", "1", ""},
		"an IPv6 range whose name would end in ::-0": {"fd00::/64", "5", "fd00::5"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			subnet, _ := parseRange(tt.subnet)
			got := ""
			if _, addrs, ok := parseOffset(subnet, tt.text); ok {
				got = addrs[0].String()
			}
			if got != tt.want {
				t.Errorf("the address is %q, want %q", got, tt.want)
			}
		})
	}
}

func TestPodOf(t *testing.T) {
	tests := map[string]struct {
		ref  string
		want types.NamespacedName
	}{
		"namespace and name":     {"default/web-0", types.NamespacedName{Namespace: "default", Name: "web-0"}},
		"a name alone":           {"web-0", types.NamespacedName{}},
		"no name":                {"default/", types.NamespacedName{}},
		"no namespace":           {"/web-0", types.NamespacedName{}},
		"more than is needed":    {"default/web-0/eth0", types.NamespacedName{}},
		"nothing":                {"", types.NamespacedName{}},
		"nothing on either side": {"/", types.NamespacedName{}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got, _ := podOf(tt.ref); got != tt.want {
				t.Errorf("the pod is %v, want %v", got, tt.want)
			}
		})
	}
}

func TestNetworkNames(t *testing.T) {
	tests := map[string]struct {
		config string
		want   []string
	}{
		"of a plugin":                   {`{"type":"macvlan","ipam":{"type":"whereabouts","network_name":"net1"}}`, []string{"net1"}},
		"of a list of plugins":          {`{"plugins":[{"ipam":{"type":"whereabouts","network_name":"net1"}},{"type":"tuning"}]}`, []string{"net1"}},
		"of a network without a name":   {`{"ipam":{"type":"whereabouts"}}`, nil},
		"of another IPAM":               {`{"ipam":{"type":"host-local","network_name":"net1"}}`, nil},
		"of what is no JSON":            {`{`, nil},
		"of nothing":                    {``, nil},
		"of JSON that is no such thing": {`[1]`, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, networkNames(tt.config)); diff != "" {
				t.Errorf("networks (-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzReservationName takes names forward and back, and compares them with what Go's older type prints, as whereabouts
// does.
func FuzzReservationName(f *testing.F) {
	for _, addr := range []string{"10.0.0.5", "fd00::5", "fd00::", "::", "::ffff:1.2.3.4", "fd00:1:2:3:4:5:6:7"} {
		a := netip.MustParseAddr(addr).As16()
		f.Add("", a[:])
		f.Add("net-1", a[:])
		f.Add("fd00", a[:])
	}
	f.Fuzz(func(t *testing.T, network string, bytes []byte) {
		addr, ok := netip.AddrFromSlice(bytes)
		if !ok {
			return
		}
		addr = addr.Unmap()
		name := reservationName(network, addr)
		want := net.IP(bytes).String()
		if strings.HasSuffix(want, ":") {
			want += "0"
		}
		if want = strings.ReplaceAll(want, ":", "-"); network != "" {
			want = network + "-" + want
		}
		if name != want {
			t.Fatalf("the name is %q, want %q", name, want)
		}
		found := false
		for n, a := range readings(name) {
			if reservationName(n, a) != name {
				t.Errorf("%q is read as %s in network %q, whose name is %q", name, a, n, reservationName(n, a))
			}
			found = found || n == network && a == addr
		}
		if !found {
			t.Errorf("%q is not read as %s in network %q", name, addr, network)
		}
	})
}

// FuzzOffset takes whatever stands in an IPPool: an address is in the range and leads back to its entry, or there is none.
func FuzzOffset(f *testing.F) {
	f.Add("10.0.0.0/24", "5")
	f.Add("fd00::/8", "9223372036854775807")
	f.Add("0.0.0.0/0", "4294967296")
	f.Add("::ffff:10.0.0.0/104", "1")
	f.Add("fe80::%eth0/64", "-1")
	f.Fuzz(func(t *testing.T, subnet, offset string) {
		object := &IPPool{Spec: IPPoolSpec{Range: subnet, Allocations: map[string]Entry{offset: {ID: "id"}}}}
		object.Name = "mine"
		p := vocabulary{}.pool(object)
		n, addrs, ok := parseOffset(p.subnet, offset)
		if !ok {
			return
		}
		if len(addrs) != 1 || !p.subnet.Contains(addrs[0]) || strconv.Itoa(n) != offset {
			t.Fatalf("offset %s of %s is %d, and means %v", offset, subnet, n, addrs)
		}
		s, ok := p.spot(addrs[0])
		if e, found := s.entry(); !ok || !found || e.ID != "id" {
			t.Errorf("%s does not lead back to offset %s of %s", addrs[0], offset, subnet)
		}
	})
}
