// Protects this process from others, and reads the state of processes and sockets.

package kernel

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// SelfExe is a path to this running program, which stays valid if an agent that is root replaces the program's file.
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
	capabilities = 2 // number of 32-bit words in each capability set
)

// Undumpable prevents processes of the same user from reading or tracing this process.
func Undumpable() {
	// Errors are ignored, because they mean that the kernel has no dumpable flag.
	syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0)
}

// KeepLimits prevents other processes of this user from changing this process's resource limits. With a limit of PID 1's CPU time,
// they could make the kernel kill PID 1 with SIGKILL, as the kubelet does. Without CAP_SYS_RESOURCE, prlimit(2) requires that all
// three group IDs of the target equal the caller's group ID. If two of them differ, no caller meets this condition.
func KeepLimits() {
	// Errors are ignored, because a process without CAP_SETGID cannot change its saved group ID.
	syscall.Setresgid(-1, -1, syscall.Getegid()^1)
}

// DropSetpcap removes CAP_SETPCAP permanently from this process and all programs that it executes. The kernel lets a process
// inspect another one only if it has all capabilities of the other one. So no phase, root or not, can open the descriptors of a
// `runner call` (which has all of the container's capabilities) between its execve and Undumpable. A container without CAP_SETPCAP
// usually lacks CAP_DAC_OVERRIDE, too. There, the program's unreadable file (see install) has the same effect.
func DropSetpcap() error {
	syscall.RawSyscall(syscall.SYS_PRCTL, prCapbsetDrop, capSetpcap, 0) // fails with EPERM if the process lacks CAP_SETPCAP
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

// BecomeSubreaper makes this process, instead of PID 1, the parent of its orphaned descendants.
func BecomeSubreaper() error {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); errno != 0 {
		return fmt.Errorf("prctl(PR_SET_CHILD_SUBREAPER): %w", errno)
	}
	return nil
}

// KeepDescriptors prevents children from inheriting this process's descriptors, except stdin, stdout and stderr.
func KeepDescriptors() error {
	entries, err := os.ReadDir("/proc/self/fd")
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
	return err
}

// SetTime sets the modification and access time of an open file. It does not use the name, which may now refer to another file.
func SetTime(file *os.File, when time.Time) error {
	stamp := syscall.NsecToTimespec(when.UnixNano())
	times := [2]syscall.Timespec{stamp, stamp}
	_, _, errno := syscall.Syscall6(syscall.SYS_UTIMENSAT, file.Fd(), 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("utimensat: %w", errno)
	}
	return nil
}

// These are events of poll(2). The kernel reports pollRDHUP only if it is requested, and the others always.
const (
	pollERR   = 0x8
	pollHUP   = 0x10
	pollNVAL  = 0x20
	pollRDHUP = 0x2000
)

// HungUp returns whether the other end of a socket has closed both directions.
func HungUp(socket uintptr) bool {
	return poll(socket, 0, &syscall.Timespec{})&(pollHUP|pollERR) != 0
}

// Ended returns whether the other end of a socket has closed at least its sending direction.
func Ended(socket uintptr) bool {
	return poll(socket, pollRDHUP, &syscall.Timespec{})&(pollHUP|pollERR|pollRDHUP) != 0
}

// WaitBroken returns when no process can read any more from the pipe or socket to which this process writes.
func WaitBroken(output uintptr) {
	for poll(output, 0, nil) == 0 {
	}
}

// poll waits until a descriptor has events or the timeout expires, and returns the events. If timeout is nil, there is no timeout.
func poll(fd uintptr, events int16, timeout *syscall.Timespec) int16 {
	query := struct {
		fd              int32
		events, revents int16
	}{fd: int32(fd), events: events}
	_, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&query)), 1, uintptr(unsafe.Pointer(timeout)), 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return query.revents
}

// Process has fields of /proc/PID/stat, which every user can read, even for undumpable processes.
type Process struct {
	PID, PPID, Group int
	State            byte
	Threads          int
	Start            uint64 // in clock ticks since boot. Start and PID together identify a process
}

// Alive returns false for a zombie. A process whose main thread has ended also has the state of a zombie while its other threads
// run, so Alive checks the number of threads.
func (p Process) Alive() bool {
	return (p.State != 'Z' && p.State != 'X') || p.Threads > 1
}

// Stat reads one process. An error means that the process does not exist.
func Stat(pid int) (Process, error) {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Process{}, err
	}
	return parseStat(content)
}

// Thread reads one thread of a process.
func Thread(pid, thread int) (Process, error) {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(thread) + "/stat")
	if err != nil {
		return Process{}, err
	}
	return parseStat(content)
}

// CoarseTime returns the time of the clock that sets files' ctimes, in nanoseconds since the Unix epoch. The clock advances in
// ticks.
func CoarseTime() int64 {
	const clockRealtimeCoarse = 5
	var now syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockRealtimeCoarse, uintptr(unsafe.Pointer(&now)), 0) // every kernel has this clock
	return now.Nano()
}

// LastPID returns the PID that this PID namespace assigned last, to a process or a thread, or "" if the kernel does not report it.
func LastPID() string {
	content, _ := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(content))
	if len(fields) == 0 {
		return ""
	}
	return fields[len(fields)-1]
}

// Name returns the name of a process, at most 15 bytes. The process can choose its name.
func Name(pid int) string {
	name, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return string(bytes.ToValidUTF8(bytes.TrimSuffix(name, []byte("\n")), []byte("\uFFFD")))
}

func parseStat(content []byte) (Process, error) {
	open, end := bytes.IndexByte(content, '('), bytes.LastIndexByte(content, ')') // the program's name may contain parentheses, too
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

// Processes returns all visible processes. It skips processes that exit while it reads.
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
