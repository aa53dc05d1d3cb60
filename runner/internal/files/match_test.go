package files

import (
	"strings"
	"testing"
)

func TestPatternsAreTars(t *testing.T) {
	for _, each := range []struct {
		pattern, name string
		wanted        bool
	}{
		{"*.log", "a.log", true}, {"*.log", "d/e/a.log", true}, {"*.log", "a.log.gz", false}, {"*.log", ".log", true},
		{"cache", "cache", true}, {"cache", "a/cache", true}, {"cache", "a/mycache", false}, {"cache", "cache/x", false},
		{"a/b", "a/b", true}, {"a/b", "x/a/b", true}, {"a/b", "xa/b", false}, {"./a", "a", true}, {"./a", "b/a", false},
		{"a*c", "a/b/c", true}, {"a?c", "a/c", true}, {"a?c", "aäc", true}, {"a?c", "ac", false}, {"*", "anything", true},
		{"[ab]", "b", true}, {"[!ab]", "b", false}, {"[^ab]", "c", true}, {"[a-c]x", "bx", true}, {"[]a]", "]", true},
		{"[a", "[a", true}, {"[", "[", true}, {"[a-]", "-", true}, {`\*`, "*", true}, {`\*`, "a", false}, {`a\`, `a\`, true},
		{"", "a", false}, {"**", "a", true}, {"a**b", "a/x/b", true}, {"*a*b*", "xxaxxbxx", true}, {"[!a]b", "/b", true},
	} {
		if got := Excluded(each.name, []string{each.pattern}); got != each.wanted {
			t.Errorf("%q on %q: %v", each.pattern, each.name, got)
		}
	}
	Excluded(strings.Repeat("a", 255), []string{strings.Repeat("*a", 100) + "b"}) // would not end in exponential time
}
