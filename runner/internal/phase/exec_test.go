package phase

import (
	"syscall"
	"testing"
)

func ended(status syscall.WaitStatus) *family {
	gone := make(chan syscall.WaitStatus, 1)
	gone <- status
	return &family{gone: gone}
}

func TestOnlyFamiliesThatMayHaveProcessesAreKept(t *testing.T) {
	var left Background
	living := &family{gone: make(chan syscall.WaitStatus)}
	left.add(living)
	for range 10 {
		left.add(ended(0))
		left.add(ended(syscall.WaitStatus(syscall.SIGKILL)))
	}
	if len(left.families) != 2 || left.families[0] != living || !left.families[1].killed() {
		t.Error(left.families)
	}
}

// A command that is started and killed at once may have done something.
func TestACommandWithATimeoutOfNothingIsNotStarted(t *testing.T) {
	nothing, less, little := 0.0, -1.0, 0.001
	if expired(nil) || !expired(&nothing) || !expired(&less) || expired(&little) {
		t.Error(expired(nil), expired(&nothing), expired(&less), expired(&little))
	}
}
