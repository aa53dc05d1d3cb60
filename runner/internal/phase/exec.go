// Runs a guest's command, passes its output to the guest, and remembers the processes that the command leaves running.

package phase

import (
	"context"
	"slices"
	"sync"
	"syscall"

	"multistep.dev/runner/internal/kernel"
	"multistep.dev/runner/internal/tree"
	"multistep.dev/runner/internal/users"
	"multistep.dev/runner/internal/wire"
)

// These are the streams of a command's output.
const (
	Stdout = 1
	Stderr = 2
)

// Exec runs a command and passes its output to emit while it runs, one call at a time for each stream. Once Exec has returned, the
// output of background processes is discarded. If ctx is cancelled or the timeout expires, Exec kills all processes that the
// command started. Exec adds the command's process tree to left, because background processes may still run.
func (h *Host) Exec(ctx context.Context, request wire.Exec, user users.User, emit func(stream byte, data []byte), left *Background) wire.PhaseResult {
	meter, result := newMeter(), wire.PhaseResult{}
	if expired(request.TimeoutSeconds) {
		result.TimedOut = true
	} else {
		result.Error = h.exec(ctx, request, user, emit, left, &result)
	}
	meter.stop(&result)
	return result
}

func (h *Host) exec(ctx context.Context, request wire.Exec, user users.User, emit func(byte, []byte), left *Background, result *wire.PhaseResult) *wire.Error {
	stdout, out, err := newStream(func(data []byte) { emit(Stdout, data) })
	if err != nil {
		return wire.Errorf(Output, "%v", err)
	}
	stderr, errors, err := newStream(func(data []byte) { emit(Stderr, data) })
	if err != nil {
		syscall.Close(out)
		return wire.Errorf(Output, "%v", err)
	}
	family, err := h.start(h.spec(request.Command, user), request.Stdin, out, errors)
	syscall.Close(out)
	syscall.Close(errors)
	if err != nil {
		return wire.Errorf(Internal, "cannot start a supervisor: %v", err)
	}
	ctx, cancel := limited(ctx, request.TimeoutSeconds)
	defer cancel()
	failure := family.follow(ctx, false, result)
	for _, each := range []*output{stdout, stderr} {
		each.drain()
		_, bytes, _ := each.end()
		result.OutputBytes += bytes
	}
	left.add(family)
	return failure
}

// Background has the process trees (see family) of finished commands, which may have left processes running.
type Background struct {
	mu       sync.Mutex
	families []*family
}

// add adds the family of a finished command, and drops families without a process. It keeps only one family whose supervisor was
// killed, because all such families have the same members, the orphans.
func (b *Background) add(added *family) {
	b.mu.Lock()
	defer b.mu.Unlock()
	orphans := false
	b.families = slices.DeleteFunc(append(b.families, added), func(each *family) bool {
		if each.killed() {
			known := orphans
			orphans = true
			return known
		}
		return each.end != nil
	})
}

// Kill kills the processes of all families, and drops the families.
func (b *Background) Kill() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := familySet(b.families)
	b.families = nil
	return tree.Kill(all)
}

// familySet is a set of families that are killed together.
type familySet []*family

// Roots implements tree.Family.
func (c familySet) Roots(all []kernel.Process) (pids []int) {
	for _, each := range c {
		pids = append(pids, each.Roots(all)...)
	}
	return pids
}

// Extinct implements tree.Family. A set is extinct if all its families are. This calls Extinct of every family, because each one
// counts the calls that found no process.
func (c familySet) Extinct(found int) bool {
	extinct := true
	for _, each := range c {
		extinct = each.Extinct(found) && extinct
	}
	return extinct
}
