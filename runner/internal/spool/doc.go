// Package spool creates temporary files that have no name, so that no other process can open them.
package spool
