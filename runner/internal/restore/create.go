// Creates new files with content, owner, mode, extended attributes and time.

package restore

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"
	"time"

	"multistep.dev/runner/internal/at"
	"multistep.dev/runner/internal/manifest"
)

// create creates a file of the entry's type under the name t.aside, with all attributes.
func (t *target) create(parent int, entry *manifest.Entry, content io.Reader) error {
	err := t.createNew(parent, entry, content)
	if err == syscall.EEXIST { // an interrupted restore left a file of this name
		if err = remove(t.ctx, parent, t.aside); err == nil {
			err = t.createNew(parent, entry, content)
		}
	}
	return err
}

func (t *target) createNew(parent int, entry *manifest.Entry, content io.Reader) error {
	switch entry.Type {
	case manifest.File:
		return t.file(parent, entry, content)
	case manifest.Symlink:
		if err := at.Symlink(string(entry.Link), parent, t.aside); err != nil {
			return err
		}
		if err := t.own(parent, entry); err != nil {
			return err
		}
	default:
		if err := t.special(parent, entry); err != nil {
			return err
		}
	}
	return at.SetTime(parent, t.aside, entry.MTime.Time)
}

func (t *target) file(parent int, entry *manifest.Entry, content io.Reader) error {
	fd, err := at.Open(parent, t.aside, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), t.aside)
	defer file.Close()
	if err := t.fill(file, entry, content); err != nil {
		at.Unlink(parent, t.aside)
		return err
	}
	if err := t.attributes(fd, entry); err != nil {
		return err
	}
	if entry.Linked {
		var stat syscall.Stat_t
		if err := syscall.Fstat(fd, &stat); err != nil {
			return err
		}
		t.linked[string(entry.Path)] = inode{stat.Dev, stat.Ino}
	}
	t.bytes += entry.Packed()
	return nil
}

// fill writes the content and verifies its digest.
func (t *target) fill(file *os.File, entry *manifest.Entry, content io.Reader) error {
	digest := sha256.New()
	content = io.TeeReader(content, digest)
	parts := entry.Sparse
	if !entry.Holes {
		parts = []manifest.Extent{{0, entry.Size}}
	}
	for _, part := range parts {
		out := struct{ io.Writer }{io.NewOffsetWriter(file, part[0])}
		if entry.Holes {
			out.Writer = &holed{file: file, offset: part[0]}
		}
		n, err := io.CopyBuffer(out, io.LimitReader(content, part[1]), t.buffer)
		if err != nil {
			return err
		}
		if n < part[1] {
			return io.ErrUnexpectedEOF
		}
	}
	if sum := hex.EncodeToString(digest.Sum(nil)); sum != entry.SHA256 {
		return damaged("its content has the digest %s, not %s", sum, entry.SHA256)
	}
	if entry.Holes {
		return file.Truncate(entry.Size)
	}
	return nil
}

// holed writes to a new file from an offset on. It leaves out blocks of zeros, so that they become holes.
type holed struct {
	file   *os.File
	offset int64
}

const holeBytes = 4096

var zeros [holeBytes]byte

func (h *holed) Write(p []byte) (int, error) {
	data := 0 // length of the unwritten bytes before the current block
	for at := 0; at < len(p); {
		size := min(len(p)-at, holeBytes-int((h.offset+int64(at))%holeBytes))
		hole := bytes.Equal(p[at:at+size], zeros[:size])
		if !hole {
			data += size
		}
		at += size
		if end := at; data > 0 && (hole || end == len(p)) {
			if hole {
				end -= size
			}
			if _, err := h.file.WriteAt(p[end-data:end], h.offset+int64(end-data)); err != nil {
				return 0, err
			}
			data = 0
		}
	}
	h.offset += int64(len(p))
	return len(p), nil
}

// special creates a FIFO or a device.
func (t *target) special(parent int, entry *manifest.Entry) error {
	kind, number := uint32(syscall.S_IFIFO), uint64(0)
	if entry.Type != manifest.Fifo {
		kind = map[string]uint32{manifest.Char: syscall.S_IFCHR, manifest.Block: syscall.S_IFBLK}[entry.Type]
		major, minor := uint64(entry.Device[0]), uint64(entry.Device[1])
		number = major&0xfff<<8 | major&^0xfff<<32 | minor&0xff | minor&^0xff<<12
	}
	if err := syscall.Mknodat(parent, t.aside, kind|0o600, int(number)); err != nil {
		return err
	}
	fd, err := at.OpenNode(parent, t.aside)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	var stat syscall.Stat_t
	if err := syscall.Fstat(fd, &stat); err != nil {
		return err
	}
	if stat.Mode&syscall.S_IFMT != kind {
		return errors.New("it was replaced")
	}
	if err := t.own(parent, entry); err != nil {
		return err
	}
	return syscall.Chmod(at.Path(fd), entry.Mode)
}

// own sets the owner of the file t.aside.
func (t *target) own(parent int, entry *manifest.Entry) error {
	if t.restricted() {
		return nil
	}
	stat, err := at.Stat(parent, t.aside)
	if err != nil || int(stat.Uid) == entry.UID && int(stat.Gid) == entry.GID {
		return err
	}
	return at.Chown(parent, t.aside, entry.UID, entry.GID)
}

// attributes sets owner, mode, extended attributes and time of an open file or directory, in this order, because chown clears
// setuid and capabilities, and chmod changes an ACL. It sets only attributes that differ, because PID 1 may lack the permission to
// set them.
func (t *target) attributes(fd int, entry *manifest.Entry) error {
	var stat syscall.Stat_t
	if err := syscall.Fstat(fd, &stat); err != nil {
		return err
	}
	mode, given := entry.Mode, false
	if t.restricted() {
		mode &^= syscall.S_ISUID | syscall.S_ISGID
	} else if given = int(stat.Uid) != entry.UID || int(stat.Gid) != entry.GID; given {
		if err := syscall.Fchown(fd, entry.UID, entry.GID); err != nil {
			return fmt.Errorf("owner %d:%d: %w", entry.UID, entry.GID, err)
		}
	}
	if given || stat.Mode&0o7777 != mode {
		if err := syscall.Fchmod(fd, mode); err != nil {
			return err
		}
	}
	if !t.restricted() {
		if err := setXattrs(fd, entry.XAttrs); err != nil {
			return err
		}
	}
	return setTime(fd, entry)
}

// setTime sets the modification time. A missing permission is no error for an existing directory of another user.
func setTime(fd int, entry *manifest.Entry) error {
	var stat syscall.Stat_t
	if err := syscall.Fstat(fd, &stat); err != nil {
		return err
	}
	if entry.MTime.Equal(time.Unix(stat.Mtim.Unix())) {
		return nil
	}
	err := at.SetTime(fd, "", entry.MTime.Time)
	if err == syscall.EPERM && entry.Type == manifest.Directory && int(stat.Uid) != os.Geteuid() {
		return nil
	}
	return err
}

// setXattrs sets the wanted extended attributes of an open file, and removes all others.
func setXattrs(fd int, wanted []manifest.XAttr) error {
	names, err := at.XattrNames(fd)
	if err != nil {
		return err
	}
	for _, each := range wanted {
		name := string(each.Name)
		if i := slices.Index(names, name); i >= 0 {
			names = slices.Delete(names, i, i+1)
			if value, err := at.Xattr(fd, name); err == nil && bytes.Equal(value, each.Value) {
				continue
			}
		}
		if err := at.SetXattr(fd, name, each.Value); err != nil {
			return fmt.Errorf("xattr %.100q: %w", name, err)
		}
	}
	for _, name := range names {
		if err := at.RemoveXattr(fd, name); err != nil {
			return fmt.Errorf("xattr %.100q: %w", name, err)
		}
	}
	return nil
}
