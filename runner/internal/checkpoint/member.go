// Writes one file to the stream and describes it in the manifest.

package checkpoint

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"multistep.dev/runner/internal/at"
	"multistep.dev/runner/internal/manifest"
	"multistep.dev/runner/internal/wire"
)

var typeflags = map[string]byte{
	manifest.File: tar.TypeReg, manifest.Directory: tar.TypeDir, manifest.Symlink: tar.TypeSymlink, manifest.Hardlink: tar.TypeLink,
	manifest.Fifo: tar.TypeFifo, manifest.Char: tar.TypeChar, manifest.Block: tar.TypeBlock,
}

// entryOf returns an entry with the attributes in stat. The caller adds those that depend on the content.
func entryOf(path, kind string, stat *syscall.Stat_t) *manifest.Entry {
	return &manifest.Entry{
		Path: manifest.Text(path), Type: kind, Mode: stat.Mode & 0o7777, UID: int(stat.Uid), GID: int(stat.Gid),
		MTime: manifest.Time{Time: time.Unix(stat.Mtim.Unix())},
	}
}

const (
	maxAttributes = 3584    // maximum size in bytes of a file's extended attributes on ext4, which permits a little more
	maxSize       = 8 << 40 // maximum size in bytes of a file, including holes. ext4 permits 16 TiB
)

// header writes the tar header of an entry. A restore reads the attributes in the manifest. Those in the header are for other
// programs.
func (p *packer) header(entry *manifest.Entry) error {
	header := &tar.Header{
		Typeflag: typeflags[entry.Type], Name: strings.TrimPrefix(string(entry.Path), "/"), Size: entry.Packed(), Mode: int64(entry.Mode),
		Uid: entry.UID, Gid: entry.GID, ModTime: entry.MTime.Time, Format: tar.FormatPAX, PAXRecords: map[string]string{},
	}
	switch entry.Type {
	case manifest.Directory:
		header.Name += "/"
		if entry.Path == "/" {
			header.Name = "./"
		}
	case manifest.Symlink:
		header.Linkname = string(entry.Link)
	case manifest.Hardlink:
		header.Linkname = strings.TrimPrefix(string(entry.Link), "/")
	case manifest.Char, manifest.Block:
		header.Devmajor, header.Devminor = int64(entry.Device[0]), int64(entry.Device[1])
	}
	for _, each := range entry.XAttrs {
		if !strings.Contains(string(each.Name), "=") { // a PAX record cannot have a name that contains =
			header.PAXRecords["SCHILY.xattr."+string(each.Name)] = string(each.Value)
		}
	}
	return p.archive.WriteHeader(header)
}

// directory packs a directory. sameAccess tells that the directory had this owner and mode before, so that a restore need not set
// them.
func (p *packer) directory(dir *level, sameAccess, unchanged bool) error {
	dir.packed = true
	entry := entryOf(string(dir.path), manifest.Directory, &dir.stat)
	entry.Unchanged = unchanged
	var err error
	if entry.XAttrs, err = xattrs(dir.fd, string(dir.path)); err != nil {
		return err
	}
	if !sameAccess {
		if err := p.rights.check(entry); err != nil {
			return err
		}
	}
	if err := p.header(entry); err != nil {
		return err
	}
	return p.add(entry)
}

// member packs a file that is not a directory. stable is false if the file changed while it was packed.
func (p *packer) member(dir *level, path, name string, stat *syscall.Stat_t) (stable bool, err error) {
	var entry *manifest.Entry
	switch stat.Mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		return p.regular(dir, path, name, stat)
	case syscall.S_IFLNK:
		target, err := at.Readlink(dir.fd, name)
		if err == syscall.ENOENT || err == syscall.EINVAL {
			return false, errReplaced
		}
		if err != nil {
			return false, wire.Errorf(wire.CodeUnreadable, "%.300q: %v", path, err)
		}
		entry = entryOf(path, manifest.Symlink, stat)
		entry.Link = manifest.Text(target)
	case syscall.S_IFIFO:
		entry = entryOf(path, manifest.Fifo, stat)
	case syscall.S_IFCHR:
		entry = entryOf(path, manifest.Char, stat)
		entry.Device = device(stat.Rdev)
	case syscall.S_IFBLK:
		entry = entryOf(path, manifest.Block, stat)
		entry.Device = device(stat.Rdev)
	default:
		return false, wire.Errorf(wire.CodeUnreadable, "%.300q has the unknown type %o", path, stat.Mode)
	}
	if err := p.rights.check(entry); err != nil {
		return false, err
	}
	if err := p.header(entry); err != nil {
		return false, err
	}
	return true, p.add(entry)
}

// device splits a device number into major and minor.
func device(number uint64) []uint32 {
	return []uint32{uint32(number>>8&0xfff | number>>32&^0xfff), uint32(number&0xff | number>>12&^0xff)}
}

func (p *packer) regular(dir *level, path, name string, stat *syscall.Stat_t) (stable bool, err error) {
	if first, known := p.linked.files[inode{stat.Dev, stat.Ino}]; known && stat.Nlink > 1 {
		if err := p.linked.names.add([]byte(path), state{}); err != nil {
			return false, err
		}
		return true, p.link(path, stat, first, false)
	}
	fd, err := at.OpenRead(dir.fd, name)
	switch err {
	case nil:
	case syscall.ENOENT, syscall.ELOOP, syscall.ENXIO, syscall.ENODEV:
		return false, errReplaced
	default:
		return false, wire.Errorf(wire.CodeUnreadable, "%.300q: %v", path, err)
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	now := &syscall.Stat_t{}
	if err := syscall.Fstat(fd, now); err != nil {
		return false, err
	}
	if now.Mode&syscall.S_IFMT != syscall.S_IFREG || now.Ino != stat.Ino || now.Dev != stat.Dev {
		return false, errReplaced
	}
	if stat.Nlink > 1 {
		if err := p.linked.remember(path, stat); err != nil {
			return false, err
		}
	}
	return p.content(file, fd, path, now)
}

// content packs an open file with the size in stat. If the file shrinks in the meantime, zeros replace the missing bytes.
func (p *packer) content(file *os.File, fd int, path string, stat *syscall.Stat_t) (stable bool, err error) {
	entry := entryOf(path, manifest.File, stat)
	entry.Size, entry.Linked = stat.Size, stat.Nlink > 1
	if entry.XAttrs, err = xattrs(fd, path); err != nil {
		return false, err
	}
	if err := p.rights.check(entry); err != nil {
		return false, err
	}
	parts := []manifest.Extent{{0, stat.Size}}
	if found, sparse := extents(fd, stat); sparse {
		parts, entry.Sparse, entry.Holes = found, found, true
	}
	if entry.Size > maxSize {
		return false, wire.Errorf(wire.CodeTooLarge, "%.300q has %d bytes (at most %d, with holes)", path, entry.Size, int64(maxSize))
	}
	if entry.Packed() > p.raw.limit-p.raw.bytes { // checked before the content is read and sent
		return false, wire.Errorf(wire.CodeTooLarge, "the increment has more than maxBytes (%d): %.300q alone has %d", p.limits.Bytes, path, entry.Packed())
	}
	if err := p.header(entry); err != nil {
		return false, err
	}
	digest := sha256.New()
	whole := true
	for _, part := range parts {
		complete, err := p.copy(io.MultiWriter(p.archive, digest), file, part)
		if err != nil {
			return false, err
		}
		whole = whole && complete
	}
	entry.SHA256 = hex.EncodeToString(digest.Sum(nil))
	after := syscall.Stat_t{}
	stable = syscall.Fstat(fd, &after) == nil && after.Ctim == stat.Ctim && after.Size == stat.Size && whole
	return stable, p.add(entry)
}

func (p *packer) copy(out io.Writer, file *os.File, part manifest.Extent) (complete bool, err error) {
	complete = true
	for offset, left := part[0], part[1]; left > 0; {
		if err := p.ctx.Err(); err != nil {
			return false, err
		}
		buffer := p.buffer[:min(left, int64(len(p.buffer)))]
		n, err := file.ReadAt(buffer, offset)
		if err != nil && err != io.EOF {
			return false, wire.Errorf(wire.CodeUnreadable, "%v", err)
		}
		if n < len(buffer) {
			clear(buffer[n:])
			complete = false
		}
		if _, err := out.Write(buffer); err != nil {
			return false, err
		}
		offset += int64(len(buffer))
		left -= int64(len(buffer))
	}
	return complete, nil
}

func xattrs(fd int, path string) ([]manifest.XAttr, error) {
	found, err := at.Xattrs(fd, maxAttributes)
	if err == at.ErrXattrs {
		return nil, wire.Errorf(wire.CodeUnusual, "%.300q has extended attributes of more than %d bytes", path, maxAttributes)
	}
	if err != nil {
		return nil, wire.Errorf(wire.CodeUnreadable, "%.300q: %v", path, err)
	}
	if len(found) == 0 {
		return nil, nil
	}
	sorted := make([]manifest.XAttr, 0, len(found))
	for name, value := range found {
		sorted = append(sorted, manifest.XAttr{Name: manifest.Text(name), Value: value})
	}
	slices.SortFunc(sorted, func(a, b manifest.XAttr) int { return strings.Compare(string(a.Name), string(b.Name)) })
	return sorted, nil
}

const (
	minSparse  = 4 << 10 // a file of up to this size in bytes is packed without holes
	maxExtents = 8192
	seekData   = 3
	seekHole   = 4
)

// extents returns the parts of a file that are not holes. It returns false if the file has no holes. If the file has too many
// parts, the only extent is the whole file, so that its holes are packed as zeros.
func extents(fd int, stat *syscall.Stat_t) (found []manifest.Extent, sparse bool) {
	if stat.Size <= minSparse || stat.Blocks*512 >= stat.Size {
		return nil, false
	}
	whole := []manifest.Extent{{0, stat.Size}}
	for offset := int64(0); offset < stat.Size; {
		data, err := syscall.Seek(fd, offset, seekData)
		if errors.Is(err, syscall.ENXIO) || err == nil && data >= stat.Size { // the rest of the file is a hole
			return found, true
		}
		if err != nil {
			return whole, true
		}
		end, err := syscall.Seek(fd, data, seekHole)
		if err != nil || end <= data || len(found) == maxExtents {
			return whole, true
		}
		end = min(end, stat.Size)
		found = append(found, manifest.Extent{data, end - data})
		offset = end
	}
	return found, len(found) != 1 || found[0] != whole[0]
}
