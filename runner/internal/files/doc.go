// Package files reads and writes files that hostile users can change (see package paths). Uploads and downloads are tar
// streams.
//
// Open upload.go first, then merge.go, which moves a verified upload into its target. download.go sends files, large.go
// finds the large ones, and match.go decides which are excluded. made.go creates and captures the files of a phase.
// reset.go creates or empties directories, and remove.go removes files and directories.
package files
