// Package spool creates temporary files that have no name, so that no other process can open them. A directory comes
// in, and an open, empty file on its filesystem goes out.
package spool
