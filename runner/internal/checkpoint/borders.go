// Decides which paths no increment contains.

package checkpoint

import (
	"maps"
	"strings"

	"multistep.dev/runner/internal/files"
	"multistep.dev/runner/internal/mounts"
)

// borders has the paths that no increment contains: mounts, the runner's directories, and the paths that a request excludes.
type borders struct {
	prefix  string // path of the walk's root, with which the paths in foreign start, or "" in a container
	foreign map[string]bool
	exclude []string
}

// borders returns the current borders. They include the mounts that existed when PID 1 started, because the container of a later
// restore has the same mounts.
func (t *Tracker) borders(exclude []string) (*borders, error) {
	foreign, err := mounts.Foreign(t.own)
	if err != nil {
		return nil, err
	}
	maps.Copy(foreign, t.atStart)
	return &borders{strings.TrimSuffix(t.root, "/"), foreign, exclude}, nil
}

// skips returns whether the path is a mount, a directory of the runner, or excluded by the request.
func (b *borders) skips(path []byte) bool {
	if b.prefix == "" && b.foreign[string(path)] || b.prefix != "" && b.foreign[b.prefix+string(path)] {
		return true
	}
	return b.excludes(path)
}

// hasForeignBelow returns whether a mount or a directory of the runner is below the path. A restore can neither replace nor delete
// such a path.
func (b *borders) hasForeignBelow(path string) bool { return mounts.Below(b.foreign, b.prefix+path) }

func (b *borders) excludes(path []byte) bool {
	for _, pattern := range b.exclude {
		if strings.HasPrefix(pattern, "/") {
			if matchesPath(pattern, string(path)) {
				return true
			}
		} else if files.Excluded(string(path[1:]), []string{strings.TrimRight(pattern, "/")}) {
			return true
		}
	}
	return false
}

// literal escapes the special characters of files.Matches other than * and ?.
var literal = strings.NewReplacer(`\`, `\\`, `[`, `\[`)

// matchesPath returns whether an absolute pattern matches the path or a directory that leads to it. * and ? match within a name.
func matchesPath(pattern, path string) bool {
	for wanted := range strings.SplitSeq(pattern, "/") {
		if wanted == "" {
			continue
		}
		path = strings.TrimPrefix(path, "/")
		name, rest, _ := strings.Cut(path, "/")
		if name == "" || !files.Matches(literal.Replace(wanted), name) {
			return false
		}
		path = rest
	}
	return true
}
