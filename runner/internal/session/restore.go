package session

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	"multistep.dev/runner/internal/frames"
	"multistep.dev/runner/internal/restore"
	"multistep.dev/runner/internal/wire"
)

// restore receives two bodies for each increment, the manifest and the files, and applies them as they come.
func (s *Session) restore(request wire.Restore) error {
	if record, found, refusal := s.Store.Find(request.ID, request.Op.Op); found {
		return s.answerRecord(record, refusal)
	}
	release, refusal := s.Tracker.Acquire()
	if refusal != nil {
		return s.refuse(refusal)
	}
	defer release()
	defer debug.FreeOSMemory()                                                    // the process's memory counts against the trial's limit
	if record, found, refusal := s.Store.Find(request.ID, request.Op.Op); found { // the request before, which release ended
		return s.answerRecord(record, refusal)
	}
	restorer, err := restore.New(restore.Options{Root: "/", Spool: s.RuntimeDir, Own: Own(s.RuntimeDir), Paths: request.Paths}, request.CheckpointLimits)
	if err != nil {
		return s.refuse(wire.Failure(wire.CodeRestore, err))
	}
	defer restorer.Close()
	if err := s.answer(struct {
		OK      bool `json:"ok"`
		Proceed bool `json:"proceed"`
	}{answerOK, true}); err != nil {
		return err
	}
	started := time.Now()
	refusal, err = s.receiveIncrements(request, restorer)
	if err != nil {
		return err
	}
	if refusal != nil {
		return s.refuse(refusal)
	}
	restorer.Result.Seconds = time.Since(started).Seconds()
	return s.answerRecord(s.Store.Once(request.ID, request.Op.Op, func() (any, *wire.Error) { return restorer.Result, nil }))
}

// receiveIncrements receives all bodies, also after a failure, so that the session stays usable. An error means that the session broke.
func (s *Session) receiveIncrements(request wire.Restore, restorer *restore.Restorer) (failure *wire.Error, broken error) {
	ctx, cancel := context.WithTimeout(context.Background(), wire.Seconds(request.MaxSeconds))
	defer cancel()
	for _, increment := range request.Increments {
		for _, read := range []func(*frames.Body) error{
			func(body *frames.Body) error { return restorer.Manifest(body, increment.Manifest) },
			func(body *frames.Body) error { return restorer.Apply(ctx, body) },
		} {
			body := frames.NewBody(s.frames)
			var err error
			if failure == nil {
				err = read(body)
			}
			if err := body.Rest(); err != nil {
				return nil, err
			}
			if failure == nil {
				failure = restoreFailure(ctx, err, body.Verify())
			}
		}
	}
	if failure == nil && len(request.Paths) == 0 {
		if err := s.Tracker.Restored(ctx, restorer.Result.Manifest); err != nil {
			failure = restoreFailure(ctx, err, nil)
		}
	}
	return failure, nil
}

// restoreFailure returns the error of one body. That of the transfer takes precedence, because then the caller can retry.
func restoreFailure(ctx context.Context, err, transfer error) *wire.Error {
	switch {
	case transfer != nil:
		return wire.Errorf(wire.CodeBody, "%v", transfer)
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded), ctx.Err() != nil:
		return wire.Errorf(wire.CodeTooSlow, "not finished within maxSeconds")
	}
	return wire.Failure(wire.CodeRestore, err)
}

// Own returns the directories that belong to the runner and to no checkpoint.
func Own(runtimeDir string) []string { return []string{"/multistep", "/run/multistep", runtimeDir} }
