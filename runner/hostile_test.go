package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"multistep.dev/runner/internal/kernel"
	"multistep.dev/runner/internal/peer"
)

func init() {
	runtime.LockOSThread() // keep main on the main thread, which beHeadless ends
}

// beRabbit tries to evade the runner's kill of its phase: it repeats fork and setsid in the child while the parent exits, forever.
// By the time that a list of the processes is complete, every process in it has exited.
func beRabbit() {
	for {
		pid, _, _ := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0) // fork()
		if pid != 0 {
			syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
		}
		syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0)
	}
}

// rabbit returns the command line of a minimal machine-code program, which it writes to path and which does the same as beRabbit,
// ten times as fast. On architectures other than amd64 it returns the command line of beRabbit.
func rabbit(path string) []string {
	if runtime.GOARCH != "amd64" {
		return helper("rabbit", path)
	}
	code := []byte{
		0xb8, 57, 0, 0, 0, 0x0f, 0x05, // again: fork()
		0x85, 0xc0, 0x75, 0x09, // jump to the end in the parent
		0xb8, 112, 0, 0, 0, 0x0f, 0x05, // setsid()
		0xeb, 0xec, // jump to again
		0xb8, 231, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05, // exit_group(0)
	}
	const base, headers = 0x400000, 64 + 56
	size := uint64(headers + len(code))
	var elf bytes.Buffer
	elf.WriteString("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	binary.Write(&elf, binary.LittleEndian, struct {
		Type, Machine        uint16
		Version              uint32
		Entry, Phoff, Shoff  uint64
		Flags                uint32
		Ehsize, Phsize, Phes uint16
		Unused               [3]uint16
	}{2, 62, 1, base + headers, 64, 0, 0, 64, 56, 1, [3]uint16{}})
	binary.Write(&elf, binary.LittleEndian, struct {
		Type, Flags                                uint32
		Offset, Vaddr, Paddr, Filesz, Memsz, Align uint64
	}{1, 5, 0, base, base, size, size, 4096})
	elf.Write(code)
	check(os.WriteFile(path, elf.Bytes(), 0o755))
	return []string{path}
}

// beHeadless ends only its main thread: the process is shown as a zombie but still runs.
func beHeadless() {
	signal.Ignore(syscall.SIGTERM)
	go time.Sleep(time.Hour)
	time.Sleep(50 * time.Millisecond)
	syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0)
}

// beIntruder connects to PID 1 from inside the container, as `runner call` does.
func beIntruder() {
	conn, err := net.DialUnix("unix", nil, peer.Address(peer.DefaultSocket))
	check(err)
	conn.SetDeadline(time.Now().Add(time.Minute))
	io.WriteString(conn, "J\x00\x00\x00\x20"+`{"op":"hello","protocols":[1]  }`)
	answer, err := io.ReadAll(conn)
	fmt.Printf("%s %v\n", answer, err)
	os.Exit(0)
}

// usualCapabilities is the default capability set of containerd and Docker, which lacks SYS_ADMIN and SYS_PTRACE.
const usualCapabilities = 1<<0 | 1<<1 | 1<<3 | 1<<4 | 1<<5 | 1<<6 | 1<<7 | 1<<8 | 1<<10 | 1<<13 | 1<<18 | 1<<27 | 1<<29 | 1<<31

// limitCapabilities removes all capabilities but usualCapabilities from the bounding set: programs executed later cannot have them.
func limitCapabilities() {
	for capability := range 41 {
		if usualCapabilities&(1<<capability) == 0 {
			syscall.RawSyscall(syscall.SYS_PRCTL, 24, uintptr(capability), 0) // PR_CAPBSET_DROP
		}
	}
}

// beExec executes the command that follows the marker, with the capabilities of an exec from outside the container.
func beExec() {
	limitCapabilities()
	check(syscall.Exec(os.Args[2], append([]string{"runner"}, os.Args[3:]...), os.Environ()))
}

// beSpy tries, for three seconds, to open the stdout (descriptor 1) of each `runner call` that was started from outside the
// container.
func beSpy() {
	limitCapabilities()
	tried, opened := map[int]bool{}, 0
	for started := time.Now(); time.Since(started) < 3*time.Second; {
		processes, _ := kernel.Processes()
		for _, each := range processes {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", each.PID))
			if each.PPID != 0 || each.PID == 1 || string(name) != "runner\n" {
				continue
			}
			tried[each.PID] = true
			for try := 0; try < 1000; try++ {
				fd, err := syscall.Open(fmt.Sprintf("/proc/%d/fd/1", each.PID), syscall.O_RDWR, 0)
				if err == nil {
					opened++
					syscall.Close(fd)
					break
				}
				if err == syscall.ENOENT {
					break
				}
			}
		}
	}
	fmt.Printf("saw %d opened %d\n", len(tried), opened)
	os.Exit(0)
}
