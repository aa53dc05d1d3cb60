// Decides by which attributes a file counts as changed, and stores these attributes of all files in little memory.

package checkpoint

import (
	"encoding/binary"
	"syscall"
	"time"

	"multistep.dev/runner/internal/wire"
)

const (
	chunkBytes   = 64 << 10
	maxListBytes = 96 << 20 // enough for about 3 million paths. The list counts towards the trial's memory limit
	// racy is the minimum age of a file's ctime when the file is listed. A younger file counts as changed at the next checkpoint,
	// because another change within the same tick of the kernel's clock does not change the ctime.
	racy = 50 * time.Millisecond
)

var errListFull = wire.Errorf(wire.CodeTooLarge, "the list of files needs more than %d bytes of memory", maxListBytes)

// state has the attributes that a list contains for a path. CTime is in nanoseconds since the Unix epoch. A state with a CTime of 0
// counts as different from every state.
type state struct {
	CTime    int64
	Ino      uint64
	Mode     uint32
	UID, GID uint32
}

// stateOf returns a file's state. It omits a directory's inode number, which overlayfs can change.
func stateOf(stat *syscall.Stat_t, now time.Time) state {
	found := state{stat.Ctim.Nano(), stat.Ino, stat.Mode, stat.Uid, stat.Gid}
	if now.UnixNano()-found.CTime < int64(racy) {
		found.CTime = 0
	}
	if isDirectory(found.Mode) {
		found.Ino = 0
	}
	return found
}

func (s state) same(other state) bool { return s == other && s.CTime != 0 }

// sameAccess returns whether both states have the same owner and mode.
func (s state) sameAccess(other state) bool {
	return s.Mode == other.Mode && s.UID == other.UID && s.GID == other.GID
}

func isDirectory(mode uint32) bool { return mode&syscall.S_IFMT == syscall.S_IFDIR }

// List maps paths to states, in the order of manifest.Compare. It stores each path as its difference from the previous path, so
// that 100,000 files need about 4 MB. After the last call of add, it is only read.
type List struct {
	chunks   [][]byte
	count    int
	bytes    int
	lastPath []byte
	last     state
}

// Len returns the number of paths.
func (l *List) Len() int { return l.count }

func (l *List) add(path []byte, now state) error {
	shared := 0
	for shared < len(path) && shared < len(l.lastPath) && path[shared] == l.lastPath[shared] {
		shared++
	}
	need := 7*binary.MaxVarintLen64 + len(path) - shared
	if l.bytes += need; l.bytes > maxListBytes {
		return errListFull
	}
	if n := len(l.chunks); n == 0 || cap(l.chunks[n-1])-len(l.chunks[n-1]) < need {
		l.chunks = append(l.chunks, make([]byte, 0, max(chunkBytes, need)))
	}
	chunk := &l.chunks[len(l.chunks)-1]
	before := len(*chunk)
	*chunk = binary.AppendUvarint(*chunk, uint64(shared))
	*chunk = binary.AppendUvarint(*chunk, uint64(len(path)-shared))
	*chunk = append(*chunk, path[shared:]...)
	*chunk = binary.AppendUvarint(*chunk, uint64(now.Mode))
	*chunk = binary.AppendVarint(*chunk, now.CTime-l.last.CTime)
	*chunk = binary.AppendVarint(*chunk, int64(now.Ino-l.last.Ino))
	*chunk = binary.AppendVarint(*chunk, int64(now.UID)-int64(l.last.UID))
	*chunk = binary.AppendVarint(*chunk, int64(now.GID)-int64(l.last.GID))
	l.bytes += len(*chunk) - before - need
	l.lastPath = append(l.lastPath[:shared], path[shared:]...)
	l.last = now
	l.count++
	return nil
}

// reader reads a list in its order. While ok is set, path and state are those of the current entry.
type reader struct {
	chunks [][]byte // the chunks after the current one
	data   []byte   // unread rest of the current chunk
	path   []byte
	state  state
	ok     bool
}

func (l *List) read() *reader {
	r := &reader{chunks: l.chunks}
	r.next()
	return r
}

func (r *reader) next() {
	for len(r.data) == 0 {
		if r.ok = len(r.chunks) > 0; !r.ok {
			return
		}
		r.data, r.chunks = r.chunks[0], r.chunks[1:]
	}
	r.ok = true
	shared, size := r.uvarint(), r.uvarint()
	r.path = append(r.path[:shared], r.data[:size]...)
	r.data = r.data[size:]
	r.state.Mode = uint32(r.uvarint())
	r.state.CTime += r.varint()
	r.state.Ino += uint64(r.varint())
	r.state.UID = uint32(int64(r.state.UID) + r.varint())
	r.state.GID = uint32(int64(r.state.GID) + r.varint())
}

func (r *reader) uvarint() uint64 {
	value, n := binary.Uvarint(r.data)
	r.data = r.data[n:]
	return value
}

func (r *reader) varint() int64 {
	value, n := binary.Varint(r.data)
	r.data = r.data[n:]
	return value
}
