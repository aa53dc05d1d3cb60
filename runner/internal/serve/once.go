// Serves one session in a container whose PID 1 is a service, and keeps the operation's record in a file.

package serve

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"multistep.dev/runner/internal/call"
	"multistep.dev/runner/internal/checkpoint"
	"multistep.dev/runner/internal/kernel"
	"multistep.dev/runner/internal/records"
	"multistep.dev/runner/internal/session"
	"multistep.dev/runner/internal/wire"
)

// interrupted is the error code of a command whose `runner once` was killed before it ended.
const interrupted = "Interrupted"

// Once runs the command `runner once`, which serves one session on stdin and stdout in a container whose PID 1 is a service. It
// stores the record of one operation (--id) in a directory (--state), so that the operation runs at most once, even if several
// sessions request it.
func Once(version string, args []string) error {
	flags := flag.NewFlagSet("once", flag.ContinueOnError)
	state := flags.String("state", "", "directory for records; created if it does not exist")
	id := flags.String("id", "", "of the only operation with a record, if there is one")
	if err := flags.Parse(args); err != nil {
		return err
	}
	forgetSignals()
	if err := errors.Join(kernel.KeepDescriptors(), kernel.BecomeSubreaper()); err != nil {
		return err
	}
	runner, err := newRunner(version, "", func() (string, error) { return *state, os.MkdirAll(*state, 0o700) })
	if err != nil {
		return err
	}
	runner.Tracker = checkpoint.Untracked()
	file := &recordFile{path: filepath.Join(*state, fileName(*id)), id: *id}
	if *id != "" {
		if err := file.load(runner.Store); err != nil {
			return err
		}
	}
	talked := talkOnStdio(runner)
	return errors.Join(talked, file.save(runner.Store))
}

func fileName(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:])
}

// talkOnStdio serves one session on stdin and stdout, which it relays as `runner call` does.
func talkOnStdio(runner *session.Runner) error {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	mine, theirs, err := connections(pair)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- runner.Serve(mine) }()
	relayed := call.Relay(theirs)
	theirs.Close()
	return errors.Join(relayed, <-served)
}

func connections(pair [2]int) (mine, theirs *net.UnixConn, err error) {
	var both [2]*net.UnixConn
	for number, fd := range pair {
		file := os.NewFile(uintptr(fd), "session")
		conn, err := net.FileConn(file)
		file.Close()
		if err != nil {
			return nil, nil, err
		}
		both[number] = conn.(*net.UnixConn)
	}
	return both[0], both[1], nil
}

// recordFile is a file with the record of an operation. While the operation runs, the file is locked and contains only a newline.
type recordFile struct {
	path, id string
	file     *os.File
}

// load waits until no other process runs the operation. If the operation already ran, load adds its record to the store.
func (r *recordFile) load(store *records.Store) error {
	file, err := os.OpenFile(r.path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	r.file = file // stays open until the process ends, because it holds the lock
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	content, err := os.ReadFile(r.path)
	if err != nil || len(content) == 0 {
		_, failed := file.WriteAt([]byte{'\n'}, 0)
		return errors.Join(err, failed)
	}
	store.Restore(r.parse(content))
	return nil
}

// parse returns the record in the file. If the file has no whole record, because the runner ended while the command ran or while it
// wrote the record, the record's error is interrupted.
func (r *recordFile) parse(content []byte) records.Record {
	var result wire.PhaseResult
	record := records.Record{Result: &result}
	if err := json.Unmarshal(content, &record); err == nil && record.ID == r.id && record.Op == "start" {
		record.Result = result
		return record
	}
	return records.Record{ID: r.id, Op: "start", Result: wire.PhaseResult{
		Error: wire.Errorf(interrupted, "the runner was killed while the command ran"),
	}}
}

// save waits until the operation finishes, even if the session has ended, and writes its record.
func (r *recordFile) save(store *records.Store) error {
	if r.file == nil {
		return nil
	}
	record, missing := store.Wait(context.Background(), r.id)
	if missing != nil {
		return r.file.Truncate(0) // no session started the operation
	}
	content, err := json.Marshal(record)
	if err != nil {
		return err
	}
	_, err = r.file.WriteAt(content, 0)
	return err
}
