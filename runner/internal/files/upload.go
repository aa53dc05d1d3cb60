// Unpacks a tar stream into a staging directory, and rejects names that lead out of the target.

package files

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"multistep.dev/runner/internal/kernel"
	"multistep.dev/runner/internal/users"
)

// Upload unpacks a tar stream into a directory. It first unpacks into a staging directory that only this process's user can enter,
// and moves the files into the target by renames once the whole stream is verified.
type Upload struct {
	target *os.Root
	stage  *os.Root
	name   string // name of the staging directory in the target
	owner  users.User
	dirs   map[string]int64 // the mode of each directory after the merge. With keepMode, an existing directory keeps its mode
	parent string           // last directory that is known to exist in the staging directory
	buffer []byte
}

const (
	keepMode     = -1
	stageMode    = 0o700
	implicitMode = 0o755
	copyBytes    = 128 << 10
	maxNameSize  = 64 << 10
)

// Unpack unpacks a tar stream into the staging directory.
func (u *Upload) Unpack(stream io.Reader) error {
	archive := tar.NewReader(stream)
	for {
		header, err := archive.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := u.member(header, archive); err != nil {
			return fmt.Errorf("%.300q: %w", header.Name, err)
		}
	}
}

func (u *Upload) member(header *tar.Header, content io.Reader) error {
	if header.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := cleanName(header.Name)
	if err != nil {
		return err
	}
	if name == "." {
		return nil // the target directory keeps its own mode
	}
	if err := u.parents(path.Dir(name)); err != nil {
		return err
	}
	switch header.Typeflag {
	case tar.TypeDir:
		return u.directory(name, header.Mode&0o7777)
	case tar.TypeReg, tar.TypeRegA, tar.TypeGNUSparse: //nolint:staticcheck // old archives use TypeRegA
		return u.file(name, header, content)
	case tar.TypeSymlink:
		return u.symlink(name, header.Linkname)
	case tar.TypeLink:
		return u.hardlink(name, header.Linkname)
	}
	return fmt.Errorf("cannot make a member of type %q", header.Typeflag)
}

// cleanName cleans a member's name and rejects names that could lead out of the target.
func cleanName(name string) (string, error) {
	switch {
	case name == "" || len(name) > maxNameSize || strings.ContainsRune(name, 0):
		return "", errors.New("no name for a file")
	case path.IsAbs(name):
		return "", errors.New("an absolute name")
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", errors.New(`a name with ".."`)
		}
	}
	return path.Clean(name), nil
}

// parents creates missing parent directories of a member. It rejects a parent that is a link or a file.
func (u *Upload) parents(name string) error {
	if name == "." || name == u.parent {
		return nil
	}
	if err := u.parents(path.Dir(name)); err != nil {
		return err
	}
	info, err := u.stage.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := errors.Join(u.makeDirectory(name), u.stage.Chmod(name, implicitMode)); err != nil {
			return err
		}
		u.dirs[name] = keepMode
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("its parent %.300q is not a directory", name)
	}
	u.parent = name
	return nil
}

func (u *Upload) directory(name string, mode int64) error {
	info, err := u.stage.Lstat(name)
	if err == nil && !info.IsDir() {
		if err := u.stage.Remove(name); err != nil {
			return err
		}
	}
	if err != nil || !info.IsDir() {
		if err := u.makeDirectory(name); err != nil {
			return err
		}
	}
	u.dirs[name] = mode
	if mode&stageMode == stageMode { // PID 1 keeps access, so the mode can be set now
		delete(u.dirs, name)
		return u.stage.Chmod(name, fileMode(mode))
	}
	return nil
}

func (u *Upload) makeDirectory(name string) error {
	if err := u.stage.Mkdir(name, stageMode); err != nil {
		return err
	}
	if u.owner.Own {
		return nil
	}
	return u.stage.Lchown(name, u.owner.UID, u.owner.GID)
}

// clear removes an existing file or link, so that a file or link can be created.
func (u *Upload) clear(name string) error {
	info, err := u.stage.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil && info.IsDir():
		return errors.New("it would replace a directory")
	case err != nil:
		return err
	}
	return u.stage.Remove(name)
}

func (u *Upload) file(name string, header *tar.Header, content io.Reader) error {
	file, err := u.newFile(name)
	if errors.Is(err, fs.ErrExist) {
		if err := u.clear(name); err != nil {
			return err
		}
		file, err = u.newFile(name)
	}
	if err != nil {
		return err
	}
	return errors.Join(u.fill(file, header, content), file.Close())
}

func (u *Upload) newFile(name string) (*os.File, error) {
	return u.stage.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

func (u *Upload) fill(file *os.File, header *tar.Header, content io.Reader) error {
	if _, err := io.CopyBuffer(struct{ io.Writer }{file}, struct{ io.Reader }{content}, u.buffer); err != nil {
		return err
	}
	if err := own(file, u.owner); err != nil { // before Chmod, because a change of the owner clears the setuid bit
		return err
	}
	if err := file.Chmod(fileMode(header.Mode & 0o7777)); err != nil {
		return err
	}
	return kernel.SetTime(file, header.ModTime)
}

func (u *Upload) symlink(name, target string) error {
	if err := u.clear(name); err != nil {
		return err
	}
	if err := u.stage.Symlink(target, name); err != nil || u.owner.Own {
		return err
	}
	return u.stage.Lchown(name, u.owner.UID, u.owner.GID)
}

// hardlink creates a hard link to an earlier file of the stream.
func (u *Upload) hardlink(name, other string) error {
	other, err := cleanName(other)
	if err != nil {
		return fmt.Errorf("link to %w", err)
	}
	if info, err := u.stage.Lstat(other); err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("a hard link to %.300q, which is not a file of this stream", other)
	}
	if other == name {
		return nil
	}
	if err := u.clear(name); err != nil {
		return err
	}
	return u.stage.Link(other, name)
}
