// Decides which connections are forwarded, copies their data, and ends those that new rules do not allow.

package proxy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"multistep.dev/egress/internal/names"
	"multistep.dev/egress/internal/outward"
	"multistep.dev/egress/internal/policy"
	"multistep.dev/egress/internal/refusals"
)

const (
	mostConnections = 384
	bufferBytes     = 16 << 10
)

// Only tests change these.
var (
	FirstBytes  = time.Second // a client that sends nothing for this time is assumed to wait for the server
	DialTimeout = 10 * time.Second
)

var errRefused = errors.New("refused")

// Proxy forwards connections that were redirected to it.
type Proxy struct {
	Names   *names.Names
	Refused *refusals.Counter

	mutex sync.Mutex
	rules *policy.Rules
	open  map[*forwarded]struct{}
}

// forwarded is a client's connection with its connection to the server. name is the allowed name for which the connection is
// forwarded, or "" if the address is allowed.
type forwarded struct {
	client   *net.TCPConn
	upstream *net.TCPConn
	name     string
	to       netip.AddrPort
}

func (f *forwarded) allowedBy(rules *policy.Rules) bool {
	return rules.Public || rules.AllowsAddress(f.to.Addr()) || (f.name != "" && rules.AllowsEndpoint(f.name, f.to.Port()))
}

// cut closes both connections. It resets that of the client, so that the client gets an error instead of the end of the data.
func (f *forwarded) cut() {
	_ = f.client.SetLinger(0)
	f.close()
}

func (f *forwarded) close() {
	_ = f.client.Close()
	if f.upstream != nil {
		_ = f.upstream.Close()
	}
}

// Rules returns the rules in force.
func (p *Proxy) Rules() *policy.Rules {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.rules
}

// Apply puts rules in force and ends the connections that the new rules do not allow.
func (p *Proxy) Apply(rules *policy.Rules) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.rules = rules
	for each := range p.open {
		if each.to.IsValid() && !each.allowedBy(rules) {
			each.cut()
		}
	}
}

// Serve accepts connections until the listener is closed.
func (p *Proxy) Serve(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // no descriptor is free until connections have been closed
			continue
		}
		go p.serve(conn.(*net.TCPConn))
	}
}

func (p *Proxy) serve(client *net.TCPConn) {
	to, err := original(client)
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	link := &forwarded{client: client}
	if err != nil || !p.register(link) {
		p.Refused.AddOthers(1)
		link.cut()
		return
	}
	defer p.forget(link)
	rules := p.Rules()
	switch {
	case to.Addr().IsLoopback() || rules.Closed(): // for a loopback address, the client connected to the proxy itself
		p.refuse(link, "tcp", to.Addr().String(), to.Port())
	case rules.Public || rules.AllowsAddress(to.Addr()):
		if p.connect(link, "", to) == nil {
			link.exchange(nil)
		}
	default:
		p.byName(link, to)
	}
}

// byName forwards a TLS or HTTP connection to the server whose name the client sends, if the name is allowed. It forwards a
// connection of another protocol if an allowed name resolved to the address.
func (p *Proxy) byName(link *forwarded, to netip.AddrPort) {
	var seen bytes.Buffer
	_ = link.client.SetReadDeadline(time.Now().Add(FirstBytes))
	asked, err := sniff(link.client, &seen)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		asked = spoken{kind: "tcp"}
	} else if err != nil {
		return
	}
	if asked.kind != "tcp" {
		if p.toServer(link, asked, to) == nil {
			link.exchange(seen.Bytes())
		}
		return
	}
	name := p.Names.AllowedAt(to)
	if name == "" {
		p.refuse(link, "tcp", to.Addr().String(), to.Port())
		return
	}
	if p.connect(link, name, to) != nil {
		return
	}
	if seen.Len() > 0 {
		link.exchange(seen.Bytes())
		return
	}
	p.serverFirst(link, to)
}

// toServer connects to the server whose name the client sent, if the name is allowed.
func (p *Proxy) toServer(link *forwarded, asked spoken, to netip.AddrPort) error {
	name, allowed := p.Names.Allowed(asked.name, to.Port())
	if !allowed {
		p.refuse(link, asked.kind, cmp.Or(asked.name, to.Addr().String()), to.Port())
		return errRefused
	}
	ctx, cancel := context.WithTimeout(context.Background(), DialTimeout)
	defer cancel()
	address, err := p.Names.Lookup(ctx, name, to.Addr())
	if err != nil {
		return err
	}
	return p.connect(link, name, netip.AddrPortFrom(address, to.Port()))
}

// serverFirst forwards a connection in which the server sends the first data. It ends the connection if the client then sends the
// name of a server that is not allowed. Otherwise a client could send nothing for the time FirstBytes, and then start TLS with any
// server at a shared address.
func (p *Proxy) serverFirst(link *forwarded, to netip.AddrPort) {
	link.both(func() {
		var seen bytes.Buffer
		asked, err := sniff(link.client, &seen)
		if err == nil && asked.kind != "tcp" {
			if _, allowed := p.Names.Allowed(asked.name, to.Port()); !allowed {
				p.refuse(link, asked.kind, cmp.Or(asked.name, to.Addr().String()), to.Port())
				link.cut()
				return
			}
		}
		link.send(seen.Bytes())
	})
}

func (p *Proxy) refuse(link *forwarded, kind, host string, port uint16) {
	p.Refused.Add(refusals.Target{Protocol: kind, Host: host, Port: port}, 1)
	_ = link.client.SetLinger(0) // so that close resets the connection
}

// connect opens the connection to the server. It returns an error if the rules have changed and no longer allow the connection.
func (p *Proxy) connect(link *forwarded, name string, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(context.Background(), DialTimeout)
	defer cancel()
	upstream, err := outward.Dial(ctx, "tcp", to.String())
	if err != nil {
		return err
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	link.upstream, link.name, link.to = upstream.(*net.TCPConn), name, to
	if !link.allowedBy(p.rules) {
		return errRefused
	}
	return nil
}

func (p *Proxy) register(link *forwarded) bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.open == nil {
		p.open = map[*forwarded]struct{}{}
	}
	if len(p.open) >= mostConnections {
		return false
	}
	p.open[link] = struct{}{}
	return true
}

func (p *Proxy) forget(link *forwarded) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	delete(p.open, link)
	link.close()
}

// exchange copies both directions until both have ended. first has the bytes that were already read from the client.
func (f *forwarded) exchange(first []byte) {
	f.both(func() { f.send(first) })
}

func (f *forwarded) both(send func()) {
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		send()
	}()
	f.receive()
	<-sent
}

// send copies data from the client to the server, and signals the end of the client's data to the server.
func (f *forwarded) send(first []byte) {
	if _, err := f.upstream.Write(first); err != nil || copyBytes(f.upstream, f.client) != nil {
		f.cut()
		return
	}
	_ = f.upstream.CloseWrite()
}

// receive copies data from the server to the client, and signals the end of the server's data to the client.
func (f *forwarded) receive() {
	if copyBytes(f.client, f.upstream) != nil {
		f.cut()
		return
	}
	_ = f.client.CloseWrite()
}

// copyBytes copies with a small buffer of its own, because the kernel's splice would use up to 1 MiB for each direction.
func copyBytes(to io.Writer, from io.Reader) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, bufferBytes))
	return err
}
