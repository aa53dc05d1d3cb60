package peer

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"multistep.dev/runner/internal/kernel"
)

// DefaultSocket is the name of PID 1's abstract socket, unless a flag sets another one. All containers of a pod share the names of
// abstract sockets, so a second runner in the pod needs another name.
const DefaultSocket = "multistep/runner"

// HostSocket is the name of the abstract socket of the agent host's runner.
const HostSocket = "multistep/host"

// Address returns the address of an abstract socket, which has no socket file that a process could replace.
func Address(socket string) *net.UnixAddr {
	return &net.UnixAddr{Name: "@" + socket, Net: "unix"}
}

// ErrElsewhere means that the caller is in another container of the pod.
var ErrElsewhere = errors.New("the caller is in another container")

const (
	challengeKind  = 'C'
	challengeBytes = 16
	timeout        = 5 * time.Second
)

// Caller is a process from outside of the container.
type Caller struct {
	PID   int
	start uint64
}

// Identify returns the process that connected. It returns an error if the process is not from outside of the container, or has
// another user than this runner. The error is ErrElsewhere if the process is in another container of the pod.
func Identify(conn *net.UnixConn) (Caller, error) {
	credentials, err := credentials(conn)
	if err != nil {
		return Caller{}, err
	}
	if credentials.Pid <= 0 { // the caller shares the network, but not the PID namespace
		return Caller{}, ErrElsewhere
	}
	if int(credentials.Uid) != os.Getuid() {
		return Caller{}, fmt.Errorf("user %d is not the user of this runner", credentials.Uid)
	}
	process, err := outside(int(credentials.Pid))
	return Caller{process.PID, process.Start}, err
}

// Elsewhere returns an error unless the process at the other end is in another container of the pod.
func Elsewhere(conn *net.UnixConn) error {
	credentials, err := credentials(conn)
	if err == nil && credentials.Pid > 0 {
		err = fmt.Errorf("process %d of this container has taken its place", credentials.Pid)
	}
	return err
}

func outside(pid int) (kernel.Process, error) {
	process, err := kernel.Stat(pid)
	if err != nil {
		return process, fmt.Errorf("the caller cannot be seen: %w", err)
	}
	if process.PPID != 0 || pid == os.Getpid() {
		return process, errors.New("the caller was started inside the container")
	}
	return process, nil
}

// Challenge verifies that the process at the other end of the connection is the caller.
func (c Caller) Challenge(conn *net.UnixConn) error {
	conn.SetDeadline(time.Now().Add(timeout))
	defer conn.SetDeadline(time.Time{})
	if err := stampMessages(conn); err != nil {
		return err
	}
	question := []byte(rand.Text())[:challengeBytes]
	if _, err := conn.Write(append([]byte{challengeKind}, question...)); err != nil {
		return err
	}
	answer, control := make([]byte, challengeBytes), make([]byte, syscall.CmsgSpace(syscall.SizeofUcred))
	n, controlled, _, _, err := conn.ReadMsgUnix(answer, control)
	if err != nil {
		return err
	}
	if !bytes.Equal(answer[:n], question) {
		return errors.New("the caller did not give back the challenge")
	}
	if sender := sender(control[:controlled]); sender != c.PID {
		return fmt.Errorf("process %d answered for %d", sender, c.PID)
	}
	if now, err := outside(c.PID); err != nil || now.Start != c.start {
		return errors.New("the caller is gone")
	}
	return nil
}

// Answer responds to the challenge, on the caller's side. If PID 1 sends no challenge, Answer returns the start of PID 1's refusal.
func Answer(conn *net.UnixConn) (refusal []byte, err error) {
	credentials, err := credentials(conn)
	if err != nil {
		return nil, err
	}
	if credentials.Pid != 1 {
		return nil, fmt.Errorf("process %d has taken PID 1's place", credentials.Pid)
	}
	conn.SetDeadline(time.Now().Add(timeout))
	defer conn.SetDeadline(time.Time{})
	question := make([]byte, 1+challengeBytes)
	n, err := readFull(conn, question)
	if n > 0 && question[0] != challengeKind {
		return question[:n], nil
	}
	if err != nil {
		return nil, err
	}
	_, err = conn.Write(question[1:])
	return nil, err
}

func readFull(conn net.Conn, buffer []byte) (n int, err error) {
	for n < len(buffer) && err == nil && (n == 0 || buffer[0] == challengeKind) {
		var more int
		more, err = conn.Read(buffer[n:])
		n += more
	}
	return n, err
}

func credentials(conn *net.UnixConn) (found *syscall.Ucred, err error) {
	err = control(conn, func(fd int) error {
		found, err = syscall.GetsockoptUcred(fd, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		return err
	})
	return found, err
}

// stampMessages makes the kernel add the sender's credentials to each message.
func stampMessages(conn *net.UnixConn) error {
	return control(conn, func(fd int) error {
		return syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_PASSCRED, 1)
	})
}

func control(conn *net.UnixConn, do func(fd int) error) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failure error
	if err := raw.Control(func(fd uintptr) { failure = do(int(fd)) }); err != nil {
		return err
	}
	return failure
}

func sender(control []byte) int {
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return 0
	}
	for _, message := range messages {
		if credentials, err := syscall.ParseUnixCredentials(&message); err == nil {
			return int(credentials.Pid)
		}
	}
	return 0
}
