package at

import (
	"bytes"
	"fmt"
	"strings"
	"syscall"
	"unsafe"
)

const maxValue = 64 << 10 // the kernel's limit for a value, and for the list of names, in bytes

// label is the prefix of attributes that belong to the pod's security context, not to the file.
const label = "security.selinux"

// Xattrs returns the extended attributes of an open file, including capabilities and ACLs.
func Xattrs(file int) (map[string][]byte, error) {
	size, err := flistxattr(file, nil)
	if err == syscall.ENOTSUP || err == nil && size == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names := make([]byte, maxValue)
	if size, err = flistxattr(file, names); err != nil {
		return nil, err
	}
	var found map[string][]byte
	for _, name := range bytes.Split(bytes.TrimRight(names[:size], "\x00"), []byte{0}) {
		if len(name) == 0 || strings.HasPrefix(string(name), label) {
			continue
		}
		value, err := fgetxattr(file, string(name))
		if err != nil {
			return nil, fmt.Errorf("xattr %.100q: %w", name, err)
		}
		if found == nil {
			found = map[string][]byte{}
		}
		found[string(name)] = value
	}
	return found, nil
}

func flistxattr(file int, names []byte) (int, error) {
	n, _, errno := syscall.Syscall(syscall.SYS_FLISTXATTR, uintptr(file), uintptr(unsafe.Pointer(unsafe.SliceData(names))), uintptr(len(names)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

func fgetxattr(file int, name string) ([]byte, error) {
	terminated, err := syscall.BytePtrFromString(name)
	if err != nil {
		return nil, err
	}
	value := make([]byte, maxValue)
	n, _, errno := syscall.Syscall6(syscall.SYS_FGETXATTR, uintptr(file), uintptr(unsafe.Pointer(terminated)),
		uintptr(unsafe.Pointer(unsafe.SliceData(value))), uintptr(len(value)), 0, 0)
	if errno != 0 {
		return nil, errno
	}
	return bytes.Clone(value[:n]), nil
}

// SetXattr sets an extended attribute of an open file.
func SetXattr(file int, name string, value []byte) error {
	terminated, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return call(syscall.SYS_FSETXATTR, uintptr(file), uintptr(unsafe.Pointer(terminated)),
		uintptr(unsafe.Pointer(unsafe.SliceData(value))), uintptr(len(value)), 0)
}

// RemoveXattr removes an extended attribute of an open file.
func RemoveXattr(file int, name string) error {
	terminated, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return call(syscall.SYS_FREMOVEXATTR, uintptr(file), uintptr(unsafe.Pointer(terminated)), 0, 0, 0)
}
