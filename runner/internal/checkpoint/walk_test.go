package checkpoint

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestNamesAreSortedByTheirBytes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	unique := map[string]bool{}
	for len(unique) < 5000 {
		name := make([]byte, 1+random.IntN(255))
		for i := range name {
			name[i] = byte(1 + random.IntN(255))
		}
		unique[string(name[:1+random.IntN(len(name))])] = true
		unique[string(name)] = true
	}
	found, wanted := names{}, []string{}
	for name := range unique {
		found.append([]byte(name))
		wanted = append(wanted, name)
	}
	found.sort()
	slices.Sort(wanted)
	for i, place := range found.places {
		if got := string(found.at(place)); got != wanted[i]+"\x00" {
			t.Fatalf("%d: %q in place of %q", i, got, wanted[i])
		}
	}
	if least := len(strings.Join(wanted, " ")); found.bytes < least || found.bytes > 2*least {
		t.Error("bytes of memory:", found.bytes)
	}
}
