// Kills the processes of all other phases, running or finished.

package supervise

import (
	"os"

	"multistep.dev/runner/internal/kernel"
	"multistep.dev/runner/internal/tree"
)

// KillLeftovers implements `runner quell`, which runs as a phase of root. The word stays: an older runner in a pod knows no other.
func KillLeftovers() error { return tree.Kill(&others{supervisor: os.Getppid()}) }

// others is the family of all processes that belong to no exec session and not to this phase.
type others struct {
	supervisor int
	empty      int
}

const enoughEmpty = 3 // passes that must find no process, because one list of processes can miss a process

// Roots implements tree.Family. The parent of an exec session's process is outside of the container, so such processes are no
// roots.
func (o *others) Roots(all []kernel.Process) (pids []int) {
	for _, each := range all {
		if each.PPID == 1 && each.PID != o.supervisor {
			pids = append(pids, each.PID)
		}
	}
	return pids
}

// Extinct implements tree.Family.
func (o *others) Extinct(found int) bool {
	if o.empty++; found > 0 {
		o.empty = 0
	}
	return o.empty >= enoughEmpty
}
