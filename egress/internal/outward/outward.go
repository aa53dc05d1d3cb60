package outward

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"multistep.dev/egress/internal/firewall"
)

// The range of the sidecar's local ports does not overlap with the range from which the kernel chooses ports for the pod's
// connections (32768 to 60999). The kernel remembers for a while whether a connection was redirected, so it would not redirect a
// connection of the pod that reuses a port of the sidecar.
const (
	firstPort = 61000
	lastPort  = 65535
	tries     = 64
)

const timeout = 10 * time.Second

// Dial connects to an address, with a socket that has the sidecar's mark.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: timeout, Control: mark}
	var err error
	for range tries {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if strings.HasPrefix(network, "udp") {
			dialer.LocalAddr = &net.UDPAddr{Port: port}
		} else {
			dialer.LocalAddr = &net.TCPAddr{Port: port}
		}
		var conn net.Conn
		if conn, err = dialer.DialContext(ctx, network, address); err == nil {
			return conn, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, unix.EADDRNOTAVAIL) {
			break
		}
	}
	return nil, err
}

func mark(network, _ string, raw syscall.RawConn) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, firewall.Mark)
		if failed == nil && strings.HasPrefix(network, "tcp") { // connections to different servers may share a port
			failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		}
	})
	return errors.Join(err, failed)
}
