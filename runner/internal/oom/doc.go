// Package oom reads the number of out-of-memory kills in this container, and its memory limit, from cgroup files. An
// unknown number, and no limit, are nil.
package oom
