package ipam

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseRange(t *testing.T) {
	tests := map[string]struct {
		text    string
		want    Range
		wantErr string
	}{
		"an IPv4 address is a range of one": {
			text: "10.0.0.7",
			want: span("10.0.0.7", "10.0.0.7"),
		},
		"an IPv6 address is a range of one": {
			text: "fd00::7",
			want: span("fd00::7", "fd00::7"),
		},
		"a CIDR includes its first and its last address": {
			text: "10.0.0.64/27",
			want: span("10.0.0.64", "10.0.0.95"),
		},
		"an IPv6 CIDR includes its first and its last address": {
			text: "fd00::/64",
			want: span("fd00::", "fd00::ffff:ffff:ffff:ffff"),
		},
		"a /32 is one address": {
			text: "10.0.0.7/32",
			want: span("10.0.0.7", "10.0.0.7"),
		},
		"a /128 is one address": {
			text: "fd00::7/128",
			want: span("fd00::7", "fd00::7"),
		},
		"a /0 is the whole family": {
			text: "0.0.0.0/0",
			want: span("0.0.0.0", "255.255.255.255"),
		},
		"two addresses are a range that includes both": {
			text: "10.0.0.250-10.0.1.5",
			want: span("10.0.0.250", "10.0.1.5"),
		},
		"two IPv6 addresses are a range that includes both": {
			text: "fd00::5-fd00::1:0",
			want: span("fd00::5", "fd00::1:0"),
		},
		"a range may begin where it ends": {
			text: "10.0.0.7-10.0.0.7",
			want: span("10.0.0.7", "10.0.0.7"),
		},
		"a range of two families is refused": {
			text:    "10.0.0.1-fd00::1",
			wantErr: "must not mix IPv4 and IPv6",
		},
		"a range that ends before it begins is refused": {
			text:    "10.0.0.9-10.0.0.1",
			wantErr: "must not end before it begins",
		},
		"host bits are refused with the prefix that may have been meant": {
			text:    "10.0.0.9/27",
			wantErr: "must have no host bits set: did you mean 10.0.0.0/27?",
		},
		"a number of bits that the family does not have is refused": {
			text:    "10.0.0.0/33",
			wantErr: "must be an address, a CIDR or first-last",
		},
		"a range of CIDRs is refused": {
			text:    "10.0.0.0/27-10.0.0.64/27",
			wantErr: "must be an address, a CIDR or first-last",
		},
		"three addresses are refused": {
			text:    "10.0.0.1-10.0.0.2-10.0.0.3",
			wantErr: "must be an address, a CIDR or first-last",
		},
		"a range without an end is refused": {
			text:    "10.0.0.1-",
			wantErr: "must be an address, a CIDR or first-last",
		},
		"an empty text is refused": {
			text:    "",
			wantErr: "must be an address, a CIDR or first-last",
		},
		"spaces are refused": {
			text:    "10.0.0.1 - 10.0.0.2",
			wantErr: "must be an address, a CIDR or first-last",
		},
		"an address with a zone is refused": {
			text:    "fe80::1%eth0",
			wantErr: "must be an address, a CIDR or first-last",
		},
		"an IPv4 address in IPv6 clothes is refused": {
			text:    "::ffff:10.0.0.1",
			wantErr: "must be an address, a CIDR or first-last",
		},
		"an IPv4 CIDR in IPv6 clothes is refused": {
			text:    "::ffff:10.0.0.0/120",
			wantErr: "must be an address, a CIDR or first-last",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ParseRange(tt.text)
			if diff := cmp.Diff(tt.want, got, byValue()); diff != "" {
				t.Errorf("range (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.wantErr, message(err)); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRangeString(t *testing.T) {
	tests := map[string]struct {
		of   Range
		want string
	}{
		"one address stands alone": {
			of:   span("10.0.0.7", "10.0.0.7"),
			want: "10.0.0.7",
		},
		"several are told by their ends": {
			of:   span("fd00::", "fd00::ff"),
			want: "fd00::-fd00::ff",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tt.of.String(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestRangeContains(t *testing.T) {
	tests := map[string]struct {
		in   Range
		addr netip.Addr
		want bool
	}{
		"the first address":                      {span("10.0.0.4", "10.0.0.7"), addr("10.0.0.4"), true},
		"one between":                            {span("10.0.0.4", "10.0.0.7"), addr("10.0.0.5"), true},
		"the last address":                       {span("10.0.0.4", "10.0.0.7"), addr("10.0.0.7"), true},
		"not the one before":                     {span("10.0.0.4", "10.0.0.7"), addr("10.0.0.3"), false},
		"not the one after":                      {span("10.0.0.4", "10.0.0.7"), addr("10.0.0.8"), false},
		"not one of the other family":            {span("::", "ffff::"), addr("10.0.0.5"), false},
		"not the zero address":                   {span("10.0.0.4", "10.0.0.7"), netip.Addr{}, false},
		"nothing, if it is zero":                 {Range{}, addr("10.0.0.4"), false},
		"not even the zero address then":         {Range{}, netip.Addr{}, false},
		"an IPv6 address beyond the low 64 bits": {span("fd00::", "fd00:0:0:1::"), addr("fd00::ffff:ffff:ffff:ffff"), true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tt.in.Contains(tt.addr); got != tt.want {
				t.Errorf("%s contains %s: got %t, want %t", tt.in, tt.addr, got, tt.want)
			}
		})
	}
}

func TestRangeOf(t *testing.T) {
	tests := map[string]struct {
		prefix netip.Prefix
		want   Range
	}{
		"a prefix whose bits end inside a byte": {
			prefix: netip.MustParsePrefix("10.0.0.32/27"),
			want:   span("10.0.0.32", "10.0.0.63"),
		},
		"host bits do not count": {
			prefix: netip.MustParsePrefix("fd00::7/120"),
			want:   span("fd00::", "fd00::ff"),
		},
		"a family that is absent has no addresses": {
			prefix: netip.Prefix{},
			want:   Range{},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, RangeOf(tt.prefix), byValue()); diff != "" {
				t.Errorf("range (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSubnet(t *testing.T) {
	tests := map[string]struct {
		subnet       Subnet
		offset       uint64
		wantHostBits int
		wantAt       []netip.Addr
		wantText     string
	}{
		"IPv4 alone": {
			subnet:       subnet("10.0.0.0/16", ""),
			offset:       258,
			wantHostBits: 16,
			wantAt:       addrs("10.0.1.2"),
			wantText:     "10.0.0.0/16",
		},
		"IPv6 alone": {
			subnet:       subnet("", "fd00::/112"),
			offset:       258,
			wantHostBits: 16,
			wantAt:       addrs("fd00::102"),
			wantText:     "fd00::/112",
		},
		"a pair hands out one address of each": {
			subnet:       subnet("10.0.0.0/16", "fd00::/112"),
			offset:       258,
			wantHostBits: 16,
			wantAt:       addrs("10.0.1.2", "fd00::102"),
			wantText:     "10.0.0.0/16,fd00::/112",
		},
		"a /32 and a /128 are one pair": {
			subnet:       subnet("10.0.0.7/32", "fd00::7/128"),
			wantHostBits: 0,
			wantAt:       addrs("10.0.0.7", "fd00::7"),
			wantText:     "10.0.0.7/32,fd00::7/128",
		},
		"an offset carries into the upper half of an IPv6 address": {
			subnet:       subnet("", "fd00::ffff:ffff:ffff:ff00/56"),
			offset:       256,
			wantHostBits: 72,
			wantAt:       addrs("fd00:0:0:1::"),
			wantText:     "fd00::ffff:ffff:ffff:ff00/56",
		},
		"the last address of all of IPv4": {
			subnet:       subnet("0.0.0.0/0", ""),
			offset:       1<<32 - 1,
			wantHostBits: 32,
			wantAt:       addrs("255.255.255.255"),
			wantText:     "0.0.0.0/0",
		},
		"a subnet that could not be read has no address": {
			offset: 3,
			wantAt: addrs(),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tt.subnet.HostBits(); got != tt.wantHostBits {
				t.Errorf("host bits: got %d, want %d", got, tt.wantHostBits)
			}
			if diff := cmp.Diff(tt.wantAt, tt.subnet.At(tt.offset), byValue()); diff != "" {
				t.Errorf("addresses at %d (-want +got):\n%s", tt.offset, diff)
			}
			if got := tt.subnet.String(); got != tt.wantText {
				t.Errorf("text: got %q, want %q", got, tt.wantText)
			}
		})
	}
}

// byValue compares addresses and prefixes, which hide their fields, as == does.
func byValue() cmp.Option {
	return cmp.Options{
		cmp.Comparer(func(x, y netip.Addr) bool { return x == y }),
		cmp.Comparer(func(x, y netip.Prefix) bool { return x == y }),
	}
}

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

func addrs(texts ...string) []netip.Addr {
	as := make([]netip.Addr, len(texts))
	for i, text := range texts {
		as[i] = addr(text)
	}
	return as
}

func span(first, last string) Range { return Range{First: addr(first), Last: addr(last)} }

// subnet reads a subnet; an empty text is a family that is absent.
func subnet(ipv4, ipv6 string) Subnet {
	read := func(text string) netip.Prefix {
		if text == "" {
			return netip.Prefix{}
		}
		return netip.MustParsePrefix(text)
	}
	return Subnet{IPv4: read(ipv4), IPv6: read(ipv6)}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
