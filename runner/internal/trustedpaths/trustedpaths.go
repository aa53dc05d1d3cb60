package trustedpaths

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// ErrLink is the error for a path with an untrusted link.
var ErrLink = errors.New("a link that an untrusted user may have created is in the way")

const maxLinks = 40 // maximum number of links in a path, as in the kernel

// runnerUID is the UID of PID 1. A child that transfers files as another user also starts with this UID and switches later.
var runnerUID = os.Getuid()

// Make opens the directory at an absolute path. It creates missing directories with mode 0755.
func Make(name string) (*os.Root, error) {
	return open(name, true)
}

// OpenParent opens the parent directory of the path name, and also returns the path's last element. The file at this path may be of
// any type or missing.
func OpenParent(name string) (*os.Root, string, error) {
	return parent(name, false)
}

// MakeParent is like OpenParent, but creates missing directories in the parent's path.
func MakeParent(name string) (*os.Root, string, error) {
	return parent(name, true)
}

func parent(name string, create bool) (*os.Root, string, error) {
	name = path.Clean(name)
	if name == "/" {
		return nil, "", fmt.Errorf("%s has no parent", name)
	}
	root, err := open(path.Dir(name), create)
	return root, path.Base(name), err
}

func open(name string, create bool) (*os.Root, error) {
	if !path.IsAbs(name) {
		return nil, fmt.Errorf("not an absolute path: %q", name)
	}
	top, err := os.OpenRoot("/")
	if err != nil {
		return nil, err
	}
	walk := walk{stack: []*os.Root{top}, todo: split(path.Clean(name)), create: create}
	defer walk.close()
	for len(walk.todo) > 0 {
		if err := walk.step(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return walk.take(), nil
}

// NoStranger is the owner that Resolve returns for a path without links of untrusted users.
const NoStranger = -1

// Resolve returns the file to which an absolute path leads, and the owner of the first link in the path that neither root nor PID
// 1's user owns.
func Resolve(name string) (info fs.FileInfo, stranger int, err error) {
	top, err := os.OpenRoot("/")
	if err != nil {
		return nil, NoStranger, err
	}
	walk := walk{stack: []*os.Root{top}, todo: split(path.Clean(name)), lenient: true, stranger: NoStranger}
	defer walk.close()
	for len(walk.todo) > 0 {
		last := walk.todo[0]
		info, err := walk.here().Lstat(last)
		if err == nil && len(walk.todo) == 1 && !info.IsDir() && info.Mode()&fs.ModeSymlink == 0 {
			return info, walk.stranger, nil
		}
		if err := walk.step(); err != nil {
			return nil, walk.stranger, err
		}
	}
	info, err = walk.here().Stat(".")
	return info, walk.stranger, err
}

// walk is the state of a walk along a path. stack has the open directories, to which ".." in a link's target returns. todo has the
// remaining elements. If lenient is set, links of untrusted users are followed, and stranger is the owner of the first one.
type walk struct {
	stack    []*os.Root
	todo     []string
	links    int
	create   bool
	lenient  bool
	stranger int
}

func (w *walk) step() error {
	name := w.todo[0]
	w.todo = w.todo[1:]
	if name == ".." {
		w.leave()
		return nil
	}
	info, err := w.here().Lstat(name)
	if errors.Is(err, fs.ErrNotExist) && w.create {
		if err := w.here().Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		info, err = w.here().Lstat(name)
	}
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return w.follow(name, info)
	}
	next, err := Enter(w.here(), name, info)
	if err == nil {
		w.stack = append(w.stack, next)
	}
	return err
}

func (w *walk) follow(name string, link fs.FileInfo) error {
	if w.links++; w.links > maxLinks {
		return syscall.ELOOP
	}
	directory, err := w.here().Stat(".")
	if err != nil {
		return err
	}
	if !hasTrustedOwner(link) || !KeepsEntries(directory) {
		if !w.lenient {
			return fmt.Errorf("%q: %w", name, ErrLink)
		}
		if w.stranger == NoStranger && !hasTrustedOwner(link) {
			w.stranger = Owner(link)
		}
	}
	target, err := w.here().Readlink(name)
	if err != nil {
		return err
	}
	if path.IsAbs(target) {
		for len(w.stack) > 1 {
			w.leave()
		}
	}
	w.todo = slices.Concat(split(target), w.todo)
	return nil
}

func (w *walk) here() *os.Root { return w.stack[len(w.stack)-1] }

func (w *walk) leave() {
	if len(w.stack) > 1 {
		w.here().Close()
		w.stack = w.stack[:len(w.stack)-1]
	}
}

// take returns the directory that the walk reached. The caller closes it.
func (w *walk) take() *os.Root {
	last := w.here()
	w.stack = w.stack[:len(w.stack)-1]
	return last
}

func (w *walk) close() {
	for _, root := range w.stack {
		root.Close()
	}
}

// Enter opens the directory called name in root. It fails if this is no longer the directory that info describes. A link may have
// replaced the directory, and os.Root follows links that stay inside root.
func Enter(root *os.Root, name string, info fs.FileInfo) (*os.Root, error) {
	if !info.IsDir() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ENOTDIR}
	}
	next, err := root.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	now, err := next.Stat(".")
	if err == nil && !os.SameFile(info, now) {
		err = fmt.Errorf("%q changed while it was opened", name)
	}
	if err != nil {
		next.Close()
		return nil, err
	}
	return next, nil
}

// OpenRegular opens name in root for reading if it is a regular file. It follows no links, and does not block on a FIFO.
func OpenRegular(root *os.Root, name string) (*os.File, fs.FileInfo, error) {
	before, err := root.Lstat(name)
	if err != nil {
		return nil, nil, err
	}
	if !before.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%q is not a regular file", name)
	}
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := file.Stat()
	if err == nil && !os.SameFile(before, info) {
		err = fmt.Errorf("%q changed while it was opened", name)
	}
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	return file, info, nil
}

func split(name string) []string {
	return slices.DeleteFunc(strings.Split(name, "/"), func(part string) bool { return part == "" || part == "." })
}

// hasTrustedOwner returns whether root or PID 1's user owns the file.
func hasTrustedOwner(info fs.FileInfo) bool {
	uid := Owner(info)
	return uid == 0 || uid == runnerUID
}

// Owner returns the uid of a file's owner.
func Owner(info fs.FileInfo) int {
	return int(info.Sys().(*syscall.Stat_t).Uid)
}

// IsPublic returns whether every user may read an open file. Its mode must let others read it, and the modes of all directories in
// its path must let others search them.
func IsPublic(file *os.File, info fs.FileInfo) bool {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	if err != nil || !path.IsAbs(name) || info.Mode().Perm()&0o004 == 0 {
		return false
	}
	for name != "/" {
		name = path.Dir(name)
		if above, err := os.Lstat(name); err != nil || !above.IsDir() || above.Mode().Perm()&0o001 == 0 {
			return false
		}
	}
	return true
}

// KeepsEntries returns whether only root, PID 1's user and the entry's owner can replace an entry of the directory.
func KeepsEntries(directory fs.FileInfo) bool {
	shared := directory.Mode().Perm()&0o022 != 0 && directory.Mode()&fs.ModeSticky == 0
	return hasTrustedOwner(directory) && !shared
}
