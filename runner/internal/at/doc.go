// Package at wraps system calls that act on a name in an open directory. They resolve no path and follow no link, so
// they cannot reach another directory if a process replaces a directory by a link. Open at.go first, which has the
// calls for files, directories and links. xattr.go has those for extended attributes. at_linux_amd64.go and
// at_linux_arm64.go have the numbers of the system calls on each architecture.
package at
