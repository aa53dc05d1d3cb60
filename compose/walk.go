// Parses the file to a tree with line numbers, and looks up each key of the file in the table of keys.

package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/template"
	"go.yaml.in/yaml/v4"
)

// Refusal is a key of the compose file that a trial does not support, or whose value it does not support. Line is 0 if the line is
// unknown.
type Refusal struct {
	Key     string `json:"key"`
	Line    int    `json:"line"`
	Message string `json:"message"`
}

// document is the file as a tree of nodes with line numbers.
type document struct {
	root      *yaml.Node
	variables map[string]string
	// ofTrial has the variables whose values the trial sets.
	ofTrial map[string]Variable
	// skipped has the services, by name, that seemed inactive when walk read the file. Their keys were not checked.
	skipped map[string]*yaml.Node
	refused []Refusal
	// ignored has the keys without effect.
	ignored []Refusal
	// opens tells whether the library would open other files, which the keys in refused name.
	opens  bool
	visits int
}

// maxVisits is the maximum number of nodes that walk visits. walk visits an alias's nodes at each use, so even a short file can
// have very many visits.
const maxVisits = 100_000

func parse(text string, variables map[string]string) (*document, error) {
	found := &document{
		root: &yaml.Node{Kind: yaml.MappingNode}, variables: variables, ofTrial: map[string]Variable{}, skipped: map[string]*yaml.Node{},
	}
	decoder := yaml.NewDecoder(strings.NewReader(text))
	for number := 0; ; number++ {
		var root yaml.Node
		err := decoder.Decode(&root)
		switch {
		case errors.Is(err, io.EOF):
			return found, nil
		case err != nil:
			return nil, err
		case number > 0: // walk visits only the first document, but the library would merge this one into it
			found.refused = append(found.refused, Refusal{"", root.Line, "must be one document, but another one begins here"})
			return found, nil
		case len(root.Content) > 0:
			found.root = root.Content[0]
		}
	}
}

// refuse adds a refusal of the key at a path.
func (d *document) refuse(path []string, format string, values ...any) {
	d.refused = append(d.refused, Refusal{strings.Join(path, "."), d.line(path), fmt.Sprintf(format, values...)})
}

// walk refuses each key below the node that the table Keys refuses or does not list. pattern is the path with "[]" in place of each
// list index.
func (d *document) walk(node *yaml.Node, path, pattern []string) {
	if d.visits++; d.visits > maxVisits {
		if d.visits == maxVisits+1 {
			d.refused = append(d.refused, Refusal{"", 0, fmt.Sprintf("has more than %d values, each alias counted at each use", maxVisits)})
		}
		return
	}
	switch node = target(node); node.Kind {
	case yaml.MappingNode:
		for _, pair := range pairs(node) {
			d.key(pair, path, pattern)
		}
	case yaml.SequenceNode:
		for number, item := range node.Content {
			d.walk(item, with(path, strconv.Itoa(number)), with(pattern, "[]"))
		}
	case yaml.ScalarNode:
		d.unset(node, path)
	}
}

// unset handles variables without a value and without a default. In the values of replaceable keys, they get a placeholder, because
// the trial sets their values. (In Harbor, the environment of Harbor's process sets them.) In the values of other keys, they are
// refused.
func (d *document) unset(node *yaml.Node, path []string) {
	for name, variable := range template.ExtractVariables(map[string]any{"": node.Value}, template.DefaultPattern) {
		if _, set := d.variables[name]; set || variable.DefaultValue != "" || variable.PresenceValue != "" || hasDefault(node.Value, name) {
			continue
		}
		if replaceable(path) {
			if _, known := d.ofTrial[name]; !known {
				d.ofTrial[name] = Variable{strings.Join(path, "."), node.Line}
			}
			continue
		}
		text := fmt.Sprintf("uses ${%s}, which is not set: add it to environment.env of task.toml, or write ${%s:-DEFAULT}", name, name)
		d.refused = append(d.refused, Refusal{strings.Join(path, "."), node.Line, text})
	}
}

// replaceable returns whether the operator replaces placeholders in the value of a key.
func replaceable(path []string) bool {
	if len(path) < 3 || path[0] != "services" {
		return false
	}
	switch path[2] {
	case "environment", "command", "entrypoint", "image":
		return true
	}
	below := strings.Join(path[2:min(len(path), 4)], ".")
	return below == "build.args" || below == "healthcheck.test"
}

// placeholderStart and placeholderEnd enclose a variable whose value only the trial knows (engine/plan/plan_services.py).
const placeholderStart, placeholderEnd = "\ue000", "\ue001"

// hasDefault returns whether the text gives the variable a default, which may be empty.
func hasDefault(text, name string) bool {
	return strings.Contains(text, "${"+name+":-") || strings.Contains(text, "${"+name+"-")
}

func (d *document) key(pair [2]*yaml.Node, path, pattern []string) {
	name := pair[0].Value
	if strings.HasPrefix(name, "x-") && !isName(pattern) {
		return // x-... is an extension without effect, except in a mapping of names, where it is a name
	}
	here, kind := with(path, name), with(pattern, name)
	row, found := find(kind)
	switch {
	case row.Path == "services.*" && inactive(pair[1]) && !d.extended(name):
		d.skipped[name] = pair[1]
	case !found:
		d.refused = append(d.refused, Refusal{strings.Join(here, "."), pair[0].Line, "is not a key of the compose specification"})
	case row.Outcome == Refused && !empty(pair[1]):
		d.opens = d.opens || row.Path == "include" || row.Path == "services.*.extends.file"
		d.refused = append(d.refused, Refusal{strings.Join(here, "."), pair[0].Line, "is not supported: " + row.Text})
	case row.Outcome == Ignored && !empty(pair[1]):
		d.ignored = append(d.ignored, Refusal{strings.Join(here, "."), pair[0].Line, "has no effect: " + row.Text})
	case row.Outcome == Mapped:
		d.walk(pair[1], here, kind)
	}
}

// inactive returns whether a service has profiles, because Harbor enables no profile. A service that extends another one counts as
// active, because the library reads the extended file even for an inactive service.
func inactive(service *yaml.Node) bool {
	if len(values(service, "extends")) > 0 {
		return false
	}
	return slices.ContainsFunc(values(service, "profiles"), func(each *yaml.Node) bool { return len(each.Content) > 0 })
}

// extended returns whether another service inherits the keys of a service.
func (d *document) extended(name string) bool {
	for _, services := range values(d.root, "services") {
		for _, each := range pairs(services) {
			for _, extends := range values(each[1], "extends") {
				from := append(values(extends, "service"), extends)
				if slices.ContainsFunc(from, func(node *yaml.Node) bool { return node.Value == name || strings.Contains(node.Value, "$") }) {
					return true
				}
			}
		}
	}
	return false
}

// values returns the values of a key in a mapping. There may be several, because other mappings may be merged into the mapping.
func values(mapping *yaml.Node, key string) []*yaml.Node {
	mapping = target(mapping)
	if mapping.Kind != yaml.MappingNode {
		return nil
	}
	var found []*yaml.Node
	for _, pair := range pairs(mapping) {
		if pair[0].Value == key {
			found = append(found, target(pair[1]))
		}
	}
	return found
}

// isName returns whether the keys of the mapping at this path are names that the file's author chose.
func isName(pattern []string) bool {
	row, found := find(with(pattern, "\x00"))
	return found && strings.HasSuffix(row.Path, ".*")
}

// empty returns whether the value equals the key's default: null, false, or an empty mapping or list.
func empty(node *yaml.Node) bool {
	node = target(node)
	return node.Kind == yaml.ScalarNode && (node.Tag == "!!null" || node.Tag == "!!bool" && node.Value == "false") ||
		(node.Kind == yaml.MappingNode || node.Kind == yaml.SequenceNode) && len(node.Content) == 0
}

// line returns the line of the last part of the path that the file contains. The file may lack later parts, because a service can
// inherit keys through `extends`.
func (d *document) line(path []string) int {
	node, line := d.root, 0
	for _, part := range path {
		next := (*yaml.Node)(nil)
		switch node = target(node); node.Kind {
		case yaml.MappingNode:
			for _, pair := range pairs(node) {
				if pair[0].Value == part {
					next, line = pair[1], pair[0].Line
				}
			}
		case yaml.SequenceNode:
			if number, err := strconv.Atoi(part); err == nil && number < len(node.Content) {
				next = node.Content[number]
				line = next.Line
			}
		}
		if next == nil {
			break
		}
		node = next
	}
	return line
}

// pairs returns the keys and values of a mapping. Pairs of mappings that are merged into it ("<<") come first.
func pairs(node *yaml.Node) [][2]*yaml.Node {
	var found, merged [][2]*yaml.Node
	for number := 0; number+1 < len(node.Content); number += 2 {
		key, value := node.Content[number], target(node.Content[number+1])
		if key.Tag != "!!merge" {
			found = append(found, [2]*yaml.Node{key, node.Content[number+1]})
			continue
		}
		from := []*yaml.Node{value}
		if value.Kind == yaml.SequenceNode {
			from = value.Content
		}
		for _, each := range from {
			if each = target(each); each.Kind == yaml.MappingNode && each != node {
				merged = append(merged, pairs(each)...)
			}
		}
	}
	return append(merged, found...)
}

func target(node *yaml.Node) *yaml.Node {
	for depth := 0; node.Kind == yaml.AliasNode && depth < 100; depth++ {
		node = node.Alias
	}
	return node
}

func with(path []string, part string) []string {
	return append(append(make([]string, 0, len(path)+1), path...), part)
}
