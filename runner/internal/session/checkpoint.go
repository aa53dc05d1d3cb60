package session

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"runtime/debug"
	"time"

	"multistep.dev/runner/internal/at"
	"multistep.dev/runner/internal/checkpoint"
	"multistep.dev/runner/internal/frames"
	"multistep.dev/runner/internal/freeze"
	"multistep.dev/runner/internal/kernel"
	"multistep.dev/runner/internal/wire"
)

const (
	maxProcesses = 100 // processes that an answer names
	sharedMemory = "/dev/shm"
)

// packed is the result of a checkpoint.
type packed struct {
	checkpoint.Packed
	Processes     []wire.Process `json:"processes"`    // the first maxProcesses
	ProcessCount  int            `json:"processCount"` // all living processes of the environment
	SharedMemory  bool           `json:"sharedMemory"` // /dev/shm is not empty
	Seconds       float64        `json:"seconds"`
	FrozenSeconds float64        `json:"frozenSeconds"`
}

// checkpoint sends two bodies, the increment's files and its manifest, while the environment's processes are stopped, and then the result.
func (s *Session) checkpoint(request wire.Checkpoint) error {
	if refusal := s.Tracker.Listed(); refusal != nil {
		return s.refuse(refusal)
	}
	release, refusal := s.Tracker.Acquire()
	if refusal != nil {
		return s.refuse(refusal)
	}
	defer release()
	defer debug.FreeOSMemory() // the process's memory counts against the trial's limit
	ctx, cancel := context.WithTimeout(context.Background(), wire.Seconds(request.MaxSeconds))
	defer cancel()
	stop, err := watch(s.conn, cancel)
	if err != nil {
		return err
	}
	defer stop()
	lines, err := os.CreateTemp(s.RuntimeDir, ".multistep-manifest-")
	if err != nil {
		return s.refuse(wire.Failure(wire.CodeUnreadable, err))
	}
	defer lines.Close()
	os.Remove(lines.Name())
	return s.pack(ctx, request, lines)
}

func (s *Session) pack(ctx context.Context, request wire.Checkpoint, lines *os.File) error {
	started := time.Now()
	frozen, err := freeze.All(ctx, s.Host.Reaper.Started)
	defer frozen.Thaw()
	defer context.AfterFunc(ctx, frozen.Thaw)()
	if err == nil {
		err = at.SyncFilesystem("/")
	}
	if err != nil {
		return s.refuse(checkpointFailure(ctx, err))
	}
	if err := s.answer(struct {
		OK bool `json:"ok"`
	}{answerOK}); err != nil {
		return err
	}
	result := packed{ProcessCount: len(frozen.Processes), Processes: describe(frozen.Processes), SharedMemory: hasEntries(sharedMemory)}
	failure, err := s.sendFiles(ctx, request, lines, &result.Packed)
	if err != nil {
		return err
	}
	frozen.Thaw()
	result.FrozenSeconds = time.Since(started).Seconds()
	if failure != nil {
		return s.refuse(failure)
	}
	if err := s.sendManifest(lines); err != nil {
		return err
	}
	result.Seconds = time.Since(started).Seconds()
	return s.answer(struct {
		OK         bool   `json:"ok"`
		Checkpoint packed `json:"checkpoint"`
	}{answerOK, result})
}

// sendFiles sends the body with the files, and writes the compressed manifest to lines. It returns failure if the increment is not complete, and an
// error only if the session broke.
func (s *Session) sendFiles(ctx context.Context, request wire.Checkpoint, lines *os.File, result *checkpoint.Packed) (failure *wire.Error, broken error) {
	stream := &observed{to: s.stream}
	body := frames.NewBodyWriter(stream)
	zip, _ := gzip.NewWriterLevel(lines, gzip.BestSpeed) // the level is valid
	var err error
	*result, err = s.Tracker.Pack(ctx, request, body, zip)
	if err == nil {
		err = zip.Close()
	}
	if stream.err != nil {
		return nil, stream.err
	}
	trailer := frames.Trailer{}
	if err != nil {
		failure = checkpointFailure(ctx, err)
		trailer.Error = wire.Cut(failure.Error(), 1000)
	}
	return failure, body.Finish(trailer)
}

func (s *Session) sendManifest(lines *os.File) error {
	if _, err := lines.Seek(0, io.SeekStart); err != nil {
		return err
	}
	body := frames.NewBodyWriter(s.stream)
	if _, err := io.Copy(struct{ io.Writer }{body}, lines); err != nil {
		return err
	}
	return body.Finish(frames.Trailer{})
}

// observed is a writer that keeps the first error.
type observed struct {
	to  io.Writer
	err error
}

func (o *observed) Write(p []byte) (int, error) {
	n, err := o.to.Write(p)
	if err != nil && o.err == nil {
		o.err = err
	}
	return n, err
}

func checkpointFailure(ctx context.Context, err error) *wire.Error {
	switch {
	case errors.Is(err, freeze.ErrRunning):
		return wire.Errorf(wire.CodeRunning, "%v", err)
	case ctx.Err() != nil:
		return wire.Errorf(wire.CodeTooSlow, "not finished within maxSeconds")
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

// hasEntries returns whether a directory is not empty. It returns false if the directory does not exist.
func hasEntries(directory string) bool {
	opened, err := os.Open(directory)
	if err != nil {
		return false
	}
	defer opened.Close()
	names, _ := opened.Readdirnames(1)
	return len(names) > 0
}

func (s *Session) commit(request wire.Commit) error {
	return s.answerRecord(s.Store.Once(request.ID, request.Op.Op, func() (any, *wire.Error) {
		if refusal := s.Tracker.Listed(); refusal != nil {
			return nil, refusal
		}
		if refusal := s.Tracker.Commit(request.Manifest); refusal != nil {
			return nil, refusal
		}
		return wire.CommitResult{Manifest: request.Manifest}, nil
	}))
}
