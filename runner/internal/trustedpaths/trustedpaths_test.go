package trustedpaths

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

const alice = 1001

func TestWhichLinksAreFollowed(t *testing.T) {
	top := t.TempDir()
	if err := errors.Join(
		os.MkdirAll(top+"/real/sub", 0o755), os.Mkdir(top+"/hers", 0o755), os.Mkdir(top+"/open", 0o777),
		os.Mkdir(top+"/sticky", 0o777), os.Chmod(top+"/open", 0o777), os.Chmod(top+"/sticky", 0o777|os.ModeSticky),
		os.Symlink(top+"/real", top+"/absolute"), os.Symlink("real", top+"/relative"), os.Symlink("../../"+filepath.Base(top)+"/real/sub/..", top+"/real/up"),
		os.Symlink("loop", top+"/loop"), os.Symlink("real", top+"/of-alice"), os.Symlink("../real", top+"/hers/of-root"),
		os.Symlink("../real", top+"/open/of-root"), os.Symlink("../real", top+"/sticky/of-root"), os.Symlink("../real", top+"/sticky/of-alice"),
		os.Symlink("nowhere", top+"/dangling"), os.Lchown(top+"/of-alice", alice, alice), os.Lchown(top+"/hers", alice, alice),
		os.Lchown(top+"/sticky/of-alice", alice, alice), os.WriteFile(top+"/file", nil, 0o644),
	); err != nil {
		t.Fatal(err)
	}
	real, err := os.Stat(top + "/real")
	if err != nil {
		t.Fatal(err)
	}
	for name, reached := range map[string]bool{
		"real": true, "absolute": true, "relative": true, "real/up": true, "absolute/up/up": true, "sticky/of-root": true,
		"./real//.": true, "real/sub/..": true,
		"of-alice": false, "hers/of-root": false, "open/of-root": false, "sticky/of-alice": false, "loop": false,
		"dangling": false, "file": false, "missing": false, "file/x": false,
	} {
		root, err := open(top+"/"+name, false)
		if reached != (err == nil) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err == nil {
			if info, _ := root.Stat("."); !os.SameFile(info, real) {
				t.Error(name, "leads elsewhere")
			}
			root.Close()
		}
	}
	for _, name := range []string{"relative", "", "a/b"} {
		if _, err := open(name, false); err == nil {
			t.Error(name)
		}
	}
	if _, _, err := OpenParent("/"); err == nil {
		t.Error("the root has no parent")
	}
}

func TestWhatChangedWhileItWasOpened(t *testing.T) {
	top := t.TempDir()
	if err := errors.Join(os.Mkdir(top+"/a", 0o755), os.Mkdir(top+"/b", 0o755), os.WriteFile(top+"/f", nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(top)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	info, _ := root.Lstat("a")
	if err := errors.Join(os.Remove(top+"/a"), os.Symlink("b", top+"/a")); err != nil {
		t.Fatal(err)
	}
	if _, err := Enter(root, "a", info); err == nil {
		t.Error("a link in the place of a directory was followed")
	}
	if _, _, err := OpenRegular(root, "a"); err == nil {
		t.Error("a link is no file")
	}
}

func TestWhoseLinksAPathHas(t *testing.T) {
	top := t.TempDir()
	if err := errors.Join(
		os.Mkdir(top+"/hers", 0o755), os.Mkdir(top+"/open", 0o777), os.Chmod(top+"/open", 0o777), os.WriteFile(top+"/file", nil, 0o644),
		os.Symlink("../file", top+"/hers/link"), os.Symlink("../file", top+"/open/link"), os.Symlink("file", top+"/link"),
		os.Symlink("hers", top+"/way"), os.Symlink("..", top+"/hers/up"), os.Lchown(top+"/hers/link", alice, alice), os.Chown(top+"/hers", alice, alice),
		os.Lchown(top+"/hers/up", alice, alice), os.Symlink("loop", top+"/loop"),
	); err != nil {
		t.Fatal(err)
	}
	for name, wanted := range map[string]int{
		"file": NoStranger, "link": NoStranger, "hers": NoStranger, "way": NoStranger, "hers/link": alice, "way/link": alice,
		"open/link": NoStranger, "hers/up/open/link": alice, "hers/up": alice, "open/../file": NoStranger,
	} {
		info, stranger, err := Resolve(top + "/" + name)
		if err != nil || stranger != wanted {
			t.Errorf("%s: %d, %v", name, stranger, err)
			continue
		}
		if there, err := os.Stat(top + "/" + name); err != nil || !os.SameFile(info, there) {
			t.Errorf("%s leads elsewhere: %v", name, err)
		}
	}
	for _, name := range []string{"loop", "missing", "file/x"} {
		if _, _, err := Resolve(top + "/" + name); err == nil {
			t.Error(name)
		}
	}
}

func TestWhatEveryUserMayRead(t *testing.T) {
	top, err := os.MkdirTemp("/", "public-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(top)
	if err := errors.Join(os.Chmod(top, 0o755), os.Mkdir(top+"/shut", 0o700), os.Mkdir(top+"/list", 0o744)); err != nil {
		t.Fatal(err)
	}
	for name, public := range map[string]bool{"public": true, "private": false, "shut/public": false, "list/public": false} {
		mode := os.FileMode(0o644)
		if name == "private" {
			mode = 0o640
		}
		if err := os.WriteFile(top+"/"+name, nil, mode); err != nil {
			t.Fatal(err)
		}
		file, err := os.Open(top + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		info, _ := file.Stat()
		if IsPublic(file, info) != public {
			t.Error(name)
		}
		file.Close()
	}
}
