// Moves a verified upload from its staging directory into its target.

package files

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"syscall"

	"multistep.dev/runner/internal/kernel"
	"multistep.dev/runner/internal/trustedpaths"
	"multistep.dev/runner/internal/users"
)

// NewUpload prepares an upload into target, which it creates if it is missing. The caller must close the Upload, also after an
// error of Unpack or Merge.
func NewUpload(target string, owner users.User) (*Upload, error) {
	root, err := trustedpaths.Make(target)
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

// Close deletes the staging directory and closes the target.
func (u *Upload) Close() error {
	err := errors.Join(u.stage.Close(), removeAll(u.target, u.name))
	return errors.Join(err, u.target.Close())
}

// Merge moves all files from the staging directory into the target.
func (u *Upload) Merge() error {
	if err := u.mergeDirectory("."); err != nil {
		return err
	}
	return u.lastModes()
}

func (u *Upload) mergeDirectory(name string) error {
	directory, err := u.stage.Open(name)
	if err != nil {
		return err
	}
	defer directory.Close()
	for {
		entries, err := directory.ReadDir(listBatch) // renaming these entries does not disturb the next ReadDir
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
	if isDirectory {
		return u.mergeInto(name)
	}
	err := u.move(name)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%.300q: it would replace a directory", name)
	}
	if errors.Is(err, syscall.EXDEV) { // another filesystem is mounted inside the target
		return u.carry(name)
	}
	return err
}

// move renames name from the staging directory into the target. A directory can replace only an empty directory.
func (u *Upload) move(name string) error {
	return u.target.Rename(path.Join(u.name, name), name)
}

// mergeInto merges a staged directory into the target. It moves the whole directory if the target lacks it, or has a file or link
// in its place.
func (u *Upload) mergeInto(name string) error {
	present, err := u.target.Lstat(name)
	if err == nil && !present.IsDir() {
		if err := u.target.Remove(name); err != nil {
			return err
		}
		present, err = nil, fs.ErrNotExist
	}
	if errors.Is(err, fs.ErrNotExist) {
		if err := u.move(name); !errors.Is(err, syscall.EXDEV) {
			return err
		}
		if err := u.makeInTarget(name); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	if err := u.mergeDirectory(name); err != nil {
		return err
	}
	return u.passMode(name, present)
}

func (u *Upload) makeInTarget(name string) error {
	if err := u.target.Mkdir(name, stageMode); err != nil || u.owner.Own {
		return err
	}
	return u.target.Lchown(name, u.owner.UID, u.owner.GID)
}

// passMode sets a target directory's mode to the staged directory's mode. An existing directory keeps its mode if the tar stream
// contains files in it, but not the directory itself.
func (u *Upload) passMode(name string, present fs.FileInfo) error {
	if u.dirs[name] == keepMode && present != nil {
		return nil
	}
	info, err := u.stage.Lstat(name)
	if err != nil || present != nil && present.Mode() == info.Mode() {
		// An equal mode is not set, because another user may own the directory.
		return err
	}
	return u.target.Chmod(name, info.Mode())
}

// lastModes sets the modes of directories that would have prevented the merge (such as read-only), the deepest directory first.
func (u *Upload) lastModes() error {
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(u.dirs))) {
		if mode := u.dirs[name]; mode != keepMode {
			if err := u.target.Chmod(name, fileMode(mode)); err != nil {
				return err
			}
		}
	}
	return nil
}

// carry copies a staged file or link, under a temporary name, to the filesystem that is mounted inside the target, and renames it
// there.
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
	return errors.Join(err, own(target, u.owner), target.Chmod(info.Mode()), kernel.SetTime(target, info.ModTime()), target.Close())
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
