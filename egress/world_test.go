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
	"multistep.dev/egress/internal/policy"
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
	ownPort     = "7002"
)

func TestMain(m *testing.M) {
	if os.Getenv(asSidecar) != "" {
		main()
		return
	}
	if only := os.Getenv(asAgent); only != "" {
		tryAttacks(only)
		return
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

// fromOutside connects from an address outside the pod.
func fromOutside(from, to string) error {
	result := make(chan error, 1)
	outside <- func() {
		dialer := net.Dialer{Timeout: 300 * time.Millisecond, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
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

// pod is the sidecar under test.
type pod struct {
	t       *testing.T
	socket  string
	process *exec.Cmd
	number  int
	output  bytes.Buffer
}

func start(t *testing.T) *pod {
	t.Helper()
	p := &pod{t: t, socket: filepath.Join(t.TempDir(), "state", "control.sock")}
	p.write("resolv.conf", "nameserver "+node+"\nsearch default.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n")
	p.run()
	t.Cleanup(p.kill)
	return p
}

func (p *pod) write(name, content string) {
	if err := os.WriteFile(filepath.Join(filepath.Dir(filepath.Dir(p.socket)), name), []byte(content), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pod) run() {
	p.t.Helper()
	resolver := filepath.Join(filepath.Dir(filepath.Dir(p.socket)), "resolv.conf")
	p.process = exec.Command("/proc/self/exe", "serve", "--socket", p.socket, "--resolver", resolver, "--probes", "9876", "--gateway", gatewayName+":8080")
	p.process.Env = append(os.Environ(), asSidecar+"=1", "NODE_IP="+node)
	p.process.Stderr = &p.output
	p.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.process.Start(); err != nil {
		p.t.Fatal(err)
	}
	conn, err := control.Dial(p.socket, 10*time.Second)
	if err != nil {
		p.t.Fatal(err)
	}
	_ = conn.Close()
}

func (p *pod) kill() {
	_ = p.process.Process.Kill()
	_ = p.process.Wait()
	if p.t.Failed() {
		p.t.Logf("the sidecar's output:\n%s", p.output.String())
	}
	p.output.Reset()
}

// to switches to a policy and returns the answer.
func (p *pod) to(wanted policy.Policy) control.Answer {
	p.t.Helper()
	p.number++
	answer := p.request(control.Request{ID: fmt.Sprint(p.number), Policy: wanted})
	if answer.Error != "" {
		p.t.Fatalf("%+v: %s", wanted, answer.Error)
	}
	return answer
}

func (p *pod) request(request control.Request) control.Answer {
	p.t.Helper()
	conn, err := control.Dial(p.socket, time.Second)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		p.t.Fatal(err)
	}
	var answer control.Answer
	if err := json.NewDecoder(conn).Decode(&answer); err != nil {
		p.t.Fatal(err)
	}
	return answer
}

func (p *pod) allow(hosts ...string) control.Answer {
	p.t.Helper()
	return p.to(policy.Policy{Mode: policy.Allowlist, Hosts: hosts})
}

func (p *pod) public() { p.t.Helper(); p.to(policy.Policy{Mode: policy.Public}) }

func (p *pod) none() control.Answer {
	p.t.Helper()
	return p.to(policy.Policy{Mode: policy.NoNetwork})
}

// get sends an HTTP request to an address with a Host header and returns the answer's body.
func get(address, host string) (string, error) {
	client := &http.Client{Timeout: 4 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
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
	conn, err := net.DialTimeout("tcp", address, 3*time.Second)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(conn, line); err != nil {
		return "", err
	}
	return bufio.NewReader(conn).ReadString('\n')
}

func udp(address string) error {
	conn, err := net.Dial("udp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(300 * time.Millisecond))
	if _, err := io.WriteString(conn, "x"); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 9))
	return err
}

// lookup sends a query to the pod's resolver.
func lookup(name string, kind uint16) (*dns.Msg, error) {
	client := &dns.Client{Timeout: 4 * time.Second}
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
