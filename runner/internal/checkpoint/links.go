// Packs all names of a file with hard links, so that a restore keeps them one file.

package checkpoint

import (
	"syscall"
	"time"

	"multistep.dev/runner/internal/manifest"
	"multistep.dev/runner/internal/wire"
)

const (
	maxLinked  = 64 << 20 // maximum bytes of memory for files that have several names, in a checkpoint and in a restore
	linkedSize = 128      // bytes of memory for a file with several names, in addition to its first name
	maxLinks   = 60_000   // maximum number of names of a file. ext4 permits 65,000
)

// linkedFile is a packed file with several names. It was packed under the name first, and the increment lacks a number of missing
// names.
type linkedFile struct {
	first   string
	missing uint64
}

// linkedFiles has the packed files of which the increment lacks some names.
type linkedFiles struct {
	files map[inode]*linkedFile
	bytes int
	names List // names in the increment of files with several names, in the order of the first walk
}

// remember adds a file that is packed under this name, the first of several.
func (l *linkedFiles) remember(path string, stat *syscall.Stat_t) error {
	if stat.Nlink > maxLinks {
		return wire.Errorf(wire.CodeTooLarge, "%.300q has %d names (at most %d)", path, stat.Nlink, maxLinks)
	}
	if l.bytes += len(path) + linkedSize; l.bytes > maxLinked {
		return wire.Errorf(wire.CodeTooLarge, "files with hard links, such as %.300q, need more than %d bytes of memory", path, maxLinked)
	}
	l.files[inode{stat.Dev, stat.Ino}] = &linkedFile{path, uint64(stat.Nlink) - 1}
	return l.names.add([]byte(path), state{})
}

// found records that the increment contains one more name of the file. After the last name it forgets the file.
func (l *linkedFiles) found(stat *syscall.Stat_t, file *linkedFile) {
	if file.missing--; file.missing == 0 {
		delete(l.files, inode{stat.Dev, stat.Ino})
	}
}

// link packs a further name of a packed file. unchanged is set if the name itself did not change.
func (p *packer) link(path string, stat *syscall.Stat_t, file *linkedFile, unchanged bool) error {
	entry := entryOf(path, manifest.Hardlink, stat)
	entry.Link, entry.Unchanged = manifest.Text(file.first), unchanged
	p.linked.found(stat, file)
	if err := p.header(entry); err != nil {
		return err
	}
	return p.add(entry)
}

// linker is a visitor that packs the missing names (hard links) of packed files. Without them, a restore would split a file into
// two. Names are missing, for example, after the rename of a directory. The files in it get new names, but their names in other
// directories count as unchanged.
type linker struct {
	*packer
	known *reader // names that the increment contains
}

func (l *linker) Enter(*level) error { return nil }

func (l *linker) File(dir *level, path []byte, _ string, stat *syscall.Stat_t) error {
	if stat.Nlink < 2 || stat.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return nil
	}
	file, packed := l.linked.files[inode{stat.Dev, stat.Ino}]
	if !packed || l.isKnown(path) {
		return nil
	}
	if err := l.place(dir, string(path), stateOf(stat, time.Now())); err != nil {
		return err
	}
	return l.link(string(path), stat, file, true)
}

func (l *linker) isKnown(path []byte) bool {
	for l.known.ok && manifest.Compare(l.known.path, path) < 0 {
		l.known.next()
	}
	return l.known.ok && manifest.Compare(l.known.path, path) == 0
}

func (l *linker) Leave(*level) error { return nil }

func (l *linker) Skipped(*level, []byte, *syscall.Stat_t) error { return nil }
