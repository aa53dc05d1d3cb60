// Creates the files that a phase writes, and reads those that it captures.

package files

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"strconv"
	"sync"
	"syscall"

	"multistep.dev/runner/internal/trustedpaths"
	"multistep.dev/runner/internal/users"
	"multistep.dev/runner/internal/wire"
)

// Create creates a file at the path name, owned by owner, for appending and reading. It unlinks an existing file instead of writing
// to it.
func Create(name string, owner users.User) (*os.File, error) {
	root, base, err := trustedpaths.OpenParent(name)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if err := root.Remove(base); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	file, err := root.OpenFile(base, os.O_RDWR|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	if err := own(file, owner); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// own changes the file's owner. It does nothing for PID 1's own user, which already owns the file.
func own(file *os.File, owner users.User) error {
	if owner.Own {
		return nil
	}
	return file.Chown(owner.UID, owner.GID)
}

// WriteExitCode creates a file at the path name that contains status. It replaces an existing file.
func WriteExitCode(name string, owner users.User, status int) error {
	file, err := Create(name, owner)
	if err != nil {
		return err
	}
	_, err = file.WriteString(strconv.Itoa(status))
	return errors.Join(err, file.Close())
}

// MakeExecutable sets the file's executable bits, as chmod a+x does.
func MakeExecutable(name string) error {
	root, base, err := trustedpaths.OpenParent(name)
	if err != nil {
		return err
	}
	defer root.Close()
	file, info, err := trustedpaths.OpenRegular(root, base)
	if err != nil {
		return err
	}
	defer file.Close()
	return file.Chmod(info.Mode() | 0o111)
}

// Remove removes a file, or a directory with its contents. It succeeds if name does not exist.
func Remove(name string) error {
	root, base, err := trustedpaths.OpenParent(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	return removeAll(root, base)
}

// Captures reads the files that phases capture. The files of all phases share a budget in bytes, because a hello response contains
// all records in one frame.
type Captures struct {
	mu   sync.Mutex
	left int64
}

// NewCaptures returns a Captures with the given budget in bytes.
func NewCaptures(budget int64) *Captures {
	return &Captures{left: budget}
}

// Read reads the files, and maps each path to its content, or to nil if the file is missing, unreadable, not regular, or behind an
// untrusted link.
func (c *Captures) Read(wanted []wire.File) map[string]*wire.Captured {
	c.mu.Lock()
	defer c.mu.Unlock()
	captured := make(map[string]*wire.Captured, len(wanted))
	for _, file := range wanted {
		content := capture(file.Path, min(file.MaxBytes, c.left))
		if captured[file.Path] = content; content != nil {
			c.left -= int64(len(content.Base64))
		}
	}
	return captured
}

func capture(name string, limit int64) *wire.Captured {
	root, base, err := trustedpaths.OpenParent(name)
	if err != nil {
		return nil
	}
	defer root.Close()
	file, info, err := trustedpaths.OpenRegular(root, base)
	if err != nil {
		return nil
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil
	}
	changed := changedSince(info, file) || !hasContent(file, content)
	truncated := int64(len(content)) > limit
	if truncated {
		content = content[:limit]
	}
	return &wire.Captured{Base64: content, Size: max(info.Size(), int64(len(content))), Truncated: truncated, Changed: changed}
}

// changedSince returns whether the file has changed since info was read. It compares the size and the ctime, which the file's owner
// cannot set.
func changedSince(info fs.FileInfo, file *os.File) bool {
	now, err := file.Stat()
	return err != nil || now.Size() != info.Size() || changeTime(now) != changeTime(info)
}

func changeTime(info fs.FileInfo) syscall.Timespec {
	return info.Sys().(*syscall.Stat_t).Ctim
}

// hasContent returns whether the file still has this content. It reads the file again, because two writes within one tick of the
// kernel's clock can have the same ctime.
func hasContent(file *os.File, content []byte) bool {
	again := make([]byte, len(content)+1)
	n, err := file.ReadAt(again, 0)
	return (err == nil || err == io.EOF) && bytes.Equal(again[:min(n, len(content))], content)
}
