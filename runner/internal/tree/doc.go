// Package tree kills process trees, including processes that try to evade the kill. A Family tells which processes are
// the roots of the trees, and when no process is left.
package tree
