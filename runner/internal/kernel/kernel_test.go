package kernel

import (
	"os"
	"syscall"
	"testing"
)

func TestAStatFileIsReadWhateverTheNameIs(t *testing.T) {
	for text, wanted := range map[string]Process{
		"7 (sh) S 1 6 5 0 -1 4194304 1 1 1 1 1 1 1 1 20 0 1 0 12345 1 1\n":                 {7, 1, 6, 'S', 1, 12345},
		"7 (a) R 0 (b) c) Z 0 7 5 0 -1 4194304 1 1 1 1 1 1 1 1 20 0 3 0 99 1 1\n":          {7, 0, 7, 'Z', 3, 99},
		"7 (new\nline) S 1 6 5 0 -1 4194304 1 1 1 1 1 1 1 1 20 0 1 0 18446744073709551615": {7, 1, 6, 'S', 1, 1<<64 - 1},
	} {
		if got, err := parseStat([]byte(text)); got != wanted || err != nil {
			t.Errorf("%q: %+v %v", text, got, err)
		}
	}
	for _, text := range []string{"", "7", "7 (sh", "7 (sh)", "7 (sh) S 1", ") 7 (", "() S 1 6 5 0 -1 4194304 1 1 1 1 1 1 1 1 20 0 1 0 x 1 1"} {
		if got, err := parseStat([]byte(text)); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func TestWhoIsAlive(t *testing.T) {
	for process, wanted := range map[Process]bool{
		{State: 'S', Threads: 1}: true, {State: 'T', Threads: 1}: true, {State: 'D', Threads: 1}: true,
		{State: 'Z', Threads: 1}: false, {State: 'X', Threads: 0}: false, {State: 'Z', Threads: 2}: true,
	} {
		if process.Alive() != wanted {
			t.Error(process)
		}
	}
}

func TestThisProcessIsListed(t *testing.T) {
	all, err := Processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range all {
		if process.PID == os.Getpid() && process.PPID == os.Getppid() && process.Alive() {
			return
		}
	}
	t.Error("not found")
}

func TestASocketIsHungUpWhenBothDirectionsAreClosed(t *testing.T) {
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(ends[0])
	look := func() bool { return HungUp(uintptr(ends[0])) }
	if look() {
		t.Error("it is open")
	}
	syscall.Write(ends[1], []byte("data that nobody reads"))
	syscall.Shutdown(ends[1], syscall.SHUT_WR)
	if look() {
		t.Error("only one direction is closed")
	}
	syscall.Close(ends[1])
	if !look() {
		t.Error("it is closed")
	}
}
