package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
)

const (
	maxRemoveDepth = 64 // deeper directories are moved up first: somebody may have nested a million of them
	removeAttempts = 5  // somebody may go on making files
	listBatch      = 256
)

// empty removes all contents of a directory.
func empty(root *os.Root) (err error) {
	for range removeAttempts {
		remover := remover{root: root}
		if err = remover.contents(".", 0); err == nil {
			return nil
		}
	}
	return err
}

// removeAll removes name, whatever it is; links themselves, not what they lead to.
func removeAll(root *os.Root, name string) (err error) {
	for range removeAttempts {
		remover := remover{root: root}
		if err = remover.remove(name, 0); err == nil {
			return nil
		}
	}
	return err
}

type remover struct {
	root  *os.Root
	moved int
}

func (r *remover) remove(name string, depth int) error {
	err := r.root.Remove(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if info, bad := r.root.Lstat(name); bad != nil || !info.IsDir() {
		return err
	}
	if depth > maxRemoveDepth {
		return r.moveUp(name)
	}
	if err := r.contents(name, depth); err != nil {
		return err
	}
	return r.root.Remove(name)
}

// moveUp takes a deep directory to the top and removes it from there.
func (r *remover) moveUp(name string) error {
	r.moved++
	up := fmt.Sprintf(".multistep-removed-%d", r.moved)
	if err := r.root.Rename(name, up); err != nil {
		return err
	}
	return r.remove(up, 0)
}

func (r *remover) contents(name string, depth int) error {
	for {
		names, err := r.list(name)
		if err != nil || len(names) == 0 {
			return err
		}
		for _, child := range names {
			if err := r.remove(path.Join(name, child), depth+1); err != nil {
				return err
			}
		}
	}
}

// list is some of what is in a directory.
func (r *remover) list(name string) ([]string, error) {
	directory, err := r.root.Open(name)
	if errors.Is(err, fs.ErrPermission) { // not root, and the owner took its own rights away
		if err := r.root.Chmod(name, 0o700); err != nil {
			return nil, err
		}
		directory, err = r.root.Open(name)
	}
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
