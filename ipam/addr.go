package ipam

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"strings"
)

// Range is an inclusive run of addresses of one family.
type Range struct {
	First, Last netip.Addr
}

// ParseRange reads "address", "address/bits" (host bits zero) or "first-last".
func ParseRange(s string) (Range, error) {
	if first, last, ok := strings.Cut(s, "-"); ok {
		r := Range{}
		var err error
		if r.First, err = parseAddr(first); err != nil {
			return Range{}, err
		}
		if r.Last, err = parseAddr(last); err != nil {
			return Range{}, err
		}
		if r.First.BitLen() != r.Last.BitLen() {
			return Range{}, fmt.Errorf("must not mix IPv4 and IPv6")
		}
		if r.Last.Less(r.First) {
			return Range{}, fmt.Errorf("must not end before it begins")
		}
		return r, nil
	}
	if strings.Contains(s, "/") {
		p, err := netip.ParsePrefix(s)
		if err != nil || p.Addr().Is4In6() {
			return Range{}, fmt.Errorf("must be an address, a CIDR or first-last")
		}
		if p != p.Masked() {
			return Range{}, fmt.Errorf("must have no host bits set: did you mean %s?", p.Masked())
		}
		return RangeOf(p), nil
	}
	a, err := parseAddr(s)
	return Range{First: a, Last: a}, err
}

func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" || a.Is4In6() {
		return netip.Addr{}, fmt.Errorf("must be an address, a CIDR or first-last")
	}
	return a, nil
}

// RangeOf returns the addresses of a prefix, its first and its last included; none for the zero prefix.
func RangeOf(p netip.Prefix) Range {
	if !p.IsValid() {
		return Range{}
	}
	first := p.Masked().Addr()
	last := first.AsSlice()
	for bit := p.Bits(); bit < first.BitLen(); bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	a, _ := netip.AddrFromSlice(last)
	return Range{First: first, Last: a}
}

// Contains tells whether the address lies in the range. The zero address lies in none.
func (r Range) Contains(a netip.Addr) bool {
	return a.IsValid() && a.BitLen() == r.First.BitLen() && !a.Less(r.First) && !r.Last.Less(a)
}

// within tells whether all of the range lies in the prefix.
func (r Range) within(p netip.Prefix) bool {
	return p.IsValid() && p.Contains(r.First) && p.Contains(r.Last)
}

// String returns the shortest of "address" and "first-last".
func (r Range) String() string {
	if r.First == r.Last {
		return r.First.String()
	}
	return r.First.String() + "-" + r.Last.String()
}

// Subnet is a prefix of one family, or a pair of prefixes with the same number of host bits that are handed out
// together. A family that is absent is the zero prefix.
type Subnet struct {
	IPv4, IPv6 netip.Prefix
}

// HostBits returns how many bits of an address vary within the subnet; 0 for the zero Subnet.
func (s Subnet) HostBits() int {
	for p := range s.prefixes() {
		return p.Addr().BitLen() - p.Bits()
	}
	return 0
}

// Contains tells whether the address lies in one of the families.
func (s Subnet) Contains(a netip.Addr) bool {
	return s.IPv4.IsValid() && s.IPv4.Contains(a) || s.IPv6.IsValid() && s.IPv6.Contains(a)
}

// At returns the addresses at an offset from the start of the subnet, one for each family that it has.
func (s Subnet) At(offset uint64) []netip.Addr {
	addrs := make([]netip.Addr, 0, 2)
	for p := range s.prefixes() {
		addrs = append(addrs, advance(p.Addr(), offset))
	}
	return addrs
}

// String joins the families with a comma.
func (s Subnet) String() string {
	var parts []string
	for p := range s.prefixes() {
		parts = append(parts, p.String())
	}
	return strings.Join(parts, ",")
}

func (s Subnet) prefixes() func(yield func(netip.Prefix) bool) {
	return func(yield func(netip.Prefix) bool) {
		if s.IPv4.IsValid() && !yield(s.IPv4) {
			return
		}
		if s.IPv6.IsValid() {
			yield(s.IPv6)
		}
	}
}

// part returns the nth slice of 2^hostBits addresses.
func (s Subnet) part(n uint64, hostBits int) Subnet {
	slice := func(p netip.Prefix) netip.Prefix {
		if !p.IsValid() {
			return netip.Prefix{}
		}
		return netip.PrefixFrom(advance(p.Addr(), n<<hostBits), p.Addr().BitLen()-hostBits)
	}
	return Subnet{IPv4: slice(s.IPv4), IPv6: slice(s.IPv6)}
}

// advance returns the address n after a. It wraps around at the end of the family, which no offset inside a subnet
// reaches.
func advance(a netip.Addr, n uint64) netip.Addr {
	if a.Is4() {
		b := a.As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
		return netip.AddrFrom4(b)
	}
	b := a.As16()
	low, carry := bits.Add64(binary.BigEndian.Uint64(b[8:]), n, 0)
	binary.BigEndian.PutUint64(b[8:], low)
	binary.BigEndian.PutUint64(b[:8], binary.BigEndian.Uint64(b[:8])+carry)
	return netip.AddrFrom16(b)
}
