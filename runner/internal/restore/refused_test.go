package restore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"multistep.dev/runner/internal/at"
	"multistep.dev/runner/internal/checkpoint"
	"multistep.dev/runner/internal/manifest"
	"multistep.dev/runner/internal/wire"
)

func TestWhatAnotherContainerMightRejectIsNotPacked(t *testing.T) {
	for what, each := range map[string]struct {
		create func(p *pod)
		path   string // path that the error message must contain
		code   string
	}{
		"large attributes": {func(p *pod) {
			p.write("x", "x")
			p.attribute("x", "user.large", make([]byte, 3600))
		}, "/x", wire.CodeUnusual},
		"many attributes": {func(p *pod) {
			must(p.t, os.Mkdir(p.path("d"), 0o755))
			for i := range 100 {
				p.attribute("d", fmt.Sprintf("user.%03d", i), make([]byte, 15))
			}
		}, "/d", wire.CodeUnusual},
		"a huge file": {func(p *pod) {
			p.write("x", "x")
			must(p.t, os.Truncate(p.path("x"), 9<<40))
		}, "/x", wire.CodeTooLarge},
		"many names": {func(p *pod) {
			p.write("first", "x")
			must(p.t, os.Mkdir(p.path("names"), 0o755))
			for i := range 60_001 {
				must(p.t, os.Link(p.path("first"), p.path(fmt.Sprintf("names/%05d", i))))
			}
		}, "/first", wire.CodeTooLarge},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := start(t, "")
			each.create(p)
			_, err := p.pack()
			var refusal *wire.Error
			if !errors.As(err, &refusal) || refusal.Code != each.code || !strings.Contains(refusal.Message, fmt.Sprintf("%q", each.path)) {
				t.Error(err)
			}
		})
	}
}

func (p *pod) attribute(name, attribute string, value []byte) {
	p.t.Helper()
	fd, err := at.OpenRead(-100, p.path(name))
	must(p.t, err)
	defer syscall.Close(fd)
	must(p.t, at.SetXattr(fd, attribute, value))
}

func TestDeepDirectoriesAreRestoredUpToTheLimitAndRefusedBeyond(t *testing.T) {
	p := start(t, "")
	fd, err := syscall.Open(p.root, syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	must(t, err)
	name := strings.Repeat("d", 30)
	deeper := func() {
		must(t, syscall.Mkdirat(fd, name, 0o755))
		next, err := at.OpenDirectory(fd, name)
		must(t, err)
		syscall.Close(fd)
		fd = next
	}
	for range 800 {
		deeper()
	}
	made := p.checkpoint()
	target := start(t, "")
	result, err := target.restore([]increment{made})
	must(t, err)
	if result.Entries != 801 {
		t.Error(result)
	}
	deeper()
	syscall.Close(fd)
	var refusal *wire.Error
	if _, err := p.pack(); !errors.As(err, &refusal) || refusal.Code != wire.CodeUnusual {
		t.Error(err)
	}
	for _, each := range []*pod{p, target} { // the test's cleanup (os.RemoveAll) cannot remove the deep directories
		top, err := syscall.Open(each.root, syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
		must(t, err)
		must(t, remove(context.Background(), top, name))
		syscall.Close(top)
	}
}

func TestARestoreAcceptsWhatWasPackedWithTheSameLimits(t *testing.T) {
	image := start(t, "")
	image.write("gone", "x")
	p := start(t, image.root)
	for i := range 50 {
		p.write(fmt.Sprintf("%02d", i), strings.Repeat("x", i*100))
	}
	must(t, os.Remove(p.path("gone")))
	must(t, os.Link(p.path("10"), p.path("link")))
	p.waitForCtimeTick()
	made, err := p.pack()
	must(t, err)
	lines := int64(0)
	for _, entry := range made.entries(t) {
		var line bytes.Buffer
		writer, err := manifest.NewWriter(&line, manifest.Header{})
		must(t, err)
		header := writer.Bytes()
		must(t, writer.Add(entry))
		lines += writer.Bytes() - header
	}
	limits := wire.CheckpointLimits{MaxFiles: made.Entries, MaxBytes: made.Bytes + lines, MaxPackedBytes: made.PackedBytes, MaxSeconds: 60}
	made, err = p.pack(func(request *wire.Checkpoint) { request.CheckpointLimits = limits })
	must(t, err)
	for _, smaller := range []wire.CheckpointLimits{
		{MaxFiles: limits.MaxFiles - 1, MaxBytes: limits.MaxBytes, MaxPackedBytes: limits.MaxPackedBytes},
		{MaxFiles: limits.MaxFiles, MaxBytes: limits.MaxBytes - 1, MaxPackedBytes: limits.MaxPackedBytes},
		{MaxFiles: limits.MaxFiles, MaxBytes: limits.MaxBytes, MaxPackedBytes: limits.MaxPackedBytes - 1},
	} {
		if _, err := p.pack(func(request *wire.Checkpoint) { request.CheckpointLimits = smaller }); err == nil {
			t.Error("not the smallest limits:", smaller)
		}
	}
	target := start(t, image.root)
	restorer, err := New(Options{Root: target.root, Spool: t.TempDir()}, limits)
	must(t, err)
	defer restorer.Close()
	must(t, restorer.Manifest(context.Background(), bytes.NewReader(made.lines), made.Manifest))
	must(t, restorer.Apply(context.Background(), bytes.NewReader(made.files)))
	same(t, "the smallest limits", tree(t, p.root), tree(t, target.root))
}

func TestAnExcludedDirectoryThatWasRemovedIsNotDeleted(t *testing.T) {
	image := start(t, "")
	for _, name := range []string{"app/cache/x", "app/cache/y/z", "app/keep", "zone/x"} {
		image.write(name, name)
	}
	p := start(t, image.root)
	must(t, os.RemoveAll(p.path("app/cache")))
	must(t, os.RemoveAll(p.path("zone")))
	exclude := func(request *wire.Checkpoint) { request.Exclude = []string{"/app/cache/"} }
	if got := p.checkpoint(exclude).changes(t); strings.Join(got, " ") != "-/zone / /app" {
		t.Error(got)
	}
	if got := p.checkpoint().changes(t); strings.Join(got, " ") != "-/app/cache" {
		t.Error("a later increment without the pattern:", got)
	}
}

// blocks returns the number of allocated bytes of a file.
func blocks(t *testing.T, path string) int64 {
	t.Helper()
	var stat syscall.Stat_t
	must(t, syscall.Lstat(path, &stat))
	return stat.Blocks * 512
}

func TestARestoreNeedsNoMoreSpaceForFilesWithHoles(t *testing.T) {
	source := start(t, "")
	scattered, err := os.Create(source.path("scattered"))
	must(t, err)
	for i := range int64(9000) { // more parts than a manifest lists
		_, err := scattered.WriteAt([]byte("x"), i*3*4096)
		must(t, err)
	}
	must(t, scattered.Truncate(9001*3*4096))
	must(t, scattered.Close())
	for i := range 20 {
		small, err := os.Create(source.path(fmt.Sprint("small", i)))
		must(t, err)
		_, err = small.WriteAt([]byte("x"), 50_000)
		must(t, err)
		must(t, small.Close())
	}
	made := source.checkpoint()
	target := start(t, "")
	_, err = target.restore([]increment{made})
	must(t, err)
	same(t, "files with holes", tree(t, source.root), tree(t, target.root))
	for _, name := range []string{"scattered", "small0", "small19"} {
		if before, now := blocks(t, source.path(name)), blocks(t, target.path(name)); now > before+64<<10 {
			t.Errorf("%s had %d bytes, and has %d", name, before, now)
		}
	}
}

func TestARestoreNeedsNoMoreSpaceThanTheContainerHad(t *testing.T) {
	large := strings.Repeat("0123456789abcdef", 8<<20/16)
	source := start(t, "")
	source.write("d/x", large)
	must(t, os.Link(source.path("d/x"), source.path("y")))
	source.write("z", large)
	first := source.checkpoint()
	must(t, os.Rename(source.path("d"), source.path("b"))) // d/x becomes b/x; y, the other name of the same file, stays
	must(t, os.Rename(source.path("z"), source.path("a")))
	second := source.checkpoint()
	must(t, os.WriteFile(source.path("b/x"), nil, 0o644))
	source.write("a0", large)
	third := source.checkpoint()
	disk := t.TempDir()
	must(t, syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=18m"))
	defer syscall.Unmount(disk, 0)
	target := &pod{t: t, root: filepath.Join(disk, "root")}
	must(t, os.Mkdir(target.root, 0o755))
	target.tracker = checkpoint.Track(target.root, nil)
	_, err := target.restore([]increment{first, second, third})
	must(t, err)
	same(t, "a small disk", tree(t, source.root), tree(t, target.root))
}

func TestNoManifestDeletesTheRunnersDirectory(t *testing.T) {
	for what, each := range map[string]struct {
		entries []*manifest.Entry
		paths   []string
	}{
		"deleted":                {[]*manifest.Entry{directory("/"), {Path: "/run", Type: manifest.Deleted}}, nil},
		"a file":                 {[]*manifest.Entry{directory("/"), file("/run", "evil")}, nil},
		"a symlink":              {[]*manifest.Entry{directory("/"), symlink("/run", "/tmp")}, nil},
		"with the path":          {[]*manifest.Entry{directory("/"), symlink("/run", "/tmp")}, []string{"/run"}},
		"above one of the paths": {[]*manifest.Entry{directory("/"), {Path: "/var", Type: manifest.Deleted}}, []string{"/var/run"}},
	} {
		target := start(t, "")
		target.write("run/multistep/own", "own")
		target.write("var/run/multistep/own", "own")
		own := []string{target.path("run/multistep"), target.path("var/run/multistep")}
		made := forged(t, each.entries...)
		restorer, err := New(Options{Root: target.root, Spool: t.TempDir(), Own: own, Paths: each.paths}, wire.NewRestore().CheckpointLimits)
		must(t, err)
		must(t, restorer.Manifest(context.Background(), bytes.NewReader(made.lines), made.Manifest))
		err = restorer.Apply(context.Background(), bytes.NewReader(made.files))
		var refusal *wire.Error
		if !errors.As(err, &refusal) || refusal.Code != wire.CodeRestore {
			t.Error(what, err)
		}
		for _, name := range []string{"run/multistep/own", "var/run/multistep/own"} {
			if text, err := os.ReadFile(target.path(name)); err != nil || string(text) != "own" {
				t.Error(what, err)
			}
		}
		restorer.Close()
	}
}
