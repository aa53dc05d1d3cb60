package call

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"multistep.dev/runner/internal/kernel"
	"multistep.dev/runner/internal/peer"
)

const (
	bufferBytes = 256 << 10
	dialTimeout = 10 * time.Second // timeout of the connection, because PID 1 may still be starting, or may have many callers
	retryPause  = 20 * time.Millisecond
)

// Main runs the command `runner call`, which relays until PID 1 has responded to all requests.
func Main(args []string) error {
	flags := flag.NewFlagSet("call", flag.ContinueOnError)
	socket := flags.String("socket", peer.DefaultSocket, "abstract name on which PID 1 serves")
	if err := flags.Parse(args); err != nil {
		return err
	}
	conn, err := dial(peer.Address(*socket))
	if err != nil {
		return fmt.Errorf("PID 1 does not answer: %w", err)
	}
	defer conn.Close()
	refusal, err := peer.Answer(conn)
	if err != nil {
		return fmt.Errorf("PID 1 does not answer: %w", err)
	}
	if refusal != nil {
		return relayRefusal(conn, refusal)
	}
	return Relay(conn)
}

func dial(address *net.UnixAddr) (*net.UnixConn, error) {
	for started := time.Now(); ; time.Sleep(retryPause) {
		conn, err := net.DialUnix("unix", nil, address)
		busy := errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EAGAIN)
		if !busy || time.Since(started) > dialTimeout {
			return conn, err
		}
	}
}

func relayRefusal(conn net.Conn, response []byte) error {
	os.Stdout.Write(response)
	io.Copy(os.Stdout, conn)
	return errors.New("PID 1 refuses to talk to this caller")
}

// Relay copies stdin to the connection, and the connection to stdout. At the end of stdin it closes the sending direction, and PID
// 1 closes the connection after the last response. If stdin fails, or nobody reads stdout any more, Relay closes both directions,
// so that PID 1 stops its work for this caller.
func Relay(conn *net.UnixConn) error {
	var asked atomic.Bool
	go func() {
		kernel.WaitBroken(os.Stdout.Fd())
		conn.Close()
	}()
	go func() {
		stdin := &source{Reader: os.Stdin}
		copyAll(conn, stdin)
		if stdin.failed {
			conn.Close()
			return
		}
		asked.Store(true)
		conn.CloseWrite()
	}()
	if err := copyAll(os.Stdout, conn); err != nil {
		return fmt.Errorf("the session broke: %w", err)
	}
	if !asked.Load() {
		return errors.New("PID 1 ended the session")
	}
	return nil
}

// source is a reader that records whether a read failed with an error other than io.EOF.
type source struct {
	io.Reader
	failed bool
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	s.failed = s.failed || err != nil && err != io.EOF
	return n, err
}

// copyAll is io.Copy with a buffer of bufferBytes. It hides the methods ReadFrom and WriteTo, which use system calls such as
// splice, because a plain buffer works on every kernel.
func copyAll(to io.Writer, from io.Reader) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, bufferBytes))
	return err
}
