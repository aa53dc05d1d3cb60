package firewall

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/nftables"
)

// The set contains exactly the addresses of the prefixes, even if prefixes overlap or reach an end of the address space.
func TestTheSetHasTheAddressesOfThePrefixes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		var prefixes []netip.Prefix
		for range random.IntN(8) {
			edge := byte(255 * random.IntN(2))
			address := netip.AddrFrom4([4]byte{edge, edge, edge, byte(random.IntN(256))})
			prefixes = append(prefixes, netip.PrefixFrom(address, []int{0, 24, 25, 28, 30, 31, 32, 32}[random.IntN(8)]).Masked())
		}
		elements := elementsOf(append(prefixes, netip.MustParsePrefix("::/0")), true)
		for _, edge := range []byte{0, 255} {
			for last := range 256 {
				address := netip.AddrFrom4([4]byte{edge, edge, edge, byte(last)})
				wanted := false
				for _, each := range prefixes {
					wanted = wanted || each.Contains(address)
				}
				if contains(t, elements, address) != wanted {
					t.Fatalf("%v in %v: want %v, from %v", address, elements, wanted, prefixes)
				}
			}
		}
	}
}

// contains returns whether a set has an address: whether the last element at or below the address starts a range.
func contains(t *testing.T, elements []nftables.SetElement, wanted netip.Addr) bool {
	inside, former := false, netip.Addr{}
	for _, each := range elements {
		address, _ := netip.AddrFromSlice(each.Key)
		if former.IsValid() && !former.Less(address) || inside == !each.IntervalEnd && wanted.Compare(address) >= 0 {
			t.Fatalf("the ranges are not sorted and apart: %v", elements)
		}
		if wanted.Compare(address) >= 0 {
			inside = !each.IntervalEnd
		}
		former = address
	}
	return inside
}
