package session

import (
	"context"
	"sync"
	"time"

	"multistep.dev/runner/internal/wire"
	"multistep.dev/runner/internal/worktime"
)

// totalFactor is how many times maxSeconds a checkpoint or restore may take in all, with the time in which it waits for its caller.
const totalFactor = 3

// Restores are the times that unfinished restores took so far, over all sessions, by their ids: a restore that takes longer than any
// session lasts ends, too.
type Restores struct {
	mu   sync.Mutex
	took map[string]time.Duration
}

func (r *Restores) spent(id string) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.took[id]
}

func (r *Restores) add(id string, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.took == nil {
		r.took = map[string]time.Duration{}
	}
	r.took[id] += took
}

func totalSeconds(limits wire.CheckpointLimits) time.Duration {
	return totalFactor * wire.Seconds(limits.MaxSeconds)
}

// limited returns a context that ends after maxSeconds of work, and in all after totalFactor times maxSeconds. spent is the part of
// the latter that is over.
func limited(parent context.Context, limits wire.CheckpointLimits, spent time.Duration) (context.Context, *worktime.Clock, func()) {
	total, end := context.WithTimeout(parent, totalSeconds(limits)-spent)
	ctx, clock, cancel := worktime.Limit(total, wire.Seconds(limits.MaxSeconds))
	return ctx, clock, func() {
		cancel()
		end()
	}
}

// tooSlow returns why a context of limited ended.
func tooSlow(ctx context.Context) *wire.Error {
	if context.Cause(ctx) == worktime.ErrExceeded {
		return wire.Errorf(wire.CodeTooSlow, "not finished within maxSeconds of work")
	}
	return wire.Errorf(wire.CodeTooSlow, "not finished within %d times maxSeconds", totalFactor)
}
