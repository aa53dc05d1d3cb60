package main

import (
	"bufio"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

func TestASignalFromOutsideIsToldApartFromACrash(t *testing.T) {
	for _, number := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		process := exec.Command(os.Args[0])
		process.Env = append(os.Environ(), asWaiting+"=1")
		out, err := process.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := process.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		if err := process.Process.Signal(number); err != nil {
			t.Fatal(err)
		}
		_ = process.Wait()
		if code := process.ProcessState.ExitCode(); code != 128+int(number) {
			t.Errorf("%v: status %d", number, code)
		}
	}
}
