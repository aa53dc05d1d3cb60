package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// The tasks in tests/e2e/compose_tasks use every mapped key except services.*.build and the keys below it. An end-to-end test runs
// them with the oracle, so all these keys are tested on a real cluster.
func TestTheEndToEndTasksUseEveryMappedKey(t *testing.T) {
	files, err := filepath.Glob("../tests/e2e/compose_tasks/*/*/docker-compose.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	used := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		read, err := parse(string(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		use(read.root, nil, used)
	}
	for _, key := range Keys {
		if key.Outcome == Mapped && !used[key.Path] && key.Path != "services.*.build" && !strings.HasPrefix(key.Path, "services.*.build.") {
			t.Errorf("no task in tests/e2e/compose_tasks uses %s", key.Path)
		}
	}
}

// use adds to used the paths of the table's rows for all keys below a node.
func use(node *yaml.Node, pattern []string, used map[string]bool) {
	switch node = target(node); node.Kind {
	case yaml.MappingNode:
		for _, pair := range pairs(node) {
			here := with(pattern, pair[0].Value)
			row, _ := find(here)
			used[row.Path] = true
			use(pair[1], here, used)
		}
	case yaml.SequenceNode:
		for _, item := range node.Content {
			use(item, with(pattern, "[]"), used)
		}
	}
}
