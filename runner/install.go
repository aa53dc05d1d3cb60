package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"multistep.dev/runner/internal/kernel"
)

// installedMode makes the program executable but not readable. The kernel makes a process undumpable from execve on if its user
// cannot read the program. Root with CAP_DAC_OVERRIDE can read every file; kernel.DropSetpcap covers this case.
const installedMode = 0o111

// install copies this program to DIR/runner. The rename is atomic: no process sees a partial copy.
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
	defer os.Remove(target.Name()) // fails after a successful rename
	if _, err = io.Copy(target, source); err == nil {
		err = target.Chmod(installedMode)
	}
	if err = errors.Join(err, target.Close()); err != nil {
		return err
	}
	return os.Rename(target.Name(), filepath.Join(args[0], "runner"))
}
