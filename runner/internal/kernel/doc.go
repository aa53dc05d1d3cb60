// Package kernel wraps system calls and /proc files that Go's standard library lacks. Open kernel.go first, which
// protects this process and reads other processes. capabilities.go reads capabilities, and seccomp.go forbids changes
// of resource limits. seccomp_linux_amd64.go and seccomp_linux_arm64.go have the numbers that its filter needs on each
// architecture.
package kernel
