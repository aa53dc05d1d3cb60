package files

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	"multistep.dev/runner/internal/paths"
	"multistep.dev/runner/internal/users"
)

// NewUpload prepares an upload into target, which is made if it is missing. Close it in any case.
func NewUpload(target string, owner users.User) (*Upload, error) {
	root, err := paths.Make(target)
	if err != nil {
		return nil, err
	}
	name := ".multistep-upload-" + rand.Text()
	if err := root.Mkdir(name, stageMode); err != nil {
		root.Close()
		return nil, err
	}
	stage, err := root.OpenRoot(name)
	if err != nil {
		return nil, errors.Join(err, root.Remove(name), root.Close())
	}
	return &Upload{target: root, stage: stage, name: name, owner: owner, dirs: map[string]int64{}, buffer: make([]byte, copyBytes)}, nil
}

// Close removes what is left of the stage.
func (u *Upload) Close() error {
	err := errors.Join(u.stage.Close(), removeAll(u.target, u.name))
	return errors.Join(err, u.target.Close())
}

// Merge moves everything from the stage into the target.
func (u *Upload) Merge() error {
	return u.mergeDirectory(".")
}

func (u *Upload) mergeDirectory(name string) error {
	directory, err := u.stage.Open(name)
	if err != nil {
		return err
	}
	defer directory.Close()
	for {
		entries, err := directory.ReadDir(listBatch) // what is renamed away meanwhile was returned already
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if err := u.merge(path.Join(name, entry.Name()), entry.IsDir()); err != nil {
				return err
			}
		}
	}
}

func (u *Upload) merge(name string, isDirectory bool) error {
	present, err := u.target.Lstat(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%.300q: %w", name, err)
	}
	if isDirectory {
		return u.mergeInto(name, present)
	}
	if present != nil && present.IsDir() {
		return fmt.Errorf("%.300q: a file would replace a directory", name)
	}
	err = u.target.Rename(path.Join(u.name, name), name)
	if errors.Is(err, syscall.EXDEV) { // something is mounted inside the target
		err = u.carry(name)
	}
	return err
}

// mergeInto merges a directory; what is there and no directory gives way to it.
func (u *Upload) mergeInto(name string, present fs.FileInfo) error {
	if present == nil || !present.IsDir() {
		if err := u.replaceByDirectory(name, present); err != nil {
			return err
		}
	}
	if err := u.mergeDirectory(name); err != nil {
		return err
	}
	mode, err := u.finalMode(name, present)
	if err != nil || mode == keepMode {
		return err
	}
	return u.target.Chmod(name, fileMode(mode))
}

func (u *Upload) replaceByDirectory(name string, present fs.FileInfo) error {
	if present != nil {
		if err := u.target.Remove(name); err != nil {
			return err
		}
	}
	if err := u.target.Mkdir(name, stageMode); err != nil {
		return err
	}
	if u.owner.Own {
		return nil
	}
	return u.target.Lchown(name, u.owner.UID, u.owner.GID)
}

// finalMode is what a directory shall have in the target. One that was there keeps its mode when the stream had only
// members below it.
func (u *Upload) finalMode(name string, present fs.FileInfo) (int64, error) {
	if mode, special := u.dirs[name]; special {
		if mode == keepMode && (present == nil || !present.IsDir()) {
			mode = 0o755
		}
		return mode, nil
	}
	info, err := u.stage.Lstat(name)
	if err != nil {
		return 0, err
	}
	return unixMode(info.Mode()), nil
}

// carry copies a staged file or link to another filesystem, aside, and renames it there.
func (u *Upload) carry(name string) error {
	aside := path.Join(path.Dir(name), ".multistep-upload-"+rand.Text())
	if err := u.copyTo(name, aside); err != nil {
		u.target.Remove(aside)
		return err
	}
	return u.target.Rename(aside, name)
}

func (u *Upload) copyTo(name, aside string) error {
	info, err := u.stage.Lstat(name)
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return u.copyLink(name, aside)
	}
	source, err := u.stage.Open(name)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := u.target.OpenFile(aside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{target}, struct{ io.Reader }{source}, u.buffer)
	if err := errors.Join(err, own(target, u.owner), target.Chmod(info.Mode()), target.Close()); err != nil {
		return err
	}
	return u.target.Chtimes(aside, info.ModTime(), info.ModTime())
}

func (u *Upload) copyLink(name, aside string) error {
	leadsTo, err := u.stage.Readlink(name)
	if err != nil {
		return err
	}
	if err := u.target.Symlink(leadsTo, aside); err != nil || u.owner.Own {
		return err
	}
	return u.target.Lchown(aside, u.owner.UID, u.owner.GID)
}
