package phase

import (
	"io"
	"sync"
	"syscall"

	"multistep.dev/runner/internal/wire"
)

const (
	maxOpen    = 16       // files of outputs that can be read
	maxDeleted = 16 << 20 // bytes of those whose names are gone: the next step empties the directory that they were in
)

// outputs are those of all phases that were started.
type outputs struct {
	mu     sync.Mutex
	byID   map[string]*output
	recent []*output // those whose files can be read
}

// add lets go of older files where they are too many, or take room that nobody sees.
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

// Printed is what the phase of that id printed, from offset on and at most limit bytes: of its file, by the descriptor that
// it was made with, whatever has become of its name; else of the end that is in memory while the phase runs; else nothing.
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

// keep says whether the file, if there is one, may be read later; false if there is none.
func (o *output) keep(kept bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept = kept
	o.closeUnused()
	return o.file != nil
}

// deletedBytes is how much room the file takes although nobody sees it.
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

// inMemory is the end of what was printed, and how much that was in all; nil once the phase is over.
func (o *output) inMemory() (tail []byte, size int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]byte(nil), o.tail...), o.bytes
}

// Part is the part of a text of which only the end is known, from offset on or from where it is known.
func Part(tail []byte, size, offset, limit int64) wire.Printed {
	known := size - int64(len(tail))
	from := max(offset, known)
	if from > size {
		return wire.Printed{Size: size, From: size, Base64: []byte{}}
	}
	part := tail[from-known:]
	return wire.Printed{Size: size, From: from, Base64: part[:min(int64(len(part)), limit)]}
}
