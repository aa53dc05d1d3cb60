package files

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"multistep.dev/runner/internal/users"
)

// FuzzUnpack reads arbitrary bytes as an upload. It checks that Unpack ends, does not panic, writes nothing outside the target and
// nothing into it before Merge, and that no staging directory is left.
func FuzzUnpack(f *testing.F) {
	for _, seed := range []tar.Header{
		{Name: "file", Size: 3, Mode: 0o644}, {Name: "dir/", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "link", Typeflag: tar.TypeSymlink, Linkname: "../outside"},
		{Name: "hard", Typeflag: tar.TypeLink, Linkname: "../outside/secret"}, {Name: "../outside/x", Size: 3}, {Name: "/tmp/x", Size: 3},
		{Name: "fifo", Typeflag: tar.TypeFifo}, {Name: "device", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3},
		{Name: string(bytes.Repeat([]byte("n/"), 100)), Typeflag: tar.TypeDir, Format: tar.FormatPAX}, {Name: "link/x", Size: 3},
	} {
		var archive bytes.Buffer
		writer := tar.NewWriter(&archive)
		writer.WriteHeader(&tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "../outside"})
		writer.WriteHeader(&seed)
		writer.Write([]byte("abc"))
		writer.Close()
		f.Add(archive.Bytes())
		f.Add(archive.Bytes()[:archive.Len()/2])
	}
	f.Add([]byte("no tar"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		top := t.TempDir()
		outside, target := filepath.Join(top, "outside"), filepath.Join(top, "target")
		os.Mkdir(outside, 0o700)
		os.WriteFile(filepath.Join(outside, "secret"), []byte("kept"), 0o600)
		upload, err := NewUpload(target, users.User{Own: true})
		if err != nil {
			t.Fatal(err)
		}
		failure := upload.Unpack(bytes.NewReader(stream))
		if entries, _ := os.ReadDir(target); len(entries) != 1 {
			t.Error("more than the stage exists before the merge:", entries)
		}
		if failure == nil {
			upload.Merge()
		}
		upload.Close()
		if entries, _ := os.ReadDir(target); failure != nil && len(entries) != 0 {
			t.Error("something is left:", entries)
		}
		if entries, _ := os.ReadDir(outside); len(entries) != 1 {
			t.Error("something was created outside:", entries)
		}
		if secret, _ := os.ReadFile(filepath.Join(outside, "secret")); string(secret) != "kept" {
			t.Error("something outside was changed")
		}
	})
}
