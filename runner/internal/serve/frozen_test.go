package serve

import (
	"testing"
	"time"
)

func TestARunnerThatWasFrozenEnds(t *testing.T) {
	naps := []time.Duration{time.Second, longestFreeze, longestFreeze + time.Second}
	var clock time.Time
	slept := 0
	err := awaitFreeze(longestFreeze, func() time.Time { return clock }, func(time.Duration) {
		clock = clock.Add(naps[slept])
		slept++
	})
	if err == nil || err.Error() != "the runner did not run for 2m1s, so no timeout could end the phase" || slept != len(naps) {
		t.Error(err, slept)
	}
}
