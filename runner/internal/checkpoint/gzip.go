// Compresses the stream on several cores.

package checkpoint

import (
	"bytes"
	"compress/gzip"
	"io"
	"runtime"
	"sync"
)

const (
	blockBytes = 512 << 10
	maxWorkers = 4
)

// compressor compresses blocks in parallel. Each block becomes a gzip member. A sequence of members is a valid gzip stream.
type compressor struct {
	out     io.Writer
	current *block
	queue   chan *block // blocks in the order of the stream. Its capacity limits the blocks in memory
	written chan struct{}
	writers sync.Pool
	free    sync.Pool
	mu      sync.Mutex
	err     error
}

type block struct {
	data []byte
	out  bytes.Buffer
	done chan struct{}
}

func newCompressor(out io.Writer) *compressor {
	c := &compressor{out: out, queue: make(chan *block, min(runtime.GOMAXPROCS(0), maxWorkers)), written: make(chan struct{})}
	c.writers.New = func() any {
		writer, _ := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed) // the level is valid, so there is no error
		return writer
	}
	c.free.New = func() any { return &block{data: make([]byte, 0, blockBytes)} }
	go c.writeAll()
	return c
}

func (c *compressor) Write(p []byte) (int, error) {
	for total := len(p); ; {
		if c.current == nil {
			c.current = c.free.Get().(*block)
			c.current.data, c.current.done = c.current.data[:0], make(chan struct{})
			c.current.out.Reset()
		}
		n := min(len(p), blockBytes-len(c.current.data))
		c.current.data = append(c.current.data, p[:n]...)
		if p = p[n:]; len(c.current.data) < blockBytes {
			return total, c.failure()
		}
		c.submit()
	}
}

func (c *compressor) submit() {
	next := c.current
	c.current = nil
	c.queue <- next
	go func() {
		writer := c.writers.Get().(*gzip.Writer)
		writer.Reset(&next.out)
		writer.Write(next.data) // a write to a buffer cannot fail
		writer.Close()
		c.writers.Put(writer)
		close(next.done)
	}()
}

func (c *compressor) writeAll() {
	defer close(c.written)
	for next := range c.queue {
		<-next.done
		if c.failure() == nil {
			if _, err := c.out.Write(next.out.Bytes()); err != nil {
				c.mu.Lock()
				c.err = err
				c.mu.Unlock()
			}
		}
		c.free.Put(next)
	}
}

func (c *compressor) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close compresses and writes the last block. It must be called once, even after an error.
func (c *compressor) Close() error {
	if c.current != nil && len(c.current.data) > 0 {
		c.submit()
	}
	close(c.queue)
	<-c.written
	return c.failure()
}
