package serve

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestOnlyFilesWhoseReadingMayNotEndBlockExecSessions(t *testing.T) {
	directory := t.TempDir()
	in := func(name string) string { return filepath.Join(directory, name) }
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.WriteFile(in("file"), []byte("root:x:0:0::/root:/bin/sh\n"), 0o644))
	check(os.WriteFile(in("large"), nil, 0o644))
	check(os.Truncate(in("large"), maxExecFile+1))
	check(syscall.Mkfifo(in("fifo"), 0o644))
	check(os.Mkdir(in("directory"), 0o755))
	for name, target := range map[string]string{
		"link": "file", "dangling": "nowhere", "circle": "circle", "to-directory": "directory",
		"to-fifo": "directory/../fifo", "device": "/dev/urandom",
		"stdin": "/dev/stdin", "far": "stdin", "descriptor": "/proc/self/fd/4000", "messages": "/proc/kmsg",
		"task": "/proc/self/task", "up": "task/../fd/0",
	} {
		check(os.Symlink(target, in(name)))
	}
	for name, blocks := range map[string]bool{
		"file": false, "missing": false, "directory": false, "link": false, "dangling": false, "circle": false, "to-directory": false,
		"large": true, "fifo": true, "to-fifo": true, "device": true,
		"stdin": true, "far": true, "descriptor": true, "messages": true, "up": true,
	} {
		if problem := blocksReader(in(name)); (problem != "") != blocks {
			t.Errorf("%s: %q", name, problem)
		}
	}
}
