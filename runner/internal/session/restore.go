// Receives the increments of a restore, and applies them once.

package session

import (
	"context"
	"io"
	"path/filepath"
	"runtime/debug"
	"time"

	"multistep.dev/runner/internal/frames"
	"multistep.dev/runner/internal/records"
	"multistep.dev/runner/internal/restore"
	"multistep.dev/runner/internal/wire"
	"multistep.dev/runner/internal/worktime"
)

// restore receives two bodies for each increment, the manifest and the files, and applies them as they arrive. It receives all
// bodies even after a failure, so that the session stays usable.
func (s *Session) restore(request wire.Restore) error {
	if record, found, refusal := s.Store.Find(request.ID, request.Op.Op); found {
		return s.answerRecord(record, refusal)
	}
	spent := s.Restores.spent(request.ID)
	if spent >= totalSeconds(request.CheckpointLimits) {
		return s.refuse(wire.Errorf(wire.CodeTooSlow, "not finished within %d times maxSeconds, in all sessions", totalFactor))
	}
	if err := s.answer(struct {
		OK      bool `json:"ok"`
		Proceed bool `json:"proceed"`
	}{answerOK, true}); err != nil {
		return err
	}
	alive := s.keepAlive()
	defer alive.end()
	started := time.Now()
	ctx, clock, cancel := limited(alive.ctx, request.CheckpointLimits, spent)
	defer cancel()
	record, refusal, err := s.restoreOnce(ctx, clock, request)
	s.Restores.add(request.ID, time.Since(started))
	if err != nil {
		return alive.broken(err)
	}
	alive.end()
	return s.answerRecord(record, refusal)
}

// restoreOnce restores the increments, unless a record with this id exists. It returns broken if the session broke.
func (s *Session) restoreOnce(ctx context.Context, clock *worktime.Clock, request wire.Restore) (record records.Record, failure *wire.Error, broken error) {
	release, err := s.Tracker.Acquire(ctx)
	if err != nil {
		return record, restoreFailure(ctx, err, nil), s.discardIncrements(request)
	}
	defer release()
	// frees memory at once, because it counts towards the trial's limit
	defer debug.FreeOSMemory()
	if record, found, refusal := s.Store.Find(request.ID, request.Op.Op); found { // this request finished in an abandoned session
		return record, refusal, s.discardIncrements(request)
	}
	restorer, err := restore.New(restore.Options{Root: "/", Spool: s.RuntimeDir, Own: s.Own, Paths: request.Paths}, request.CheckpointLimits)
	if err != nil {
		return record, wire.Failure(wire.CodeRestore, err), s.discardIncrements(request)
	}
	defer restorer.Close()
	started := time.Now()
	failure, broken = s.receiveIncrements(ctx, clock, request, restorer)
	if failure != nil || broken != nil {
		return record, failure, broken
	}
	restorer.Result.Seconds = time.Since(started).Seconds()
	record, failure = s.Store.Once(request.ID, request.Op.Op, func() (any, *wire.Error) { return restorer.Result, nil })
	return record, failure, nil
}

// receiveIncrements receives all bodies and restores them.
func (s *Session) receiveIncrements(ctx context.Context, clock *worktime.Clock, request wire.Restore, restorer *restore.Restorer) (failure *wire.Error, broken error) {
	for _, increment := range request.Increments {
		for _, read := range []func(io.Reader) error{
			func(body io.Reader) error { return restorer.Manifest(ctx, body, increment.Manifest) },
			func(body io.Reader) error { return restorer.Apply(ctx, body) },
		} {
			if failure, broken = s.receiveBody(ctx, clock, read, failure); broken != nil {
				return nil, broken
			}
		}
	}
	if failure == nil && len(request.Paths) == 0 {
		failure = restoreFailure(ctx, s.Tracker.Restored(ctx, restorer.Result.Manifest), nil)
	}
	return failure, nil
}

// receiveBody receives a body, and discards it after an earlier failure.
func (s *Session) receiveBody(ctx context.Context, clock *worktime.Clock, read func(io.Reader) error, failure *wire.Error) (*wire.Error, error) {
	body := frames.NewBody(s.frames)
	var err error
	if failure == nil {
		err = read(clock.Reader(body))
	}
	if err := body.Rest(); err != nil {
		return nil, err
	}
	if failure == nil {
		failure = restoreFailure(ctx, err, body.Verify())
	}
	return failure, nil
}

// discardIncrements receives and discards all bodies of a request that failed or is already done.
func (s *Session) discardIncrements(request wire.Restore) error {
	for range 2 * len(request.Increments) {
		if err := frames.NewBody(s.frames).Rest(); err != nil {
			return err
		}
	}
	return nil
}

// restoreFailure returns the error of restoring a body, or nil. An error of the body's transfer takes precedence, because the
// caller can then send the body again.
func restoreFailure(ctx context.Context, err, transfer error) *wire.Error {
	switch {
	case transfer != nil:
		return wire.Errorf(wire.CodeBody, "%v", transfer)
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return tooSlow(ctx)
	}
	return wire.Failure(wire.CodeRestore, err)
}

// Own returns the directories that belong to the runner and to no checkpoint. It resolves the links in their paths.
func Own(runtimeDir string) []string {
	own := []string{"/multistep", "/run/multistep", runtimeDir}
	for i, each := range own {
		if real, err := filepath.EvalSymlinks(each); err == nil {
			own[i] = real
		}
	}
	return own
}
