// Returns parts of a phase's output, and limits how many output files stay open.

package phase

import (
	"io"
	"sync"
	"syscall"

	"multistep.dev/runner/internal/wire"
)

const (
	maxOpen    = 16       // maximum number of output files that stay open for reading
	maxDeleted = 16 << 20 // maximum bytes of open files that were deleted, because each step empties the directory of its output
)

// outputs has the outputs of all started phases.
type outputs struct {
	mu     sync.Mutex
	byID   map[string]*output
	recent []*output // outputs whose files can be read, oldest first
}

// add registers an output. It closes the oldest files if more than maxOpen are open, or if deleted files take more than maxDeleted
// bytes.
func (o *outputs) add(id string, added *output) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byID == nil {
		o.byID = map[string]*output{}
	}
	o.byID[id] = added
	if !added.keep(true) {
		return
	}
	older, deleted := o.recent, int64(0)
	o.recent = []*output{added}
	for i := len(older) - 1; i >= 0; i-- {
		deleted += older[i].deletedBytes()
		if len(o.recent) < maxOpen && deleted <= maxDeleted {
			o.recent = append([]*output{older[i]}, o.recent...)
		} else {
			older[i].keep(false)
		}
	}
}

func (o *outputs) get(id string) *output {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.byID[id]
}

// Printed returns at most limit bytes of the output of the phase with this id, from offset on. It reads the file through the
// descriptor with which the file was created, even if the file was deleted or replaced. Without a file, it reads the tail that is
// in memory while the phase runs. It returns false if neither exists.
func (h *Host) Printed(id string, offset, limit int64) (wire.Printed, bool) {
	output := h.outputs.get(id)
	if output == nil {
		return wire.Printed{}, false
	}
	if printed, ok := output.ofFile(offset, limit); ok {
		return printed, true
	}
	tail, size := output.inMemory()
	return Part(tail, size, offset, limit), tail != nil
}

// keep sets whether the output file stays open for reading. It returns false if the output has no open file.
func (o *output) keep(kept bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept = kept
	o.closeUnused()
	return o.file != nil
}

// deletedBytes returns the file's size in bytes if the file was deleted, otherwise 0.
func (o *output) deletedBytes() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	info, err := o.file.Stat()
	if err != nil || info.Sys().(*syscall.Stat_t).Nlink > 0 {
		return 0
	}
	return info.Size()
}

func (o *output) ofFile(offset, limit int64) (wire.Printed, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file == nil {
		return wire.Printed{}, false
	}
	info, err := o.file.Stat()
	if err != nil {
		return wire.Printed{}, false
	}
	part, err := io.ReadAll(io.NewSectionReader(o.file, offset, limit))
	return wire.Printed{Size: info.Size(), From: offset, Base64: part}, err == nil
}

// inMemory returns the tail of the output and the output's total size in bytes. The tail is nil after the phase finished.
func (o *output) inMemory() (tail []byte, size int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]byte(nil), o.tail...), o.bytes
}

// Part returns at most limit bytes of an output if only the output's tail is known. The part starts at offset or at the start of
// the tail, whichever is later.
func Part(tail []byte, size, offset, limit int64) wire.Printed {
	known := size - int64(len(tail))
	from := max(offset, known)
	if from > size {
		return wire.Printed{Size: size, From: size, Base64: []byte{}}
	}
	part := tail[from-known:]
	return wire.Printed{Size: size, From: from, Base64: part[:min(int64(len(part)), limit)]}
}
