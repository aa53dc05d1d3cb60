// Package ready answers HTTP readiness probes. It is no web server: everybody in the pod's network can call it, it must
// stay small whatever they do, and every start of this program would pay for a larger one.
package ready

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

const (
	requestTimeout = 5 * time.Second
	maxRequest     = 4 << 10
	maxAtOnce      = 64
)

// Serve answers until the listener is closed.
func Serve(listener net.Listener, ready func() bool) error {
	slots := make(chan struct{}, maxAtOnce)
	for {
		conn, err := listener.Accept()
		if ne, ok := err.(net.Error); ok && ne.Timeout() {
			continue
		}
		if err != nil {
			if strings.Contains(err.Error(), "too many open files") {
				time.Sleep(50 * time.Millisecond)
				continue
			}
			return err
		}
		slots <- struct{}{} // the kernel keeps the others waiting
		go func() {
			defer func() { <-slots }()
			answer(conn, ready)
		}()
	}
}

func answer(conn net.Conn, ready func() bool) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(requestTimeout))
	method, path, err := request(conn)
	if err != nil {
		return
	}
	status := "200 OK"
	switch {
	case path != "/ready":
		status = "404 Not Found"
	case method != "GET" && method != "HEAD":
		status = "405 Method Not Allowed"
	case !ready():
		status = "503 Service Unavailable"
	}
	fmt.Fprintf(conn, "HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", status)
}

// request reads a request to the end of its header, so that closing does not reset the connection.
func request(conn net.Conn) (method, path string, err error) {
	lines := bufio.NewReaderSize(io.LimitReader(conn, maxRequest), 1<<10)
	first, err := lines.ReadString('\n')
	if err != nil {
		return "", "", err
	}
	for line := first; strings.TrimRight(line, "\r\n") != ""; {
		if line, err = lines.ReadString('\n'); err != nil {
			return "", "", err
		}
	}
	fields := strings.Fields(first)
	if len(fields) != 3 || !strings.HasPrefix(fields[2], "HTTP/") {
		return "", "", fmt.Errorf("not HTTP: %.80q", first)
	}
	path, _, _ = strings.Cut(fields[1], "?")
	return fields[0], path, nil
}
