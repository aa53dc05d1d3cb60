// Removes the files that an increment replaces or deletes, before the increment's content needs the space.

package restore

import (
	"fmt"
	"path"
	"syscall"

	"multistep.dev/runner/internal/at"
	"multistep.dev/runner/internal/manifest"
)

// clearing removes the files that an increment replaces or deletes, before the increment is restored. It follows no link, and
// enters only existing directories.
type clearing struct {
	target *target
	levels []level // open directories that lead to the current path
	absent string  // path of a directory that does not exist yet, so that nothing is below it
}

// entry deletes the file or directory at the entry's path, unless both it and the entry are directories. A file without blocks
// stays.
func (c *clearing) entry(entry *manifest.Entry) error {
	name := string(entry.Path)
	if err := c.target.ctx.Err(); err != nil {
		return err
	}
	if c.absent != "" && manifest.Below([]byte(name), []byte(c.absent)) || c.target.isForeign(name) {
		return nil
	}
	if err := c.at(name, entry.Type == manifest.Directory); err != nil {
		return fmt.Errorf("%.300q: %w", name, err)
	}
	return nil
}

func (c *clearing) at(name string, directory bool) error {
	if name == "/" {
		c.close()
		fd, err := c.target.open("/", false)
		c.levels, c.absent = append(c.levels, level{path: "/", fd: fd}), ""
		return err
	}
	for len(c.levels) > 1 && !manifest.Below([]byte(path.Dir(name)), []byte(c.levels[len(c.levels)-1].path)) {
		c.leave()
	}
	if len(c.levels) == 0 || c.levels[len(c.levels)-1].path != path.Dir(name) {
		return damaged("its directory is not in the increment")
	}
	parent, base := c.levels[len(c.levels)-1].fd, path.Base(name)
	stat, err := at.Stat(parent, base)
	exists := err == nil && stat.Mode&syscall.S_IFMT == syscall.S_IFDIR
	switch {
	case err != nil && err != syscall.ENOENT:
		return err
	case directory && exists:
		return c.enter(parent, base, name)
	case directory:
		c.absent = name
	}
	if err == nil && (exists || stat.Blocks > 0) {
		if err := c.target.replaceable(name); err != nil {
			return err
		}
		return remove(c.target.ctx, parent, base)
	}
	return nil
}

func (c *clearing) enter(parent int, base, name string) error {
	fd, err := at.OpenDirectory(parent, base)
	if err == nil {
		c.levels = append(c.levels, level{path: name, fd: fd})
	}
	return err
}

func (c *clearing) leave() {
	syscall.Close(c.levels[len(c.levels)-1].fd)
	c.levels = c.levels[:len(c.levels)-1]
}

func (c *clearing) close() {
	for len(c.levels) > 0 {
		c.leave()
	}
}
