// Numbers for the seccomp filter on amd64.

package kernel

const (
	auditArch          = 0xc000003e // AUDIT_ARCH_X86_64
	sysPrlimit64       = 302
	sysPrlimit64Compat = 340 // of i386
)
