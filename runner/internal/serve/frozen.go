// Ends PID 1 when something kept it from running, because no timeout works meanwhile.

package serve

import (
	"fmt"
	"time"
)

// longestFreeze is how long this process can be frozen before it ends itself. It is longer than a busy node makes a process wait.
const longestFreeze = 2 * time.Minute

// awaitFreeze returns an error when this process did not run for more than limit. A root agent that may create user namespaces can
// freeze this process: in a namespace of its own, the agent can mount the container's control group, and later remove all traces.
// During the freeze no timeout ends the agent. The error ends PID 1, and with it the phase that froze it. now, sleep: those of
// package time, except in tests.
func awaitFreeze(limit time.Duration, now func() time.Time, sleep func(time.Duration)) error {
	for {
		started := now()
		sleep(time.Second)
		if took := now().Sub(started); took > limit {
			return fmt.Errorf("the runner did not run for %v, so no timeout could end the phase", took.Round(time.Second))
		}
	}
}
