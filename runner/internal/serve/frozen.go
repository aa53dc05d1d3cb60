package serve

import (
	"fmt"
	"time"
)

// longestFreeze is how long this process may not run. It is longer than a busy node makes a process wait.
const longestFreeze = 2 * time.Minute

// awaitFreeze returns an error when this process did not run for more than limit. A root agent can freeze it if it may create user
// namespaces: in one of its own, it can mount the container's control group, and later undo all traces. Meanwhile no timeout ends the
// agent. The error ends PID 1, and so the phase that did this. now, sleep: those of package time, except in tests.
func awaitFreeze(limit time.Duration, now func() time.Time, sleep func(time.Duration)) error {
	for {
		started := now()
		sleep(time.Second)
		if took := now().Sub(started); took > limit {
			return fmt.Errorf("the runner did not run for %v, so no timeout could end the phase", took.Round(time.Second))
		}
	}
}
