package oom

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Kills returns the number of OOM kills so far, or nil if it is unknown.
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

// noLimit is the lowest value in bytes that means "no limit". Without a limit, cgroup v1 reports a larger value.
const noLimit = 1 << 60

// limits maps the name of the file with the OOM kills (cgroup v1 and v2) to the name of the file with the memory limit in the same
// directory.
var limits = map[string]string{"memory.oom_control": "memory.limit_in_bytes", "memory.events": "memory.max"}

// Limit returns the container's memory limit in bytes, or nil if there is none or it is unknown.
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

// candidates returns the possible paths of the file with the OOM kills (cgroup v1 and v2). The file is below the path from
// /proc/self/cgroup, or at the mount's root, because some containers have their own cgroup there while /proc/self/cgroup shows the
// host's path.
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

// Since returns the number of OOM kills since an earlier result of Kills, or nil if either is unknown.
func Since(before *int64) *int64 {
	after := Kills()
	if before == nil || after == nil {
		return nil
	}
	kills := *after - *before
	return &kills
}
