package session

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"multistep.dev/runner/internal/frames"
	"multistep.dev/runner/internal/kernel"
)

const (
	watched       = 200 * time.Millisecond // interval between two checks whether the caller is gone
	beat          = 10 * time.Second       // pause after which the caller gets a sign of life
	takesNothing  = time.Minute            // timeout of a caller that reads nothing of a checkpoint
	bringsNothing = 5 * time.Minute        // timeout of a caller that sends nothing of a restore
)

var errGone = errors.New("the caller is gone: it ended its connection or its stdin")

// alive is a checkpoint or restore in progress. While it lasts, the caller gets signs of life (empty D frames). It is cancelled, and the
// connection is closed, when the caller ends its connection or only its sending direction: an exec session that is lost ends the
// stdin of `runner call`, but not always its stdout.
type alive struct {
	ctx   context.Context
	pulse *frames.Pulse
	end   func() // ends the signs of life; must be called before the answer
}

func (s *Session) keepAlive() *alive {
	ctx, cancel := context.WithCancelCause(context.Background())
	s.conn.idle, s.conn.stalled = bringsNothing, takesNothing
	a := &alive{ctx: ctx, pulse: frames.NewPulse(s.conn)}
	ended := make(chan struct{})
	var both sync.WaitGroup
	both.Go(func() {
		every(watched, ended, func() {
			if closed(s.conn.Conn) {
				cancel(errGone)
				s.conn.Close()
			}
		})
	})
	both.Go(func() { every(beat/10, ended, func() { a.pulse.Beat(beat) }) })
	a.end = sync.OnceFunc(func() {
		close(ended)
		both.Wait()
		s.conn.idle, s.conn.stalled = idle, stalled
		cancel(nil)
	})
	return a
}

// broken returns why a session broke: because of err, unless the caller is gone.
func (a *alive) broken(err error) error {
	if cause := context.Cause(a.ctx); cause != nil {
		return cause
	}
	return err
}

// every calls do at each interval, until ended is closed.
func every(interval time.Duration, ended <-chan struct{}, do func()) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ended:
			return
		case <-ticker.C:
			do()
		}
	}
}

// closed returns whether the other end closed a connection at least in its sending direction. It reads nothing.
func closed(conn net.Conn) (closed bool) {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return true
	}
	if raw.Control(func(fd uintptr) { closed = kernel.Ended(fd) }) != nil {
		return true
	}
	return closed
}
