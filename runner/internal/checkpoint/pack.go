// Decides which files and which deletions an increment contains.

package checkpoint

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"syscall"
	"time"

	"multistep.dev/runner/internal/manifest"
	"multistep.dev/runner/internal/wire"
)

// Limits has the maximum size of an increment.
type Limits struct {
	Files       int   // maximum number of entries in the manifest
	Bytes       int64 // maximum bytes of the uncompressed tar stream and manifest together
	PackedBytes int64 // maximum bytes of the compressed tar stream
}

// Totals has the counts and sizes of an increment.
type Totals struct {
	Files       int   `json:"files"`       // number of files in the container
	Entries     int   `json:"entries"`     // number of entries in the manifest
	Deleted     int   `json:"deleted"`     // number of entries that delete a path
	Bytes       int64 `json:"bytes"`       // size of the tar stream, uncompressed
	PackedBytes int64 `json:"packedBytes"` // size of the tar stream, compressed
	Changed     int   `json:"changed"`     // number of files that changed while they were packed, which the next increment contains again
}

// packer is a visitor that compares files with a list, and packs those that differ. It also builds the list for the next
// comparison.
type packer struct {
	ctx      context.Context
	old      *reader
	fresh    *List
	archive  *tar.Writer
	raw      *counter
	manifest *manifest.Writer
	limits   Limits
	borders  *borders
	rights   rights
	linked   linkedFiles
	replaced []byte // path of the last deleted or replaced directory, whose entry implies the deletion of its content
	totals   Totals
	buffer   []byte
}

type inode struct{ dev, ino uint64 }

// counter counts the bytes that are written, and rejects bytes beyond a limit.
type counter struct {
	out   io.Writer
	bytes int64
	limit int64
	over  *wire.Error
}

func (c *counter) Write(p []byte) (int, error) {
	if c.bytes += int64(len(p)); c.bytes > c.limit {
		return 0, c.over
	}
	return c.out.Write(p)
}

const (
	tarBuffer  = 256 << 10
	copyBuffer = 256 << 10
)

// pack compares all files below root with the list old. It writes the files that differ to out, as a compressed tar stream, and the
// manifest to lines.
func pack(ctx context.Context, root string, borders *borders, old *List, out io.Writer, lines *manifest.Writer, limits Limits) (*List, Totals, error) {
	rights, err := ownRights()
	if err != nil {
		return nil, Totals{}, err
	}
	packed := &counter{out: out, limit: limits.PackedBytes,
		over: wire.Errorf(wire.CodeTooLarge, "the increment has more than maxPackedBytes (%d) compressed", limits.PackedBytes)}
	zip := newCompressor(packed)
	raw := &counter{out: zip, limit: limits.Bytes, over: tooLarge(limits)}
	p := &packer{ctx: ctx, old: old.read(), fresh: &List{}, archive: tar.NewWriter(raw), raw: raw, manifest: lines, limits: limits,
		borders: borders, rights: rights, linked: linkedFiles{files: map[inode]*linkedFile{}}, buffer: make([]byte, copyBuffer)}
	walk := walker{ctx: ctx, root: root, skip: borders.skips, visit: p, maxDir: limits.Files + old.Len()}
	err = walk.walk()
	if err == nil && len(p.linked.files) > 0 {
		walk.visit, walk.visited = &linker{p, p.linked.names.read()}, 0
		err = walk.walk()
	}
	if err == nil {
		err = p.archive.Close()
	}
	if closed := zip.Close(); closed != nil { // the compressor's error is the cause of the archive's error
		err = closed
	}
	if err == nil {
		err = ctx.Err() // when ctx is done, processes are resumed, so files may have changed
	}
	p.totals.Files, p.totals.Bytes, p.totals.PackedBytes = p.fresh.Len(), raw.bytes, packed.bytes
	return p.fresh, p.totals, err
}

func tooLarge(limits Limits) *wire.Error {
	return wire.Errorf(wire.CodeTooLarge, "the increment has more than maxBytes (%d)", limits.Bytes)
}

// Enter packs a directory if it differs.
func (p *packer) Enter(dir *level) error {
	now := stateOf(&dir.stat, time.Now())
	was, err := p.compare(dir.parent, dir.path, now)
	if err != nil {
		return err
	}
	if err := p.fresh.add(dir.path, now); err != nil || was.same(now) {
		return err
	}
	if err := p.ancestors(dir.parent); err != nil {
		return err
	}
	if !isDirectory(was.Mode) {
		dir.opened = true // a restore creates the directory as PID 1's user, and sets its owner and mode last
		if err := p.rights.replace(dir.parent, string(dir.path), was); err != nil {
			return err
		}
	}
	return p.directory(dir, was.sameAccess(now), false)
}

// File packs a file if it differs. It leaves out sockets, because no process would listen on a restored socket.
func (p *packer) File(dir *level, path []byte, name string, stat *syscall.Stat_t) error {
	if stat.Mode&syscall.S_IFMT == syscall.S_IFSOCK {
		return nil
	}
	now := stateOf(stat, time.Now())
	was, err := p.compare(dir, path, now)
	if err != nil {
		return err
	}
	if !was.same(now) {
		if err := p.place(dir, string(path), was); err != nil {
			return err
		}
		stable, err := p.member(dir, string(path), name, stat)
		if err != nil {
			return err
		}
		if !stable {
			p.totals.Changed++
			now.CTime = 0
		}
	}
	return p.fresh.add(path, now)
}

// Leave adds a deletion for each remaining path of the old list that is below the directory, because the path no longer exists.
func (p *packer) Leave(dir *level) error {
	for p.old.ok && manifest.Below(p.old.path, dir.path) {
		if err := p.deleted(dir); err != nil {
			return err
		}
	}
	return nil
}

// Skipped keeps the old list's entries at and below the path, so that a later increment without the exclusion compares with them.
// It returns an error if the path is an unreadable directory that changed.
func (p *packer) Skipped(dir *level, path []byte, stat *syscall.Stat_t) error {
	if stat != nil {
		now := stateOf(stat, time.Now())
		was, err := p.compare(dir, path, now)
		if err == nil && !was.same(now) {
			err = wire.Errorf(wire.CodeUnreadable, "%.300q: permission denied", path)
		}
		if err = errors.Join(err, p.fresh.add(path, now)); err != nil {
			return err
		}
	} else if err := p.before(dir, path); err != nil {
		return err
	}
	return p.keep(path)
}

// keep copies the old list's entries at and below the path to the new list.
func (p *packer) keep(path []byte) error {
	for p.old.ok && manifest.Below(p.old.path, path) {
		if err := p.fresh.add(p.old.path, p.old.state); err != nil {
			return err
		}
		p.old.next()
	}
	return nil
}

// compare returns the file's state in the old list. For a new file it returns the zero state, which counts as different from every
// state.
func (p *packer) compare(dir *level, path []byte, now state) (was state, err error) {
	if err := p.before(dir, path); err != nil {
		return was, err
	}
	if !p.old.ok || !bytes.Equal(p.old.path, path) {
		return was, nil
	}
	was = p.old.state
	p.old.next()
	if isDirectory(was.Mode) && !isDirectory(now.Mode) {
		p.replaced = bytes.Clone(path)
	}
	return was, nil
}

// place prepares the entry of a path that is not (or no longer) a directory. It returns an error if a restore could not create a
// file there, or could not delete the former file or directory.
func (p *packer) place(dir *level, path string, was state) error {
	if isDirectory(was.Mode) && p.borders.hasForeignBelow(path) {
		return wire.Errorf(wire.CodeUnreadable, "%.300q was renamed or replaced, and could not be restored: a mount or the runner's directory is below it", path)
	}
	if err := p.rights.replace(dir, path, was); err != nil {
		return err
	}
	return p.ancestors(dir)
}

// before adds deletions of all paths that precede path in the old list.
func (p *packer) before(dir *level, path []byte) error {
	for p.old.ok && manifest.Compare(p.old.path, path) < 0 {
		if err := p.deleted(dir); err != nil {
			return err
		}
	}
	return nil
}

// deleted adds a deletion of the old list's current path, which was in the directory dir.
func (p *packer) deleted(dir *level) error {
	path := p.old.path
	if p.replaced != nil && manifest.Below(path, p.replaced) {
		p.old.next()
		return nil
	}
	if p.borders.excludes(path) {
		return p.keep(bytes.Clone(path))
	}
	if err := p.place(dir, string(path), p.old.state); err != nil {
		return err
	}
	p.replaced = bytes.Clone(path)
	p.totals.Deleted++
	p.old.next()
	return p.add(&manifest.Entry{Path: manifest.Text(p.replaced), Type: manifest.Deleted})
}

// ancestors packs the directories that lead to a changed path, even if they did not change. A restore that replaces a file changes
// the modification time of its directory, and then sets the time that the increment contains.
func (p *packer) ancestors(dir *level) error {
	if dir == nil || dir.packed {
		return nil
	}
	if err := p.ancestors(dir.parent); err != nil {
		return err
	}
	return p.directory(dir, true, true)
}

// add adds an entry to the manifest.
func (p *packer) add(entry *manifest.Entry) error {
	if p.totals.Entries++; p.totals.Entries > p.limits.Files {
		return wire.Errorf(wire.CodeTooLarge, "the increment has more than maxFiles (%d) entries", p.limits.Files)
	}
	before := p.manifest.Bytes()
	if err := p.manifest.Add(entry); err != nil {
		return err
	}
	p.raw.limit -= p.manifest.Bytes() - before
	if p.raw.bytes > p.raw.limit {
		return p.raw.over
	}
	return nil
}
