// Copies this program or a directory into a volume. The image needs no shell and no cp for this.

package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"multistep.dev/runner/internal/kernel"
)

// installedMode makes the program executable, but not readable. A process whose program its user cannot read is undumpable from
// execve on. Other processes of the user cannot trace such a process or read its memory. Root with CAP_DAC_OVERRIDE can read every
// file. kernel.DropSetpcap handles this case.
const installedMode = 0o111

// copyTree replaces the contents of a directory with the files and symbolic links of another directory. The copies belong to this
// process's user. A container whose image has no shell or no cp copies its files into a volume with this command. The kubelet may
// run an init container again after a crash, so the target may have a part of an earlier copy.
func copyTree(args []string) error {
	if len(args) != 2 {
		return errors.New("copy takes a source and a target directory")
	}
	source, target := args[0], args[1]
	entries, err := os.ReadDir(target)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(target, entry.Name())); err != nil {
			return err
		}
	}
	return os.CopyFS(target, os.DirFS(source))
}

// install copies this program to DIR/runner. The rename is atomic, so no process sees a partial copy.
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
	defer os.Remove(target.Name()) // removes a partial copy, and does nothing after a successful rename
	if _, err = io.Copy(target, source); err == nil {
		err = target.Chmod(installedMode)
	}
	if err = errors.Join(err, target.Close()); err != nil {
		return err
	}
	return os.Rename(target.Name(), filepath.Join(args[0], "runner"))
}
