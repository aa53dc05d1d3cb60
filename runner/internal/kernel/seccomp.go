// Forbids commands to change the resource limits of other processes, such as PID 1.

package kernel

import (
	"os"
	"strings"
	"syscall"
	"unsafe"
)

// ForbidLimits makes the kernel reject changes of other processes' resource limits by this thread and all programs that it
// executes. It does nothing in a container without no_new_privs, or in which KeepLimits already protects PID 1. KeepLimits needs
// CAP_SETGID. A container without CAP_SETGID, such as the agent host, usually has no_new_privs.
//
// The filter rejects calls of prlimit64 that set a limit and have a PID other than 0 (the caller itself), in all ABIs of the
// machine.
func ForbidLimits() {
	const prGetNoNewPrivs, prSetSeccomp, modeFilter = 39, 22, 2
	if set, _, _ := syscall.RawSyscall6(syscall.SYS_PRCTL, prGetNoNewPrivs, 0, 0, 0, 0, 0); set != 1 || keptLimits() {
		return
	}
	const ( // offsets in struct seccomp_data
		number = 0
		arch   = 4
		pid    = 16
		limit  = 32 // pointer to the new limit, 0 to only read the limit
	)
	filter := []syscall.SockFilter{
		{Code: syscall.BPF_LD | syscall.BPF_W | syscall.BPF_ABS, K: arch},
		{Code: syscall.BPF_JMP | syscall.BPF_JEQ | syscall.BPF_K, K: auditArch, Jt: 0, Jf: 4},
		{Code: syscall.BPF_LD | syscall.BPF_W | syscall.BPF_ABS, K: number},
		{Code: syscall.BPF_ALU | syscall.BPF_AND | syscall.BPF_K, K: ^uint32(x32Bit)},
		{Code: syscall.BPF_JMP | syscall.BPF_JEQ | syscall.BPF_K, K: sysPrlimit64, Jt: 3, Jf: 0},
		{Code: syscall.BPF_RET | syscall.BPF_K, K: allow},
		{Code: syscall.BPF_LD | syscall.BPF_W | syscall.BPF_ABS, K: number}, // the ABI of 32-bit programs
		{Code: syscall.BPF_JMP | syscall.BPF_JEQ | syscall.BPF_K, K: sysPrlimit64Compat, Jt: 0, Jf: 6},
		{Code: syscall.BPF_LD | syscall.BPF_W | syscall.BPF_ABS, K: pid},
		{Code: syscall.BPF_JMP | syscall.BPF_JEQ | syscall.BPF_K, K: 0, Jt: 4, Jf: 0},
		{Code: syscall.BPF_LD | syscall.BPF_W | syscall.BPF_ABS, K: limit},
		{Code: syscall.BPF_JMP | syscall.BPF_JEQ | syscall.BPF_K, K: 0, Jt: 0, Jf: 3},
		{Code: syscall.BPF_LD | syscall.BPF_W | syscall.BPF_ABS, K: limit + 4},
		{Code: syscall.BPF_JMP | syscall.BPF_JEQ | syscall.BPF_K, K: 0, Jt: 0, Jf: 1},
		{Code: syscall.BPF_RET | syscall.BPF_K, K: allow},
		{Code: syscall.BPF_RET | syscall.BPF_K, K: reject},
	}
	program := syscall.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// Errors are ignored, because they mean that the kernel has no filters.
	syscall.RawSyscall6(syscall.SYS_PRCTL, prSetSeccomp, modeFilter, uintptr(unsafe.Pointer(&program)), 0, 0, 0)
}

// keptLimits returns whether KeepLimits protects PID 1. If so, the saved group ID differs from the group ID.
func keptLimits() bool {
	status, _ := os.ReadFile("/proc/1/status")
	_, after, _ := strings.Cut(string(status), "\nGid:")
	line, _, _ := strings.Cut(after, "\n")
	ids := strings.Fields(line)
	return len(ids) == 4 && ids[0] != ids[2]
}

const (
	allow  = 0x7fff0000                         // SECCOMP_RET_ALLOW
	reject = 0x00050000 | uint32(syscall.EPERM) // SECCOMP_RET_ERRNO
	x32Bit = 0x40000000                         // __X32_SYSCALL_BIT. No other ABI has system calls with this bit
)
