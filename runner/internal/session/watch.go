// Notices that the caller closed its connection, without reading from the connection.

package session

import (
	"net"
	"syscall"
	"time"

	"multistep.dev/runner/internal/kernel"
)

// watch calls gone when the caller closes its connection. It reads nothing from the connection, which may contain further requests.
func watch(conn net.Conn, gone func()) (stop func(), err error) {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return func() {}, nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := raw.Read(kernel.HungUp); err == nil {
			gone()
		}
	}()
	return func() {
		conn.SetReadDeadline(time.Unix(1, 0)) // makes raw.Read return
		<-ended
		conn.SetReadDeadline(time.Time{})
	}, nil
}
