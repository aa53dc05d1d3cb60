package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"multistep.dev/runner/internal/paths"
	"multistep.dev/runner/internal/users"
)

// Reset makes name an empty, real directory with that mode and owner; keep leaves the contents of one that is there.
func Reset(name string, mode uint32, owner users.User, keep bool) error {
	root, err := realDirectory(name)
	if err != nil {
		return err
	}
	defer root.Close()
	if !keep {
		if err := empty(root); err != nil {
			return fmt.Errorf("cannot empty %s: %w", name, err)
		}
	}
	return dress(root, mode, owner)
}

// realDirectory opens the directory name, made anew where something else is, or nothing.
func realDirectory(name string) (*os.Root, error) {
	parent, base, err := paths.MakeParent(name)
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	return directoryIn(parent, base)
}

// directoryIn opens a directory in root, made anew where something else is, or nothing.
func directoryIn(root *os.Root, name string) (*os.Root, error) {
	info, err := root.Lstat(name)
	if err == nil && !info.IsDir() {
		if err := root.Remove(name); err != nil {
			return nil, err
		}
		err = fs.ErrNotExist
	}
	if errors.Is(err, fs.ErrNotExist) {
		if err := root.Mkdir(name, 0o755); err != nil {
			return nil, err
		}
		info, err = root.Lstat(name)
	}
	if err != nil {
		return nil, err
	}
	return paths.Enter(root, name, info)
}

// dress gives a directory its owner and mode: the directory that is open, whatever its name means by now.
func dress(root *os.Root, mode uint32, owner users.User) error {
	directory, err := root.Open(".")
	if err != nil {
		return err
	}
	defer directory.Close()
	if err := own(directory, owner); err != nil {
		return err
	}
	return directory.Chmod(fileMode(int64(mode)))
}

// fileMode is a Unix mode as Go has it.
func fileMode(mode int64) fs.FileMode {
	result := fs.FileMode(mode) & fs.ModePerm
	for bit, flag := range map[int64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if mode&bit != 0 {
			result |= flag
		}
	}
	return result
}

// unixMode is a mode of Go as Unix has it.
func unixMode(mode fs.FileMode) int64 {
	result := int64(mode.Perm())
	for bit, flag := range map[int64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if mode&flag != 0 {
			result |= bit
		}
	}
	return result
}
