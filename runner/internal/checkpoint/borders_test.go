package checkpoint

import (
	"syscall"
	"testing"

	"multistep.dev/runner/internal/manifest"
)

func TestAnAbsolutePatternExcludesThePathAndAllBelow(t *testing.T) {
	for _, each := range []struct {
		pattern, path string
		excluded      bool
	}{
		{"/app/cache", "/app/cache", true},
		{"/app/cache", "/app/cache/x/y", true},
		{"/app/cache/", "/app/cache", true},
		{"/app/cache//", "/app/cache/x", true},
		{"//app//cache", "/app/cache", true},
		{"/app/cache", "/app", false},
		{"/app/cache", "/app/cache2", false},
		{"/app/cache", "/srv/app/cache", false},
		{"/app/*", "/app/x", true},
		{"/app/*", "/app/x/y", true},
		{"/app/*", "/app", false},
		{"/app/*.log", "/app/x/y.log", false},
		{"/app/*.log", "/app/y.log", true},
		{"/app/*/cache", "/app/x/cache/z", true},
		{"/app/*/cache", "/app/x/y/cache", false},
		{"/app/?", "/app/é", true},
		{"/app/?", "/app/xy", false},
		{"/app/?", "/app/x", true},
		{"/app?x", "/app/x", false},
		{"/app/[id]", "/app/[id]/page", true},
		{"/app/[id]", "/app/i", false},
		{`/app/a\*`, `/app/a\b`, true},
		{"/", "/app", true},
		{"*.log", "/app/x/y.log", true},
		{"cache/", "/app/cache", true},
		{"app/cache", "/app/cache", true},
		{"app/cache", "/srv/app/cache", true},
		{"a/*", "/a/b/c", true},
	} {
		if got := (&borders{exclude: []string{each.pattern}}).excludes([]byte(each.path)); got != each.excluded {
			t.Errorf("%s excludes %s: %v", each.pattern, each.path, got)
		}
	}
}

func TestRightsAreThoseOfTheProcess(t *testing.T) {
	own, err := ownRights()
	if err != nil {
		t.Fatal(err)
	}
	root := own.capabilities
	own.capabilities = 0
	own.uid, own.groups = 1000, []int{1000, 7}
	for _, each := range []struct {
		what       string
		entry      manifest.Entry
		restorable bool
	}{
		{"own", manifest.Entry{Type: "file", UID: 1000, GID: 7, Mode: 0o2755}, true},
		{"another user's", manifest.Entry{Type: "file", UID: 0, GID: 7}, false},
		{"another group's", manifest.Entry{Type: "file", UID: 1000, GID: 0}, false},
		{"a device", manifest.Entry{Type: "char", UID: 1000, GID: 7, Device: []uint32{1, 3}}, false},
		{"a FIFO", manifest.Entry{Type: "fifo", UID: 1000, GID: 7}, true},
		{"with capabilities", manifest.Entry{Type: "file", UID: 1000, GID: 7, XAttrs: []manifest.XAttr{{Name: fileCapability}}}, false},
	} {
		if err := own.check(&each.entry); (err == nil) != each.restorable {
			t.Error(each.what, err)
		}
		everything := rights{own.uid, own.groups, root}
		if err := everything.check(&each.entry); err != nil {
			t.Error(each.what, "by root:", err)
		}
	}
	if err := (rights{capabilities: root}).check(&manifest.Entry{Type: "char", Device: []uint32{0, 0}}); err == nil {
		t.Error("a whiteout of overlayfs is accepted")
	}
}

func TestWithoutRightsNothingOfOthersIsReplaced(t *testing.T) {
	own := rights{uid: 1000}
	root := state{Mode: syscall.S_IFREG | 0o644}
	for _, each := range []struct {
		what        string
		directory   uint32 // the directory's mode
		uid         uint32
		was         state
		replaceable bool
	}{
		{"a new file in an own directory", 0o755, 1000, state{}, true},
		{"another user's file in an own directory", 0o755, 1000, root, true},
		{"an own file in a shared directory", 0o1777, 0, state{Mode: syscall.S_IFREG, UID: 1000}, true},
		{"another user's file in a shared directory", 0o1777, 0, root, false},
		{"another user's directory", 0o755, 1000, state{Mode: syscall.S_IFDIR | 0o755}, false},
	} {
		directory := &level{opened: true, stat: syscall.Stat_t{Mode: each.directory, Uid: each.uid}}
		if err := own.replace(directory, "/x", each.was); (err == nil) != each.replaceable {
			t.Error(each.what, err)
		}
	}
}
