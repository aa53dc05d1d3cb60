package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/schema"
	"github.com/compose-spec/compose-go/v2/tree"
)

func TestEveryKeyOfTheSpecificationHasARow(t *testing.T) {
	for _, path := range schema.AttributePaths() {
		if _, found := find(strings.Split(string(path), ".")); !found {
			t.Errorf("%s has no row in Keys: decide what becomes of it", path)
		}
	}
}

func TestEveryRowIsAKeyOfTheSpecification(t *testing.T) {
	seen := map[string]bool{}
	for _, key := range Keys {
		known := slices.ContainsFunc(schema.AttributePaths(), func(path tree.Path) bool { return string(path) == key.Path })
		if !known || seen[key.Path] {
			t.Errorf("%s is no key of the specification, or has two rows", key.Path)
		}
		if key.Outcome == Refused && key.Text == "" || key.Outcome == Dropped && key.Text == "" {
			t.Errorf("%s: say why it is %s", key.Path, key.Outcome)
		}
		seen[key.Path] = true
	}
}

// A file with one refused key, at any depth, is refused with the line and the text of this key.
func TestEveryRefusedKeyIsNamedWithItsLine(t *testing.T) {
	for _, key := range Keys {
		if key.Outcome != Refused {
			continue
		}
		text, line := fileWith(strings.Split(key.Path, "."))
		answer := Read(Request{Path: "environment/docker-compose.yaml", Text: text})
		if len(answer.Refused) != 1 || answer.Refused[0].Line != line || !strings.Contains(answer.Refused[0].Message, key.Text) {
			t.Errorf("%s: got %+v, want a refusal in line %d, of\n%s", key.Path, answer.Refused, line, text)
		}
	}
}

// fileWith returns a file that contains only the key of a pattern, and the key's line.
func fileWith(pattern []string) (string, int) {
	text, indent, line := "", 0, 0
	for _, part := range pattern {
		if part == "[]" {
			text = strings.TrimSuffix(text, "\n") + "\n" + strings.Repeat(" ", indent) + "-\n"
			indent, line = indent+1, line+1
			continue
		}
		if part == "*" {
			part = "some"
		}
		text += strings.Repeat(" ", indent) + part + ":\n"
		indent, line = indent+1, line+1
	}
	return strings.TrimSuffix(text, "\n") + " 1\n", line
}
