// Waits for a command's main process, and finds and kills all processes of the command.

package phase

import (
	"cmp"
	"context"
	"os"
	"syscall"
	"time"

	"multistep.dev/runner/internal/kernel"
	"multistep.dev/runner/internal/reap"
	"multistep.dev/runner/internal/supervise"
	"multistep.dev/runner/internal/tree"
	"multistep.dev/runner/internal/wire"
)

// family is a supervisor and its descendants. A supervisor runs as long as it has descendants, so each child of PID 1 is a
// supervisor, or an orphan of a killed supervisor. (Only root and PID 1's own user can kill a supervisor.) The phase of a killed
// supervisor continues. PID 1 becomes the parent of the phase's main process, and waits for it. The phase's family then consists of
// all orphans of killed supervisors. A marker in the environment could not identify them, because a phase can remove it, and a
// container's root may be unable to read other users' environments. A list of PIDs could not identify them either, because forks
// make it incomplete.
type family struct {
	reaper     *reap.Reaper
	supervisor int
	gone       <-chan syscall.WaitStatus // receives the supervisor's status
	reports    <-chan supervise.Report
	main       int // PID of the main process, or 0 until it is known
	adopted    <-chan syscall.WaitStatus
	end        *syscall.WaitStatus // the supervisor's status, or nil if it is unknown
	empty      int                 // number of passes in a row that found no orphan
}

const (
	afterKill   = 2 * time.Second // timeout for the report of a killed main process
	enoughEmpty = 3               // passes until a family counts as extinct, because one list of processes can miss a process
)

// follow waits until the phase's main process ends, or ctx is done, which counts as the timeout. It kills the phase's processes at
// the timeout, or at the end if killAtEnd is set.
func (f *family) follow(ctx context.Context, killAtEnd bool, result *wire.PhaseResult) *wire.Error {
	defer func() { f.reaper.Unwatch(f.main) }()
	status, failure, ended := f.wait(ctx)
	if !ended {
		result.TimedOut = true
		failure = f.kill()
		late, cancel := context.WithTimeout(context.Background(), afterKill)
		defer cancel()
		status, _, ended = f.wait(late)
	} else if killAtEnd || f.killed() && f.main == 0 {
		failure = cmp.Or(failure, f.kill())
	}
	if ended && f.main != 0 && (failure == nil || result.TimedOut) {
		describe(status, result)
	}
	return failure
}

func (f *family) kill() *wire.Error {
	if err := tree.Kill(f); err != nil {
		return wire.Errorf(Left, "%v", err)
	}
	return nil
}

// limited returns a context that is done when ctx is done or the timeout in seconds expires. nil means no timeout.
func limited(ctx context.Context, seconds *float64) (context.Context, context.CancelFunc) {
	if seconds == nil {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, wire.Seconds(*seconds))
}

// expired returns whether a timeout is zero or negative. If it is, the command must not be started.
func expired(seconds *float64) bool { return seconds != nil && *seconds <= 0 }

func describe(status syscall.WaitStatus, result *wire.PhaseResult) {
	switch {
	case status.Signaled():
		signal := int(status.Signal())
		result.Signal = &signal
	case !result.TimedOut:
		code := status.ExitStatus()
		result.ExitCode = &code
	}
}

// wait waits until the main process ends or fails to start. ended is false if ctx is done first.
func (f *family) wait(ctx context.Context) (status syscall.WaitStatus, failure *wire.Error, ended bool) {
	for {
		select {
		case report, more := <-f.reports:
			switch {
			case !more && f.lost():
				return syscall.WaitStatus(syscall.SIGKILL), f.neverStarted(), true
			case !more:
				f.reports = nil
			case report.Error != nil:
				return 0, report.Error, true
			case report.Status != nil:
				return syscall.WaitStatus(*report.Status), nil, true
			case report.PID != 0:
				f.main, f.adopted = report.PID, f.reaper.Watch(report.PID)
			}
		case status := <-f.adopted:
			return status, nil, true
		case <-ctx.Done():
			return 0, nil, false
		}
	}
}

// lost returns whether the main process's status can never be known. It is called after the supervisor ended without a report of
// that status. If lost returns false, the main process is PID 1's child, or PID 1 has already reaped it.
func (f *family) lost() bool {
	if f.end == nil {
		status := <-f.gone
		f.end = &status
	}
	if process, err := kernel.Stat(f.main); f.main != 0 && err == nil && process.PPID == os.Getpid() {
		return false
	}
	f.reaper.Sync()
	return len(f.adopted) == 0
}

func (f *family) neverStarted() *wire.Error {
	if f.main != 0 {
		return nil
	}
	return wire.Errorf(Internal, "the supervisor was killed before it started anything")
}

// killed returns whether the supervisor ended with a status other than 0.
func (f *family) killed() bool {
	if f.end == nil {
		select {
		case status := <-f.gone:
			f.end = &status
		default:
		}
	}
	return f.end != nil && *f.end != 0
}

// Roots implements tree.Family. The roots are the supervisor's children, or the orphans if the supervisor was killed.
func (f *family) Roots(all []kernel.Process) (pids []int) {
	parent, except := f.supervisor, map[int]bool(nil)
	if f.killed() {
		parent, except = os.Getpid(), f.reaper.Started()
	} else if f.end != nil {
		return nil // the supervisor has exited, so another process may have its PID
	}
	for _, process := range all {
		if process.PPID == parent && !except[process.PID] {
			pids = append(pids, process.PID)
		}
	}
	return pids
}

// Extinct implements tree.Family. A supervisor exits when it has no descendants left. If it was killed instead, the family is
// extinct after enoughEmpty calls in a row that found no process.
func (f *family) Extinct(found int) bool {
	if !f.killed() {
		return f.end != nil
	}
	if f.empty++; found > 0 {
		f.empty = 0
	}
	return f.empty >= enoughEmpty
}
