// Removes directories of any depth, also while other processes change them.

package files

import (
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"time"

	"multistep.dev/runner/internal/trustedpaths"
)

const (
	maxRemoveDepth = 64 // deeper directories are moved up first, because a hostile user can nest a million of them
	removeAttempts = 5  // maximum number of attempts, because a background process may still create files
	listBatch      = 256
)

// removeTimeout is the maximum time to empty a directory, because processes can create files faster than they are removed. Only
// tests change it.
var removeTimeout = 10 * time.Minute

var errFilled = errors.New("it takes too long: it has too many files, or processes still create some")

// empty removes all contents of a directory.
func empty(root *os.Root) error {
	return attempts(root, func(r *remover) error { return r.contents(root, ".", 0) })
}

// removeAll removes name and, if it is a directory, its contents. It follows no links.
func removeAll(root *os.Root, name string) error {
	return attempts(root, func(r *remover) error { return r.remove(root, name, name, 0) })
}

// attempts calls the function first until a call succeeds, at most removeAttempts times, each time with a new remover.
func attempts(root *os.Root, first func(*remover) error) (err error) {
	until := time.Now().Add(removeTimeout)
	for range removeAttempts {
		remover := &remover{top: root, until: until}
		if err = remover.all(func() error { return first(remover) }); err == nil {
			return nil
		}
	}
	return err
}

type remover struct {
	top   *os.Root
	until time.Time
	moved []string // deep directories that were moved to the top and must still be removed
}

func (r *remover) all(first func() error) error {
	err := first()
	for err == nil && len(r.moved) > 0 {
		name := r.moved[len(r.moved)-1]
		r.moved = r.moved[:len(r.moved)-1]
		err = r.remove(r.top, name, name, 0)
	}
	return err
}

// remove removes name in parent. where is the path of name relative to the remover's top directory.
func (r *remover) remove(parent *os.Root, name, where string, depth int) error {
	err := parent.Remove(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	info, bad := parent.Lstat(name)
	if bad != nil || !info.IsDir() {
		return err
	}
	if depth > maxRemoveDepth {
		return r.moveUp(where)
	}
	directory, err := r.enter(parent, name, info)
	if err != nil {
		return err
	}
	defer directory.Close()
	if err := r.contents(directory, where, depth); err != nil {
		return err
	}
	return parent.Remove(name)
}

func (r *remover) enter(parent *os.Root, name string, info fs.FileInfo) (*os.Root, error) {
	if info.Mode().Perm()&0o700 != 0o700 && os.Getuid() != 0 { // the owner removed its own permissions
		if err := parent.Chmod(name, 0o700); err != nil {
			return nil, err
		}
	}
	return trustedpaths.Enter(parent, name, info)
}

func (r *remover) moveUp(where string) error {
	up := ".multistep-removed-" + rand.Text()
	if err := r.top.Rename(where, up); err != nil {
		return err
	}
	r.moved = append(r.moved, up)
	return nil
}

func (r *remover) contents(directory *os.Root, where string, depth int) error {
	for {
		if time.Now().After(r.until) {
			return errFilled
		}
		names, err := someNames(directory)
		if err != nil || len(names) == 0 {
			return err
		}
		for _, name := range names {
			if err := r.remove(directory, name, path.Join(where, name), depth+1); err != nil {
				return err
			}
		}
	}
}

// someNames returns at most listBatch names in a directory, and none only if it is empty.
func someNames(root *os.Root) ([]string, error) {
	directory, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer directory.Close()
	names, err := directory.Readdirnames(listBatch)
	if err == io.EOF {
		err = nil
	}
	return names, err
}
