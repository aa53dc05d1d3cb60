package control

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	"multistep.dev/egress/internal/policy"
	"multistep.dev/egress/internal/refusals"
)

// Socket is the control socket, in a volume that no other container mounts.
const Socket = "/run/egress/control.sock"

const mostRequestBytes = 4 << 20

// Request is a request to switch to a policy. If the operator repeats a request, ID stays the same.
type Request struct {
	ID string `json:"id"`
	policy.Policy
}

// Answer confirms that the requested policy is in force, unless Error is set.
type Answer struct {
	// Boot is the id of the sidecar's process, which starts with no network.
	Boot string `json:"boot"`
	// Report has the attempts that were refused since the previous switch.
	refusals.Report
	Error string `json:"error,omitempty"`
	// InvalidHosts tells whether the error is in the policy's hosts.
	InvalidHosts bool `json:"invalidHosts,omitempty"`
}

// Control switches policies, one request after the other. Switch puts a policy in force, and returns the attempts that were refused
// since the previous switch.
type Control struct {
	Boot   string
	Switch func(policy.Policy) (refusals.Report, error)

	mutex sync.Mutex
	last  Request
	given Answer
}

// Do carries out a request. If it equals the last request that succeeded, Do changes nothing and returns the same answer.
func (c *Control) Do(request Request) Answer {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if request.ID == "" {
		return Answer{Boot: c.Boot, Error: "id: is missing"}
	}
	if reflect.DeepEqual(request, c.last) {
		return c.given
	}
	report, err := c.Switch(request.Policy)
	if err != nil {
		return Answer{Boot: c.Boot, Error: err.Error(), InvalidHosts: errors.Is(err, policy.ErrHosts)}
	}
	c.last, c.given = request, Answer{Boot: c.Boot, Report: report}
	return c.given
}

// Listen creates the socket.
func Listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	return listener, os.Chmod(path, 0o600)
}

// Serve answers requests until the listener is closed. Requests and answers are lines of JSON.
func (c *Control) Serve(listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go c.converse(conn)
	}
}

func (c *Control) converse(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, mostRequestBytes)
	for lines.Scan() {
		var request Request
		answer := Answer{Boot: c.Boot}
		if err := json.Unmarshal(lines.Bytes(), &request); err != nil {
			answer.Error = fmt.Sprintf("not a request: %v", err)
		} else {
			answer = c.Do(request)
		}
		if json.NewEncoder(conn).Encode(answer) != nil {
			return
		}
	}
}

// Dial connects to the socket. It retries until the timeout, because the socket may not exist yet.
func Dial(path string, timeout time.Duration) (net.Conn, error) {
	for end := time.Now().Add(timeout); ; time.Sleep(5 * time.Millisecond) {
		conn, err := net.Dial("unix", path)
		if err == nil || time.Now().After(end) {
			return conn, err
		}
	}
}
