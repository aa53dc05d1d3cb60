package ready

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	maxRequest = 4 << 10
	maxAtOnce  = 64
)

var requestTimeout = 5 * time.Second

// Serve responds until the listener is closed. If maxAtOnce connections are open, a new one closes the oldest connection of the
// address with the most connections. So a client that floods the port or keeps connections idle loses its own connections, and
// the kubelet's probe gets its response at once.
func Serve(listener net.Listener, ready func() bool) error {
	open := connections{byAddress: map[string][]net.Conn{}}
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
		open.add(conn)
		go func() {
			defer open.remove(conn)
			answer(conn, ready)
		}()
	}
}

// connections has the open connections by remote address, oldest first.
type connections struct {
	mutex     sync.Mutex
	count     int
	byAddress map[string][]net.Conn
}

func (c *connections) add(conn net.Conn) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.count >= maxAtOnce {
		c.drop()
	}
	address := addressOf(conn)
	c.byAddress[address] = append(c.byAddress[address], conn)
	c.count++
}

// drop closes the oldest connection of the address with the most connections.
func (c *connections) drop() {
	busiest := ""
	for address, conns := range c.byAddress {
		if len(conns) > len(c.byAddress[busiest]) {
			busiest = address
		}
	}
	oldest := c.byAddress[busiest][0]
	oldest.Close()
	c.forget(busiest, oldest)
}

func (c *connections) remove(conn net.Conn) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.forget(addressOf(conn), conn)
}

// forget unregisters a connection, unless drop has already closed it.
func (c *connections) forget(address string, conn net.Conn) {
	conns := c.byAddress[address]
	at := slices.Index(conns, conn)
	if at < 0 {
		return
	}
	c.count--
	if c.byAddress[address] = slices.Delete(conns, at, at+1); len(conns) == 1 {
		delete(c.byAddress, address)
	}
}

func addressOf(conn net.Conn) string {
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		return ""
	}
	return host
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

// request reads a request to the end of its header, because closing with unread data would reset the connection.
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
