// Package users finds users by name or ID in /etc/passwd and /etc/group, which may be missing, and switches processes
// to them. It needs no library of the image.
package users
