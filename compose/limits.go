// Limits the resources that this process uses for a hostile compose file.

package main

import (
	"runtime/debug"
	"syscall"
)

const (
	cpuSeconds  = 5
	memoryBytes = 192 << 20
)

// limit limits this process's CPU time, memory and written files, because it reads a text that a task's author wrote. The parent
// limits the wall time. If the parent dies, the kernel kills this process.
func limit() error {
	debug.SetMemoryLimit(memoryBytes / 2)
	for which, most := range map[int]uint64{
		syscall.RLIMIT_CPU: cpuSeconds, syscall.RLIMIT_DATA: memoryBytes, syscall.RLIMIT_FSIZE: 0, syscall.RLIMIT_CORE: 0,
	} {
		var now syscall.Rlimit
		if err := syscall.Getrlimit(which, &now); err != nil {
			return err
		}
		most = min(most, now.Max)
		if err := syscall.Setrlimit(which, &syscall.Rlimit{Cur: most, Max: most}); err != nil {
			return err
		}
	}
	if _, _, failed := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0); failed != 0 {
		return failed
	}
	return nil
}
