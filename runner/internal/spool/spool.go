package spool

import (
	"os"
	"syscall"
)

const tmpfile = 0x400000 | syscall.O_DIRECTORY // the flag O_TMPFILE, which package syscall lacks

// New returns an empty temporary file on the directory's filesystem.
func New(directory string) (*os.File, error) {
	fd, err := syscall.Open(directory, syscall.O_RDWR|syscall.O_CLOEXEC|tmpfile, 0o600)
	if err != nil { // not every filesystem supports O_TMPFILE
		return unnamed(directory)
	}
	return os.NewFile(uintptr(fd), "temporary file"), nil
}

// unnamed is like New, but the file has a name for a moment, in which processes that may open it must be stopped.
func unnamed(directory string) (*os.File, error) {
	file, err := os.CreateTemp(directory, ".multistep-spool-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}
