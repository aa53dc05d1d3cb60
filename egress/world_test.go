package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"multistep.dev/egress/internal/control"
	"multistep.dev/egress/internal/names"
	"multistep.dev/egress/internal/policy"
	"multistep.dev/egress/internal/proxy"
	"multistep.dev/egress/internal/refusals"
)

// The tests run in two network namespaces, which a veth pair connects. The test's process is in the pod's namespace; the servers
// outside the pod are in the other one.
const (
	podAddress  = "10.99.0.2"
	node        = "10.99.0.1" // the kubelet, and the resolver
	good        = "10.99.0.10"
	evil        = "10.99.0.66"
	goodName    = "good.example.com"
	evilName    = "evil.example.net"
	gatewayName = "gateway.system.svc"
	inNamespace = "EGRESS_TEST_NAMESPACE"
	asSidecar   = "EGRESS_TEST_SIDECAR"
	asOutside   = "EGRESS_TEST_OUTSIDE"
	asWaiting   = "EGRESS_TEST_WAITING"
	ownPort     = "7002"

	generous = time.Minute // limit of a step that should succeed: a busy machine may delay it by seconds
)

func TestMain(m *testing.M) {
	if waits := os.Getenv(asSidecar); waits != "" {
		proxy.FirstBytes, _ = time.ParseDuration(waits)
		names.AnswerTimeout, names.ServerTimeout, proxy.DialTimeout = generous, generous, generous // the resolver may be delayed
		main()
		return
	}
	if only := os.Getenv(asAgent); only != "" {
		tryAttacks(only)
		return
	}
	if os.Getenv(asWaiting) != "" {
		exitOnSignal(func() { fmt.Println("ready") })
	}
	if os.Getenv(asOutside) != "" {
		log.Fatal(playOutside())
	}
	if os.Getenv(inNamespace) == "" {
		os.Exit(again(os.Args, []string{inNamespace + "=1"}, syscall.CLONE_NEWNET))
	}
	if err := connect(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot build the test's networks:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// again runs this test program in new namespaces, and returns its exit code.
func again(arguments, variables []string, flags uintptr) int {
	command := exec.Command(arguments[0], arguments[1:]...)
	command.Env = append(os.Environ(), variables...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
	_ = command.Run()
	return command.ProcessState.ExitCode()
}

// connect creates the network namespace outside the pod, the veth pair, and the servers.
func connect() error {
	thread, attached, served := make(chan string, 1), make(chan struct{}), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is in the namespace outside the pod
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			panic(err)
		}
		thread <- fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		<-attached
		err := ip("link set lo up", "addr add "+node+"/24 dev out", "addr add "+good+"/24 dev out", "addr add "+evil+"/24 dev out",
			"link set out up", "addr add "+evilSix+"/64 dev out nodad")
		if err == nil {
			err = serveOutside()
		}
		served <- err
		for do := range outside {
			do()
		}
	}()
	err := ip("link set lo up", "link add eth0 type veth peer name out", "link set out netns "+<-thread,
		"addr add "+podAddress+"/24 dev eth0", "link set eth0 up", "addr add "+podSix+"/64 dev eth0 nodad", "route add default via "+node)
	if err == nil { // everybody may ping, as in containers
		err = os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 2147483647"), 0o644)
	}
	if err != nil {
		return err
	}
	close(attached)
	return <-served
}

// outside passes functions to the thread in the network namespace outside the pod, which runs them.
var outside = make(chan func())

// fromOutside connects from an address outside the pod. It waits up to limit, because the pod drops what it refuses.
func fromOutside(from, to string, limit time.Duration) error {
	result := make(chan error, 1)
	outside <- func() {
		dialer := net.Dialer{Timeout: limit, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		conn, err := dialer.Dial("tcp", to)
		if err == nil {
			_ = conn.Close()
		}
		result <- err
	}
	return <-result
}

func ip(commands ...string) error {
	for _, each := range commands {
		if out, err := exec.Command("ip", strings.Fields(each)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", each, err, out)
		}
	}
	return nil
}

// sidecarProcess is the sidecar under test, a child of the test.
type sidecarProcess struct {
	t          *testing.T
	socket     string
	firstBytes time.Duration
	process    *exec.Cmd
	number     int
	output     bytes.Buffer
}

func start(t *testing.T) *sidecarProcess { t.Helper(); return startWaiting(t, proxy.FirstBytes) }

// startWaiting starts a sidecar that waits this long for a client's first bytes. A test in which the sidecar must see the name that
// a client sends lets it wait generously: a client that is delayed must not count as one that sends nothing.
func startWaiting(t *testing.T, firstBytes time.Duration) *sidecarProcess {
	t.Helper()
	s := &sidecarProcess{t: t, socket: filepath.Join(t.TempDir(), "state", "control.sock"), firstBytes: firstBytes}
	s.write("resolv.conf", "nameserver "+node+"\nsearch default.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n")
	s.run()
	t.Cleanup(s.kill)
	return s
}

func (s *sidecarProcess) write(name, content string) {
	if err := os.WriteFile(filepath.Join(filepath.Dir(filepath.Dir(s.socket)), name), []byte(content), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

func (s *sidecarProcess) run() {
	s.t.Helper()
	resolver := filepath.Join(filepath.Dir(filepath.Dir(s.socket)), "resolv.conf")
	s.process = exec.Command("/proc/self/exe", "serve", "--socket", s.socket, "--resolver", resolver, "--probes", "9876", "--gateway", gatewayName+":8080")
	s.process.Env = append(os.Environ(), asSidecar+"="+s.firstBytes.String(), "NODE_IP="+node)
	s.process.Stderr = &s.output
	s.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
	conn, err := control.Dial(s.socket, generous)
	if err != nil {
		s.t.Fatal(err)
	}
	_ = conn.Close()
}

func (s *sidecarProcess) kill() {
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
	if s.t.Failed() {
		s.t.Logf("the sidecar's output:\n%s", s.output.String())
	}
	s.output.Reset()
}

// switchTo switches to a policy and returns the answer.
func (s *sidecarProcess) switchTo(wanted policy.Policy) control.Answer {
	s.t.Helper()
	s.number++
	answer := s.request(control.Request{ID: fmt.Sprint(s.number), Policy: wanted})
	if answer.Error != "" {
		s.t.Fatalf("%+v: %s", wanted, answer.Error)
	}
	return answer
}

func (s *sidecarProcess) request(request control.Request) control.Answer {
	s.t.Helper()
	conn, err := control.Dial(s.socket, time.Second)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		s.t.Fatal(err)
	}
	var answer control.Answer
	if err := json.NewDecoder(conn).Decode(&answer); err != nil {
		s.t.Fatal(err)
	}
	return answer
}

func (s *sidecarProcess) allow(hosts ...string) control.Answer {
	s.t.Helper()
	return s.switchTo(policy.Policy{Mode: policy.Allowlist, Hosts: hosts})
}

func (s *sidecarProcess) public() { s.t.Helper(); s.switchTo(policy.Policy{Mode: policy.Public}) }

func (s *sidecarProcess) none() control.Answer {
	s.t.Helper()
	return s.switchTo(policy.Policy{Mode: policy.NoNetwork})
}

// get sends an HTTP request to an address with a Host header and returns the answer's body.
func get(address, host string) (string, error) {
	client := &http.Client{Timeout: generous, Transport: &http.Transport{DisableKeepAlives: true}}
	request, err := http.NewRequest(http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		return "", err
	}
	request.Host = host
	answer, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	return string(body), err
}

// talk sends a line to an address and returns the first line that comes back.
func talk(address, line string) (string, error) {
	conn, err := net.DialTimeout("tcp", address, generous)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(generous))
	if _, err := io.WriteString(conn, line); err != nil {
		return "", err
	}
	return bufio.NewReader(conn).ReadString('\n')
}

// udp sends a packet to an echo server. It fails at once if the firewall refuses the packet: then the kernel refuses to send it.
func udp(address string) error {
	conn, err := net.Dial("udp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(generous))
	if _, err := io.WriteString(conn, "x"); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 9))
	return err
}

// lookup sends a query to the pod's resolver.
func lookup(name string, kind uint16) (*dns.Msg, error) {
	client := &dns.Client{Timeout: generous}
	answer, _, err := client.Exchange(new(dns.Msg).SetQuestion(dns.Fqdn(name), kind), node+":53")
	return answer, err
}

func wantAnswer(t *testing.T, got string, err error, want string) {
	t.Helper()
	if err != nil || !strings.Contains(got, want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

func wantRefusal(t *testing.T, got string, err error) {
	t.Helper()
	if err == nil {
		t.Errorf("not refused: got %q", got)
	}
}

func wantCounted(t *testing.T, report refusals.Report, target refusals.Target) {
	t.Helper()
	for _, each := range report.Refused {
		if each.Target == target {
			return
		}
	}
	t.Errorf("%+v is not in %+v", target, report)
}
