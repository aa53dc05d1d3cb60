// Limits the time of checkpoints and restores, also over several sessions.

package session

import (
	"context"
	"sync"
	"time"

	"multistep.dev/runner/internal/wire"
	"multistep.dev/runner/internal/worktime"
)

// totalFactor times maxSeconds is the timeout of a whole checkpoint or restore. Unlike maxSeconds, it includes the time in which
// the runner waits for the caller.
const totalFactor = 3

// Restores has, by id, the time that each unfinished restore has taken until now in all sessions. Without this, a restore that
// takes longer than a session would be retried forever.
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

// limited returns a context with two timeouts, which are maxSeconds of work, and totalFactor times maxSeconds in total. spent is
// the part of the second timeout that earlier sessions used.
func limited(parent context.Context, limits wire.CheckpointLimits, spent time.Duration) (context.Context, *worktime.Clock, func()) {
	total, end := context.WithTimeout(parent, totalSeconds(limits)-spent)
	ctx, clock, cancel := worktime.Limit(total, wire.Seconds(limits.MaxSeconds))
	return ctx, clock, func() {
		cancel()
		end()
	}
}

// tooSlow returns the error for the timeout of limited that expired.
func tooSlow(ctx context.Context) *wire.Error {
	if context.Cause(ctx) == worktime.ErrExceeded {
		return wire.Errorf(wire.CodeTooSlow, "not finished within maxSeconds of work")
	}
	return wire.Errorf(wire.CodeTooSlow, "not finished within %d times maxSeconds", totalFactor)
}
