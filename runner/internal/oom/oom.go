// Package oom counts the kernel's out-of-memory kills in this container.
package oom

import (
	"os"
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
