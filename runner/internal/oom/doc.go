// Package oom reads the number of out-of-memory kills in this container, and its memory limit, from cgroup files. A
// number that is unknown is nil, and so is a limit that is not set.
package oom
