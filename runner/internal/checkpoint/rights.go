// Rejects files that PID 1 could not create, replace or delete in a restore.

package checkpoint

import (
	"os"
	"slices"
	"syscall"

	"multistep.dev/runner/internal/at"
	"multistep.dev/runner/internal/kernel"
	"multistep.dev/runner/internal/manifest"
	"multistep.dev/runner/internal/wire"
)

// rights has PID 1's permissions. A restore runs with the same permissions, so a checkpoint rejects files that PID 1 could not
// create.
type rights struct {
	uid          int
	groups       []int
	capabilities kernel.Capabilities
}

func ownRights() (rights, error) {
	groups, err := os.Getgroups()
	if err != nil {
		return rights{}, err
	}
	capabilities, err := kernel.OwnCapabilities()
	return rights{os.Geteuid(), append(groups, os.Getegid()), capabilities}, err
}

const fileCapability = "security.capability"

// check returns an error if PID 1 could not create this file.
func (r rights) check(entry *manifest.Entry) error {
	can, problem := r.capabilities.Has, ""
	foreign, group := entry.UID != r.uid, slices.Contains(r.groups, entry.GID)
	switch {
	case (foreign || !group) && !can(kernel.CapChown), foreign && !can(kernel.CapFowner):
		problem = "give a file to its owner"
	case entry.Mode&syscall.S_ISGID != 0 && !group && !can(kernel.CapFsetid):
		problem = "set its setgid bit"
	case (entry.Type == manifest.Char || entry.Type == manifest.Block) && (!can(kernel.CapMknod) || isWhiteout(entry)):
		problem = "create this device"
	case slices.ContainsFunc(entry.XAttrs, func(each manifest.XAttr) bool { return each.Name == fileCapability }) && !can(kernel.CapSetfcap):
		problem = "give a file capabilities"
	default:
		return nil
	}
	return wire.Errorf(wire.CodeUnreadable, "%.300q could not be restored: PID 1 may not %s (%d:%d, mode %o)",
		string(entry.Path), problem, entry.UID, entry.GID, entry.Mode)
}

// isWhiteout returns whether overlayfs would treat the device as a deleted file.
func isWhiteout(entry *manifest.Entry) bool {
	return entry.Type == manifest.Char && entry.Device[0] == 0 && entry.Device[1] == 0
}

// replace returns an error if PID 1 could not create, replace or delete a file in an open directory. was is the file's former
// state.
func (r rights) replace(dir *level, path string, was state) error {
	if dir == nil { // the path is the root directory
		return nil
	}
	if err := r.writable(dir); err != nil {
		return err
	}
	foreign := was.Mode != 0 && int(was.UID) != r.uid
	sticky := dir.stat.Mode&syscall.S_ISVTX != 0 && int(dir.stat.Uid) != r.uid && !r.capabilities.Has(kernel.CapFowner)
	full := isDirectory(was.Mode) && !r.capabilities.Has(kernel.CapDacOverride)
	if foreign && (sticky || full) {
		return wire.Errorf(wire.CodeUnreadable, "%.300q could not be restored: PID 1 may not delete what was there before", path)
	}
	return nil
}

// writable returns an error if PID 1 could not create and delete files in an open directory.
func (r rights) writable(dir *level) error {
	if dir.opened || r.capabilities.Has(kernel.CapDacOverride) || int(dir.stat.Uid) == r.uid {
		return nil
	}
	if !at.Writable(dir.fd) {
		return wire.Errorf(wire.CodeUnreadable, "%.300q could not be restored: PID 1 may not write in it", dir.path)
	}
	dir.opened = true
	return nil
}
