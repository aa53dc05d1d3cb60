package main

import (
	"os"
	"os/exec"
	"strconv"
	"testing"
)

func itoa(n int) string { return strconv.Itoa(n) }

func execCommand(name string, args ...string) *exec.Cmd { return exec.Command(name, args...) }

// build builds the runner with the release's flags.
func build(t testing.TB, output string) {
	t.Helper()
	command := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=test", "-o", output, ".")
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o755)
}
