package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"multistep.dev/runner/internal/kernel"
)

// installedMode: executable and not readable. Who executes a file that it may not read gets a process that nobody may look
// into, from execve on; to root with CAP_DAC_OVERRIDE, which may read anything, kernel.DropSetpcap does the same.
const installedMode = 0o111

// install copies this program to DIR/runner, by a rename, so that nobody ever sees half of it.
func install(args []string) error {
	if len(args) != 1 {
		return errors.New("install takes one directory")
	}
	source, err := os.Open(kernel.SelfExe)
	if err != nil {
		return err
	}
	defer source.Close()
	if err := os.MkdirAll(args[0], 0o755); err != nil {
		return err
	}
	target, err := os.CreateTemp(args[0], ".runner-*")
	if err != nil {
		return err
	}
	defer os.Remove(target.Name()) // gone already when all went well
	if _, err = io.Copy(target, source); err == nil {
		err = target.Chmod(installedMode)
	}
	if err = errors.Join(err, target.Close()); err != nil {
		return err
	}
	return os.Rename(target.Name(), filepath.Join(args[0], "runner"))
}
