// Lists unusual programs that run as root whoever starts them.

package inspect

import (
	"path"
	"slices"
	"syscall"
)

// usual lists the setuid programs of common images, with which a user becomes root by root's password at most.
var usual = []string{
	"bbsuid", "chage", "chfn", "chsh", "expiry", "fusermount", "fusermount3", "gpasswd", "mount", "newgidmap", "newgrp", "newuidmap",
	"passwd", "ping", "ping4", "ping6", "sg", "su", "traceroute6", "umount", "unix_chkpwd",
}

const anyExecutes = 0o111

// RootPrograms returns the programs in directories of PATH that run as root whoever starts them, such as sudo, without the usual
// ones. Whether a user becomes root by them is not known: their own configuration decides.
func RootPrograms(root string, env map[string]string) (found []string) {
	i := New(root)
	for _, directory := range i.programDirectories(env) {
		for _, name := range i.files.names(directory) {
			file := path.Join(directory, name)
			stat, err := i.files.lstat(file) // the target of a link counts where it is
			regular := stat.Mode&syscall.S_IFMT == syscall.S_IFREG && stat.Mode&anyExecutes != 0
			if err == nil && regular && stat.Mode&syscall.S_ISUID != 0 && stat.Uid == 0 && !slices.Contains(usual, name) && len(found) < maxPaths {
				found = append(found, file)
			}
		}
	}
	return found
}
