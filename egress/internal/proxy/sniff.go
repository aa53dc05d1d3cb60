// Finds the protocol and the server's name in a client's first bytes.

package proxy

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"multistep.dev/egress/internal/policy"
)

const (
	mostHeaderBytes = 32 << 10
	helloTimeout    = 10 * time.Second
)

// spoken describes the first bytes that a client sends.
type spoken struct {
	// kind is tls, http, or tcp for any other protocol.
	kind string
	// name is the server's name in these bytes.
	name string
}

// sniff reads the client's first bytes, and copies them to seen. It returns an error if no byte arrives before the read deadline.
func sniff(client net.Conn, seen *bytes.Buffer) (spoken, error) {
	buffered := bufio.NewReader(io.TeeReader(io.LimitReader(client, mostHeaderBytes), seen))
	first, err := buffered.Peek(1)
	if err != nil {
		_ = client.SetReadDeadline(time.Time{})
		return spoken{}, err
	}
	_ = client.SetReadDeadline(time.Now().Add(helloTimeout)) // for the rest of the ClientHello or the request
	defer func() { _ = client.SetReadDeadline(time.Time{}) }()
	if first[0] == 0x16 { // a TLS record with a handshake
		return spoken{"tls", policy.Normalize(serverName(buffered))}, nil
	}
	if line, ok := requestLine(buffered); ok {
		return spoken{"http", policy.Normalize(hostOf(io.MultiReader(strings.NewReader(line), buffered)))}, nil
	}
	return spoken{kind: "tcp"}, nil
}

func serverName(reader io.Reader) (name string) {
	seen := errors.New("seen")
	config := &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		name = hello.ServerName
		return nil, seen
	}}
	_ = tls.Server(readOnly{reader}, config).Handshake() // always fails, because it only reads the ClientHello
	return name
}

// requestLine returns the first line if it is a request line of HTTP/1, with a method in capitals and the version at the end.
// HTTP/2 without TLS counts as another protocol, because it has the host in compressed frames.
func requestLine(reader *bufio.Reader) (string, bool) {
	for size := 1; ; size++ {
		start, err := reader.Peek(size)
		if err != nil || size > 20 {
			return "", false
		}
		if last := start[size-1]; last == ' ' && size > 1 {
			break
		} else if last < 'A' || last > 'Z' {
			return "", false
		}
	}
	line, err := reader.ReadString('\n')
	version := strings.TrimSpace(line[strings.LastIndexByte(line, ' '):])
	return line, err == nil && strings.HasPrefix(version, "HTTP/1.")
}

func hostOf(reader io.Reader) string {
	request, err := http.ReadRequest(bufio.NewReader(reader))
	if err != nil {
		return ""
	}
	if host, _, err := net.SplitHostPort(request.Host); err == nil {
		return host
	}
	return request.Host
}

type readOnly struct{ io.Reader }

func (readOnly) Write([]byte) (int, error)        { return 0, io.ErrClosedPipe }
func (readOnly) Close() error                     { return nil }
func (readOnly) LocalAddr() net.Addr              { return net.TCPAddrFromAddrPort(netip.AddrPort{}) }
func (readOnly) RemoteAddr() net.Addr             { return net.TCPAddrFromAddrPort(netip.AddrPort{}) }
func (readOnly) SetDeadline(time.Time) error      { return nil }
func (readOnly) SetReadDeadline(time.Time) error  { return nil }
func (readOnly) SetWriteDeadline(time.Time) error { return nil }
