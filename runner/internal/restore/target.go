// Decides which entries are restored, and restores each at its path.

package restore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"syscall"

	"multistep.dev/runner/internal/at"
	"multistep.dev/runner/internal/manifest"
	"multistep.dev/runner/internal/mounts"
	"multistep.dev/runner/internal/wire"
)

// target is the tree to which an increment is restored.
type target struct {
	ctx     context.Context
	root    string
	paths   []string // directories to restore, or none to restore everything
	foreign map[string]bool
	aside   string  // name under which files are created before they are renamed
	levels  []level // open directories that lead to the current path
	linked  map[string]inode
	passed  string // a foreign path, below which all paths are skipped
	buffer  []byte

	entries, deletions, skipped int
	bytes                       int64
}

type inode struct{ dev, ino uint64 }

// level is an open directory. Its attributes are set when it is left, because restoring its content changes its time and may need
// permissions that its mode lacks.
type level struct {
	path  string
	fd    int
	entry *manifest.Entry // nil if the directory's attributes do not change
}

// newTarget returns the target for the increment with this digest. New files get the temporary name aside, which contains the
// digest. No file of the increment can have this name, because the digest depends on the names of the files. A repeated restore
// finds the files that an interrupted restore left under this name.
func newTarget(ctx context.Context, options Options, digest string) (*target, error) {
	foreign, err := mounts.Foreign(options.Own)
	return &target{ctx: ctx, root: options.Root, paths: topmost(options.Paths), foreign: foreign, aside: ".multistep-" + digest[:32],
		linked: map[string]inode{}, buffer: make([]byte, readBuffer)}, err
}

// topmost returns the cleaned paths, without those that are below another one.
func topmost(all []string) (top []string) {
	clean := make([]string, len(all))
	for i, each := range all {
		clean[i] = path.Clean(each)
	}
	slices.SortFunc(clean, func(a, b string) int { return manifest.Compare([]byte(a), []byte(b)) })
	for _, each := range clean {
		if n := len(top); n == 0 || !manifest.Below([]byte(each), []byte(top[n-1])) {
			top = append(top, each)
		}
	}
	return top
}

// restricted returns whether only some directories are restored. Restored files then belong to PID 1's user, and have no setuid or
// setgid bit and no extended attributes.
func (t *target) restricted() bool { return len(t.paths) > 0 }

// apply restores one entry. It reads content to its end, unless it returns an error.
func (t *target) apply(entry *manifest.Entry, content io.Reader) error {
	err := t.ctx.Err()
	if err == nil {
		err = t.dispatch(entry, content)
	}
	if err != nil {
		return fmt.Errorf("%.300q: %w", string(entry.Path), err)
	}
	if content != nil {
		_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, content, t.buffer)
	}
	return err
}

func (t *target) dispatch(entry *manifest.Entry, content io.Reader) error {
	name := string(entry.Path)
	selected, top := t.selects(name)
	if !selected && entry.Type != manifest.Directory {
		return t.loseParent(name)
	}
	if !selected || t.isForeign(name) || t.restricted() && isDevice(entry.Type) {
		t.skipped++
		return nil
	}
	if entry.Type != manifest.Directory {
		if err := t.replaceable(name); err != nil {
			return err
		}
	}
	parent, err := t.parent(name, top)
	if err != nil {
		return err
	}
	t.entries++
	base := path.Base(name)
	switch entry.Type {
	case manifest.Deleted:
		t.deletions++
		return remove(t.ctx, parent, base)
	case manifest.Directory:
		return t.directory(parent, base, entry)
	case manifest.Hardlink:
		return t.hardlink(parent, base, entry)
	}
	if err := t.create(parent, entry, content); err != nil {
		return err
	}
	return t.rename(parent, base)
}

// selects returns whether a path is restored, and whether it is one of the directories to restore.
func (t *target) selects(name string) (selected, top bool) {
	if !t.restricted() {
		return true, name == "/"
	}
	for _, each := range t.paths {
		if manifest.Below([]byte(name), []byte(each)) {
			return true, name == each
		}
	}
	return false, false
}

// loseParent handles an entry that is not restored. If the entry replaces or deletes a directory, loseParent deletes the
// directories to restore that are below it.
func (t *target) loseParent(name string) error {
	t.skipped++
	for _, each := range t.paths {
		if !manifest.Below([]byte(each), []byte(name)) {
			continue
		}
		if err := t.replaceable(each); err != nil {
			return err
		}
		parent, err := t.open(path.Dir(each), false)
		if errors.Is(err, syscall.ENOENT) {
			continue
		}
		if err != nil {
			return err
		}
		err = remove(t.ctx, parent, path.Base(each))
		syscall.Close(parent)
		if err != nil {
			return err
		}
		t.deletions++
	}
	return nil
}

// isForeign returns whether a path is a mount or a directory of the runner, or below one.
func (t *target) isForeign(name string) bool {
	if t.passed != "" && manifest.Below([]byte(name), []byte(t.passed)) {
		return true
	}
	if full := path.Join(t.root, name); name != "/" && t.foreign[full] {
		t.passed = name
		return true
	}
	return false
}

// replaceable returns an error if a mount or a directory of the runner is below the path. No checkpoint that this runner stored
// requires the replacement of such a path.
func (t *target) replaceable(name string) error {
	if mounts.Below(t.foreign, path.Join(t.root, name)) {
		return wire.Errorf(wire.CodeRestore, "a mount or the runner's directory is below it")
	}
	return nil
}

func isDevice(kind string) bool {
	return kind == manifest.Char || kind == manifest.Block || kind == manifest.Fifo
}

// parent returns the open parent directory of a path. It first leaves the directories that do not lead to the path. The parent must
// be an entry of the increment, unless top is set.
func (t *target) parent(name string, top bool) (int, error) {
	directory := path.Dir(name)
	for len(t.levels) > 0 && (top || !manifest.Below([]byte(directory), []byte(t.levels[len(t.levels)-1].path))) {
		if err := t.leave(); err != nil {
			return -1, err
		}
	}
	if top {
		fd, err := t.open(directory, true)
		if err == nil {
			t.levels = append(t.levels, level{path: directory, fd: fd})
		}
		return fd, err
	}
	if n := len(t.levels); n > 0 && t.levels[n-1].path == directory {
		return t.levels[n-1].fd, nil
	}
	return -1, damaged("its directory is not in the increment")
}

// open opens a directory, one element of its path at a time. It follows no link, and creates missing directories if create is set.
func (t *target) open(directory string, create bool) (int, error) {
	fd, err := syscall.Open(t.root, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	for part := range strings.SplitSeq(strings.Trim(directory, "/"), "/") {
		if part == "" {
			break
		}
		next, err := at.OpenDirectory(fd, part)
		if err == syscall.ENOENT && create {
			if err = syscall.Mkdirat(fd, part, 0o755); err == nil {
				next, err = at.OpenDirectory(fd, part)
			}
		}
		syscall.Close(fd)
		if err != nil {
			return -1, fmt.Errorf("directory %.300q: %w", directory, err)
		}
		fd = next
	}
	return fd, nil
}

// directory creates or keeps a directory, and enters it.
func (t *target) directory(parent int, base string, entry *manifest.Entry) error {
	if entry.Path == "/" {
		t.levels[len(t.levels)-1].entry = entry
		return nil
	}
	stat, err := at.Stat(parent, base)
	if err == nil && stat.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		if err := at.Unlink(parent, base); err != nil {
			return err
		}
		err = syscall.ENOENT
	}
	if err == syscall.ENOENT {
		err = syscall.Mkdirat(parent, base, 0o700)
	}
	if err != nil {
		return err
	}
	fd, err := at.OpenDirectory(parent, base)
	if err != nil {
		return err
	}
	t.levels = append(t.levels, level{string(entry.Path), fd, entry})
	if stat.Mode&0o700 != 0o700 { // the mode may forbid the owner to restore the content
		syscall.Fchmod(fd, 0o700) // fails for other users' directories, which root does not need
	}
	return nil
}

// leave sets the attributes of the innermost open directory and closes it.
func (t *target) leave() error {
	last := t.levels[len(t.levels)-1]
	t.levels = t.levels[:len(t.levels)-1]
	defer syscall.Close(last.fd)
	if last.entry == nil {
		return nil
	}
	if err := t.attributes(last.fd, last.entry); err != nil {
		return fmt.Errorf("%.300q: %w", last.path, err)
	}
	return nil
}

// close leaves all directories. It sets their attributes only if the increment is complete.
func (t *target) close(complete bool) error {
	var err error
	for len(t.levels) > 0 {
		if !complete || err != nil {
			t.levels[len(t.levels)-1].entry = nil
		}
		err = errors.Join(err, t.leave())
	}
	return err
}

// rename renames the file t.aside to base. It first removes a directory with the name base.
func (t *target) rename(parent int, base string) error {
	if stat, err := at.Stat(parent, base); err == nil && stat.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		if err := remove(t.ctx, parent, base); err != nil {
			return err
		}
	}
	return syscall.Renameat(parent, t.aside, parent, base)
}

// hardlink creates another name of a file that this restore created. A link to any other file could give a hostile stream access to
// that file.
func (t *target) hardlink(parent int, base string, entry *manifest.Entry) error {
	made, known := t.linked[string(entry.Link)]
	if !known && t.restricted() {
		t.skipped++
		return nil
	}
	if !known {
		return damaged("a hard link to %.300q, which is not a file of this increment", string(entry.Link))
	}
	fd, err := t.node(string(entry.Link), made)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	err = at.Link(fd, parent, t.aside)
	if err == syscall.EEXIST {
		if err = remove(t.ctx, parent, t.aside); err == nil {
			err = at.Link(fd, parent, t.aside)
		}
	}
	if err != nil {
		return err
	}
	if err := t.rename(parent, base); err != nil {
		return err
	}
	if err := at.Unlink(parent, t.aside); err != syscall.ENOENT { // a rename between two names of one file does nothing
		return err
	}
	return nil
}

// node opens the file at a path. It returns an error if the file's inode is not `made`.
func (t *target) node(name string, made inode) (int, error) {
	directory, err := t.open(path.Dir(name), false)
	if err != nil {
		return -1, err
	}
	defer syscall.Close(directory)
	fd, err := at.OpenNode(directory, path.Base(name))
	if err != nil {
		return -1, err
	}
	var stat syscall.Stat_t
	err = syscall.Fstat(fd, &stat)
	if err == nil && (stat.Mode&syscall.S_IFMT != syscall.S_IFREG || made != (inode{stat.Dev, stat.Ino})) {
		err = damaged("%.300q was replaced", name)
	}
	if err != nil {
		syscall.Close(fd)
		return -1, err
	}
	return fd, nil
}
