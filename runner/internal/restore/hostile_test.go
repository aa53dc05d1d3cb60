package restore

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"multistep.dev/runner/internal/manifest"
	"multistep.dev/runner/internal/wire"
)

func digestOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

func directory(path string) *manifest.Entry {
	return &manifest.Entry{Path: manifest.Text(path), Type: manifest.Directory, Mode: 0o755}
}

func file(path, content string) *manifest.Entry {
	return &manifest.Entry{Path: manifest.Text(path), Type: manifest.File, Mode: 0o644, Size: int64(len(content)), SHA256: digestOf(content)}
}

func symlink(path, target string) *manifest.Entry {
	return &manifest.Entry{Path: manifest.Text(path), Type: manifest.Symlink, Link: manifest.Text(target)}
}

func hardlink(path, target string) *manifest.Entry {
	return &manifest.Entry{Path: manifest.Text(path), Type: manifest.Hardlink, Link: manifest.Text(target)}
}

// forged returns an increment that no checkpoint would make. The content of each file is "evil".
func forged(t *testing.T, entries ...*manifest.Entry) increment {
	t.Helper()
	var lines, files bytes.Buffer
	zip := gzip.NewWriter(&lines)
	digest := sha256.New()
	add := func(value any) {
		line, err := json.Marshal(value)
		must(t, err)
		zip.Write(append(line, '\n'))
		digest.Write(append(line, '\n'))
	}
	add(manifest.Header{Version: manifest.Version})
	packed := gzip.NewWriter(&files)
	archive := tar.NewWriter(packed)
	for _, entry := range entries {
		add(entry)
		if entry.Type == manifest.Deleted {
			continue
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(string(entry.Path), "/"), Size: entry.Packed(), Format: tar.FormatPAX}
		must(t, archive.WriteHeader(header))
		archive.Write([]byte("evil")[:entry.Packed()])
	}
	must(t, errors.Join(archive.Close(), packed.Close(), zip.Close()))
	made := increment{files: files.Bytes(), lines: lines.Bytes()}
	made.Manifest = hex.EncodeToString(digest.Sum(nil))
	return made
}

func TestAHostileStreamChangesNothingOutside(t *testing.T) {
	outside := t.TempDir()
	shadow := filepath.Join(outside, "shadow")
	must(t, os.WriteFile(shadow, []byte("secret"), 0o600))
	before := tree(t, outside)
	for what, entries := range map[string][]*manifest.Entry{
		"..":                            {directory("/"), file("/../evil", "evil")},
		".. in the middle":              {directory("/"), directory("/a"), file("/a/../../evil", "evil")},
		"a relative path":               {directory("/"), file("evil", "evil")},
		"an empty name":                 {directory("/"), file("//evil", "evil")},
		"a symlink in the middle":       {directory("/"), symlink("/l", outside), file("/l/evil", "evil")},
		"an image's symlink":            {directory("/"), file("/image/evil", "evil")},
		"an image's symlink, deleted":   {directory("/"), {Path: "/image/shadow", Type: manifest.Deleted}},
		"a hard link to another file":   {directory("/"), hardlink("/h", "/own")},
		"a hard link through a link":    {directory("/"), hardlink("/h", "/image/shadow")},
		"a hard link to a link":         {directory("/"), symlink("/a", shadow), hardlink("/h", "/a")},
		"a hard link with ..":           {directory("/"), hardlink("/h", "/../shadow")},
		"a file as a directory":         {directory("/"), file("/f", "evil"), file("/f/evil", "evil")},
		"no order":                      {directory("/"), file("/b", "evil"), file("/a", "evil")},
		"a path twice":                  {directory("/"), file("/a", "evil"), file("/a", "evil")},
		"another content":               {directory("/"), file("/a", "good")},
		"the root as a file":            {file("/", "evil")},
		"an unknown type":               {directory("/"), {Path: "/x", Type: "socket"}},
		"impossible extents":            {directory("/"), {Path: "/x", Type: manifest.File, Size: 4, SHA256: digestOf("evil"), Holes: true, Sparse: []manifest.Extent{{2, 4}}}},
		"a directory that is not there": {directory("/"), file("/missing/evil", "evil")},
	} {
		target := start(t, "")
		target.write("own", "own")
		must(t, os.Symlink(outside, target.path("image")))
		_, err := target.restore([]increment{forged(t, entries...)})
		var refusal *wire.Error
		if err == nil {
			t.Errorf("%s: it was restored", what)
		} else if !errors.As(err, &refusal) && !errors.Is(err, syscall.ENOTDIR) {
			t.Errorf("%s: %v", what, err)
		}
		same(t, what, before, tree(t, outside))
		if info, err := os.Stat(target.path("own")); err != nil || info.Sys().(*syscall.Stat_t).Nlink != 1 {
			t.Errorf("%s: a file of the image has another name", what)
		}
		entries, _ := os.ReadDir(filepath.Dir(target.root))
		if len(entries) != 1 {
			t.Errorf("%s: %v", what, entries)
		}
	}
}

func TestAFifoInTheWayDoesNotBlockARestore(t *testing.T) {
	target := start(t, "")
	must(t, syscall.Mkfifo(target.path("a"), 0o600))
	must(t, syscall.Mkfifo(target.path("d"), 0o600))
	_, err := target.restore([]increment{forged(t, directory("/"), file("/a", "evil"), directory("/d"), file("/d/b", "evil"))})
	must(t, err)
}

func TestARestoreStaysWithinItsLimits(t *testing.T) {
	many := []*manifest.Entry{directory("/")}
	for i := range 20 {
		many = append(many, file(fmt.Sprintf("/%02d", i), "evil"))
	}
	bomb := forged(t, directory("/"))
	var zeros bytes.Buffer
	zip := gzip.NewWriter(&zeros)
	zip.Write(make([]byte, 64<<20))
	zip.Close()
	bomb.files = zeros.Bytes()
	junk := forged(t, directory("/"))
	junk.lines = zeros.Bytes()
	for what, each := range map[string]struct {
		made   increment
		limits wire.CheckpointLimits
	}{
		"entries":       {forged(t, many...), wire.CheckpointLimits{MaxFiles: 10, MaxBytes: 1 << 20, MaxPackedBytes: 1 << 20}},
		"bytes":         {forged(t, many...), wire.CheckpointLimits{MaxFiles: 100, MaxBytes: 70, MaxPackedBytes: 1 << 20}},
		"a bomb":        {bomb, wire.CheckpointLimits{MaxFiles: 100, MaxBytes: 1 << 20, MaxPackedBytes: 1 << 20}},
		"a wrong start": {junk, wire.CheckpointLimits{MaxFiles: 100, MaxBytes: 1 << 20, MaxPackedBytes: 1 << 20}},
	} {
		target := start(t, "")
		restorer, err := New(Options{Root: target.root, Spool: t.TempDir()}, each.limits)
		must(t, err)
		err = restorer.Manifest(context.Background(), bytes.NewReader(each.made.lines), each.made.Manifest)
		if err == nil {
			err = restorer.Apply(context.Background(), bytes.NewReader(each.made.files))
		}
		restorer.Close()
		var refusal *wire.Error
		if !errors.As(err, &refusal) || refusal.Code != wire.CodeTooLarge && refusal.Code != wire.CodeDamaged {
			t.Errorf("%s: %v", what, err)
		}
		if found := tree(t, target.root); len(found) != 1 {
			t.Errorf("%s: %v", what, found)
		}
	}
}
