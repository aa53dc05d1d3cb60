// Package checkpoint finds and packs the files that changed in the container. The result is an increment, which is a
// compressed tar stream and a manifest (package manifest). A Tracker keeps two lists of all files with their ctime,
// inode number, mode and owner. One is the list of the image, made when PID 1 starts, the other that of the last
// committed increment. A file differs if one of these attributes differs. The ctime does not show writes through a
// memory mapping that is already dirty, so the caller syncs the filesystem first. The inode number and mode show
// renames of image directories, and changes within one tick of the kernel's clock. Overlayfs changes device numbers and
// the inode numbers of directories, so a Tracker does not compare these.
//
// Open tracker.go first, then pack.go, which decides what an increment contains. walk.go visits all files, and list.go
// stores their attributes. member.go packs one file, links.go its further names, and gzip.go compresses. borders.go
// decides which paths an increment leaves out, and rights.go finds files that a restore could not create.
package checkpoint
