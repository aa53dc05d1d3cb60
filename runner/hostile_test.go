package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"multistep.dev/runner/internal/peer"
)

func init() {
	runtime.LockOSThread() // main stays on the main thread: beHeadless ends just that
}

// beRabbit runs away: it forks, leaves its session, and lets the parent die, for ever. Whoever looks at a list of
// processes sees one that is gone already.
func beRabbit() {
	for {
		pid, _, _ := syscall.RawSyscall(syscall.SYS_FORK, 0, 0, 0)
		if pid != 0 {
			syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
		}
		syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0)
	}
}

// beHeadless ends its main thread only: the process looks like a zombie, and lives.
func beHeadless() {
	signal.Ignore(syscall.SIGTERM)
	go time.Sleep(time.Hour)
	time.Sleep(50 * time.Millisecond)
	syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0)
}

// beIntruder is a process of the container that talks to PID 1 as `runner call` does.
func beIntruder() {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: peer.Address, Net: "unix"})
	check(err)
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	io.WriteString(conn, "J\x00\x00\x00\x20"+`{"op":"hello","protocols":[1]  }`)
	answer, err := io.ReadAll(conn)
	fmt.Printf("%s %v\n", answer, err)
	os.Exit(0)
}
