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
		if key.Outcome != Mapped && key.Text == "" {
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
		named := func(found Refusal) bool { return found.Line == line && strings.Contains(found.Message, key.Text) }
		if !slices.ContainsFunc(answer.Refused, named) {
			t.Errorf("%s: got %+v, want a refusal in line %d, of\n%s", key.Path, answer.Refused, line, text)
		}
	}
}

// All faults of a file are named at once: unsupported keys and unsupported values of supported keys, in the order of their lines.
func TestAllRefusedKeysAndValuesAreNamedAtOnce(t *testing.T) {
	text := "services:\n  db:\n    image: x\n    privileged: true\n    pid: host\n    user: me\n"
	lines := []int{}
	for _, found := range Read(Request{Path: "environment/docker-compose.yaml", Text: text}).Refused {
		lines = append(lines, found.Line)
	}
	if !slices.Equal(lines, []int{4, 5, 6}) {
		t.Errorf("the refused lines are %v", lines)
	}
}

// A file that names another file is refused before the library could open it.
func TestNoFileIsOpenedToFindMoreFaults(t *testing.T) {
	for _, text := range []string{"include: [/etc/hostname]\n", "services:\n  db: {extends: {file: /etc/hostname, service: x}}\n"} {
		answer := Read(Request{Path: "environment/docker-compose.yaml", Text: text})
		if len(answer.Refused) != 1 || !strings.Contains(answer.Refused[0].Message, "into this file") {
			t.Errorf("got %+v of\n%s", answer.Refused, text)
		}
	}
}

// Keys without effect do not refuse a task, and are named with their lines.
func TestIgnoredKeysAreNamed(t *testing.T) {
	text := "services:\n  db:\n    image: x\n    platform: linux/amd64\n    security_opt: [label=disable, no-new-privileges]\n"
	answer := Read(Request{Path: "environment/docker-compose.yaml", Text: text})
	if len(answer.Services) != 2 || len(answer.Ignored) != 2 || answer.Ignored[0].Line != 4 || answer.Ignored[1].Line != 5 {
		t.Errorf("got %+v", answer)
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
