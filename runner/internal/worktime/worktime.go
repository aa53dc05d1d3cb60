package worktime

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

// ErrExceeded is the cause of a context that ended because the limit of work was exceeded.
var ErrExceeded = errors.New("the limit of work was exceeded")

// Clock counts the time of one piece of work.
type Clock struct {
	mu      sync.Mutex
	left    time.Duration
	since   time.Time // start of the work that is not yet subtracted from left
	waiting int       // number of reads and writes in progress
	timer   *time.Timer
}

// Limit returns a context that ends after this much time of work, and the clock that counts it. The caller must call cancel.
func Limit(parent context.Context, limit time.Duration) (ctx context.Context, clock *Clock, cancel func()) {
	ctx, end := context.WithCancelCause(parent)
	clock = &Clock{left: limit, since: time.Now()}
	clock.mu.Lock()
	defer clock.mu.Unlock()
	clock.timer = time.AfterFunc(limit, func() {
		clock.mu.Lock()
		defer clock.mu.Unlock()
		if clock.waiting == 0 { // otherwise a wait started just before the timer fired, and resume sets the timer again
			end(ErrExceeded)
		}
	})
	return ctx, clock, func() {
		clock.timer.Stop()
		end(nil)
	}
}

func (c *Clock) pause() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting++; c.waiting == 1 {
		c.timer.Stop()
		c.left -= time.Since(c.since)
	}
}

func (c *Clock) resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting--; c.waiting == 0 {
		c.since = time.Now()
		c.timer.Reset(c.left)
	}
}

// Writer returns a writer to the session's caller. The clock is paused during each write.
func (c *Clock) Writer(to io.Writer) io.Writer { return writer{c, to} }

// Reader returns a reader from the session's caller. The clock is paused during each read.
func (c *Clock) Reader(from io.Reader) io.Reader { return reader{c, from} }

type writer struct {
	clock *Clock
	to    io.Writer
}

func (w writer) Write(p []byte) (int, error) {
	w.clock.pause()
	defer w.clock.resume()
	return w.to.Write(p)
}

type reader struct {
	clock *Clock
	from  io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	r.clock.pause()
	defer r.clock.resume()
	return r.from.Read(p)
}
