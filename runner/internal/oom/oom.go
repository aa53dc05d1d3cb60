// Package oom counts the kernel's out-of-memory kills in this container, and tells its memory limit.
package oom

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Kills is their number so far, nil when the kernel does not tell.
func Kills() *int64 {
	return count("/proc/self/cgroup", "/sys/fs/cgroup")
}

func count(self, mount string) *int64 {
	for _, path := range candidates(self, mount) {
		content, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(content)) {
			if fields := strings.Fields(line); len(fields) == 2 && fields[0] == "oom_kill" {
				if kills, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
					return &kills
				}
			}
		}
	}
	return nil
}

// noLimit is less than what cgroup v1 tells where there is none.
const noLimit = 1 << 60

// limits are the files of cgroup v1 and v2 that lie beside those of the kills.
var limits = map[string]string{"memory.oom_control": "memory.limit_in_bytes", "memory.events": "memory.max"}

// Limit is the container's memory limit in bytes, nil when it has none or the kernel does not tell.
func Limit() *int64 {
	return limit("/proc/self/cgroup", "/sys/fs/cgroup")
}

func limit(self, mount string) *int64 {
	for _, path := range candidates(self, mount) {
		content, err := os.ReadFile(filepath.Join(filepath.Dir(path), limits[filepath.Base(path)]))
		if err != nil {
			continue
		}
		if bytes, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64); err == nil && bytes < noLimit {
			return &bytes
		}
		return nil
	}
	return nil
}

// candidates are the files of cgroup v2 and v1: at the path that the kernel tells, and, for a container that sees its
// own cgroup at the mount's root while it is told the host's path, there.
func candidates(self, mount string) (paths []string) {
	content, _ := os.ReadFile(self)
	for line := range strings.Lines(string(content)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, _ := strings.Cut(rest, ":")
		switch {
		case strings.Contains(","+controllers+",", ",memory,"):
			paths = append(paths, mount+"/memory"+path+"/memory.oom_control", mount+"/memory/memory.oom_control")
		case controllers == "":
			paths = append(paths, mount+path+"/memory.events", mount+"/memory.events")
		}
	}
	return paths
}

// Since is the number of kills after an earlier count.
func Since(before *int64) *int64 {
	after := Kills()
	if before == nil || after == nil {
		return nil
	}
	kills := *after - *before
	return &kills
}
