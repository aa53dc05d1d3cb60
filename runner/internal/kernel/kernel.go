// Package kernel holds the few system calls and /proc files that Go's standard library has no name for.
package kernel

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

// SelfExe is this program whatever became of its path: a root agent may have replaced the file.
const SelfExe = "/proc/self/exe"

const (
	prSetDumpable       = 4
	prCapbsetDrop       = 24
	prSetChildSubreaper = 36

	capSetpcap   = 8
	capVersion3  = 0x20080522
	bitsPerWord  = 32
	setpcapWord  = capSetpcap / bitsPerWord
	setpcapMask  = uint32(1) << (capSetpcap % bitsPerWord)
	capabilities = 2 // words of each set
)

// Undumpable keeps processes of the same user from reading or tracing this one.
func Undumpable() {
	// A kernel that refuses has no dumping either; there is nothing better to do.
	syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0)
}

// DropSetpcap takes CAP_SETPCAP from all that this process will execute, for good. The kernel lets no process look into one
// that has a capability which it lacks itself: so a phase, root or not, cannot open the descriptors of a `runner call` (which
// has what the container has) in the moment between its execve and Undumpable. Without the capability there is nothing to drop,
// and no DAC_OVERRIDE either in the usual sets: then a file that nobody may read (see install) does the same.
func DropSetpcap() error {
	syscall.RawSyscall(syscall.SYS_PRCTL, prCapbsetDrop, capSetpcap, 0) // EPERM: we do not have it
	header := struct {
		version uint32
		pid     int32
	}{version: capVersion3}
	var sets [capabilities]struct{ effective, permitted, inheritable uint32 }
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CAPGET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&sets)), 0); errno != 0 {
		return fmt.Errorf("capget: %w", errno)
	}
	sets[setpcapWord].effective &^= setpcapMask
	sets[setpcapWord].permitted &^= setpcapMask
	sets[setpcapWord].inheritable &^= setpcapMask
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&sets)), 0); errno != 0 {
		return fmt.Errorf("capset: %w", errno)
	}
	return nil
}

// BecomeSubreaper makes orphans below this process its children instead of PID 1's.
func BecomeSubreaper() error {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); errno != 0 {
		return fmt.Errorf("prctl(PR_SET_CHILD_SUBREAPER): %w", errno)
	}
	return nil
}

// KeepDescriptors lets no child have what this process was started with, but for stdin, stdout and stderr.
func KeepDescriptors() error {
	entries, err := os.ReadDir("/proc/self/fd")
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
	return err
}

// SetTime sets when an open file was changed and read: without its name, which may be somebody else's by now.
func SetTime(file *os.File, when time.Time) error {
	stamp := syscall.NsecToTimespec(when.UnixNano())
	times := [2]syscall.Timespec{stamp, stamp}
	_, _, errno := syscall.Syscall6(syscall.SYS_UTIMENSAT, file.Fd(), 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("utimensat: %w", errno)
	}
	return nil
}

// Process is what /proc/PID/stat tells. That file is readable for everybody, also of undumpable processes.
type Process struct {
	PID, PPID, Group int
	State            byte
	Threads          int
	Start            uint64 // clock ticks since boot: with the PID it names a process for good
}

// Alive is false for what has ended and only waits to be reaped. A main thread that ended by itself looks like a
// zombie too while its other threads run on: those are counted.
func (p Process) Alive() bool {
	return (p.State != 'Z' && p.State != 'X') || p.Threads > 1
}

// Stat reads one process; an error means that it is gone.
func Stat(pid int) (Process, error) {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Process{}, err
	}
	return parseStat(content)
}

func parseStat(content []byte) (Process, error) {
	open, end := bytes.IndexByte(content, '('), bytes.LastIndexByte(content, ')') // the name may hold anything
	if open < 1 || end < open {
		return Process{}, fmt.Errorf("not a stat file: %.80q", content)
	}
	fields := bytes.Fields(content[end+1:])
	if len(fields) < 20 {
		return Process{}, fmt.Errorf("a stat file with too few fields: %.80q", content)
	}
	number := func(field []byte) int {
		n, _ := strconv.Atoi(string(field))
		return n
	}
	start, err := strconv.ParseUint(string(fields[19]), 10, 64)
	return Process{
		PID: number(bytes.TrimSpace(content[:open])), State: fields[0][0], PPID: number(fields[1]),
		Group: number(fields[2]), Threads: number(fields[17]), Start: start,
	}, err
}

// Processes lists all that can be seen. What ends meanwhile is left out.
func Processes() ([]Process, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var all []Process
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if process, err := Stat(pid); err == nil {
				all = append(all, process)
			}
		}
	}
	return all, nil
}
