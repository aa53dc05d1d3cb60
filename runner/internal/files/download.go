// Decides which sources a download may read, and sends them as a tar stream.

package files

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"syscall"
	"time"

	"multistep.dev/runner/internal/frames"
	"multistep.dev/runner/internal/trustedpaths"
	"multistep.dev/runner/internal/wire"
)

const (
	maxDepth  = 256  // maximum depth of directories, because tools cannot read arbitrarily deep ones
	maxListed = 1000 // maximum number of names in each list of the trailer
)

// Download sends files and directories as a tar stream. It keeps them open until Close.
type Download struct {
	sources    []source
	archive    *tar.Writer
	sent       []string // files of the current source for which only the tar header is sent
	changed    []string
	unreadable []string
	buffer     []byte
}

type source struct {
	kind    string
	file    *os.File
	root    *os.Root
	exclude []string
	sent    []string
	failed  bool
}

// OpenDownload opens the sources once, so that Types and Send use the same files. The caller must close the Download.
func OpenDownload(wanted []wire.Source) *Download {
	download := &Download{buffer: make([]byte, copyBytes)}
	for _, want := range wanted {
		source := openSource(want)
		source.sent = want.Sent
		download.sources = append(download.sources, source)
	}
	return download
}

// openSource opens a source, and follows all links in the path. If a user other than root and PID 1's owns one of the links, that
// user must be able to read the source. Otherwise an agent could submit files that are hidden from it, such as the expected answer.
// For a guest (a process of another container, package guests) without root, this process has the permissions of the guest's user.
func openSource(want wire.Source) source {
	opened := follow(want)
	if (opened.file == nil && opened.root == nil) || opened.isAllowed(want.Path) {
		return opened
	}
	opened.close()
	return source{kind: "other", failed: true}
}

// isAllowed returns whether the path still leads to the opened source, and whether a user who owns links in the path may read the
// source.
func (s source) isAllowed(name string) bool {
	info, err := s.stat()
	if err != nil {
		return false
	}
	now, stranger, err := trustedpaths.Resolve(name)
	if err != nil || !os.SameFile(info, now) {
		return false
	}
	return stranger == trustedpaths.NoStranger || trustedpaths.Owner(info) == stranger || (s.file != nil && trustedpaths.IsPublic(s.file, info))
}

func (s source) stat() (fs.FileInfo, error) {
	if s.file != nil {
		return s.file.Stat()
	}
	return s.root.Stat(".")
}

func (s source) close() {
	if s.file != nil {
		s.file.Close()
	}
	if s.root != nil {
		s.root.Close()
	}
}

func follow(want wire.Source) source {
	info, err := os.Stat(want.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ELOOP):
		return source{kind: "missing"}
	case err != nil:
		return source{kind: "other", failed: true}
	case info.IsDir():
		root, err := os.OpenRoot(want.Path)
		return source{kind: "directory", root: root, exclude: want.Exclude, failed: err != nil}
	case !info.Mode().IsRegular():
		return source{kind: "other"}
	}
	file, err := os.OpenFile(want.Path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return source{kind: "file", failed: true}
	}
	if now, err := file.Stat(); err != nil || !now.Mode().IsRegular() {
		file.Close()
		return source{kind: "other"}
	}
	return source{kind: "file", file: file}
}

// Types returns the type of each source.
func (d *Download) Types() []wire.SourceType {
	types := make([]wire.SourceType, len(d.sources))
	for i, source := range d.sources {
		types[i].Type = source.kind
	}
	return types
}

// Close closes the sources.
func (d *Download) Close() {
	for _, source := range d.sources {
		source.close()
	}
}

// Send writes the tar stream. It returns an error only if writing fails. The trailer lists unreadable and changed files.
func (d *Download) Send(stream io.Writer) (frames.Trailer, error) {
	d.archive = tar.NewWriter(stream)
	for i, source := range d.sources {
		if err := d.sendSource(strconv.Itoa(i), source); err != nil {
			return frames.Trailer{}, err
		}
	}
	err := d.archive.Close()
	return frames.Trailer{Changed: d.changed, Unreadable: d.unreadable}, err
}

func (d *Download) sendSource(name string, source source) error {
	switch {
	case source.failed:
		d.unreadable = list(d.unreadable, name)
	case source.file != nil:
		return d.sendFile(name, source.file, slices.Contains(source.sent, ""))
	case source.root != nil:
		d.sent = source.sent
		return d.sendDirectory(directory{source.root, name, "", source.exclude, 0})
	}
	return nil
}

// directory is a directory of a source. member is its name in the archive, and rel is its path in the source.
type directory struct {
	root    *os.Root
	member  string
	rel     string
	exclude []string
	depth   int
}

func (d *Download) sendDirectory(dir directory) error {
	opened, err := dir.root.Open(".")
	if err != nil {
		d.unreadable = list(d.unreadable, dir.member)
		return nil
	}
	defer opened.Close()
	if info, err := opened.Stat(); err == nil {
		if err := d.header(dir.member+"/", tar.TypeDir, info, "", 0); err != nil {
			return err
		}
	}
	for {
		entries, err := opened.ReadDir(listBatch)
		for _, entry := range entries {
			if err := d.sendEntry(dir, entry.Name()); err != nil {
				return err
			}
		}
		if err != nil || len(entries) == 0 {
			if err != nil && err != io.EOF {
				d.unreadable = list(d.unreadable, dir.member)
			}
			return nil
		}
	}
}

func (d *Download) sendEntry(dir directory, name string) error {
	rel, member := path.Join(dir.rel, name), dir.member+"/"+name
	if Excluded(rel, dir.exclude) {
		return nil
	}
	info, err := dir.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // the file was deleted after the directory was listed
	case err == nil && info.IsDir():
		return d.enter(directory{dir.root, member, rel, dir.exclude, dir.depth + 1}, name, info)
	case err == nil && info.Mode().IsRegular():
		file, _, err := trustedpaths.OpenRegular(dir.root, name)
		if err == nil {
			defer file.Close()
			return d.sendFile(member, file, slices.Contains(d.sent, rel))
		}
	case err == nil && info.Mode()&fs.ModeSymlink != 0:
		leadsTo, err := dir.root.Readlink(name)
		if err == nil {
			return d.header(member, tar.TypeSymlink, info, leadsTo, 0)
		}
	case err == nil:
		return nil // leaves out sockets, FIFOs and devices
	}
	d.unreadable = list(d.unreadable, member)
	return nil
}

func (d *Download) enter(dir directory, name string, info fs.FileInfo) error {
	root, err := trustedpaths.Enter(dir.root, name, info)
	if err != nil {
		d.unreadable = list(d.unreadable, dir.member)
		return nil
	}
	defer root.Close()
	if dir.depth > maxDepth {
		d.unreadable = list(d.unreadable, dir.member)
		return nil
	}
	dir.root = root
	return d.sendDirectory(dir)
}

// sendFile sends the file with the size that it has when sending starts. If the file then shrinks, zeros replace the missing bytes.
// If sent is set, the operator already has the contents, so sendFile sends only the tar header.
func (d *Download) sendFile(member string, file *os.File, sent bool) error {
	info, err := file.Stat()
	if err != nil {
		d.unreadable = list(d.unreadable, member)
		return nil
	}
	left := info.Size()
	if sent {
		left = 0
	}
	if err := d.header(member, tar.TypeReg, info, "", left); err != nil {
		return err
	}
	for left > 0 {
		n, err := file.Read(d.buffer[:min(int64(len(d.buffer)), left)])
		if n == 0 || err != nil {
			break
		}
		if _, err := d.archive.Write(d.buffer[:n]); err != nil {
			return err
		}
		left -= int64(n)
	}
	if left > 0 || !sent && changedSince(info, file) {
		d.changed = list(d.changed, member)
	}
	return d.pad(left)
}

func (d *Download) pad(left int64) error {
	clear(d.buffer[:min(int64(len(d.buffer)), left)])
	for left > 0 {
		n, err := d.archive.Write(d.buffer[:min(int64(len(d.buffer)), left)])
		if err != nil {
			return err
		}
		left -= int64(n)
	}
	return nil
}

func (d *Download) header(member string, kind byte, info fs.FileInfo, leadsTo string, size int64) error {
	header := &tar.Header{
		Typeflag: kind, Name: member, Linkname: leadsTo, Size: size, Mode: unixMode(info.Mode()),
		ModTime: info.ModTime().Truncate(time.Second), // a time with a fraction would need an extra header of a kilobyte for each file
		Format:  tar.FormatPAX,
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		header.Uid, header.Gid = int(stat.Uid), int(stat.Gid)
	}
	return d.archive.WriteHeader(header)
}

func list(names []string, name string) []string {
	if len(names) < maxListed {
		names = append(names, wire.Cut(name, 4096))
	}
	return names
}
