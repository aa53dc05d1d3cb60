// Package oom reads the number of out-of-memory kills in this container, and its memory limit, from cgroup files. It
// returns nil where there is no limit, or the number is unknown.
package oom
