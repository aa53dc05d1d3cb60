package files

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestCaptureReportsChanges rewrites a file continuously. If capture returns content that the file never had, it must set Changed.
func TestCaptureReportsChanges(t *testing.T) {
	name := filepath.Join(t.TempDir(), "reward.txt")
	ones, twos := bytes.Repeat([]byte("1"), 1<<16), bytes.Repeat([]byte("2"), 1<<16)
	if err := os.WriteFile(name, ones, 0o644); err != nil {
		t.Fatal(err)
	}
	if still := capture(name, 1<<16); still.Changed || still.Truncated {
		t.Error("a file that nobody writes does not change")
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go rewrite(name, [][]byte{twos, ones}, stop, stopped)
	changed := 0
	for range 500 {
		got := capture(name, 1<<16)
		if got.Changed {
			changed++
		} else if len(got.Base64) != 1<<16 || switches(got.Base64) > 1 {
			t.Fatal("a mixture that the file never had passed for its content")
		}
	}
	close(stop)
	<-stopped
	if changed == 0 {
		t.Error("no change was seen")
	}
}

// switches returns how often the byte changes in content. If the writer is paused within a rewrite, the file has one switch, from
// new pages to old ones. Two switches mean that the file was read while it changed.
func switches(content []byte) (count int) {
	for i := 1; i < len(content); i++ {
		if content[i] != content[i-1] {
			count++
		}
	}
	return count
}

func rewrite(name string, contents [][]byte, stop, stopped chan struct{}) {
	defer close(stopped)
	file, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
			file.WriteAt(contents[i%len(contents)], 0)
		}
	}
}
