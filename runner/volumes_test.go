package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestUnpackWritesFilesWithTheirPermissionsAlsoOverAPartialOne(t *testing.T) {
	var packed bytes.Buffer
	zipped := gzip.NewWriter(&packed)
	archive := tar.NewWriter(zipped)
	for _, each := range []tar.Header{
		{Name: "0", Typeflag: tar.TypeDir, Mode: 0o700}, {Name: "0/run.sh", Typeflag: tar.TypeReg, Mode: 0o755, Size: 4},
		{Name: "0/link", Typeflag: tar.TypeSymlink, Linkname: "run.sh"}, {Name: "1", Typeflag: tar.TypeReg, Mode: 0o400, Size: 4},
	} {
		if archive.WriteHeader(&each); each.Size > 0 {
			archive.Write([]byte("text"))
		}
	}
	archive.Close()
	zipped.Close()
	encoded, target := base64.StdEncoding.EncodeToString(packed.Bytes()), t.TempDir()
	for range 2 {
		if err := run([]string{"unpack", target, encoded[:10], encoded[10:]}); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]os.FileMode{"0": 0o755, "0/link": 0o755, "1": 0o400} {
		if info, err := os.Stat(filepath.Join(target, name)); err != nil || info.Mode().Perm() != mode {
			t.Error(name, info, err)
		}
	}
}

func TestUnpackWritesNothingOutsideOfItsDirectory(t *testing.T) {
	var packed bytes.Buffer
	zipped := gzip.NewWriter(&packed)
	archive := tar.NewWriter(zipped)
	archive.WriteHeader(&tar.Header{Name: "../out", Typeflag: tar.TypeReg, Mode: 0o644})
	archive.Close()
	zipped.Close()
	target := filepath.Join(t.TempDir(), "in")
	os.Mkdir(target, 0o755)
	if err := run([]string{"unpack", target, base64.StdEncoding.EncodeToString(packed.Bytes())}); err == nil {
		t.Error("it must refuse a path that leads out of the directory")
	}
}

func TestPopulateKeepsOwnersPermissionsAndLinks(t *testing.T) {
	source, target := t.TempDir(), t.TempDir()
	secret := filepath.Join(source, "data", "secret")
	os.Mkdir(filepath.Dir(secret), 0o700)
	os.WriteFile(secret, []byte("x"), 0o600)
	os.Symlink("data/secret", filepath.Join(source, "link"))
	os.Chown(secret, 999, 998)
	os.Chmod(source, 0o711)
	for range 2 {
		if err := run([]string{"populate", source, target, filepath.Join(source, "missing"), target}); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(filepath.Join(target, "link"))
	if err != nil || info.Mode().Perm() != 0o600 || info.Sys().(*syscall.Stat_t).Uid != 999 || info.Sys().(*syscall.Stat_t).Gid != 998 {
		t.Error(info, err)
	}
	if info, err := os.Stat(target); err != nil || info.Mode().Perm() != 0o711 {
		t.Error(info, err)
	}
}
