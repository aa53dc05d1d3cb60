// Package files puts files into the container and gets them out, among hostile users: see package paths.
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

	"multistep.dev/runner/internal/paths"
	"multistep.dev/runner/internal/users"
	"multistep.dev/runner/internal/wire"
)

// Create makes the file name anew, for appending and reading, owned by owner. What was there is unlinked, not written through.
func Create(name string, owner users.User) (*os.File, error) {
	root, base, err := paths.OpenParent(name)
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

// own gives the file to owner; what is made by the owner needs no such thing.
func own(file *os.File, owner users.User) error {
	if owner.Own {
		return nil
	}
	return file.Chown(owner.UID, owner.GID)
}

// WriteExitCode writes a status to a file made anew.
func WriteExitCode(name string, owner users.User, status int) error {
	file, err := Create(name, owner)
	if err != nil {
		return err
	}
	_, err = file.WriteString(strconv.Itoa(status))
	return errors.Join(err, file.Close())
}

// MakeExecutable is chmod +x.
func MakeExecutable(name string) error {
	root, base, err := paths.OpenParent(name)
	if err != nil {
		return err
	}
	defer root.Close()
	file, info, err := paths.OpenRegular(root, base)
	if err != nil {
		return err
	}
	defer file.Close()
	return file.Chmod(info.Mode() | 0o111)
}

// Remove removes a file, or whatever is in its place; one that is not there is fine.
func Remove(name string) error {
	root, base, err := paths.OpenParent(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	return removeAll(root, base)
}

// Captures reads files, and never more than a budget in all: every record is told in one frame, at each hello.
type Captures struct {
	mu   sync.Mutex
	left int64
}

// NewCaptures has room for budget bytes.
func NewCaptures(budget int64) *Captures {
	return &Captures{left: budget}
}

// Read reads files. One that is missing, no regular file, or behind somebody's link is nil.
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
	root, base, err := paths.OpenParent(name)
	if err != nil {
		return nil
	}
	defer root.Close()
	file, info, err := paths.OpenRegular(root, base)
	if err != nil {
		return nil
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil
	}
	changed := changedSince(info, file) || !holds(file, content)
	truncated := int64(len(content)) > limit
	if truncated {
		content = content[:limit]
	}
	return &wire.Captured{Base64: content, Size: max(info.Size(), int64(len(content))), Truncated: truncated, Changed: changed}
}

// changedSince is true if the file is not as info says any more. Its owner can set every time but the one of the last change.
func changedSince(info fs.FileInfo, file *os.File) bool {
	now, err := file.Stat()
	return err != nil || now.Size() != info.Size() || changeTime(now) != changeTime(info)
}

func changeTime(info fs.FileInfo) syscall.Timespec {
	return info.Sys().(*syscall.Stat_t).Ctim
}

// holds reads the file once more: two writes within a tick of the kernel's clock leave no trace in its time.
func holds(file *os.File, content []byte) bool {
	again := make([]byte, len(content)+1)
	n, err := file.ReadAt(again, 0)
	return (err == nil || err == io.EOF) && bytes.Equal(again[:min(n, len(content))], content)
}
