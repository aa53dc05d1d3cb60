// Ends PID 1 when its program is no longer at its path.

package serve

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"time"
)

const (
	minPause = time.Second // between two checks
	maxPause = 4 * time.Second
)

// awaitMove returns an error when this program is no longer at its path, because exec sessions then fail or run another program. A
// root agent that may create user namespaces can move the mount with this program. In its own namespace, the agent can change
// directories from which it has unmounted everything. The error ends PID 1, and with it the phase that caused the error. The time
// between two checks is random, so that an agent cannot undo its attack just before each check.
func awaitMove() error {
	program, _ := os.Executable()
	own, _ := os.Stat(program)
	for ; ; time.Sleep(minPause + rand.N(maxPause-minPause)) {
		if now, err := os.Stat(program); own != nil && !os.SameFile(own, now) && !errors.Is(err, syscall.ENOMEM) {
			return fmt.Errorf("%s was moved or replaced, so no exec session can start", program)
		}
	}
}
