// Lists unusual setuid programs of root.

package inspect

import (
	"path"
	"slices"
	"syscall"
)

// usual lists the setuid programs of common images. With them, a user becomes root only with root's password.
var usual = []string{
	"bbsuid", "chage", "chfn", "chsh", "expiry", "fusermount", "fusermount3", "gpasswd", "mount", "newgidmap", "newgrp", "newuidmap",
	"passwd", "ping", "ping4", "ping6", "sg", "su", "traceroute6", "umount", "unix_chkpwd",
}

const anyExecutes = 0o111

// RootPrograms returns the unusual programs in directories of PATH that run as root for every user, such as sudo. Their own
// configuration decides whether a user can become root with them.
func RootPrograms(root string, env map[string]string) (found []string) {
	i := New(root)
	for _, directory := range i.programDirectories(env) {
		for _, name := range i.files.names(directory) {
			file := path.Join(directory, name)
			stat, err := i.files.lstat(file) // a link is left out, because its target is listed in its own directory
			regular := stat.Mode&syscall.S_IFMT == syscall.S_IFREG && stat.Mode&anyExecutes != 0
			if err == nil && regular && stat.Mode&syscall.S_ISUID != 0 && stat.Uid == 0 && !slices.Contains(usual, name) && len(found) < maxPaths {
				found = append(found, file)
			}
		}
	}
	return found
}
