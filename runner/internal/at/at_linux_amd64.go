// Numbers of system calls on amd64.

package at

import "syscall"

const (
	sysFstatat = syscall.SYS_NEWFSTATAT
	sysSyncfs  = 306
)
