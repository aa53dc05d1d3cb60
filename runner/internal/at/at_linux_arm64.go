// Numbers of system calls on arm64.

package at

import "syscall"

const (
	sysFstatat = syscall.SYS_FSTATAT
	sysSyncfs  = 267
)
