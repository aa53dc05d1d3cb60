package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCopyKeepsTheTreesFilesLinksAndExecutableBits(t *testing.T) {
	source, target := t.TempDir(), t.TempDir()
	program := filepath.Join(source, "bin", "agent")
	if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("agent", filepath.Join(source, "bin", "alias")); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"copy", source, target}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(target, "bin", "alias"))
	if err != nil || info.Mode().Perm()&0o111 != 0o111 || info.Size() != int64(len("#!/bin/sh\n")) {
		t.Error(info, err)
	}
	link, err := os.Readlink(filepath.Join(target, "bin", "alias"))
	if link != "agent" {
		t.Error(link, err)
	}
}

func TestASecondCopyReplacesAPartialOne(t *testing.T) {
	source, target := t.TempDir(), t.TempDir()
	for directory, text := range map[string]string{source: "whole", target: "part"} {
		if err := os.WriteFile(filepath.Join(directory, "agent"), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := run([]string{"copy", source, target}); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(target, "agent")); string(text) != "whole" {
		t.Error(string(text), err)
	}
}
