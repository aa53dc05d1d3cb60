// Reads the container's files, follows links within its root, and stops at the timeout.

package inspect

import (
	"context"
	"errors"
	"hash/fnv"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

const (
	maxNames = 50_000 // maximum number of names to read from a directory
	maxLinks = 40     // maximum number of links in a path, as in the kernel
)

// tree is the container's filesystem. Its paths are absolute, and links are followed within root. It reads nothing after the
// end of ctx.
type tree struct {
	root string
	ctx  context.Context
}

func (t tree) lstat(file string) (stat syscall.Stat_t, err error) {
	if err := t.ctx.Err(); err != nil {
		return stat, err
	}
	return stat, syscall.Lstat(t.root+file, &stat)
}

// names returns the names in a directory, in no order. It returns none if it cannot read the directory.
func (t tree) names(directory string) []string {
	if t.ctx.Err() != nil {
		return nil
	}
	opened, err := os.OpenFile(t.root+directory, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer opened.Close()
	names, _ := opened.Readdirnames(maxNames)
	return names
}

// resolve returns the path of the file that a path leads to, without links.
func (t tree) resolve(file string) (string, error) {
	final, rest, links := "/", strings.Split(file, "/"), 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			final = path.Dir(final)
			continue
		}
		next := path.Join(final, name)
		stat, err := t.lstat(next)
		if err != nil {
			return "", err
		}
		if stat.Mode&syscall.S_IFMT != syscall.S_IFLNK {
			final = next
			continue
		}
		if links++; links > maxLinks {
			return "", syscall.ELOOP
		}
		target, err := os.Readlink(t.root + next)
		if err != nil {
			return "", err
		}
		if strings.HasPrefix(target, "/") {
			final = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return final, nil
}

// open opens a regular file for reading. It cannot block.
func (t tree) open(file string) (*os.File, error) {
	opened, err := os.OpenFile(t.root+file, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	if info, err := opened.Stat(); err != nil || !info.Mode().IsRegular() {
		opened.Close()
		return nil, errors.Join(err, syscall.EINVAL)
	}
	return opened, nil
}

// read returns the first limit bytes of a regular file. It returns none if it cannot read the file.
func (t tree) read(file string, limit int64) []byte {
	final, err := t.resolve(file)
	if err != nil {
		return nil
	}
	opened, err := t.open(final)
	if err != nil {
		return nil
	}
	defer opened.Close()
	content, _ := io.ReadAll(io.LimitReader(opened, limit))
	return content
}

var errTooMany = errors.New("too many files")

// walk calls visit for each file and directory below a directory. It follows no links. If the directory itself is a link, it calls
// visit only for the link.
func (t tree) walk(directory string, limit int, visit func(file string, stat *syscall.Stat_t)) error {
	if stat, err := t.lstat(directory); err == nil && stat.Mode&syscall.S_IFMT == syscall.S_IFLNK {
		visit(directory, &stat)
		return nil
	}
	pending := []string{directory}
	for len(pending) > 0 {
		here := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		for _, name := range t.names(here) {
			if limit--; limit < 0 {
				return errTooMany
			}
			file := path.Join(here, name)
			stat, err := t.lstat(file)
			if err != nil {
				continue
			}
			visit(file, &stat)
			if stat.Mode&syscall.S_IFMT == syscall.S_IFDIR {
				pending = append(pending, file)
			}
		}
	}
	return t.ctx.Err()
}

// pathSet is a set of paths. It stores only hashes, 8 bytes for each path.
type pathSet struct{ keys []uint64 }

func (s *pathSet) add(file string) { s.keys = append(s.keys, hashed(file)) }

// finish sorts the set. It must be called after the last add and before has.
func (s *pathSet) finish() {
	slices.Sort(s.keys)
	s.keys = slices.Clip(slices.Compact(s.keys))
}

func (s *pathSet) has(file string) bool {
	_, found := slices.BinarySearch(s.keys, hashed(file))
	return found
}

func hashed(file string) uint64 {
	hash := fnv.New64a()
	hash.Write([]byte(file))
	return hash.Sum64()
}
