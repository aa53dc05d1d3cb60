package ready

import (
	"bufio"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// Without the timeout, a probe that had to wait for the end of idle connections would never be answered.
func TestMain(m *testing.M) {
	requestTimeout = time.Hour
	os.Exit(m.Run())
}

func serve(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go Serve(listener, func() bool { return true })
	return listener.Addr().String()
}

func dialFrom(t *testing.T, from, to string) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.Dial("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// answered returns whether a probe on the connection gets status 200.
func answered(conn net.Conn) bool {
	conn.SetDeadline(time.Now().Add(time.Minute))
	conn.Write([]byte("GET /ready HTTP/1.1\r\n\r\n"))
	line, _ := bufio.NewReader(conn).ReadString('\n')
	return strings.Contains(line, "200")
}

func TestIdleConnectionsOfOthersDelayNoProbe(t *testing.T) {
	address := serve(t)
	for range 4 * maxAtOnce {
		dialFrom(t, "127.0.0.2", address)
	}
	if !answered(dialFrom(t, "127.0.0.3", address)) {
		t.Error("the probe was not answered")
	}
}

func TestAFloodDropsItsOwnConnectionsOnly(t *testing.T) {
	address := serve(t)
	probe := dialFrom(t, "127.0.0.3", address)
	for range 4 * maxAtOnce {
		dialFrom(t, "127.0.0.2", address)
	}
	if !answered(probe) {
		t.Error("another's connection was dropped for the flood")
	}
}
