package spool

import (
	"os"
	"syscall"
	"testing"
)

func TestATemporaryFileHasNoName(t *testing.T) {
	for what, create := range map[string]func(string) (*os.File, error){"with O_TMPFILE": New, "without": unnamed} {
		directory := t.TempDir()
		file, err := create(directory)
		if err != nil {
			t.Fatal(what, err)
		}
		defer file.Close()
		if _, err := file.WriteString("content"); err != nil {
			t.Error(what, err)
		}
		var stat syscall.Stat_t
		if err := syscall.Fstat(int(file.Fd()), &stat); err != nil || stat.Nlink != 0 || stat.Size != 7 || stat.Mode&0o777 != 0o600 {
			t.Error(what, stat, err)
		}
		if entries, _ := os.ReadDir(directory); len(entries) > 0 {
			t.Error(what, entries)
		}
	}
	if _, err := New("/proc/self/no-directory"); err == nil {
		t.Error("a file in a directory that does not exist")
	}
}
