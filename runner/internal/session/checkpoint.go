// Stops the processes, packs and sends the changed files, and commits a checkpoint when the operator has stored it.

package session

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	"multistep.dev/runner/internal/at"
	"multistep.dev/runner/internal/checkpoint"
	"multistep.dev/runner/internal/frames"
	"multistep.dev/runner/internal/freeze"
	"multistep.dev/runner/internal/kernel"
	"multistep.dev/runner/internal/spool"
	"multistep.dev/runner/internal/wire"
)

const (
	maxProcesses = 100 // maximum number of processes in a response
	sharedMemory = "/dev/shm"
)

// packed is the result of a checkpoint.
type packed struct {
	checkpoint.Packed
	Processes     []wire.Process `json:"processes"`    // living processes of the environment, at most maxProcesses
	ProcessCount  int            `json:"processCount"` // number of living processes of the environment
	SharedMemory  bool           `json:"sharedMemory"` // /dev/shm is not empty, or cannot be read
	Seconds       float64        `json:"seconds"`
	FrozenSeconds float64        `json:"frozenSeconds"`
	lines         *os.File       // the compressed manifest
}

// checkpoint sends two bodies, the increment's files and its manifest, and then the result. It sends a first response at once,
// because packing can take longer than the caller waits for a frame. So a failure is reported after the first body.
func (s *Session) checkpoint(request wire.Checkpoint) error {
	if err := s.answer(struct {
		OK bool `json:"ok"`
	}{answerOK}); err != nil {
		return err
	}
	alive := s.keepAlive()
	defer alive.end()
	started := time.Now()
	result, failure, err := s.sendFiles(alive, request)
	if err != nil {
		return alive.broken(err)
	}
	if failure != nil {
		alive.end()
		return s.refuse(failure)
	}
	defer result.lines.Close()
	if err := sendManifest(alive.pulse, result.lines); err != nil {
		return alive.broken(err)
	}
	alive.end()
	result.Seconds = time.Since(started).Seconds()
	return s.answer(struct {
		OK         bool   `json:"ok"`
		Checkpoint packed `json:"checkpoint"`
	}{answerOK, result})
}

// sendFiles sends the body with the increment's files. It returns failure if the increment is incomplete, and broken only if the
// session broke.
func (s *Session) sendFiles(alive *alive, request wire.Checkpoint) (result packed, failure *wire.Error, broken error) {
	ctx, clock, cancel := limited(alive.ctx, request.CheckpointLimits, 0)
	defer cancel()
	body, trailer := frames.NewBodyWriter(clock.Writer(alive.pulse)), frames.Trailer{}
	result, err := s.pack(ctx, request, body)
	if err != nil {
		failure = checkpointFailure(ctx, err)
		trailer.Error = wire.Cut(failure.Error(), 1000)
	}
	return result, failure, body.Finish(trailer)
}

// pack writes the increment's files to out while the environment's processes are stopped.
func (s *Session) pack(ctx context.Context, request wire.Checkpoint, out io.Writer) (result packed, err error) {
	release, err := s.Tracker.Acquire(ctx)
	if err != nil {
		return result, err
	}
	defer release()
	defer debug.FreeOSMemory() // frees memory at once, because it counts towards the trial's limit
	if err := s.Tracker.Listed(); err != nil {
		return result, err
	}
	started := time.Now()
	frozen, err := freeze.All(ctx, s.Host.Reaper.Started)
	defer frozen.Thaw()
	defer context.AfterFunc(ctx, frozen.Thaw)()
	if err == nil {
		err = syncFiles(ctx)
	}
	if err == nil {
		err = s.Host.KnowsUsers()
	}
	if err != nil {
		return result, err
	}
	result.ProcessCount, result.Processes, result.SharedMemory = len(frozen.Processes), describe(frozen.Processes), hasEntries(sharedMemory)
	if result.lines, err = spool.New(s.RuntimeDir); err != nil { // before Thaw, because the file can have a name for a moment
		return result, err
	}
	zip, _ := gzip.NewWriterLevel(result.lines, gzip.BestSpeed) // the level is valid, so there is no error
	result.Packed, err = s.Tracker.Pack(ctx, request, out, zip)
	if err == nil {
		err = zip.Close()
	}
	if err != nil {
		result.lines.Close()
	}
	result.FrozenSeconds = time.Since(started).Seconds()
	return result, err
}

// syncFiles writes the dirty pages of all files to disk. The system call cannot be interrupted. If ctx is done, syncFiles returns
// without waiting for the call.
func syncFiles(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- at.SyncFilesystem("/") }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func sendManifest(stream io.Writer, lines *os.File) error {
	if _, err := lines.Seek(0, io.SeekStart); err != nil {
		return err
	}
	body := frames.NewBodyWriter(stream)
	if _, err := io.Copy(struct{ io.Writer }{body}, lines); err != nil {
		return err
	}
	return body.Finish(frames.Trailer{})
}

func checkpointFailure(ctx context.Context, err error) *wire.Error {
	switch {
	case errors.Is(err, freeze.ErrRunning):
		return wire.Errorf(wire.CodeRunning, "%v", err)
	case ctx.Err() != nil:
		return tooSlow(ctx)
	}
	return wire.Failure(wire.CodeUnreadable, err)
}

func describe(processes []kernel.Process) []wire.Process {
	described := []wire.Process{}
	for _, each := range processes[:min(len(processes), maxProcesses)] {
		described = append(described, wire.Process{PID: each.PID, Name: kernel.Name(each.PID)})
	}
	return described
}

// hasEntries returns whether a directory is not empty, or cannot be read. It returns false if the directory does not exist.
func hasEntries(directory string) bool {
	opened, err := os.OpenFile(directory, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	defer opened.Close()
	names, err := opened.Readdirnames(1)
	return len(names) > 0 || err != io.EOF
}

func (s *Session) commit(request wire.Commit) error {
	return s.answerRecord(s.Store.Once(request.ID, request.Op.Op, func() (any, *wire.Error) {
		if err := s.Tracker.Listed(); err != nil {
			return nil, wire.Failure(wire.CodeNoBase, err)
		}
		if refusal := s.Tracker.Commit(request.Manifest); refusal != nil {
			return nil, refusal
		}
		return wire.CommitResult{Manifest: request.Manifest}, nil
	}))
}
