// Relays the operator's sealed messages to the agent host's runner.

package session

import (
	"fmt"
	"net"

	"multistep.dev/runner/internal/frames"
	"multistep.dev/runner/internal/peer"
	"multistep.dev/runner/internal/wire"
)

// hostConn is a connection to the agent host's runner for the operator's sealed requests.
type hostConn struct {
	net.Conn
	frames *frames.Reader
}

// askHost sends a sealed message to the agent host's runner, and the sealed answer to the caller. This runner can read neither of
// them.
func (s *Session) askHost(request wire.Host) error {
	answer, err := s.ofHost(request.Message)
	if err != nil {
		s.leaveHost() // a late answer would be mistaken for that of the next request
		return s.refuse(wire.Errorf(wire.CodeNoHost, "%v", err))
	}
	return frames.Write(s.stream, frames.JSON, answer)
}

func (s *Session) ofHost(message wire.Sealed) (answer []byte, err error) {
	if s.host == nil {
		if s.host, err = dialHost(); err != nil {
			return nil, err
		}
	}
	if err := frames.WriteJSON(s.host, frames.JSON, message); err != nil {
		return nil, err
	}
	kind, _, err := s.host.frames.Next()
	if err == nil && kind != frames.JSON {
		err = fmt.Errorf("a frame %c is not an answer", kind)
	}
	if err != nil {
		return nil, fmt.Errorf("the agent host's runner: %w", err)
	}
	return s.host.frames.Payload()
}

func dialHost() (*hostConn, error) {
	conn, err := net.DialUnix("unix", nil, peer.Address(peer.HostSocket))
	if err != nil {
		return nil, err
	}
	if err := peer.Elsewhere(conn); err != nil { // a process of this container has no key, but could make the caller wait
		conn.Close()
		return nil, err
	}
	return &hostConn{conn, frames.NewReader(conn)}, nil
}

// leaveHost closes the connection to the agent host's runner, if it is open.
func (s *Session) leaveHost() {
	if s.host != nil {
		s.host.Close()
		s.host = nil
	}
}
