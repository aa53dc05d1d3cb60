// Puts the policy's addresses into sets of the kernel, and matches packets against them.

package firewall

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// maxElements is the maximum number of elements in one message to the kernel. A message has 64 KiB for its elements.
const maxElements = 500

// addListed adds one set of the listed addresses per address family, and returns the sets by family. A family without listed
// addresses has no set. With sets, the number of rules does not grow with the number of addresses. This matters because the kernel
// answers each rule, and the socket's buffer has little space for answers.
func addListed(conn *nftables.Conn, table *nftables.Table, prefixes []netip.Prefix) (map[byte]*nftables.Set, error) {
	sets := map[byte]*nftables.Set{}
	for _, each := range families {
		elements := elementsOf(prefixes, each.number == unix.NFPROTO_IPV4)
		if len(elements) == 0 {
			continue
		}
		set := &nftables.Set{Table: table, Name: "listed" + each.suffix, KeyType: each.kind, Interval: true}
		if err := conn.AddSet(set, nil); err != nil {
			return nil, err
		}
		for chunk := range slices.Chunk(elements, maxElements) {
			if err := conn.SetAddElements(set, chunk); err != nil {
				return nil, err
			}
		}
		sets[each.number] = set
	}
	return sets, nil
}

// elementsOf returns two elements for each range of addresses, which are its first address and the address after its last one.
// Overlapping and adjacent ranges are merged, because the ranges of a set must not overlap.
func elementsOf(prefixes []netip.Prefix, is4 bool) []nftables.SetElement {
	chosen := slices.DeleteFunc(slices.Clone(prefixes), func(each netip.Prefix) bool { return each.Addr().Is4() != is4 })
	slices.SortFunc(chosen, func(one, other netip.Prefix) int { return one.Addr().Compare(other.Addr()) })
	var elements []nftables.SetElement
	var after netip.Addr // the address after the current range, which is invalid if the range has the last address
	for number, each := range chosen {
		first, next := each.Masked().Addr(), lastOf(each).Next()
		if number > 0 && (!after.IsValid() || first.Compare(after) <= 0) {
			if after.IsValid() && (!next.IsValid() || after.Less(next)) {
				after = next
			}
			continue
		}
		if number > 0 {
			elements = append(elements, nftables.SetElement{Key: after.AsSlice(), IntervalEnd: true})
		}
		elements, after = append(elements, nftables.SetElement{Key: first.AsSlice()}), next
	}
	if len(elements) > 0 && after.IsValid() {
		elements = append(elements, nftables.SetElement{Key: after.AsSlice(), IntervalEnd: true})
	}
	return elements
}

// lastOf returns the last address of a prefix.
func lastOf(prefix netip.Prefix) netip.Addr {
	bytes := prefix.Addr().AsSlice()
	for bit := prefix.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 1 << (7 - bit%8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	return last
}

// listed matches packets whose address on one side is in a set of addListed.
func listed(of side, version byte, set *nftables.Set) rule {
	number, at := addressAt(of, version == unix.NFPROTO_IPV4)
	return slices.Concat(family(number), rule{at, &expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID}})
}
