package healthcheck

import (
	"math"
	"time"

	"multistep.dev/runner/internal/wire"
)

const tailBytes = 4096

// Clock is the source of the time. Tests replace it.
type Clock struct {
	Now   func() time.Time
	Sleep func(time.Duration)
}

// Real is the system clock.
var Real = Clock{time.Now, time.Sleep}

// Run runs the command until it exits with 0, or has failed Retries times. A failure of a run that started within the start period
// does not count.
func Run(request wire.Healthcheck, attempt func(wire.Start) wire.PhaseResult, clock Clock) wire.HealthcheckResult {
	started, counted := clock.Now(), 0
	startPeriod := wire.Seconds(request.StartPeriodSeconds)
	for attempts := 1; ; attempts++ {
		starting := clock.Now().Sub(started) < startPeriod
		result := describe(attempt(start(request)), attempts)
		if result.Healthy {
			return result
		}
		pause := request.StartIntervalSeconds
		if !starting {
			pause = request.IntervalSeconds
			if counted++; counted >= request.Retries {
				return result
			}
		}
		clock.Sleep(wire.Seconds(pause))
	}
}

func start(request wire.Healthcheck) wire.Start {
	attempt := wire.Start{Op: request.Op, Command: request.Command, TailBytes: tailBytes}
	if seconds := math.Trunc(request.TimeoutSeconds); seconds > 0 {
		attempt.TimeoutSeconds = &seconds
	}
	return attempt
}

func describe(result wire.PhaseResult, attempts int) wire.HealthcheckResult {
	return wire.HealthcheckResult{
		Healthy:  result.ExitCode != nil && *result.ExitCode == 0 && !result.TimedOut && result.Error == nil,
		Attempts: attempts, ExitCode: result.ExitCode, TimedOut: result.TimedOut,
		Tail: result.Tail, Error: result.Error, DurationSeconds: result.DurationSeconds,
	}
}
