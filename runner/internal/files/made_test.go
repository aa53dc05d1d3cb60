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
		} else if !bytes.Equal(got.Base64, ones) && !bytes.Equal(got.Base64, twos) {
			t.Fatal("a mixture passed for the file's content")
		}
	}
	close(stop)
	<-stopped
	if changed == 0 {
		t.Error("no change was seen")
	}
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
