// Package restore applies the increments of a checkpoint to the container's files. The manifest, whose digest is in the
// operator's request, decides what is restored. The tar stream only has the contents. Each must have its digest in the
// manifest before it appears under its name. All operations are relative to open directories, and follow no link. Open
// stream.go first, which reads an increment. clear.go first removes what the increment replaces or deletes, target.go
// restores each entry at its path, create.go creates new files with their attributes, and remove.go removes directories
// with their content.
package restore
