package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheRunnerIsInstalledOnce(t *testing.T) {
	directory := t.TempDir()
	if err := <-installRunner(directory); err == nil || !strings.Contains(err.Error(), runner+" install "+directory) {
		t.Errorf("without a runner in the image: %v", err)
	}
	if err := os.WriteFile(filepath.Join(directory, "runner"), nil, 0o111); err != nil {
		t.Fatal(err)
	}
	if err := <-installRunner(directory); err != nil {
		t.Errorf("with an installed runner: %v", err)
	}
	if err := <-installRunner(""); err != nil {
		t.Errorf("without a directory: %v", err)
	}
}
