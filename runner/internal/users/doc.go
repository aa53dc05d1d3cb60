// Package users resolves users and groups from /etc/passwd and /etc/group, which may be missing. It needs no library of
// the image. A name or an ID comes in, and a User goes out, to which a process can switch.
package users
