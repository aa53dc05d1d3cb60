// Fills a service's volumes with files of the task and of the image.

package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// unpack writes the files of a tar.gz, which is base64 in one or more arguments, into a directory. They are the task's files that
// services mount, and are in the pod's manifest. The kubelet may run the container again after a crash, so the directory may
// already contain some of the files.
func unpack(args []string) error {
	if len(args) < 2 {
		return errors.New("unpack takes a directory and a tar.gz in base64")
	}
	root, err := os.OpenRoot(args[0])
	if err != nil {
		return err
	}
	defer root.Close()
	unzipped, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(strings.Join(args[1:], ""))))
	if err != nil {
		return err
	}
	for stream := tar.NewReader(unzipped); ; {
		header, err := stream.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = place(root, header, stream)
		}
		if err != nil {
			return err
		}
	}
}

func place(root *os.Root, header *tar.Header, content io.Reader) error {
	name, mode := strings.TrimSuffix(header.Name, "/"), header.FileInfo().Mode().Perm()
	switch header.Typeflag {
	case tar.TypeDir:
		if err := root.MkdirAll(name, 0o755); err != nil {
			return err
		}
		return root.Chmod(name, mode|0o555) // a service may run as any user, who must be able to read the directory
	case tar.TypeSymlink:
		root.Remove(name)
		return root.Symlink(header.Linkname, name)
	}
	file, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Chmod(mode), file.Close())
}

// populate copies directories of the image into new volumes, with owners and permissions, as Docker does when a volume is mounted
// for the first time. args has pairs of a source, which need not exist, and a target.
func populate(args []string) error {
	if len(args)%2 != 0 {
		return errors.New("populate takes pairs of a source and a target directory")
	}
	for ; len(args) > 0; args = args[2:] {
		if err := copyOwned(args[0], args[1]); err != nil {
			return err
		}
	}
	return nil
}

func copyOwned(source, target string) error {
	if info, err := os.Stat(source); errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return nil
	}
	type directory struct {
		path string
		info fs.FileInfo
	}
	var directories []directory
	err := filepath.WalkDir(filepath.Clean(source)+"/", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		below, err := filepath.Rel(source, path)
		if err != nil {
			return err
		}
		to := filepath.Join(target, below)
		if entry.IsDir() {
			directories = append(directories, directory{to, info})
			return os.MkdirAll(to, 0o755)
		}
		return copyEntry(path, to, info)
	})
	// Owners and modes are set after the contents were copied, because the modes may not permit writes.
	for _, each := range directories {
		err = errors.Join(err, own(each.path, each.info))
	}
	return err
}

func copyEntry(path, to string, info fs.FileInfo) error {
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		link, err := os.Readlink(path)
		if err != nil {
			return err
		}
		if err := os.Symlink(link, to); err != nil {
			return err
		}
	case info.Mode().IsRegular():
		if err := copyContent(path, to); err != nil {
			return err
		}
	default:
		return nil // sockets, FIFOs and devices have no content
	}
	return own(to, info)
}

func copyContent(path, to string) error {
	source, err := os.Open(path)
	if err != nil {
		return err
	}
	defer source.Close()
	file, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, source)
	return errors.Join(err, file.Close())
}

// own sets the owner and permissions that info has.
func own(path string, info fs.FileInfo) error {
	status := info.Sys().(*syscall.Stat_t)
	if err := os.Lchown(path, int(status.Uid), int(status.Gid)); err != nil || info.Mode()&fs.ModeSymlink != 0 {
		return err
	}
	return os.Chmod(path, info.Mode()&(fs.ModePerm|fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky))
}
