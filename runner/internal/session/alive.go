// Keeps the caller's connection alive during a checkpoint or restore, and cancels the work when the caller disconnects.

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
	callerCheckInterval    = 200 * time.Millisecond // interval at which the runner checks whether the caller has disconnected
	keepAliveInterval      = 10 * time.Second       // idle time after which the runner sends the caller a keep-alive frame
	checkpointWriteTimeout = time.Minute            // timeout if the caller reads no bytes of a checkpoint
	restoreReadTimeout     = 5 * time.Minute        // timeout if the caller sends no bytes of a restore
)

var errGone = errors.New("the caller is gone: it ended its connection or its stdin")

// alive is a checkpoint or restore in progress, during which the runner sends keep-alive frames (empty D frames) to the caller. It
// is cancelled, and the connection is closed, when the caller closes its connection or only its sending direction. A closed sending
// direction is enough, because a lost exec session ends the stdin of `runner call`, but not always its stdout.
type alive struct {
	ctx   context.Context
	pulse *frames.Pulse
	end   func() // stops the keep-alive frames, and must be called before the response
}

func (s *Session) keepAlive() *alive {
	ctx, cancel := context.WithCancelCause(context.Background())
	s.conn.readTimeout, s.conn.writeTimeout = restoreReadTimeout, checkpointWriteTimeout
	a := &alive{ctx: ctx, pulse: frames.NewPulse(s.conn)}
	ended := make(chan struct{})
	var both sync.WaitGroup
	both.Go(func() {
		every(callerCheckInterval, ended, func() {
			if closed(s.conn.Conn) {
				cancel(errGone)
				s.conn.Close()
			}
		})
	})
	both.Go(func() { every(keepAliveInterval/10, ended, func() { a.pulse.Beat(keepAliveInterval) }) })
	a.end = sync.OnceFunc(func() {
		close(ended)
		both.Wait()
		s.conn.readTimeout, s.conn.writeTimeout = readTimeout, writeTimeout
		cancel(nil)
	})
	return a
}

// broken returns the error that broke the session. It is errGone if the caller disconnected, otherwise err.
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

// closed returns whether the other end has closed the connection, or its sending direction. It reads no data.
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
