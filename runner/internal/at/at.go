// Opens, creates, reads, changes and removes names in an open directory.

package at

import (
	"os"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

const (
	symlinkNoFollow = 0x100
	symlinkFollow   = 0x400
	removeDirectory = 0x200
	cwd             = -0x64
	openPath        = 0x200000
)

// Open opens name in the directory. It adds O_NOFOLLOW, O_NONBLOCK (so that a FIFO cannot block), O_NOCTTY and O_CLOEXEC to flags.
func Open(directory int, name string, flags int, mode uint32) (int, error) {
	flags |= syscall.O_NOFOLLOW | syscall.O_NONBLOCK | syscall.O_NOCTTY | syscall.O_CLOEXEC
	for {
		fd, err := syscall.Openat(directory, name, flags, mode)
		if err != syscall.EINTR {
			return fd, err
		}
	}
}

// OpenRead opens name for reading. It does not change the access time if the kernel permits that.
func OpenRead(directory int, name string) (int, error) {
	fd, err := Open(directory, name, syscall.O_RDONLY|syscall.O_NOATIME, 0)
	if err == syscall.EPERM { // only the owner and root may keep the access time
		return Open(directory, name, syscall.O_RDONLY, 0)
	}
	return fd, err
}

// OpenDirectory opens the directory called name.
func OpenDirectory(directory int, name string) (int, error) {
	return Open(directory, name, syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
}

// OpenNode opens a file of any type, also a link itself. The descriptor only refers to the file, which cannot be read or written
// through it.
func OpenNode(directory int, name string) (int, error) {
	return Open(directory, name, openPath, 0)
}

// Stat returns the attributes of name. It does not follow a link.
func Stat(directory int, name string) (stat syscall.Stat_t, err error) {
	terminated, err := syscall.BytePtrFromString(name)
	if err != nil {
		return stat, err
	}
	return stat, StatBytes(directory, terminated, &stat)
}

// StatBytes is like Stat, but for a name that ends with a NUL, and allocates nothing.
func StatBytes(directory int, name *byte, stat *syscall.Stat_t) error {
	return call(sysFstatat, uintptr(directory), uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(stat)), symlinkNoFollow, 0)
}

// call makes a system call. With the directive go:uintptrescapes, memory whose address is an argument stays valid.
//
//go:uintptrescapes
func call(number, a, b, c, d, e uintptr) error {
	if _, _, errno := syscall.Syscall6(number, a, b, c, d, e, 0); errno != 0 {
		return errno
	}
	return nil
}

// Readlink returns the target of a link.
func Readlink(directory int, name string) (string, error) {
	terminated, err := syscall.BytePtrFromString(name)
	if err != nil {
		return "", err
	}
	target := make([]byte, syscall.PathMax)
	n, _, errno := syscall.Syscall6(syscall.SYS_READLINKAT, uintptr(directory), uintptr(unsafe.Pointer(terminated)),
		uintptr(unsafe.Pointer(&target[0])), uintptr(len(target)), 0, 0)
	if errno != 0 {
		return "", errno
	}
	return string(target[:n]), nil
}

// Symlink creates a link called name.
func Symlink(target string, directory int, name string) error {
	to, err := syscall.BytePtrFromString(target)
	if err != nil {
		return err
	}
	terminated, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return call(syscall.SYS_SYMLINKAT, uintptr(unsafe.Pointer(to)), uintptr(directory), uintptr(unsafe.Pointer(terminated)), 0, 0)
}

// Link creates a hard link called name to an open file. It uses the file's descriptor, because another file may now have the file's
// former name.
func Link(file int, directory int, name string) error {
	from, err := syscall.BytePtrFromString(Path(file))
	if err != nil {
		return err
	}
	terminated, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	here := cwd
	return call(syscall.SYS_LINKAT, uintptr(here), uintptr(unsafe.Pointer(from)), uintptr(directory), uintptr(unsafe.Pointer(terminated)), symlinkFollow)
}

// Writable returns whether this process may create files in an open directory.
func Writable(directory int) bool {
	const write, search = 2, 1
	return syscall.Access(Path(directory), write|search) == nil
}

// Path returns a path to an open file that stays valid when the file is renamed.
func Path(file int) string { return "/proc/self/fd/" + strconv.Itoa(file) }

// Unlink removes a file or link.
func Unlink(directory int, name string) error { return unlink(directory, name, 0) }

// Rmdir removes an empty directory.
func Rmdir(directory int, name string) error { return unlink(directory, name, removeDirectory) }

func unlink(directory int, name string, flags uintptr) error {
	terminated, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return call(syscall.SYS_UNLINKAT, uintptr(directory), uintptr(unsafe.Pointer(terminated)), flags, 0, 0)
}

// Chown changes the owner of name. It does not follow a link.
func Chown(directory int, name string, uid, gid int) error {
	return syscall.Fchownat(directory, name, uid, gid, symlinkNoFollow)
}

// SetTime sets the modification and access time of name without following a link. If name is "", it sets the times of the file that
// is open as the descriptor directory.
func SetTime(directory int, name string, when time.Time) error {
	stamp := syscall.Timespec{Sec: when.Unix(), Nsec: int64(when.Nanosecond())}
	times := [2]syscall.Timespec{stamp, stamp}
	var terminated *byte
	flags := uintptr(0)
	if name != "" {
		var err error
		if terminated, err = syscall.BytePtrFromString(name); err != nil {
			return err
		}
		flags = symlinkNoFollow
	}
	return call(syscall.SYS_UTIMENSAT, uintptr(directory), uintptr(unsafe.Pointer(terminated)), uintptr(unsafe.Pointer(&times)), flags, 0)
}

// SyncFilesystem writes the dirty pages of a filesystem to disk. After that, the next write through a memory mapping changes the
// file's ctime.
func SyncFilesystem(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return call(sysSyncfs, file.Fd(), 0, 0, 0, 0)
}
