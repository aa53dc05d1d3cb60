// Package manifest defines the manifest of a checkpoint: which files an increment creates, changes and deletes.
//
// A manifest is a sequence of JSON lines: a Header, then one Entry for each path, in the order of Compare. A second
// sequence, whose order starts again at "/", can follow: it lists the unchanged names (hard links) of files of which
// the first sequence lists a changed name. The manifest's digest is the SHA-256 of these bytes. It identifies the
// increment, and through the entries' digests and Header.Previous also all contents and all earlier increments.
//
// Open manifest.go first: it defines and checks the entries. stream.go reads and writes the lines.
package manifest
