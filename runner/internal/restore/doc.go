// Package restore applies the increments of a checkpoint to the container's files.
//
// The manifest, whose digest the operator names, decides what is restored. The tar stream only supplies the contents,
// each of which must have its digest in the manifest before it appears under its name. All work is relative to open
// directories and follows no link.
//
// Open stream.go first: it reads an increment. clear.go makes room for it, target.go puts each entry in its place,
// create.go creates new files with their attributes, and remove.go removes directories with their content.
package restore
