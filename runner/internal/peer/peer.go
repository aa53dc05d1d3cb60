// Package peer decides whom PID 1 obeys, and lets `runner call` see that it talks to PID 1.
//
// The kernel tells which process connected, but that may be dead, and its number somebody else's by the time we look
// at it. So PID 1 asks twice: the number belongs to a process without parent in this PID namespace, which is what an
// exec from outside is and no child of the container can be; then that process has to give back a challenge, in a
// message that the kernel stamps with the sender's number; then the number must still be the same process's. Who
// answers is then who was looked at. (A pidfd of the peer would do too, but needs Linux 6.5.)
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

// Address of PID 1's socket, in the abstract namespace: no file that anybody could replace.
const Address = "@multistep/runner"

const (
	challengeKind  = 'C'
	challengeBytes = 16
	timeout        = 5 * time.Second
)

// Caller is a process that may talk to us.
type Caller struct {
	PID   int
	start uint64
}

// Look tells whether the process that connected comes from outside the container.
func Look(conn *net.UnixConn) (Caller, error) {
	credentials, err := credentials(conn)
	if err != nil {
		return Caller{}, err
	}
	if int(credentials.Uid) != os.Getuid() {
		return Caller{}, fmt.Errorf("user %d is not whom this runner runs as", credentials.Uid)
	}
	if credentials.Pid <= 0 { // a sidecar: it shares the network, but not the processes
		return Caller{}, errors.New("the caller is in another container")
	}
	process, err := outside(int(credentials.Pid))
	return Caller{process.PID, process.Start}, err
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

// Challenge makes sure that the caller is who is at the other end.
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

// Answer is the caller's side. Without a challenge, what came instead is PID 1's refusal.
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

// stampMessages has the kernel add the sender's credentials to each message.
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
