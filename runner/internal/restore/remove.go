// Removes a file or directory without following a link, until its context is done.

package restore

import (
	"bytes"
	"context"
	"io"
	"syscall"

	"multistep.dev/runner/internal/at"
)

// remove removes name and, if it is a directory, its content. A missing name is no error.
func remove(ctx context.Context, directory int, name string) error {
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
	syscall.Fchmod(fd, 0o700) // the directory's mode may not permit its owner to empty it
	if err := empty(ctx, fd); err != nil {
		return err
	}
	return at.Rmdir(directory, name)
}

// empty removes the content of a directory. It reads the directory again until it finds no name, because some filesystems skip
// names while other names are removed.
func empty(ctx context.Context, directory int) error {
	buffer := make([]byte, 32<<10)
	for {
		if _, err := syscall.Seek(directory, 0, io.SeekStart); err != nil {
			return err
		}
		if found, err := emptyOnce(ctx, directory, buffer); err != nil || !found {
			return err
		}
	}
}

func emptyOnce(ctx context.Context, directory int, buffer []byte) (found bool, err error) {
	for {
		n, err := syscall.ReadDirent(directory, buffer)
		if err != nil || n <= 0 {
			return found, err
		}
		_, count, names := syscall.ParseDirent(bytes.Clone(buffer[:n]), -1, nil)
		found = found || count > 0
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				return false, err
			}
			if err := remove(ctx, directory, name); err != nil {
				return false, err
			}
		}
	}
}
