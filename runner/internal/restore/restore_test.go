package restore

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"multistep.dev/runner/internal/at"
	"multistep.dev/runner/internal/wire"
)

func TestAnIncrementHasExactlyTheChanges(t *testing.T) {
	image := start(t, "")
	for _, name := range []string{"same", "written", "touched", "modes", "owner", "gone", "moved", "attr", "to-dir/x", "dir/sub/child", "lost/a/b", "old/f", "new/f"} {
		image.write(name, name)
	}
	p := start(t, image.root)
	must(t, os.WriteFile(p.path("written"), []byte("WRITTEN"), 0o644))
	before, _ := os.Stat(p.path("touched"))
	must(t, os.WriteFile(p.path("touched"), []byte("TOUCHED"), 0o644))
	must(t, os.Chtimes(p.path("touched"), before.ModTime(), before.ModTime()))
	must(t, os.Chmod(p.path("modes"), 0o600))
	must(t, os.Chown(p.path("owner"), 5, 6))
	must(t, os.Remove(p.path("gone")))
	must(t, os.Rename(p.path("moved"), p.path("moved-to")))
	must(t, os.RemoveAll(p.path("to-dir")))
	must(t, os.WriteFile(p.path("to-dir"), nil, 0o644))
	must(t, os.Rename(p.path("dir"), p.path("renamed")))
	must(t, os.RemoveAll(p.path("lost")))
	must(t, os.RemoveAll(p.path("old")))
	must(t, os.Rename(p.path("new"), p.path("old"))) // old becomes another file of the same size
	fd, err := at.OpenRead(-100, p.path("attr"))
	must(t, err)
	must(t, at.SetXattr(fd, "user.x", []byte("1")))
	syscall.Close(fd)
	made := p.checkpoint()
	wanted := []string{"-/dir", "-/gone", "-/lost", "-/moved", "-/new", "/", "/attr", "/modes", "/moved-to", "/old", "/old/f", "/owner", "/renamed",
		"/renamed/sub", "/renamed/sub/child", "/to-dir", "/touched", "/written"}
	got := slices.DeleteFunc(made.changes(t), func(path string) bool { return path == "/renamed/sub" })
	wanted = slices.DeleteFunc(wanted, func(path string) bool { return path == "/renamed/sub" })
	if !slices.Equal(got, wanted) {
		t.Errorf("\n%v\n%v", got, wanted)
	}
	if again := p.checkpoint(); again.Entries != 0 {
		t.Error("nothing changed since:", again.changes(t))
	}
}

func TestAFileKeepsItsNamesWhenADirectoryWithOneIsRenamed(t *testing.T) {
	image := start(t, "")
	for _, name := range []string{"a", "m/x", "z"} {
		image.write(name, "one file")
		if name != "a" {
			must(t, os.Remove(image.path(name)))
			must(t, os.Link(image.path("a"), image.path(name)))
		}
	}
	source := start(t, image.root)
	must(t, os.Rename(source.path("m"), source.path("n")))
	made := source.checkpoint()
	if got := made.changes(t); !slices.Equal(got, []string{"-/m", "/", "/n", "/n/x"}) && !slices.Equal(got, []string{"-/m", "/n", "/n/x"}) {
		t.Error(got)
	}
	target := start(t, image.root)
	_, err := target.restore([]increment{made})
	must(t, err)
	same(t, "names", tree(t, source.root), tree(t, target.root))
}

func TestOddFilesAreRestored(t *testing.T) {
	image := start(t, "")
	image.write("setuid", "x")
	source := start(t, image.root)
	deep := strings.Repeat(strings.Repeat("d", 200)+"/", 15)
	source.write(deep+"bottom", "bottom")
	source.write(strings.Repeat("n", 255), "long")
	large, err := os.Create(source.path("sparse"))
	must(t, err)
	must(t, large.Truncate(1<<40))
	_, err = large.WriteAt([]byte("in the middle"), 1<<35)
	must(t, err)
	must(t, large.Close())
	must(t, os.Chmod(source.path("setuid"), 0o755))
	must(t, syscall.Chmod(source.path("setuid"), 0o4755))
	source.write("capable", "x")
	source.write("acl", "x")
	for name, command := range map[string][]string{"capable": {"setcap", "cap_net_bind_service+ep"}} {
		if output, err := exec.Command(command[0], append(command[1:], source.path(name))...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %s", err, output)
		}
	}
	fd, err := at.OpenRead(-100, source.path("acl"))
	must(t, err)
	must(t, at.SetXattr(fd, "system.posix_acl_access", []byte("\x02\x00\x00\x00\x01\x00\x06\x00\xff\xff\xff\xff\x02\x00\x06\x00\xe8\x03\x00\x00"+
		"\x04\x00\x04\x00\xff\xff\xff\xff\x10\x00\x06\x00\xff\xff\xff\xff\x20\x00\x04\x00\xff\xff\xff\xff")))
	syscall.Close(fd)
	must(t, syscall.Mknod(source.path("null"), syscall.S_IFCHR|0o600, 1<<8|3))
	must(t, os.Chmod(source.path("null"), 0o666))
	made := source.checkpoint()
	if made.Bytes > 1<<20 {
		t.Error("holes are packed:", made.Bytes)
	}
	target := start(t, image.root)
	_, err = target.restore([]increment{made})
	must(t, err)
	same(t, "odd files", tree(t, source.root), tree(t, target.root))
	stat := syscall.Stat_t{}
	must(t, syscall.Stat(target.path("sparse"), &stat))
	if stat.Blocks > 100 {
		t.Error("the sparse file has blocks:", stat.Blocks)
	}
	part := make([]byte, 13)
	restored, err := os.Open(target.path("sparse"))
	must(t, err)
	defer restored.Close()
	restored.ReadAt(part, 1<<35)
	if string(part) != "in the middle" {
		t.Errorf("%q", part)
	}
}

func TestADirtyMappingIsNotLost(t *testing.T) {
	image := start(t, "")
	var filesystem syscall.Statfs_t
	must(t, syscall.Statfs(image.root, &filesystem))
	if filesystem.Type == 0x01021994 { // tmpfs has no disk to sync to; no container has it as its root directory
		return
	}
	p := start(t, image.root)
	p.write("mapped", strings.Repeat("0", 4096))
	p.waitForCtimeTick()
	file, err := os.OpenFile(p.path("mapped"), os.O_RDWR, 0)
	must(t, err)
	defer file.Close()
	mapped, err := syscall.Mmap(int(file.Fd()), 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	must(t, err)
	defer syscall.Munmap(mapped)
	copy(mapped, "first")
	p.waitForCtimeTick()
	must(t, at.SyncFilesystem(p.root))
	first := p.checkpoint()
	copy(mapped, "second")
	p.waitForCtimeTick()
	must(t, at.SyncFilesystem(p.root))
	second := p.checkpoint()
	target := start(t, image.root)
	_, err = target.restore([]increment{first, second})
	must(t, err)
	if text, _ := os.ReadFile(target.path("mapped")); !bytes.HasPrefix(text, []byte("second")) {
		t.Errorf("%.20q", text)
	}
}

func TestExcludedPathsAreNeitherPackedNorDeleted(t *testing.T) {
	image := start(t, "")
	for _, name := range []string{"cache/x", "a/x.log", "a/y"} {
		image.write(name, name)
	}
	p := start(t, image.root)
	exclude := func(request *wire.Checkpoint) { request.Exclude = []string{"/cache", "*.log"} }
	p.write("cache/new", "new")
	p.write("a/new.log", "new")
	p.write("a/y", "new")
	must(t, os.Remove(p.path("cache/x")))
	made := p.checkpoint(exclude)
	if got := made.changes(t); !slices.Equal(got, []string{"/a", "/a/y"}) {
		t.Error(got)
	}
	later := p.checkpoint() // this checkpoint excludes nothing, so it contains the changes that the first one excluded
	if got := later.changes(t); !slices.Equal(got, []string{"-/cache/x", "/a/new.log", "/cache", "/cache/new"}) {
		t.Error(got)
	}
}

// cutReader returns errCut after `left` bytes.
type cutReader struct {
	in   io.Reader
	left int
}

var errCut = errors.New("cut")

func (c *cutReader) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, errCut
	}
	n, err := c.in.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

func TestARestoreThatIsCutAnywhereAndRepeatedGivesTheSameTree(t *testing.T) {
	image := start(t, "")
	for _, name := range []string{"d/a", "d/b", "e/c", "gone/x"} {
		image.write(name, strings.Repeat(name, 1000))
	}
	source := start(t, image.root)
	source.write("d/a", strings.Repeat("new", 50_000))
	must(t, os.Link(source.path("d/a"), source.path("e/link")))
	must(t, os.RemoveAll(source.path("gone")))
	must(t, os.Chmod(source.path("e"), 0o500))
	must(t, os.Chtimes(source.path("d"), time.Unix(1e9, 0), time.Unix(1e9, 7)))
	source.write("f/g", "h")
	made := source.checkpoint()
	wanted := tree(t, source.root)
	for cut := 0; cut < len(made.files); cut += 1 + len(made.files)/15 {
		target := start(t, image.root)
		restorer, err := New(Options{Root: target.root, Spool: t.TempDir()}, wire.NewRestore().CheckpointLimits)
		must(t, err)
		must(t, restorer.Manifest(context.Background(), bytes.NewReader(made.lines), made.Manifest))
		if err := restorer.Apply(context.Background(), &cutReader{bytes.NewReader(made.files), cut}); err == nil {
			t.Fatal("a cut stream was complete:", cut)
		}
		restorer.Close()
		// A killed restore can leave such files.
		must(t, os.MkdirAll(target.path("d/.multistep-"+made.Manifest[:32]+"/x"), 0o700))
		must(t, os.Chtimes(target.path("d"), time.Now(), time.Now()))
		_, err = target.restore([]increment{made})
		must(t, err)
		same(t, "repeated", wanted, tree(t, target.root))
	}
}

func TestOnlyThePathsAreRestoredWithoutSpecialRights(t *testing.T) {
	image := start(t, "")
	image.write("app/old", "old")
	image.write("srv/gone/x", "x")
	source := start(t, image.root)
	source.write("app/new", "new")
	source.write("usr/bin/python", "trojan")
	source.write("app/deep/suid", "x")
	must(t, os.Chown(source.path("app/deep/suid"), 1000, 1000))
	must(t, syscall.Chmod(source.path("app/deep/suid"), 0o6755))
	must(t, syscall.Mkfifo(source.path("app/fifo"), 0o600))
	must(t, os.Remove(source.path("app/old")))
	must(t, os.RemoveAll(source.path("srv")))
	must(t, os.Link(source.path("usr/bin/python"), source.path("usr/hard")))
	made := source.checkpoint()
	target := start(t, image.root)
	result, err := target.restore([]increment{made}, "/app/deep", "/app", "/srv/gone")
	must(t, err)
	got := tree(t, target.root)
	for path, exists := range map[string]bool{"app/new": true, "app/old": false, "app/fifo": false, "usr": false, "srv": true, "srv/gone": false} {
		if _, found := got[path]; found != exists {
			t.Error(path, found)
		}
	}
	if !strings.HasPrefix(got["app/deep/suid"], "100755 0:0 ") || result.Skipped == 0 {
		t.Error(got["app/deep/suid"], result)
	}
}

func TestAReplacedFileDuringPackingGivesNoForeignContentAndNoHang(t *testing.T) {
	image := start(t, "")
	p := start(t, image.root)
	outside := t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("foreign content"), 0o644))
	ended, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
			}
			os.Mkdir(p.path("d"), 0o755)
			os.WriteFile(p.path("d/secret"), []byte("own"), 0o644)
			os.RemoveAll(p.path("d"))
			os.Symlink(outside, p.path("d"))
			os.Remove(p.path("d"))
			syscall.Mkfifo(p.path("d"), 0o600)
			os.Remove(p.path("d"))
			os.Symlink(filepath.Join(outside, "secret"), p.path("d"))
			os.Remove(p.path("d"))
		}
	}()
	packed := 0
	for range 300 {
		made, err := p.pack()
		var refusal *wire.Error
		if err != nil && (!errors.As(err, &refusal) || refusal.Code != wire.CodeChanged) {
			t.Error(err)
		}
		if err != nil {
			continue
		}
		packed++
		if file := made.entries(t)["/d/secret"]; file != nil && file.Size == int64(len("foreign content")) {
			t.Fatal("foreign content:", file)
		}
	}
	close(stop)
	<-ended
	t.Log("complete:", packed)
}

func TestManifestsOutOfOrderAreDamaged(t *testing.T) {
	source := start(t, "")
	source.write("a", "1")
	first := source.checkpoint()
	source.write("b", "2")
	second := source.checkpoint()
	target := start(t, "")
	for what, chain := range map[string][]increment{"the second alone": {second}, "in the wrong order": {second, first}, "twice": {first, first}} {
		_, err := target.restore(chain)
		var refusal *wire.Error
		if !errors.As(err, &refusal) || refusal.Code != wire.CodeDamaged {
			t.Error(what, err)
		}
	}
}
