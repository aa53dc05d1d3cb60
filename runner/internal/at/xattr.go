// Reads, sets and measures extended attributes of open files.

package at

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"unsafe"
)

const (
	maxList  = 64 << 10 // the kernel's limit for the list of names, in bytes
	maxValue = 64 << 10 // the kernel's limit for a value, in bytes
)

// ofSecurity is the prefix of attributes that the node's security modules (SELinux, IMA) set. Of these, only security.capability
// belongs to the file itself, and this package ignores the others.
const (
	ofSecurity = "security."
	capability = "security.capability"
)

// ErrXattrs means that extended attributes need more space than is permitted.
var ErrXattrs = errors.New("too many or too large extended attributes")

// XattrNames returns the names of the extended attributes of an open file, including capabilities and ACLs.
func XattrNames(file int) ([]string, error) {
	size, err := flistxattr(file, nil)
	if err == syscall.ENOTSUP || err == nil && size == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	list := make([]byte, maxList)
	if size, err = flistxattr(file, list); err != nil {
		return nil, err
	}
	var names []string
	for name := range strings.SplitSeq(string(list[:size]), "\x00") {
		if name != "" && (name == capability || !strings.HasPrefix(name, ofSecurity)) {
			names = append(names, name)
		}
	}
	return names, nil
}

// Xattrs returns the extended attributes of an open file. It returns ErrXattrs if they would need more than limit bytes on ext4.
func Xattrs(file int, limit int) (map[string][]byte, error) {
	names, err := XattrNames(file)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	found, size := make(map[string][]byte, len(names)), 0
	for _, name := range names {
		value, err := Xattr(file, name)
		if err != nil {
			return nil, fmt.Errorf("xattr %.100q: %w", name, err)
		}
		if size += XattrSize(name, value); size > limit {
			return nil, ErrXattrs
		}
		found[name] = value
	}
	return found, nil
}

// XattrSize returns the size in bytes of an attribute on ext4, the filesystem with the lowest limit.
func XattrSize(name string, value []byte) int {
	const entry, aligned = 16, 4
	return entry + (len(name)+aligned-1)/aligned*aligned + (len(value)+aligned-1)/aligned*aligned
}

func flistxattr(file int, names []byte) (int, error) {
	n, _, errno := syscall.Syscall(syscall.SYS_FLISTXATTR, uintptr(file), uintptr(unsafe.Pointer(unsafe.SliceData(names))), uintptr(len(names)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// Xattr returns the value of an extended attribute of an open file.
func Xattr(file int, name string) ([]byte, error) {
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
