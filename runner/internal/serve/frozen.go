// Ends PID 1 after something kept it from running, because no timeout works during that time.

package serve

import (
	"fmt"
	"time"
)

// longestFreeze is the time for which this process can be frozen before it exits. A busy node makes no process wait for so long.
const longestFreeze = 2 * time.Minute

// awaitFreeze returns an error when this process did not run for more than limit. A root agent that may create user namespaces can
// freeze this process. In its own namespace, the agent can mount the container's control group, and later remove all traces. During
// the freeze no timeout ends the agent. The error ends PID 1, and with it the phase that froze it. now and sleep are those of
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
