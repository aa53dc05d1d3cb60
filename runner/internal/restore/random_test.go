package restore

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"multistep.dev/runner/internal/at"
)

// names has few elements, so that files often replace each other.
var names = []string{"a", "b", "c", "a.b", "a-b", "d e", "\xff\xfe", "new\nline", "日本", `q"\`, "-x", "*"}

// mutator changes a tree at random.
type mutator struct {
	*rand.Rand
	root string
}

// place returns the path of a random name in a random directory. The path may not exist.
func (m mutator) place() string {
	path := m.root
	for range m.IntN(3) {
		if next := filepath.Join(path, names[m.IntN(len(names))]); isDirectory(next) {
			path = next
		}
	}
	return filepath.Join(path, names[m.IntN(len(names))])
}

func isDirectory(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}

func (m mutator) text() []byte {
	text := make([]byte, m.IntN(5000))
	for i := range text {
		text[i] = byte(m.IntN(4))
	}
	return text
}

// once makes a random change. It ignores errors, because many changes are impossible at a random path.
func (m mutator) once() {
	path, other := m.place(), m.place()
	actions := []func(){
		func() { m.write(path, 0o644) },
		func() { m.write(path, 0o600) },
		func() { os.Mkdir(path, 0o755) },
		func() { os.Mkdir(path, 0o755) },
		func() { os.RemoveAll(path) },
		func() { os.Rename(path, other) },
		func() { os.Rename(path, other) },
		func() { os.Link(path, other) },
		func() { os.Symlink(filepath.Base(other), path) },
		func() { os.Chmod(path, os.FileMode(m.IntN(0o1000))|0o400) },
		func() { syscall.Chmod(path, 0o6755) },
		func() { os.Lchown(path, m.IntN(3)*1000, m.IntN(3)*1000) },
		func() { os.RemoveAll(path); os.Mkdir(path, 0o700); m.write(path+"/x", 0o644) },
		func() { os.RemoveAll(path); m.write(path, 0o644) },
		func() { syscall.Mkfifo(path, 0o640) },
		func() { syscall.Mknod(path, syscall.S_IFCHR|0o666, 1<<8|3) },
		func() { os.Chtimes(path, time.Unix(1e9, 5), time.Unix(int64(m.IntN(2e9)), int64(m.IntN(1e9)))) },
		func() { m.sparse(path) },
		func() { m.attribute(path) },
		func() { m.overwrite(path) },
	}
	actions[m.IntN(len(actions))]()
}

// write writes random bytes to a file. It does not wait for the reader of a FIFO.
func (m mutator) write(path string, mode os.FileMode) {
	if file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NONBLOCK, mode); err == nil {
		file.Write(m.text())
		file.Close()
	}
}

func (m mutator) sparse(path string) {
	if file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o644); err == nil {
		file.Truncate(int64(m.IntN(1 << 21)))
		file.WriteAt(m.text(), int64(m.IntN(1<<21)))
		file.Close()
	}
}

// overwrite changes a file in place and keeps its size and modification time.
func (m mutator) overwrite(path string) {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return
	}
	if file, err := os.OpenFile(path, os.O_WRONLY, 0); err == nil {
		file.WriteAt([]byte{byte(m.IntN(256))}, m.Int64N(info.Size()))
		file.Close()
		os.Chtimes(path, info.ModTime(), info.ModTime())
	}
}

func (m mutator) attribute(path string) {
	if fd, err := at.OpenRead(-100, path); err == nil {
		name := fmt.Sprintf("user.x=%d", m.IntN(3))
		if m.IntN(3) == 0 {
			at.RemoveXattr(fd, name)
		} else {
			at.SetXattr(fd, name, nil)
			at.SetXattr(fd, "user.b", []byte{0, byte(m.IntN(256)), 0xff})
		}
		syscall.Close(fd)
	}
}

func TestRandomTreesAreEqualAfterARestore(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			image := start(t, "")
			m := mutator{rand.New(rand.NewPCG(seed, 1)), image.root}
			for range 150 {
				m.once()
			}
			source := start(t, image.root)
			m.root = source.root
			var chain []increment
			for range 4 {
				for range 60 {
					m.once()
				}
				chain = append(chain, source.checkpoint())
			}
			wanted := tree(t, source.root)
			target := start(t, image.root)
			if _, err := target.restore(chain); err != nil {
				t.Fatal(err)
			}
			same(t, "a chain", wanted, tree(t, target.root))
			if _, err := target.restore(chain); err != nil {
				t.Fatal(err)
			}
			same(t, "a chain, restored again", wanted, tree(t, target.root))
			whole, err := source.pack(full)
			must(t, err)
			other := start(t, image.root)
			if _, err := other.restore([]increment{whole}); err != nil {
				t.Fatal(err)
			}
			same(t, "a full checkpoint", wanted, tree(t, other.root))
			m.root = target.root
			for range 60 {
				m.once()
			}
			chain = append(chain, target.checkpoint())
			third := start(t, image.root)
			if _, err := third.restore(chain); err != nil {
				t.Fatal(err)
			}
			same(t, "an increment after a restore", tree(t, target.root), tree(t, third.root))
		})
	}
}
