package whereabouts

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/oakum-dev/oakum/ipam"
)

// Names of objects are computed from what they stand for, and never believed to mean what they look like: net1-fd00--5
// can be fd00::5 in network net1 and 0:0:fd00::5 in none. A name is read by guessing, and a guess counts only if the
// name that follows from it is the same.

// reservationName returns the name under which an address is reserved in a network; "" is the network without a name.
func reservationName(network string, addr netip.Addr) string {
	name := addr.Unmap().String()
	if strings.HasSuffix(name, ":") {
		name += "0"
	}
	name = strings.ReplaceAll(name, ":", "-")
	if network != "" {
		name = network + "-" + name
	}
	return name
}

// readings yields every network and address whose reservation has this name.
func readings(name string) iter.Seq2[string, netip.Addr] {
	return func(yield func(string, netip.Addr) bool) {
		for i := -1; i < len(name); i++ {
			if i >= 0 && name[i] != '-' {
				continue
			}
			network, rest := name[:max(i, 0)], name[i+1:]
			addr, err := netip.ParseAddr(strings.ReplaceAll(rest, "-", ":"))
			if err == nil && reservationName(network, addr) == name && !yield(network, addr) {
				return
			}
		}
	}
}

// rangeName is a range's part in the names of its IPPools, which end in it.
func rangeName(subnet netip.Prefix) string {
	return strings.NewReplacer(":", "-", "/", "-").Replace(subnet.String())
}

// vocabulary is what names are made of, beside ranges.
type vocabulary struct {
	// networks are those that a NetworkAttachmentDefinition names, nodes those that have a slice.
	networks, nodes map[string]bool
}

// networksOf returns the networks that an IPPool of this name and range can belong to, the likeliest first. Too many of
// them only make more reservations count as the pool's.
//
// The name is the range's alone, or the range's after a network's, a node's, or both.
func (v vocabulary) networksOf(pool string, subnet netip.Prefix) []string {
	if pool == rangeName(subnet) {
		return []string{""}
	}
	prefix, ok := strings.CutSuffix(pool, "-"+rangeName(subnet))
	if !ok { // Nothing that whereabouts made.
		return append([]string{""}, slices.Sorted(maps.Keys(v.networks))...)
	}
	if v.networks[prefix] && !v.nodes[prefix] {
		return append([]string{prefix}, v.networksBefore(prefix)...)
	}
	networks := append(v.networksBefore(prefix), prefix, "")
	if v.nodes[prefix] {
		slices.Reverse(networks)
	}
	return networks
}

// networksBefore returns the networks that can be followed by a node in a name. That a network or a node is known is
// enough, because whereabouts forgets nodes that are gone.
func (v vocabulary) networksBefore(prefix string) []string {
	var networks []string
	for i := range prefix {
		if network, node := prefix[:i], prefix[i+1:]; prefix[i] == '-' && (v.networks[network] || network != "" && v.nodes[node]) {
			networks = append(networks, network)
		}
	}
	return networks
}

// parseRange reads the range of an IPPool. Whereabouts counts offsets from the address as it is written, in both
// directions, so one with host bits would leave it open which address an offset means: it is not read.
func parseRange(text string) (netip.Prefix, bool) {
	subnet, err := netip.ParsePrefix(text)
	if err != nil || subnet != subnet.Masked() || subnet.Addr().Is4In6() {
		return netip.Prefix{}, false
	}
	return subnet, true
}

// parseOffset reads an offset within a range, and returns it with its address. It takes no other spelling than the one
// that whereabouts writes, so that an offset leads back to its entry.
func parseOffset(subnet netip.Prefix, text string) (int, []netip.Addr, bool) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || strconv.Itoa(n) != text || !subnet.IsValid() || uint64(n)>>(subnet.Addr().BitLen()-subnet.Bits()) != 0 {
		return 0, nil, false
	}
	return n, subnetOf(subnet).At(uint64(n)), true
}

func subnetOf(p netip.Prefix) ipam.Subnet {
	if p.Addr().Is4() {
		return ipam.Subnet{IPv4: p}
	}
	return ipam.Subnet{IPv6: p}
}

// podOf reads a podref.
func podOf(ref string) (types.NamespacedName, bool) {
	namespace, name, _ := strings.Cut(ref, "/")
	if namespace == "" || name == "" || strings.Contains(name, "/") {
		return types.NamespacedName{}, false
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, true
}

// isUID tells whether an entry's id is a pod's UID, which has hyphens where a container id has none.
func isUID(id string) bool {
	if len(id) != 36 {
		return false
	}
	for i := range len(id) {
		if hyphen := i == 8 || i == 13 || i == 18 || i == 23; hyphen != (id[i] == '-') {
			return false
		}
	}
	return true
}
