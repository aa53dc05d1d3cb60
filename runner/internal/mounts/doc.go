// Package mounts finds the paths that do not belong to the container's own filesystem. A checkpoint and a restore leave
// these paths alone.
package mounts
