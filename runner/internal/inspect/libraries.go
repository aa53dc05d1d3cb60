// Finds changed libraries, and core libraries that programs now load from elsewhere.

package inspect

import (
	"bytes"
	"encoding/binary"
	"path"
	"strings"
	"syscall"
)

const (
	cachePath     = "/etc/ld.so.cache"
	maxCacheBytes = 16 << 20
	maxCached     = 50_000 // maximum number of entries. A Debian with a desktop has 3,000
	cacheMagic    = "glibc-ld.so.cache1.1"
	headerBytes   = 48
	entryBytes    = 24
)

// loaders lists the directories and name prefixes of dynamic loaders and C libraries. They can be missing from the loader's cache.
var loaders = []struct{ directory, prefix string }{
	{"/lib", "ld-musl-"}, {"/lib", "libc.musl-"}, {"/lib", "ld-linux"}, {"/lib64", "ld-linux"}, {"/usr/lib64", "libc.so"}, {"/lib64", "libc.so"},
}

// core lists the name prefixes of libraries that users do not install a second time under another path, as they do with a newer
// libsqlite3.
var core = []string{"ld-", "libc.", "libm.", "libdl.", "libpthread.", "librt.", "libutil.", "libresolv.", "libnss_", "libpython", "libtinfo."}

// cached returns the paths of the libraries in the dynamic loader's cache, by name.
func (t tree) cached() map[string]string {
	found := map[string]string{}
	content := t.read(cachePath, maxCacheBytes)
	start := bytes.Index(content, []byte(cacheMagic)) // the cache can start with the same list in an older format
	if start < 0 || len(content) < start+headerBytes {
		return found
	}
	content = content[start:]
	count := int(binary.NativeEndian.Uint32(content[len(cacheMagic):]))
	text := func(offset uint32) string {
		if int64(offset) >= int64(len(content)) {
			return ""
		}
		value, _, whole := bytes.Cut(content[offset:min(int64(offset)+syscall.PathMax, int64(len(content)))], []byte{0})
		if !whole {
			return "" // not a path. Without the limit, each of many entries could refer to the same megabytes
		}
		return string(value)
	}
	count = min(count, maxCached)
	for entry := content[headerBytes:]; count > 0 && len(entry) >= entryBytes; count, entry = count-1, entry[entryBytes:] {
		name, file := text(binary.NativeEndian.Uint32(entry[4:])), text(binary.NativeEndian.Uint32(entry[8:]))
		if _, first := found[name]; first || name == "" || !path.IsAbs(file) {
			continue
		}
		found[name] = file
	}
	return found
}

// loadable returns the final path of each library, by the name with which programs load it, and of each dynamic loader, by its
// path.
func (i *Inspector) loadable() map[string]string {
	found := i.files.cached()
	for _, each := range loaders {
		for _, name := range i.files.names(each.directory) {
			if strings.HasPrefix(name, each.prefix) {
				found[path.Join(each.directory, name)] = path.Join(each.directory, name)
			}
		}
	}
	for name, file := range found {
		if final, err := i.files.resolve(file); err == nil {
			found[name] = final
		} else {
			delete(found, name)
		}
	}
	return found
}

// libraries reports libraries that were changed, core libraries that are now loaded from another path, and a deleted cache of the
// loader.
func (s *search) libraries() {
	now := s.loadable()
	if _, err := s.files.lstat(cachePath); err != nil && s.baseline.cached && s.files.ctx.Err() == nil {
		s.report(SystemFileChanged, cachePath)
	}
	for name, former := range s.baseline.libraries {
		final, there := now[name]
		switch {
		case !there || !s.changed(final):
		case final == former:
			s.suspect(SystemFileChanged, final, final)
		case isCore(name):
			s.suspect(ProgramShadowed, final, final)
		}
	}
}

func isCore(name string) bool {
	for _, prefix := range core {
		if strings.HasPrefix(path.Base(name), prefix) {
			return true
		}
	}
	return false
}
