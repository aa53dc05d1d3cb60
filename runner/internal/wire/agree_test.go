package wire

import "testing"

func TestTheHighestCommonProtocolIsAgreedOn(t *testing.T) {
	original := Protocols
	defer func() { Protocols = original }()
	Protocols = []int{2, 3}
	for _, each := range []struct {
		what    string
		offered []int
		agreed  int
	}{
		{"an operator of the same release", []int{3, 2}, 3},
		{"an upgraded one", []int{4, 3}, 3},
		{"one that was rolled back", []int{2, 1}, 2},
		{"one too old", []int{1}, 0},
		{"one too new", []int{5, 4}, 0},
		{"nonsense", []int{0, -1}, 0},
		{"silence", nil, 0},
	} {
		agreed, ok := Agree(Protocols, each.offered)
		if agreed != each.agreed || ok != (each.agreed > 0) {
			t.Errorf("%s: %d, %t", each.what, agreed, ok)
		}
	}
}
