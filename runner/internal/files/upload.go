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

// Upload is a tar stream on its way into a directory. It is unpacked aside, in a directory of its own that only PID 1
// may enter, and moved into place by renames once all of it is known to be right.
type Upload struct {
	target *os.Root
	stage  *os.Root
	name   string // of the stage in the target
	owner  users.User
	dirs   map[string]int64 // directories whose mode is still to be set, or, with keepMode, not to be changed in the target
	parent string           // known to be there
	buffer []byte
}

const (
	keepMode     = -1
	stageMode    = 0o700
	implicitMode = 0o755
	copyBytes    = 128 << 10
	maxNameSize  = 64 << 10
)

// Unpack reads a tar stream into the stage.
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
		return nil // the target keeps its own mode
	}
	if err := u.parents(path.Dir(name)); err != nil {
		return err
	}
	switch header.Typeflag {
	case tar.TypeDir:
		return u.directory(name, header.Mode&0o7777)
	case tar.TypeReg, tar.TypeRegA, tar.TypeGNUSparse: //nolint:staticcheck // old archives
		return u.file(name, header, content)
	case tar.TypeSymlink:
		return u.symlink(name, header.Linkname)
	case tar.TypeLink:
		return u.hardlink(name, header.Linkname)
	}
	return fmt.Errorf("cannot make a member of type %q", header.Typeflag)
}

// cleanName refuses every name that could leave the target.
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

// parents makes the directories that members below them take for granted. A link is no parent.
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
		return fmt.Errorf("its parent %.300q is no directory", name)
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
	if mode&stageMode == stageMode { // it can have it at once, and need not be remembered
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

// clear makes place for what is no directory.
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
	if err := own(file, u.owner); err != nil { // before the mode: it takes setuid away
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

// hardlink makes another name for a file that came before it.
func (u *Upload) hardlink(name, other string) error {
	other, err := cleanName(other)
	if err != nil {
		return fmt.Errorf("link to %w", err)
	}
	if info, err := u.stage.Lstat(other); err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("a hard link to %.300q, which is no file of this stream", other)
	}
	if other == name {
		return nil
	}
	if err := u.clear(name); err != nil {
		return err
	}
	return u.stage.Link(other, name)
}
