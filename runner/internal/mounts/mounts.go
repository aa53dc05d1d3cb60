package mounts

import (
	"bufio"
	"os"
	"slices"
	"strconv"
	"strings"
)

// kernel lists the directories of the kernel. Foreign returns them even if they are not mounts.
var kernel = []string{"/proc", "/sys", "/dev"}

// Foreign returns the set of the paths of all mounts other than the root directory, of the kernel's directories, and of own.
func Foreign(own []string) (map[string]bool, error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	found := map[string]bool{}
	for _, path := range slices.Concat(kernel, own) {
		found[path] = true
	}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 && fields[4] != "/" {
			found[unescape(fields[4])] = true
		}
	}
	return found, lines.Err()
}

// Below returns whether one of the paths is below the directory.
func Below(paths map[string]bool, directory string) bool {
	directory = strings.TrimSuffix(directory, "/") + "/"
	for path := range paths {
		if len(path) > len(directory) && strings.HasPrefix(path, directory) {
			return true
		}
	}
	return false
}

// unescape replaces mountinfo's octal escapes of spaces, tabs, newlines and backslashes.
func unescape(text string) string {
	if !strings.Contains(text, `\`) {
		return text
	}
	var plain strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+3 < len(text) {
			if char, err := strconv.ParseUint(text[i+1:i+4], 8, 8); err == nil {
				plain.WriteByte(byte(char))
				i += 3
				continue
			}
		}
		plain.WriteByte(text[i])
	}
	return plain.String()
}
