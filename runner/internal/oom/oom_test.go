package oom

import (
	"os"
	"path/filepath"
	"testing"
)

func TestKillsAreFoundInEveryKindOfCgroup(t *testing.T) {
	for name, each := range map[string]struct {
		self, file, content string
		wanted              int64
	}{
		"v2":                       {"0::/\n", "memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n", 2},
		"v2, below":                {"0::/a/b\n", "a/b/memory.events", "oom_kill 4\n", 4},
		"v2, with the host's path": {"0::/kubepods/x\n", "memory.events", "oom_kill 1\n", 1},
		"v1":                       {"5:cpu,memory:/\n0::/\n", "memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n", 5},
		"v1, with the host's path": {"4:memory:/kubepods/x\n", "memory/memory.oom_control", "oom_kill 6\n", 6},
		"nothing":                  {"0::/\n", "other", "", -1},
		"v1 of an older kernel":    {"4:memory:/\n", "memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n", -1},
		"not even that":            {"", "memory.events", "oom_kill 1\n", -1},
		"a number that is none":    {"0::/\n", "memory.events", "oom_kill x\n", -1},
	} {
		got := count(cgroups(t, each.self, each.file, each.content))
		if (got == nil) != (each.wanted < 0) || (got != nil && *got != each.wanted) {
			t.Error(name, got)
		}
	}
	if Since(nil) != nil {
		t.Error("unknown stays unknown")
	}
}

func TestTheLimitIsFoundInEveryKindOfCgroup(t *testing.T) {
	for name, each := range map[string]struct {
		self, file, content string
		wanted              int64
	}{
		"v2":                       {"0::/\n", "memory.max", "67108864\n", 67108864},
		"v2, with the host's path": {"0::/kubepods/x\n", "memory.max", "1\n", 1},
		"v2, none":                 {"0::/\n", "memory.max", "max\n", -1},
		"v1":                       {"5:cpu,memory:/\n0::/\n", "memory/memory.limit_in_bytes", "67108864\n", 67108864},
		"v1, below":                {"5:memory:/a/b\n", "memory/a/b/memory.limit_in_bytes", "5\n", 5},
		"v1, none":                 {"5:memory:/\n", "memory/memory.limit_in_bytes", "9223372036854771712\n", -1},
		"nothing":                  {"0::/\n", "other", "", -1},
	} {
		got := limit(cgroups(t, each.self, each.file, each.content))
		if (got == nil) != (each.wanted < 0) || (got != nil && *got != each.wanted) {
			t.Error(name, got)
		}
	}
}

// cgroups creates stand-ins for /proc/self/cgroup and for /sys/fs/cgroup with one file in it, and returns their paths.
func cgroups(t *testing.T, path, file, content string) (self, mount string) {
	mount, self = t.TempDir(), filepath.Join(t.TempDir(), "cgroup")
	os.WriteFile(self, []byte(path), 0o644)
	os.MkdirAll(filepath.Dir(filepath.Join(mount, file)), 0o755)
	os.WriteFile(filepath.Join(mount, file), []byte(content), 0o644)
	return self, mount
}
