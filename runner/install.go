package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"multistep.dev/runner/internal/kernel"
)

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
		err = target.Chmod(0o755)
	}
	if err = errors.Join(err, target.Close()); err != nil {
		return err
	}
	return os.Rename(target.Name(), filepath.Join(args[0], "runner"))
}
