package restore

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"multistep.dev/runner/internal/at"
	"multistep.dev/runner/internal/checkpoint"
	"multistep.dev/runner/internal/manifest"
	"multistep.dev/runner/internal/wire"
)

// increment is a checkpoint as an operator stores it.
type increment struct {
	checkpoint.Packed
	files, lines []byte // compressed tar stream and compressed manifest
}

// pod is a directory that stands for a container's filesystem, with a list of its files.
type pod struct {
	t       *testing.T
	root    string
	tracker *checkpoint.Tracker
}

// start returns a pod whose image is a copy of the directory; "" is an empty image.
func start(t *testing.T, image string) *pod {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	if image == "" {
		must(t, os.Mkdir(root, 0o755))
	} else if output, err := exec.Command("cp", "-a", image, root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	p := &pod{t: t, root: root}
	p.waitForCtimeTick()
	p.tracker = checkpoint.Track(root, nil)
	p.tracker.Wait()
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// waitForCtimeTick waits until all files are so old that a list does not count them as changed.
func (p *pod) waitForCtimeTick() {
	p.t.Helper()
	newest := time.Time{}
	filepath.WalkDir(p.root, func(_ string, entry fs.DirEntry, err error) error {
		if info, bad := entry.Info(); err == nil && bad == nil {
			if changed := time.Unix(info.Sys().(*syscall.Stat_t).Ctim.Unix()); changed.After(newest) {
				newest = changed
			}
		}
		return nil
	})
	for time.Since(newest) < 60*time.Millisecond {
		time.Sleep(time.Millisecond)
	}
}

func request(change ...func(*wire.Checkpoint)) wire.Checkpoint {
	request := wire.NewCheckpoint()
	for _, each := range change {
		each(&request)
	}
	return request
}

func full(request *wire.Checkpoint) { request.Full = true }

func (p *pod) pack(change ...func(*wire.Checkpoint)) (increment, error) {
	var files, lines bytes.Buffer
	zip := gzip.NewWriter(&lines)
	packed, err := p.tracker.Pack(context.Background(), request(change...), &files, zip)
	err = errors.Join(err, zip.Close())
	return increment{packed, files.Bytes(), lines.Bytes()}, err
}

// checkpoint packs and commits an increment.
func (p *pod) checkpoint(change ...func(*wire.Checkpoint)) increment {
	p.t.Helper()
	p.waitForCtimeTick()
	made, err := p.pack(change...)
	must(p.t, err)
	if refusal := p.tracker.Commit(made.Manifest); refusal != nil {
		p.t.Fatal(refusal)
	}
	return made
}

// restore applies increments as a session does.
func (p *pod) restore(chain []increment, paths ...string) (wire.RestoreResult, error) {
	return p.restoreContext(context.Background(), chain, paths...)
}

func (p *pod) restoreContext(ctx context.Context, chain []increment, paths ...string) (wire.RestoreResult, error) {
	p.t.Helper()
	restorer, err := New(Options{Root: p.root, Spool: p.t.TempDir(), Paths: paths}, wire.NewRestore().CheckpointLimits)
	must(p.t, err)
	defer restorer.Close()
	for _, each := range chain {
		if err := restorer.Manifest(ctx, bytes.NewReader(each.lines), each.Manifest); err != nil {
			return restorer.Result, err
		}
		if err := restorer.Apply(ctx, bytes.NewReader(each.files)); err != nil {
			return restorer.Result, err
		}
	}
	if len(paths) == 0 {
		must(p.t, p.tracker.Restored(ctx, restorer.Result.Manifest))
	}
	return restorer.Result, nil
}

func (p *pod) path(name string) string { return filepath.Join(p.root, name) }

func (p *pod) write(name, text string) {
	p.t.Helper()
	must(p.t, os.MkdirAll(filepath.Dir(p.path(name)), 0o755))
	must(p.t, os.WriteFile(p.path(name), []byte(text), 0o644))
}

// entries returns the manifest's entries.
func (i increment) entries(t *testing.T) map[string]*manifest.Entry {
	t.Helper()
	plain, err := gzip.NewReader(bytes.NewReader(i.lines))
	must(t, err)
	lines, err := manifest.NewReader(plain)
	must(t, err)
	found := map[string]*manifest.Entry{}
	for {
		entry, err := lines.Next()
		if err != nil {
			return found
		}
		found[string(entry.Path)] = entry
	}
}

// changes returns the paths in the manifest, except unchanged directories. Deleted ones start with a minus.
func (i increment) changes(t *testing.T) []string {
	t.Helper()
	var changed []string
	for path, entry := range i.entries(t) {
		switch {
		case entry.Type == manifest.Deleted:
			changed = append(changed, "-"+path)
		case !entry.Unchanged:
			changed = append(changed, path)
		}
	}
	slices.Sort(changed)
	return changed
}

// tree describes all files below a directory, with every attribute that a restore must restore.
func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	found, names := map[string]string{}, map[inode]string{}
	must(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		if stat.Mode&syscall.S_IFMT == syscall.S_IFSOCK {
			return nil
		}
		rel, _ := filepath.Rel(root, path)
		line := fmt.Sprintf("%o %d:%d %d", stat.Mode, stat.Uid, stat.Gid, info.ModTime().UnixNano())
		switch stat.Mode & syscall.S_IFMT {
		case syscall.S_IFREG:
			key := inode{stat.Dev, stat.Ino}
			if first, known := names[key]; known {
				line += " is " + first
			} else if stat.Nlink > 1 {
				names[key] = rel
			}
			line += content(t, path, info.Size())
		case syscall.S_IFLNK:
			target, _ := os.Readlink(path)
			line += " -> " + target
		case syscall.S_IFCHR, syscall.S_IFBLK:
			line += fmt.Sprint(" device ", stat.Rdev)
		case syscall.S_IFDIR:
			line += attributes(t, path)
		}
		found[rel] = line
		return nil
	}))
	return found
}

func content(t *testing.T, path string, size int64) string {
	t.Helper()
	text := fmt.Sprintf(" %d bytes", size)
	if size < 1<<30 {
		bytes, err := os.ReadFile(path)
		must(t, err)
		sum := sha256.Sum256(bytes)
		text += " " + hex.EncodeToString(sum[:8])
	}
	return text + attributes(t, path)
}

func attributes(t *testing.T, path string) string {
	t.Helper()
	file, err := os.Open(path)
	must(t, err)
	defer file.Close()
	found, err := at.Xattrs(int(file.Fd()), 1<<20)
	must(t, err)
	text := ""
	for _, name := range slices.Sorted(maps.Keys(found)) {
		text += fmt.Sprintf(" %s=%x", name, found[name])
	}
	return text
}

// same fails the test unless two trees are equal.
func same(t *testing.T, what string, wanted, got map[string]string) {
	t.Helper()
	var differences []string
	for path, line := range wanted {
		if got[path] != line {
			differences = append(differences, fmt.Sprintf("%q\n  wanted %q\n  got    %q", path, line, got[path]))
		}
	}
	for path, line := range got {
		if _, known := wanted[path]; !known {
			differences = append(differences, fmt.Sprintf("%q is too much: %q", path, line))
		}
	}
	if len(differences) > 0 {
		slices.Sort(differences)
		t.Fatalf("%s:\n%s", what, strings.Join(differences[:min(len(differences), 10)], "\n"))
	}
}
