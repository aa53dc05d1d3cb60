package healthcheck

import (
	"testing"
	"time"

	"multistep.dev/runner/internal/wire"
)

// world is a fake clock and command. It counts the runs of the command, each of which takes one second, and records the pauses and
// the timeouts.
type world struct {
	now     time.Time
	attempt int
	pauses  []float64
	limits  []float64
}

func (w *world) clock() Clock {
	return Clock{func() time.Time { return w.now }, func(pause time.Duration) {
		w.pauses = append(w.pauses, pause.Seconds())
		w.now = w.now.Add(pause)
	}}
}

func (w *world) try(healthyAt int) func(wire.Start) wire.PhaseResult {
	return func(start wire.Start) wire.PhaseResult {
		w.attempt++
		w.now = w.now.Add(time.Second)
		if start.TimeoutSeconds != nil {
			w.limits = append(w.limits, *start.TimeoutSeconds)
		}
		code := 1
		if w.attempt == healthyAt {
			code = 0
		}
		return wire.PhaseResult{ExitCode: &code}
	}
}

func TestCounting(t *testing.T) {
	for name, each := range map[string]struct {
		change    func(*wire.Healthcheck)
		healthyAt int
		healthy   bool
		attempts  int
		seconds   float64
	}{
		"at once":                     {func(*wire.Healthcheck) {}, 1, true, 1, 1},
		"the third of three":          {func(*wire.Healthcheck) {}, 3, true, 3, 13},
		"one too late":                {func(*wire.Healthcheck) {}, 4, false, 3, 13},
		"one retry is one attempt":    {func(h *wire.Healthcheck) { h.Retries = 1 }, 2, false, 1, 1},
		"no retry is one attempt":     {func(h *wire.Healthcheck) { h.Retries = 0 }, 2, false, 1, 1},
		"less is one attempt":         {func(h *wire.Healthcheck) { h.Retries = -3 }, 2, false, 1, 1},
		"a start period of 7 s":       {func(h *wire.Healthcheck) { h.StartPeriodSeconds, h.StartIntervalSeconds = 7, 2 }, 0, false, 6, 3*3 + 13},
		"it starts in the period":     {func(h *wire.Healthcheck) { h.StartPeriodSeconds, h.Retries = 0.5, 1 }, 0, false, 2, 7},
		"healthy in the start period": {func(h *wire.Healthcheck) { h.StartPeriodSeconds = 100 }, 5, true, 5, 25},
	} {
		w, request := &world{now: time.Unix(0, 0)}, wire.NewHealthcheck()
		each.change(&request)
		result := Run(request, w.try(each.healthyAt), w.clock())
		took := w.now.Sub(time.Unix(0, 0)).Seconds()
		if result.Healthy != each.healthy || result.Attempts != each.attempts || took != each.seconds {
			t.Errorf("%s: %+v after %v s, pauses %v", name, result, took, w.pauses)
		}
	}
}

func TestTheLimitIsCutToWholeSeconds(t *testing.T) {
	for limit, wanted := range map[float64][]float64{30: {30}, 1.9: {1}, 0.9: nil, 0: nil, -1: nil} {
		w, request := &world{}, wire.NewHealthcheck()
		request.TimeoutSeconds = limit
		Run(request, w.try(1), w.clock())
		if len(w.limits) != len(wanted) || (len(wanted) > 0 && w.limits[0] != wanted[0]) {
			t.Error(limit, w.limits)
		}
	}
}

func TestWhatIsNoSuccess(t *testing.T) {
	zero := 0
	for _, result := range []wire.PhaseResult{
		{}, {TimedOut: true, ExitCode: &zero}, {Error: wire.Errorf("NoSuchCommand", ""), ExitCode: &zero},
	} {
		if describe(result, 1).Healthy {
			t.Errorf("%+v", result)
		}
	}
}
