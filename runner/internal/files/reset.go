// Creates or empties a directory for a step, and protects it from being replaced.

package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"multistep.dev/runner/internal/trustedpaths"
	"multistep.dev/runner/internal/users"
)

// sharedMode has the bits of a mode that let users other than the owner write.
const sharedMode = 0o022

// Reset creates or empties the directory at the path name, and sets its mode and owner. It replaces a file or link at this path. If
// keep is set, it keeps an existing directory's contents. If the mode lets only the owner write to the directory, and PID 1 is
// root, Reset also prevents other users from putting another directory in its place. If PID 1 is not root, all commands run as PID
// 1's user, so this is not needed.
func Reset(name string, mode uint32, owner users.User, keep bool) error {
	parent, base, err := trustedpaths.MakeParent(name)
	if err != nil {
		return err
	}
	defer parent.Close()
	protected := mode&sharedMode == 0 && os.Getuid() == 0
	if protected {
		if err := protectEntries(parent); err != nil {
			return err
		}
	}
	root, err := directoryIn(parent, base)
	if err != nil {
		return err
	}
	defer root.Close()
	if !keep {
		if err := empty(root); err != nil {
			return fmt.Errorf("cannot empty %s: %w", name, err)
		}
	}
	if err := setOwnerAndMode(root, mode, owner, protected); err != nil || !protected {
		return err
	}
	return isStill(root, parent, base)
}

// protectEntries protects the entries of a directory if a user other than root and PID 1's user could rename the entries of others.
// It sets the directory's mode to 1777, like that of /tmp, and its owner to PID 1's user. An image may have such a directory for an
// agent that is not root.
func protectEntries(root *os.Root) error {
	info, err := root.Stat(".")
	if err != nil || trustedpaths.KeepsEntries(info) {
		return err
	}
	err = setOwnerAndMode(root, 0o1777, users.System.Own(), true)
	if errors.Is(err, syscall.EROFS) { // a read-only filesystem, in which no user can rename entries
		return nil
	}
	return err
}

// isStill returns an error if the name now refers to another directory. The former owner could rename the directory until the owner
// was changed.
func isStill(root, parent *os.Root, name string) error {
	opened, err := root.Stat(".")
	if err != nil {
		return err
	}
	if now, err := parent.Lstat(name); err != nil || !os.SameFile(opened, now) {
		return fmt.Errorf("another process replaced %q", name)
	}
	return nil
}

// directoryIn opens the directory called name in root. It creates a missing directory, and replaces a file or link of this name.
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
	return trustedpaths.Enter(root, name, info)
}

// setOwnerAndMode changes an open directory. It does not use the name, which may now refer to another file. If takeOver is set and
// owner is PID 1's user, it also changes the owner of a directory that belongs to another user, as in an image.
func setOwnerAndMode(root *os.Root, mode uint32, owner users.User, takeOver bool) error {
	directory, err := root.Open(".")
	if err != nil {
		return err
	}
	defer directory.Close()
	info, err := directory.Stat()
	if err != nil {
		return err
	}
	if !owner.Own || takeOver && trustedpaths.Owner(info) != owner.UID {
		if err := directory.Chown(owner.UID, owner.GID); err != nil {
			return err
		}
	}
	return directory.Chmod(fileMode(int64(mode)))
}

// fileMode converts a Unix mode to Go's.
func fileMode(mode int64) fs.FileMode {
	result := fs.FileMode(mode) & fs.ModePerm
	for bit, flag := range map[int64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if mode&bit != 0 {
			result |= flag
		}
	}
	return result
}

// unixMode converts Go's mode to a Unix mode.
func unixMode(mode fs.FileMode) int64 {
	result := int64(mode.Perm())
	for bit, flag := range map[int64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if mode&flag != 0 {
			result |= bit
		}
	}
	return result
}
