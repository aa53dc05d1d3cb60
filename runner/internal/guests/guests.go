// Decides which guests are admitted and for how long, and limits the number of connections.

package guests

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"slices"
	"sync"

	"multistep.dev/runner/internal/peer"
	"multistep.dev/runner/internal/phase"
)

const (
	maxConnections = 64
	tokenBytes     = 32
)

// Admission is the permission for guests to act as User in this container, or as any user if Root is set, until it is dismissed.
type Admission struct {
	User       string
	Root       bool
	Background phase.Background // processes that the guests' finished commands left running
	token      []byte
	ctx        context.Context
	dismiss    context.CancelFunc
	sessions   sync.WaitGroup
}

// Context returns a context that is cancelled when the admission is dismissed.
func (a *Admission) Context() context.Context { return a.ctx }

// Admissions has the current admissions and the guests' connections.
type Admissions struct {
	mu          sync.Mutex
	admitted    map[string]*Admission // current admissions, by the id of their `admit` request
	connections []*Connection         // guests' connections, oldest first
}

// New returns an empty Admissions.
func New() *Admissions { return &Admissions{admitted: map[string]*Admission{}} }

// Admit creates an admission and returns its token in hexadecimal digits.
func (a *Admissions) Admit(id, user string, root bool) (token string) {
	secret := make([]byte, tokenBytes)
	rand.Read(secret)
	ctx, cancel := context.WithCancel(context.Background())
	a.mu.Lock()
	defer a.mu.Unlock()
	a.admitted[id] = &Admission{User: user, Root: root, token: secret, ctx: ctx, dismiss: cancel}
	return hex.EncodeToString(secret)
}

// Dismiss ends an admission, and returns after the sessions of its guests have ended and their commands were killed. If kill is
// set, Dismiss also kills the processes that the guests' finished commands left running.
func (a *Admissions) Dismiss(id string, kill bool) (found bool, err error) {
	a.mu.Lock()
	admission, found := a.admitted[id]
	delete(a.admitted, id)
	a.mu.Unlock()
	if !found {
		return false, nil
	}
	admission.dismiss()
	admission.sessions.Wait()
	if kill {
		err = admission.Background.Kill()
	}
	return true, err
}

// Connection is a guest's connection. At most maxConnections exist.
type Connection struct {
	*net.UnixConn
	admissions *Admissions
	admission  *Admission // nil until the guest has proved that it knows the token
	ended      chan struct{}
}

// Connect registers a connection from another container. If maxConnections are registered, it closes the oldest one whose peer has
// not proved that it knows a token, so that peers without a token cannot block others. The caller must call Leave, except after an
// error, which leaves conn open and unregistered.
func (a *Admissions) Connect(conn *net.UnixConn) (*Connection, error) {
	added, evicted, err := a.add(conn)
	if evicted != nil {
		evicted.Close()
		<-evicted.ended // waits, so that evicted connections keep no goroutines
	}
	return added, err
}

func (a *Admissions) add(conn *net.UnixConn) (added, evicted *Connection, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.admitted) == 0 {
		return nil, nil, peer.ErrElsewhere
	}
	if len(a.connections) == maxConnections {
		oldest := slices.IndexFunc(a.connections, func(each *Connection) bool { return each.admission == nil })
		if oldest < 0 {
			return nil, nil, fmt.Errorf("%d guests are connected, the maximum", maxConnections)
		}
		evicted = a.connections[oldest]
		a.connections = slices.Delete(a.connections, oldest, oldest+1)
	}
	added = &Connection{UnixConn: conn, admissions: a, ended: make(chan struct{})}
	a.connections = append(a.connections, added)
	return added, evicted, nil
}

// Leave closes the connection and unregisters it.
func (c *Connection) Leave() {
	c.Close()
	c.admissions.mu.Lock()
	defer c.admissions.mu.Unlock()
	c.admissions.connections = slices.DeleteFunc(c.admissions.connections, func(each *Connection) bool { return each == c })
	if c.admission != nil {
		c.admission.sessions.Done()
	}
	close(c.ended)
}

// find returns the admission with this id, or nil.
func (a *Admissions) find(id string) *Admission {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.admitted[id]
}

// join makes the connection a session of the admission. It returns false if the admission was dismissed, or if Connect closed the
// connection for a newer one.
func (c *Connection) join(id string, admission *Admission) bool {
	c.admissions.mu.Lock()
	defer c.admissions.mu.Unlock()
	if c.admissions.admitted[id] != admission || !slices.Contains(c.admissions.connections, c) {
		return false
	}
	c.admission = admission
	admission.sessions.Add(1)
	return true
}
