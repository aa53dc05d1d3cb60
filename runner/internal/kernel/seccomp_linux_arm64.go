// Numbers for the seccomp filter on arm64.

package kernel

const (
	auditArch          = 0xc00000b7 // AUDIT_ARCH_AARCH64
	sysPrlimit64       = 261
	sysPrlimit64Compat = 369 // of arm
)
