package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"multistep.dev/runner/internal/frames"
	"multistep.dev/runner/internal/peer"
)

// The tests run the real program as PID 1 in namespaces like a container's, and connect to it as an exec from outside does.
// They need root.

var (
	program string // path of the runner under test
	hostile string // path of a copy of this test program that every user can execute
)

// setns is the number of the system call, which package syscall lacks.
var setns = map[string]uintptr{"amd64": 308, "arm64": 268}[runtime.GOARCH]

const helperVariable = "RUNNER_TEST_HELPER"

func TestMain(m *testing.M) {
	if helper := os.Getenv(helperVariable); helper != "" {
		os.Unsetenv(helperVariable)
		helpers[helper]()
		os.Exit(0)
	}
	os.Exit(testAll(m))
}

func testAll(m *testing.M) int {
	directory, err := os.MkdirTemp("", "runner-test-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(directory)
	os.Chmod(directory, 0o755)
	program = filepath.Join(directory, "runner")
	build := exec.Command("go", append(append([]string{"build"}, buildFlags...), "-o", program, ".")...)
	if output, err := build.CombinedOutput(); err != nil {
		panic(string(output))
	}
	hostile = filepath.Join(directory, "hostile")
	check(copyFile("/proc/self/exe", hostile))
	return m.Run()
}

// container is a set of namespaces in which the runner is PID 1.
type container struct {
	t       *testing.T
	pid     int
	process *exec.Cmd
	relays  []*exec.Cmd
	log     *os.File
	socket  []string // arguments of `runner call` that name the socket
}

// setup is the configuration of a container. Tests change parts of it.
type setup struct {
	Args  []string
	Env   []string          `json:"-"` // not in the JSON, because it may be invalid UTF-8
	Binds map[string]string // sources of bind mounts, by target
	Root  string            // chroot directory
	UID   int
	Dir   string

	UsualCapabilities bool
	NoNewPrivileges   bool

	beside *container // another container of the same pod
}

func startContainer(t *testing.T, with setup) *container {
	t.Helper()
	if with.Dir == "" {
		with.Dir = "/"
	}
	described, _ := json.Marshal(with)
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	process := exec.Command(hostile, string(described))
	namespaces := uintptr(syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET)
	var socket []string
	if with.beside != nil {
		process = exec.Command("nsenter", "-t", strconv.Itoa(with.beside.pid), "-n", "--", hostile, string(described))
		namespaces &^= syscall.CLONE_NEWNET
		socket = with.Args[1:3]
	}
	process.Env = append(with.Env, helperVariable+"=init")
	process.Stdout, process.Stderr = log, log
	process.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	c := &container{t: t, pid: process.Process.Pid, process: process, log: log, socket: socket}
	t.Cleanup(c.end)
	eventually(t, "the runner is PID 1", func() bool {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", c.pid))
		return bytes.HasPrefix(line, []byte("runner\x00serve"))
	})
	return c
}

// end kills the container, and fails the test if the runner's log contains a data race or a panic.
func (c *container) end() {
	c.process.Process.Kill()
	c.process.Wait()
	for _, relay := range c.relays {
		relay.Wait()
	}
	log, _ := os.ReadFile(c.log.Name())
	if bytes.Contains(log, []byte("DATA RACE")) || bytes.Contains(log, []byte("panic")) {
		c.t.Errorf("%s", log)
	} else if c.t.Failed() {
		c.t.Logf("%s", log)
	}
}

// helpers maps names to functions that this test program runs inside a container, instead of the tests.
var helpers = map[string]func(){"init": beInit, "rabbit": beRabbit, "headless": beHeadless, "intruder": beIntruder,
	"exec": beExec, "spy": beSpy, "guest": beGuest, "squatter": beSquatter,
}

// helper returns the command line that runs a function of helpers, with a marker that identifies its processes.
func helper(name, marker string) []string {
	return []string{"/usr/bin/env", helperVariable + "=" + name, hostile, marker}
}

// beInit prepares new namespaces like those of a container (mounts, network, user) and executes the runner as PID 1.
func beInit() {
	var with setup
	check(json.Unmarshal([]byte(os.Args[1]), &with))
	check(syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	check(syscall.Mount("proc", with.Root+"/proc", "proc", 0, ""))
	if with.Root == "" {
		check(syscall.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"))
	}
	for target, source := range with.Binds {
		check(syscall.Mount(source, target, "", syscall.MS_BIND, ""))
	}
	loopbackUp()
	if with.Root != "" {
		check(syscall.Chroot(with.Root))
	}
	check(os.Chdir(with.Dir))
	if with.UsualCapabilities {
		limitCapabilities()
	}
	if with.UID != 0 {
		check(syscall.Setgroups([]int{with.UID}))
		check(syscall.Setgid(with.UID))
		check(syscall.Setuid(with.UID))
	}
	if with.NoNewPrivileges {
		syscall.RawSyscall6(syscall.SYS_PRCTL, 38, 1, 0, 0, 0, 0) // PR_SET_NO_NEW_PRIVS
	}
	check(syscall.Exec(with.Args[0], append([]string{"runner", "serve"}, with.Args[1:]...), os.Environ()))
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func loopbackUp() {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM, 0)
	check(err)
	request := struct {
		name  [16]byte
		flags uint16
		_     [22]byte
	}{flags: syscall.IFF_UP}
	copy(request.name[:], "lo")
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		panic(errno)
	}
	syscall.Close(fd)
}

// launch starts a container with the default configuration, which each change can modify.
func launch(t *testing.T, change ...func(*setup)) *container {
	t.Helper()
	with := setup{
		Args: []string{program},
		Env:  []string{"PATH=/usr/local/bin:/usr/bin:/bin", "MULTISTEP_POD_UID=the-uid", "FROM_IMAGE=yes", "HOME=/root"},
	}
	for _, each := range change {
		each(&with)
	}
	return startContainer(t, with)
}

// launchBeside starts another container of the same pod: it shares only the network, so it needs another socket and another port.
func launchBeside(other *container, environment ...string) *container {
	other.t.Helper()
	return launch(other.t, func(with *setup) {
		with.beside = other
		with.Args = append(with.Args, "--socket", peer.HostSocket, "--port", "9877")
		with.Env = append(with.Env, environment...)
	})
}

// call returns the command `runner call`, which runs as an exec from outside does: in the container's namespaces, with a parent
// process outside of them.
func (c *container) call(path string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"-t", strconv.Itoa(c.pid), "-p", "-n", "-m", "-r", "--", path, "call"}, c.socket...)...)
}

// session is a connection to the runner, on which a test sends requests.
type session struct {
	t      *testing.T
	stdin  io.WriteCloser
	stdout io.Closer
	frames *frames.Reader
	relay  *exec.Cmd
}

type object = map[string]any

// connect starts a session and sends hello.
func (c *container) connect() *session {
	c.t.Helper()
	s := c.connectSilently()
	if hello := s.ask(object{"op": "hello", "protocols": []int{1, 2, 3, 4, 5}}); hello["ok"] != true {
		c.t.Fatalf("hello: %v", hello)
	}
	return s
}

func (c *container) connectSilently() *session {
	return c.connectBy(c.call(program))
}

func (c *container) connectBy(relay *exec.Cmd) *session {
	c.t.Helper()
	stdin, err := relay.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	stdout, err := relay.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	relay.Stderr = c.log
	if err := relay.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.relays = append(c.relays, relay)
	return &session{c.t, stdin, stdout, frames.NewReader(stdout), relay}
}

func (s *session) send(kind byte, payload []byte) {
	s.t.Helper()
	if err := frames.Write(s.stdin, kind, payload); err != nil {
		s.t.Fatal(err)
	}
}

func (s *session) sendJSON(kind byte, value any) {
	s.t.Helper()
	payload, err := json.Marshal(value)
	if err != nil {
		s.t.Fatal(err)
	}
	s.send(kind, payload)
}

func (s *session) receive() object {
	s.t.Helper()
	kind, _, err := s.frames.Next()
	if err != nil || kind != frames.JSON {
		s.t.Fatalf("no answer: frame %q, %v", kind, err)
	}
	return s.decoded()
}

// decoded returns the answer in the current frame.
func (s *session) decoded() object {
	s.t.Helper()
	payload, err := s.frames.Payload()
	if err != nil {
		s.t.Fatal(err)
	}
	var answer object
	if err := json.Unmarshal(payload, &answer); err != nil {
		s.t.Fatal(err)
	}
	return answer
}

func (s *session) ask(request object) object {
	s.t.Helper()
	s.sendJSON(frames.JSON, request)
	return s.receive()
}

// record sends a request and returns the operation's record from the response.
func (s *session) record(request object) object {
	s.t.Helper()
	answer := s.ask(request)
	record, ok := answer["record"].(object)
	if !ok {
		s.t.Fatalf("%v: %v", request["op"], answer)
	}
	return record
}

// code sends a request, asserts that the runner refuses it, and returns the error code.
func (s *session) code(request object) string {
	s.t.Helper()
	answer := s.ask(request)
	if answer["ok"] != false {
		s.t.Fatalf("%v was not refused: %v", request, answer)
	}
	return answer["error"].(object)["code"].(string)
}

var lastID int

// phase runs a command as a phase and returns its result.
func (s *session) phase(argv []string, more object) object {
	s.t.Helper()
	return s.result(s.start(argv, more))
}

func (s *session) shell(script string, more object) object {
	s.t.Helper()
	return s.phase([]string{"/bin/bash", "-c", script}, more)
}

func (s *session) start(argv []string, more object) (id string) {
	s.t.Helper()
	lastID++
	id = fmt.Sprintf("test/%d", lastID)
	request := object{"op": "start", "id": id, "argv": argv, "tailBytes": 4096, "timeoutSeconds": 30}
	for key, value := range more {
		request[key] = value
	}
	s.record(request)
	return id
}

func (s *session) result(id string) object {
	s.t.Helper()
	record := s.record(object{"op": "wait", "id": id, "timeoutSeconds": 60})
	result, ok := record["result"].(object)
	if !ok {
		s.t.Fatalf("not done: %v", record)
	}
	return result
}

// errorCode returns the error code of a phase's result, "" without an error.
func errorCode(result object) string {
	if failure, ok := result["error"].(object); ok {
		return failure["code"].(string)
	}
	return ""
}

// readiness returns the HTTP status of a readiness probe.
func (c *container) readiness() int {
	c.t.Helper()
	status := c.http("GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
	code, err := strconv.Atoi(strings.Fields(status + " . .")[1])
	if err != nil {
		c.t.Fatalf("no HTTP: %q", status)
	}
	return code
}

func (c *container) http(request string) string {
	c.t.Helper()
	conn := c.dial()
	defer conn.Close()
	io.WriteString(conn, request)
	conn.SetDeadline(time.Now().Add(time.Minute))
	answer, _ := io.ReadAll(conn)
	return string(answer)
}

// dial connects to the probe port from the container's network namespace.
func (c *container) dial() net.Conn {
	c.t.Helper()
	return c.dialBy(func() (net.Conn, error) {
		return net.DialTCP("tcp4", nil, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9876})
	})
}

// dialBy connects from inside the container's network namespace, but from outside its other namespaces.
func (c *container) dialBy(dial func() (net.Conn, error)) net.Conn {
	c.t.Helper()
	dialed := make(chan net.Conn)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", c.pid))
		check(err)
		defer namespace.Close()
		if _, _, errno := syscall.RawSyscall(setns, namespace.Fd(), syscall.CLONE_NEWNET, 0); errno != 0 {
			panic(errno)
		}
		conn, err := dial()
		check(err)
		dialed <- conn
	}()
	return <-dialed
}

// marker returns a unique number of seconds for the command sleep, by which a test finds the process.
func marker() string {
	lastID++
	return fmt.Sprintf("9%d%04d", os.Getpid(), lastID)
}

// living returns the PIDs of the processes with the marker on their command line.
func living(marker string) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.Contains(string(line), marker) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// eventually waits until condition returns true, and fails the test after a timeout.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for started := time.Now(); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Since(started) > time.Minute {
			t.Fatalf("not after a minute: %s", what)
		}
	}
}

// shared returns a temporary directory that every user can write to.
func shared(t *testing.T) string {
	t.Helper()
	directory := t.TempDir()
	for path := directory; path != os.TempDir(); path = filepath.Dir(path) {
		os.Chmod(path, 0o755)
	}
	os.Chmod(directory, 0o777)
	return directory
}

func content(t *testing.T, path string) string {
	t.Helper()
	bytes, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(bytes)
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	os.Chmod(path, mode)
}
