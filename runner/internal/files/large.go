// Finds large files in the sources of a download, which can then be sent to the object store.

package files

import (
	"fmt"
	"os"
	"path"
	"strconv"
	"syscall"
	"time"
	"unicode/utf8"

	"multistep.dev/runner/internal/trustedpaths"
	"multistep.dev/runner/internal/wire"
)

const (
	sampleBytes = 8192 // a NUL among the first bytes marks a file as binary
	maxName     = 512  // maximum bytes of a path, because a record contains the paths
)

// searchTimeout is the maximum duration of Large. Only tests change it. It is less than the minute for which the caller waits.
var searchTimeout = 30 * time.Second

// Large returns the regular files of at least `least` bytes that a download of the sources would send, at most limit files. If
// there are too many files to search in time, it returns those that it found.
func Large(wanted []wire.Source, least int64, limit int) []wire.LargeFile {
	found := &large{least: least, limit: limit, until: time.Now().Add(searchTimeout), files: []wire.LargeFile{}}
	for index, want := range wanted {
		source := openSource(want)
		switch {
		case source.file != nil:
			if info, err := source.file.Stat(); err == nil {
				found.add(index, "", info.Size(), source.file)
			}
			source.file.Close()
		case source.root != nil:
			found.directory(index, directory{source.root, strconv.Itoa(index), "", source.exclude, 0})
			source.root.Close()
		}
	}
	return found.files
}

type large struct {
	least int64
	limit int
	until time.Time
	files []wire.LargeFile
}

func (l *large) directory(index int, dir directory) {
	opened, err := dir.root.Open(".")
	if err != nil || dir.depth > maxDepth {
		return
	}
	defer opened.Close()
	for len(l.files) < l.limit && time.Now().Before(l.until) {
		entries, err := opened.ReadDir(listBatch)
		for _, entry := range entries {
			l.entry(index, dir, entry.Name())
		}
		if err != nil || len(entries) == 0 {
			return
		}
	}
}

func (l *large) entry(index int, dir directory, name string) {
	rel := path.Join(dir.rel, name)
	info, err := dir.root.Lstat(name)
	if err != nil || Excluded(rel, dir.exclude) {
		return
	}
	if info.IsDir() {
		if root, err := trustedpaths.Enter(dir.root, name, info); err == nil {
			defer root.Close()
			l.directory(index, directory{root, "", rel, dir.exclude, dir.depth + 1})
		}
		return
	}
	if !info.Mode().IsRegular() || info.Size() < l.least {
		return
	}
	if file, _, err := trustedpaths.OpenRegular(dir.root, name); err == nil {
		defer file.Close()
		l.add(index, rel, info.Size(), file)
	}
}

func (l *large) add(index int, rel string, size int64, file *os.File) {
	if size < l.least || len(l.files) >= l.limit || len(rel) > maxName || !utf8.ValidString(rel) {
		return
	}
	sample := make([]byte, sampleBytes)
	n, _ := file.ReadAt(sample, 0)
	binary := false
	for _, each := range sample[:n] {
		binary = binary || each == 0
	}
	l.files = append(l.files, wire.LargeFile{Source: index, Path: rel, Size: size, Binary: binary})
}

// OpenOne opens a regular file by its path relative to a source. "" opens the source itself.
func OpenOne(source, rel string) (*os.File, error) {
	opened := openSource(wire.Source{Path: source})
	if rel == "" {
		if opened.file == nil {
			opened.close()
			return nil, fmt.Errorf("%q is not a regular file", source)
		}
		return opened.file, nil
	}
	if opened.root == nil {
		opened.close()
		return nil, fmt.Errorf("%q is not a directory", source)
	}
	defer opened.root.Close()
	file, err := opened.root.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		file.Close()
		return nil, fmt.Errorf("%q is not a regular file", rel)
	}
	return file, nil
}
