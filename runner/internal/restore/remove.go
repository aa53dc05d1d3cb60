package restore

import (
	"bytes"
	"io"
	"syscall"

	"multistep.dev/runner/internal/at"
)

// remove removes name and, if it is a directory, its content. A missing name is no error.
func remove(directory int, name string) error {
	switch err := at.Unlink(directory, name); err {
	case nil, syscall.ENOENT:
		return nil
	case syscall.EISDIR, syscall.EPERM:
	default:
		return err
	}
	fd, err := at.OpenDirectory(directory, name)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	syscall.Fchmod(fd, 0o700) // its mode may forbid its owner to empty it
	if err := empty(fd); err != nil {
		return err
	}
	return at.Rmdir(directory, name)
}

func empty(directory int) error {
	buffer := make([]byte, 32<<10)
	for {
		if _, err := syscall.Seek(directory, 0, io.SeekStart); err != nil {
			return err
		}
		n, err := syscall.ReadDirent(directory, buffer)
		if err != nil {
			return err
		}
		_, count, names := syscall.ParseDirent(bytes.Clone(buffer[:n]), -1, nil)
		if count == 0 {
			return nil
		}
		for _, name := range names {
			if err := remove(directory, name); err != nil {
				return err
			}
		}
	}
}
