// Package manifest defines the manifest of a checkpoint, which lists the files that an increment creates, changes and
// deletes. A manifest consists of JSON lines. The first is a Header. Then there is an Entry for each path, in the order
// of Compare. A second sequence of entries may follow, whose order starts again at "/". It lists the unchanged names
// (hard links) of files of which the first sequence lists a changed name. The manifest's digest is the SHA-256 of these
// bytes. It identifies the increment. Because the manifest contains the entries' digests and Header.Previous, the
// digest also identifies all contents and all earlier increments. Open manifest.go first, which defines and checks the
// entries. stream.go reads and writes the lines.
package manifest
