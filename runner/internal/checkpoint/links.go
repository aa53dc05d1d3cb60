package checkpoint

import (
	"syscall"

	"multistep.dev/runner/internal/manifest"
	"multistep.dev/runner/internal/wire"
)

// maxLinked is the maximum size in bytes of the names that are kept to recognize hard links.
const maxLinked = 32 << 20

// linkedFile is a packed file with several names: those that the increment contains, and the number of all.
type linkedFile struct {
	first string
	names map[string]bool
	links uint64
}

// remember notes that the increment contains this name of a file.
func (p *packer) remember(file *linkedFile, path string) error {
	file.names[path] = true
	if p.linked += len(path); p.linked > maxLinked {
		return wire.Errorf(wire.CodeTooLarge, "the names of files with hard links have more than %d bytes", maxLinked)
	}
	return nil
}

// link packs a further name of a packed file. unchanged is set if the name itself did not change.
func (p *packer) link(path string, stat *syscall.Stat_t, file *linkedFile, unchanged bool) error {
	entry := entryOf(path, manifest.Hardlink, stat)
	entry.Link, entry.Unchanged = manifest.Text(file.first), unchanged
	if err := p.remember(file, path); err != nil {
		return err
	}
	if err := p.header(entry); err != nil {
		return err
	}
	return p.add(entry)
}

// incomplete returns whether a packed file has names that the increment does not contain. A rename of a directory gives the files in it
// new names, but does not change their inodes, so their names elsewhere count as unchanged.
func (p *packer) incomplete() bool {
	for _, file := range p.links {
		if uint64(len(file.names)) < file.links {
			return true
		}
	}
	return false
}

// linker is a visitor that packs the missing names of packed files. Without them a restore would make two files of one.
type linker struct{ *packer }

func (l *linker) Enter(*level) error { return nil }

func (l *linker) File(dir *level, path []byte, _ string, stat *syscall.Stat_t) error {
	if stat.Nlink < 2 || stat.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return nil
	}
	file, packed := l.links[inode{stat.Dev, stat.Ino}]
	if !packed || file.names[string(path)] {
		return nil
	}
	if err := l.ancestors(dir); err != nil {
		return err
	}
	return l.link(string(path), stat, file, true)
}

func (l *linker) Leave(*level) error { return nil }

func (l *linker) Skipped(*level, []byte, *syscall.Stat_t) error { return nil }
