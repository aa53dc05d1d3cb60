package files

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"
)

func TestWhatIsNestedVeryDeepIsRemoved(t *testing.T) {
	directory := t.TempDir()
	dig(t, directory, 2500) // a path longer than the kernel accepts, which 2,047 levels of one letter are already
	root, err := os.OpenRoot(directory)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	started := time.Now()
	if err := removeAll(root, "d"); err != nil {
		t.Fatal(err)
	}
	t.Log(time.Since(started))
	if err := empty(root); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(directory); len(left) != 0 {
		t.Error(left)
	}
}

// dig creates nested directories. It does not use package os, which would read the working directory at each level.
func dig(t *testing.T, directory string, depth int) {
	t.Helper()
	t.Chdir(directory)
	for range depth {
		if err := syscall.Mkdir("d", 0o755); err != nil {
			t.Fatal(err)
		}
		syscall.Mkdir("e", 0o500)
		syscall.Chdir("d")
	}
	syscall.Chdir(directory)
}

// Processes that create files faster than the runner removes them must not stall a reset forever.
func TestADirectoryThatIsNotEmptyInTimeIsGivenUp(t *testing.T) {
	defer func(former time.Duration) { removeTimeout = former }(removeTimeout)
	removeTimeout = 0
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := root.MkdirAll("d/e", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := empty(root); !errors.Is(err, errFilled) {
		t.Error(err)
	}
	if err := removeAll(root, "d"); !errors.Is(err, errFilled) {
		t.Error(err)
	}
}
