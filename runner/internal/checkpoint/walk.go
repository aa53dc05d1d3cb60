// Visits all files below a directory in the manifest's order, in bounded memory.

package checkpoint

import (
	"bytes"
	"context"
	"slices"
	"syscall"
	"unsafe"

	"multistep.dev/runner/internal/at"
	"multistep.dev/runner/internal/wire"
)

const (
	// maxDepth is the maximum level of directories. Each needs a descriptor while it is open, and a process may have only 1024.
	maxDepth     = 800
	checkedEvery = 256 // entries between two checks of the context
	direntBytes  = 64 << 10
	maxNames     = 48 << 20 // bytes of memory for the names in all open directories
)

var (
	errTooDeep  = wire.Errorf(wire.CodeUnusual, "directories are nested more than %d levels deep", maxDepth)
	errTooMany  = wire.Errorf(wire.CodeTooLarge, "a directory has more entries than maxFiles permits, or the directories of a path have %d bytes of names", maxNames)
	errReplaced = wire.Errorf(wire.CodeChanged, "a file was replaced while it was packed; try again")
)

// visitor gets the files that a walk finds, in the order of manifest.Compare. A path is valid only during the call.
type visitor interface {
	// Enter gets a directory before its content.
	Enter(dir *level) error
	// File gets any file except a directory. name is the last element of path.
	File(dir *level, path []byte, name string, stat *syscall.Stat_t) error
	// Leave gets a directory after its content.
	Leave(dir *level) error
	// Skipped gets a path that the walk does not enter. stat is set only for an unreadable directory.
	Skipped(dir *level, path []byte, stat *syscall.Stat_t) error
}

// level is an open directory on the path that the walk has reached.
type level struct {
	parent *level
	fd     int
	path   []byte
	stat   syscall.Stat_t
	depth  int
	packed bool // the increment contains this directory
	opened bool // a restore can create and delete files in this directory
}

// walker visits a directory and all files below it. It reports their paths relative to this directory, which has the path "/".
type walker struct {
	ctx     context.Context
	root    string
	skip    func(path []byte) bool
	visit   visitor
	maxDir  int // maximum number of entries of a directory
	visited int
	held    int // bytes of memory for the names in all open directories
	path    []byte
	dirents []byte
	stat    syscall.Stat_t
}

func (w *walker) walk() error {
	fd, err := syscall.Open(w.root, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	w.path, w.dirents = make([]byte, 0, syscall.PathMax), make([]byte, direntBytes)
	top := &level{fd: fd, path: []byte("/")}
	if err := syscall.Fstat(fd, &top.stat); err != nil {
		return err
	}
	return w.directory(top)
}

func (w *walker) directory(dir *level) error {
	if err := w.visit.Enter(dir); err != nil {
		return err
	}
	names, err := w.names(dir.fd)
	if err != nil {
		return err
	}
	defer func() { w.held -= names.bytes }()
	base := len(w.path)
	for _, place := range names.places {
		name := names.at(place)
		w.path = append(append(w.path[:base], '/'), name[:len(name)-1]...)
		if w.visited++; w.visited%checkedEvery == 0 && w.ctx.Err() != nil {
			return w.ctx.Err()
		}
		if err := w.entry(dir, name); err != nil {
			return err
		}
	}
	w.path = w.path[:base]
	return w.visit.Leave(dir)
}

// entry visits one entry of a directory. name ends with a NUL.
func (w *walker) entry(dir *level, name []byte) error {
	if w.skip(w.path) {
		return w.visit.Skipped(dir, w.path, nil)
	}
	err := at.StatBytes(dir.fd, unsafe.SliceData(name), &w.stat)
	if err == syscall.ENOENT {
		return nil // the file was deleted after the directory was listed
	}
	if err != nil {
		return wire.Errorf(wire.CodeUnreadable, "%.300q: %v", w.path, err)
	}
	plain := unsafe.String(unsafe.SliceData(name), len(name)-1) // without the NUL, and without a copy, because the bytes never change
	if !isDirectory(w.stat.Mode) {
		return w.visit.File(dir, w.path, plain, &w.stat)
	}
	return w.enter(dir, plain)
}

func (w *walker) enter(dir *level, name string) error {
	fd, err := at.OpenDirectory(dir.fd, name)
	switch err {
	case nil:
	case syscall.EACCES, syscall.EPERM:
		stat := w.stat
		return w.visit.Skipped(dir, w.path, &stat)
	case syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP:
		return errReplaced
	default:
		return wire.Errorf(wire.CodeUnreadable, "%.300q: %v", w.path, err)
	}
	defer syscall.Close(fd)
	next := &level{parent: dir, fd: fd, path: bytes.Clone(w.path), depth: dir.depth + 1}
	if err := syscall.Fstat(fd, &next.stat); err != nil {
		return err
	}
	if next.stat.Ino != w.stat.Ino || next.stat.Dev != w.stat.Dev {
		return errReplaced
	}
	if next.depth > maxDepth {
		return errTooDeep
	}
	return w.directory(next)
}

// names has the names of files, each with a NUL at its end, in blocks that are never copied. A place is a block's index and an
// offset in the block.
type names struct {
	blocks [][]byte
	places []uint32
	bytes  int // size of the names in memory
}

const (
	blockBits     = 16
	maxBlock      = 1 << blockBits
	firstBlock    = 1 << 10
	bytesPerPlace = 4
)

// at returns the name at a place, including the NUL at its end.
func (n *names) at(place uint32) []byte {
	rest := n.from(place)
	return rest[:bytes.IndexByte(rest, 0)+1]
}

func (n *names) from(place uint32) []byte { return n.blocks[place>>blockBits][place%maxBlock:] }

// sort sorts by the bytes of the names. A NUL is less than all other bytes and no name occurs twice, so the bytes after a name do
// not matter.
func (n *names) sort() {
	slices.SortFunc(n.places, func(a, b uint32) int { return bytes.Compare(n.from(a), n.from(b)) })
}

func (n *names) append(name []byte) {
	last := len(n.blocks) - 1
	if last < 0 || cap(n.blocks[last])-len(n.blocks[last]) <= len(name) {
		size := firstBlock
		if last >= 0 {
			size = min(2*cap(n.blocks[last]), maxBlock)
		}
		n.blocks, last = append(n.blocks, make([]byte, 0, size)), last+1
		n.bytes += size
	}
	block := &n.blocks[last]
	n.places = append(n.places, uint32(last<<blockBits|len(*block)))
	n.bytes += bytesPerPlace
	*block = append(append(*block, name...), 0)
}

// names returns the sorted names in a directory. It adds the size of their memory to w.held.
func (w *walker) names(fd int) (*names, error) {
	found := &names{}
	for {
		n, err := syscall.ReadDirent(fd, w.dirents)
		if err == syscall.EINTR {
			continue
		}
		if err == syscall.ENOENT || err == nil && n <= 0 { // ENOENT if the directory was removed
			found.sort()
			w.held += found.bytes
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		found.add(w.dirents[:n])
		if len(found.places) > w.maxDir || w.held+found.bytes > maxNames {
			return nil, errTooMany
		}
	}
}

// add adds the names in records of the type struct linux_dirent64.
func (n *names) add(records []byte) {
	const nameOffset = unsafe.Offsetof(syscall.Dirent{}.Name)
	for len(records) > int(nameOffset) {
		record := (*syscall.Dirent)(unsafe.Pointer(unsafe.SliceData(records)))
		size := int(record.Reclen)
		name := records[nameOffset:size]
		name = name[:bytes.IndexByte(name, 0)]
		if record.Ino != 0 && string(name) != "." && string(name) != ".." {
			n.append(name)
		}
		records = records[size:]
	}
}
