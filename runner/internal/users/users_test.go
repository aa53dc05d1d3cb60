package users

import (
	"os"
	"path/filepath"
	"reflect"
	"syscall"
	"testing"
)

func TestAFifoInThePlaceOfPasswdDoesNotHang(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "passwd")
	if err := syscall.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	database := Database{fifo, "/no/such/file"}
	if user, err := database.Lookup("1000:7"); err != nil || !reflect.DeepEqual(user, User{UID: 1000, GID: 7, Groups: []int{7}, Home: "/"}) {
		t.Error(user, err)
	}
	if user := database.Own(); user.UID != os.Getuid() || user.Home != "/" || !user.Own {
		t.Error(user)
	}
}

// FuzzLookup resolves arbitrary names in arbitrary files. It checks that Lookup does not panic and never returns the ID that means
// "unchanged" to the kernel.
func FuzzLookup(f *testing.F) {
	f.Add("root:x:0:0::/root:\nalice:x:1000:1000::/home/alice:/bin/sh\n", "staff:x:50:alice\n", "alice:staff")
	f.Add(":::::::\n\x00:x:-1:99999999999::\n", ":::,\nx:x:4294967295:,", "x:x")
	f.Add("", "", "4294967295:4294967295")
	directory := f.TempDir()
	f.Fuzz(func(t *testing.T, passwd, group, spec string) {
		database := Database{filepath.Join(directory, "passwd"), filepath.Join(directory, "group")}
		os.WriteFile(database.Passwd, []byte(passwd), 0o644)
		os.WriteFile(database.Group, []byte(group), 0o644)
		user, err := database.Lookup(spec)
		if err != nil {
			return
		}
		for _, id := range append(user.Groups, user.UID, user.GID) {
			if id < 0 || id > maxID {
				t.Errorf("%q: %+v", spec, user)
			}
		}
		if user.Home == "" {
			t.Errorf("%q: %+v", spec, user)
		}
	})
}
