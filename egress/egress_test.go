package main

import (
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"multistep.dev/egress/internal/control"
	"multistep.dev/egress/internal/policy"
	"multistep.dev/egress/internal/refusals"
)

func TestTheNetworkIsClosedFromTheStart(t *testing.T) {
	s := start(t)
	got, err := get(evil, evilName)
	wantRefusal(t, got, err)
	if err := udp(evil + ":5353"); err == nil {
		t.Error("UDP passes")
	}
	if answer, err := lookup(goodName, dns.TypeA); err != nil || answer.Rcode != dns.RcodeNameError {
		t.Errorf("DNS: %v %v", answer, err)
	}
	report := s.none().Report
	wantCounted(t, report, refusals.Target{Protocol: "tcp", Host: evil, Port: 80})
	wantCounted(t, report, refusals.Target{Protocol: "udp", Host: evil, Port: 5353})
	wantCounted(t, report, refusals.Target{Protocol: "dns", Host: goodName, Port: 53})
}

func TestPublicReachesEverythingAndNothingReachesThePod(t *testing.T) {
	s := start(t)
	s.public()
	got, err := get(evil, evilName)
	wantAnswer(t, got, err, evil)
	if err := udp(evil + ":5353"); err != nil {
		t.Errorf("UDP: %v", err)
	}
	if answer, err := lookup(evilName, dns.TypeTXT); err != nil || len(answer.Answer) != 1 {
		t.Errorf("DNS: %v %v", answer, err)
	}
	if report := s.none(); len(report.Refused) != 0 || report.Others != 0 {
		t.Errorf("refused in public: %+v", report)
	}
}

func TestAnAllowedNameIsReachedByEveryProtocol(t *testing.T) {
	s := start(t)
	s.allow(goodName)
	answer, err := lookup(goodName, dns.TypeA)
	if err != nil || len(answer.Answer) != 1 {
		t.Fatalf("DNS: %v %v", answer, err)
	}
	got, err := get(good, goodName)
	wantAnswer(t, got, err, good+" host="+goodName)
	got, err = talk(good+":7000", "")
	wantAnswer(t, got, err, "hello")
	got, err = talk(good+":7001", "some protocol\n")
	wantAnswer(t, got, err, "some protocol")
	if name, _ := serverNameSeen(good+":7001", goodName); name != goodName {
		t.Errorf("the server got SNI %q", name)
	}
}

// serverNameSeen starts TLS with the echo server and returns the server's name in the ClientHello that comes back.
func serverNameSeen(address, name string) (string, error) {
	conn, err := net.DialTimeout("tcp", address, generous)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(generous))
	back, seen := net.Pipe()
	go func() {
		_ = tls.Client(duplex{conn, seen}, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
	}()
	found := ""
	config := &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		found = hello.ServerName
		_ = back.Close() // nobody reads the alert that the server sends next
		return nil, io.EOF
	}}
	err = tls.Server(back, config).Handshake()
	if found != "" {
		err = nil
	}
	return found, err
}

// duplex writes to a connection, and copies everything that it reads from this connection to another one.
type duplex struct {
	net.Conn
	to net.Conn
}

func (d duplex) Read(into []byte) (int, error) {
	size, err := d.Conn.Read(into)
	if err != nil {
		_ = d.to.Close()
		return 0, err
	}
	_, err = d.to.Write(into[:size])
	return 0, err
}

func TestAnAllowedNameIsNotAnAllowedAddress(t *testing.T) {
	s := startWaiting(t, generous)
	s.allow(goodName)
	if answer, err := lookup(goodName, dns.TypeA); err != nil || len(answer.Answer) != 1 {
		t.Fatalf("DNS: %v %v", answer, err)
	}
	got, err := get(evil, goodName) // the Host header names an allowed server, but the address is another server's
	wantAnswer(t, got, err, good+" host="+goodName)
	got, err = get(good, evilName)
	wantRefusal(t, got, err)
	got, err = get(evil, evilName)
	wantRefusal(t, got, err)
	got, err = talk(evil+":7001", "raw\n")
	wantRefusal(t, got, err)
	got, err = serverNameSeen(good+":7001", evilName)
	wantRefusal(t, got, err)
	if err := udp(good + ":5353"); err == nil {
		t.Error("UDP to an allowed name passes")
	}
	report := s.none().Report
	wantCounted(t, report, refusals.Target{Protocol: "http", Host: evilName, Port: 80})
	wantCounted(t, report, refusals.Target{Protocol: "tls", Host: evilName, Port: 7001})
	wantCounted(t, report, refusals.Target{Protocol: "tcp", Host: evil, Port: 7001})
}

func TestAClientThatWaitsIsStillAskedForTheName(t *testing.T) {
	s := start(t)
	s.allow(goodName)
	if _, err := lookup(goodName, dns.TypeA); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", good+":7000")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(generous))
	// wait for "hello\n": the client sends nothing, so the proxy assumes that the server speaks first
	if _, err := io.ReadFull(conn, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: "+evilName+"\r\n\r\n")
	if size, err := conn.Read(make([]byte, 99)); err == nil {
		t.Errorf("%d bytes came back", size)
	}
}

func TestCIDRsAllowEveryProtocolToTheirAddresses(t *testing.T) {
	s := start(t)
	s.allow(good+"/31", "2001:db8::/64")
	got, err := get(good, "whatever")
	wantAnswer(t, got, err, good)
	got, err = talk(good+":7000", "")
	wantAnswer(t, got, err, "hello")
	if err := udp(good + ":5353"); err != nil {
		t.Errorf("UDP: %v", err)
	}
	got, err = get(evil, "whatever")
	wantRefusal(t, got, err)
	if err := udp(evil + ":5353"); err == nil {
		t.Error("UDP to another address passes")
	}
}

func TestAPolicyMayListAsManyAddressesAsItsLimit(t *testing.T) {
	s := start(t)
	hosts := []string{evil, "::/1", "255.255.255.255", "192.0.2.0/24", "192.0.2.128/25"}
	for number := 0; len(hosts) < policy.MaxHosts; number += 2 { // with gaps, so that they cannot be joined to one range
		hosts = append(hosts, netip.AddrFrom4([4]byte{11, byte(number >> 16), byte(number >> 8), byte(number)}).String())
	}
	s.allow(hosts...)
	if err := udp(evil + ":5353"); err != nil {
		t.Errorf("UDP: %v", err)
	}
	got, err := get(evil, "whatever")
	wantAnswer(t, got, err, evil)
	if err := udp(good + ":5353"); err == nil {
		t.Error("UDP passes to an address that is not listed")
	}
	got, err = get(good, goodName)
	wantRefusal(t, got, err)
}

func TestDNSAnswersOnlyAddressesOfAllowedNames(t *testing.T) {
	s := start(t)
	s.allow(goodName, "*."+goodName, "short")
	for _, each := range []struct {
		name    string
		kind    uint16
		answers int
		code    int
	}{
		{goodName, dns.TypeA, 1, dns.RcodeSuccess},
		{strings.ToUpper(goodName), dns.TypeA, 1, dns.RcodeSuccess},
		{"www." + goodName, dns.TypeA, 1, dns.RcodeSuccess},
		{"short.default.svc.cluster.local", dns.TypeA, 1, dns.RcodeSuccess}, // with a search domain that a resolver appends
		{"other." + goodName, dns.TypeA, 0, dns.RcodeNameError},
		{"metadata." + goodName, dns.TypeA, 0, dns.RcodeSuccess}, // resolves to a link-local address
		{goodName, dns.TypeTXT, 0, dns.RcodeSuccess},
		{goodName, dns.TypeHTTPS, 0, dns.RcodeSuccess},
		{"secret." + evilName, dns.TypeA, 0, dns.RcodeNameError},
		{evilName, dns.TypeTXT, 0, dns.RcodeNameError},
	} {
		answer, err := lookup(each.name, each.kind)
		if err != nil || len(answer.Answer) != each.answers || answer.Rcode != each.code {
			t.Errorf("%s %s: %v %v", each.name, dns.TypeToString[each.kind], answer, err)
		}
	}
}

func TestTheGatewayIsReachedWithoutNetwork(t *testing.T) {
	s := start(t)
	s.switchTo(policy.Policy{Mode: policy.NoNetwork, Gateway: true})
	if answer, err := lookup(gatewayName+".cluster.local", dns.TypeA); err != nil || len(answer.Answer) != 1 {
		t.Fatalf("DNS: %v %v", answer, err)
	}
	got, err := get(good+":8080", gatewayName+":8080")
	wantAnswer(t, got, err, good)
	for _, each := range [][2]string{{good + ":8081", gatewayName + ":8081"}, {good + ":80", gatewayName}, {good + ":8080", evilName}} {
		got, err = get(each[0], each[1])
		wantRefusal(t, got, err)
	}
	s.none()
	got, err = get(good+":8080", gatewayName+":8080")
	wantRefusal(t, got, err)
}

func TestASwitchCutsWhatIsNoLongerAllowed(t *testing.T) {
	for name, before := range map[string]func(s *sidecarProcess){
		"allowed by its name": func(s *sidecarProcess) {
			s.allow(goodName)
			if _, err := lookup(goodName, dns.TypeA); err != nil {
				s.t.Fatal(err)
			}
		},
		"allowed by its address": func(s *sidecarProcess) { s.allow(good) },
		"in public":              func(s *sidecarProcess) { s.public() },
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			before(s)
			conn, err := net.Dial("tcp", good+":7000")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			_ = conn.SetDeadline(time.Now().Add(generous))
			if _, err := io.ReadFull(conn, make([]byte, 6)); err != nil {
				t.Fatal(err)
			}
			s.none()
			_, _ = io.WriteString(conn, "more\n")
			if size, err := conn.Read(make([]byte, 9)); err == nil {
				t.Errorf("%d bytes came back after the switch", size)
			}
		})
	}
}

func TestASwitchKeepsWhatIsStillAllowed(t *testing.T) {
	s := start(t)
	s.allow(good, evil)
	conn, err := net.Dial("tcp", good+":7001")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(generous))
	for _, change := range []func(){func() {}, func() { s.allow(good) }, s.public, func() { s.allow(good) }} {
		change()
		if _, err := io.WriteString(conn, "ping"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestARepeatedSwitchChangesNothing(t *testing.T) {
	s := startWaiting(t, generous)
	got, err := get(evil, evilName)
	wantRefusal(t, got, err)
	request := control.Request{ID: "1/step/network", Policy: policy.Policy{Mode: policy.Allowlist, Hosts: []string{good}}}
	first := s.request(request)
	wantCounted(t, first.Report, refusals.Target{Protocol: "tcp", Host: evil, Port: 80})
	got, err = get(evil, evilName)
	wantRefusal(t, got, err)
	if again := s.request(request); again.Boot != first.Boot || len(again.Refused) != len(first.Refused) {
		t.Errorf("first %+v, again %+v", first, again)
	}
	wantCounted(t, s.none().Report, refusals.Target{Protocol: "http", Host: evilName, Port: 80})
}

func TestABadRequestChangesNothing(t *testing.T) {
	s := start(t)
	s.allow(good)
	for _, bad := range []control.Request{
		{ID: "x", Policy: policy.Policy{Mode: "open"}},
		{Policy: policy.Policy{Mode: policy.Public}},
		{ID: "y", Policy: policy.Policy{Mode: policy.Allowlist, Hosts: []string{"10.0.0.0/99"}}},
	} {
		if answer := s.request(bad); answer.Error == "" || answer.InvalidHosts != (len(bad.Hosts) > 0) {
			t.Errorf("%+v: got %+v", bad, answer)
		}
	}
	got, err := get(good, "whatever")
	wantAnswer(t, got, err, good)
	got, err = get(evil, "whatever")
	wantRefusal(t, got, err)
}

func TestAKilledSidecarNeverOpens(t *testing.T) {
	s := start(t)
	boot := s.allow(goodName).Boot
	s.kill()
	for range 3 {
		got, err := get(evil, evilName)
		wantRefusal(t, got, err)
		if err := udp(evil + ":5353"); err == nil {
			t.Error("UDP passes")
		}
	}
	s.write("resolv.conf", "nameserver "+evil+"\n") // root in another container could write this file
	s.run()
	got, err := get(good, goodName)
	wantRefusal(t, got, err)
	if again := s.allow(goodName).Boot; again == boot {
		t.Error("the restarted sidecar has the same boot id")
	}
	if answer, err := lookup(goodName, dns.TypeA); err != nil || len(answer.Answer) != 1 {
		t.Errorf("DNS after the restart: %v %v", answer, err)
	}
}

func TestNamesOfTheHostsFileAreNotBelieved(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread has its own mount namespace
	hosts, err := os.ReadFile("/etc/hosts")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil { // changes only this thread, which starts the sidecar
		t.Fatal(err)
	}
	file := t.TempDir() + "/hosts"
	if err := os.WriteFile(file, append(hosts, []byte("\n"+evil+" "+goodName+"\n")...), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(file, "/etc/hosts", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	s := startWaiting(t, generous)
	s.allow(goodName)
	got, err := get(evil, goodName)
	wantAnswer(t, got, err, good)
}

func TestTheNumberOfConnectionsIsLimited(t *testing.T) {
	s := start(t)
	s.allow(good)
	for number := range 384 {
		conn, err := net.Dial("tcp", good+":7001")
		if err != nil {
			t.Fatalf("connection %d: %v", number, err)
		}
		defer func() { _ = conn.Close() }()
		if _, err := io.WriteString(conn, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			t.Fatalf("connection %d: %v", number, err)
		}
	}
	got, err := talk(good+":7001", "one too many\n")
	wantRefusal(t, got, err)
	if s.allow(good).Others != 1 {
		t.Error("the refused connection is not counted")
	}
	s.none() // closes all connections
	s.allow(good)
	for got, err = talk(good+":7001", "again\n"); err != nil; got, err = talk(good+":7001", "again\n") {
		time.Sleep(10 * time.Millisecond) // the proxy forgets closed connections one by one
	}
	wantAnswer(t, got, err, "again")
}

func TestTheNumberOfConnectionsToTheNameServerIsLimited(t *testing.T) {
	s := start(t)
	s.allow(goodName)
	var idle []net.Conn
	for range mostNameConnections {
		conn, err := net.Dial("tcp", node+":53")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		idle = append(idle, conn)
	}
	client := &dns.Client{Net: "tcp", Timeout: generous}
	for served := false; !served; { // the server also closes the connection of a query that is delayed for 2 s: then ask again
		_, _, err := client.Exchange(new(dns.Msg).SetQuestion(dns.Fqdn(goodName), dns.TypeA), node+":53")
		if !slices.ContainsFunc(idle, ended) {
			t.Fatalf("one more connection did not wait until an idle one was closed: %v", err)
		}
		served = err == nil
	}
}

// ended returns whether the server has closed a connection. It does not wait.
func ended(conn net.Conn) (closed bool) {
	if raw, err := conn.(*net.TCPConn).SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			size, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_DONTWAIT)
			closed = size == 0 && err == nil
		})
	}
	return closed
}

func TestOnlyTheKubeletReachesThePod(t *testing.T) {
	s := start(t)
	listener, err := net.Listen("tcp", podAddress+":9876")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	other, err := net.Listen("tcp", podAddress+":9999")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	for name, change := range map[string]func(){"none": func() { s.none() }, "public": s.public, "allowlist": func() { s.allow(evil) }} {
		change()
		if err := fromOutside(node, podAddress+":9876", generous); err != nil {
			t.Errorf("%s: the kubelet's probe: %v", name, err)
		}
		for _, each := range [][2]string{{evil, podAddress + ":9876"}, {node, podAddress + ":9999"}, {evil, podAddress + ":15001"}} {
			if err := fromOutside(each[0], each[1], 300*time.Millisecond); err == nil {
				t.Errorf("%s: %s reaches %s", name, each[0], each[1])
			}
		}
	}
}

// After each switch, lookups on a socket that stays open get the new policy's answers. Servers such as nginx keep such a socket.
func TestLookupsOfAKeptSocketFollowTheNetwork(t *testing.T) {
	s := start(t)
	conn, err := net.Dial("udp", node+":53")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for _, each := range []struct {
		change     func()
		good, evil int
	}{
		{func() { s.none() }, dns.RcodeNameError, dns.RcodeNameError},
		{s.public, dns.RcodeSuccess, dns.RcodeSuccess},
		{func() { s.allow(goodName) }, dns.RcodeSuccess, dns.RcodeNameError},
		{func() { s.none() }, dns.RcodeNameError, dns.RcodeNameError},
	} {
		each.change()
		for name, want := range map[string]int{goodName: each.good, evilName: each.evil} {
			client := &dns.Client{Timeout: generous}
			answer, _, err := client.ExchangeWithConn(new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA), &dns.Conn{Conn: conn})
			if err != nil || answer.Rcode != want {
				t.Errorf("%s: %v %v, want %s", name, answer, err, dns.RcodeToString[want])
			}
		}
	}
}

// A process may keep a socket that it opened in a phase with another network. After the switch, no peer may reach the process on
// it.
func TestASwitchCutsWhatComesIn(t *testing.T) {
	for name, network := range map[string]string{"UDP": "udp", "TCP": "tcp"} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			s.public()
			conn, say := peer(t, network)
			defer func() { _ = conn.Close() }()
			for _, change := range []func(){func() {}, func() { s.allow(evil) }} {
				change()
				say()
				_ = conn.SetReadDeadline(time.Now().Add(generous))
				if _, err := conn.Read(make([]byte, 9)); err != nil {
					t.Fatalf("before the switch: %v", err)
				}
			}
			for where, change := range map[string]func(){"none": func() { s.none() }, "allowlist": func() { s.allow(goodName) }} {
				change()
				say()
				_ = conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
				if size, err := conn.Read(make([]byte, 9)); err == nil {
					t.Errorf("%s: %d bytes came in after the switch", where, size)
				}
			}
		})
	}
}

// peer returns a connection to a new server outside the pod, and a function with which the server sends on it.
func peer(t *testing.T, network string) (net.Conn, func()) {
	t.Helper()
	address, says := make(chan string), make(chan func(), 1)
	outside <- func() {
		if network == "tcp" {
			listener, err := net.Listen(network, evil+":0")
			if err != nil {
				panic(err)
			}
			go func() {
				accepted, _ := listener.Accept()
				_, _ = accepted.Read(make([]byte, 1))
				says <- func() { _, _ = io.WriteString(accepted, "more") }
			}()
			go func() { address <- listener.Addr().String() }()
			return
		}
		packets, err := net.ListenPacket(network, evil+":0")
		if err != nil {
			panic(err)
		}
		go func() {
			_, from, _ := packets.ReadFrom(make([]byte, 1))
			says <- func() { _, _ = packets.WriteTo([]byte("more"), from) }
		}()
		go func() { address <- packets.LocalAddr().String() }()
	}
	conn, err := net.Dial(network, <-address)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	return conn, <-says
}
