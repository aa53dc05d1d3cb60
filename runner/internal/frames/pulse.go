// Sends empty frames while there is nothing else to send, so that the caller sees that the work continues.

package frames

import (
	"io"
	"sync"
	"time"
)

// Pulse is a writer of frames that also sends keep-alive frames (empty D frames) while there is nothing else to send. Each Write
// must be a whole frame. After the first error, all writes return this error.
type Pulse struct {
	mu   sync.Mutex
	to   io.Writer
	last time.Time
	err  error
}

// NewPulse returns a Pulse that writes to stream.
func NewPulse(stream io.Writer) *Pulse { return &Pulse{to: stream, last: time.Now()} }

func (p *Pulse) Write(frame []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.write(frame)
}

func (p *Pulse) write(frame []byte) (int, error) {
	if p.err != nil {
		return 0, p.err
	}
	n, err := p.to.Write(frame)
	p.last, p.err = time.Now(), err
	return n, err
}

// Beat writes an empty D frame if the last write ended at least pause ago and no write is in progress.
func (p *Pulse) Beat(pause time.Duration) {
	if !p.mu.TryLock() {
		return
	}
	defer p.mu.Unlock()
	if time.Since(p.last) >= pause {
		p.write(header(Data, 0, 0))
	}
}
