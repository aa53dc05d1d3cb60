package phase

import (
	"cmp"
	"os"
	"syscall"
	"time"

	"multistep.dev/runner/internal/kernel"
	"multistep.dev/runner/internal/reap"
	"multistep.dev/runner/internal/supervise"
	"multistep.dev/runner/internal/tree"
	"multistep.dev/runner/internal/wire"
)

// family is a supervisor and everything below it.
//
// A supervisor lives as long as anything is below it, so whatever PID 1 has as children is a supervisor, or was below
// one that somebody killed (as only root can, or PID 1's own user). Such a phase goes on: PID 1 is the parent of its
// main process then and waits for it by itself. Its family is then all of those orphans. No environment variable is
// needed to know them by (the phase could remove it, and a container's root may not read that of other users), nor
// a list of PIDs (forks outrun it).
type family struct {
	reaper     *reap.Reaper
	supervisor int
	gone       <-chan syscall.WaitStatus // the supervisor's end
	reports    <-chan supervise.Report
	main       int // 0: not known yet
	adopted    <-chan syscall.WaitStatus
	end        *syscall.WaitStatus // of the supervisor, once it is known
	empty      int                 // times in a row that no orphan was found
}

const (
	afterKill   = 2 * time.Second // how long a killed main process may take to be reported
	enoughEmpty = 3               // a list of processes is no snapshot: one may slip through while it is made
)

// follow waits for the end of the phase and sees to it that what has to be gone is gone.
func (f *family) follow(seconds *float64, killAtEnd bool, result *wire.PhaseResult) *wire.Error {
	defer func() { f.reaper.Unwatch(f.main) }()
	status, failure, ended := f.wait(limit(seconds))
	if !ended {
		result.TimedOut = true
		failure = f.kill()
		status, _, ended = f.wait(time.After(afterKill))
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
		return wire.Errorf(Internal, "%v", err)
	}
	return nil
}

func limit(seconds *float64) <-chan time.Time {
	if seconds == nil {
		return nil
	}
	return time.After(wire.Seconds(*seconds))
}

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

// wait waits for the end of the main process, or for the failure to start it, or until the time is over.
func (f *family) wait(over <-chan time.Time) (status syscall.WaitStatus, failure *wire.Error, ended bool) {
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
		case <-over:
			return 0, nil, false
		}
	}
}

// lost is asked when the supervisor went without a word about the main process's end: true if nobody will ever know
// of that. Else the main process is PID 1's child now, or was and has been waited for.
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

// killed tells whether the supervisor has ended, and not by itself.
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

// Roots implements tree.Family.
func (f *family) Roots(all []kernel.Process) (pids []int) {
	parent, except := f.supervisor, map[int]bool(nil)
	if f.killed() {
		parent, except = os.Getpid(), f.reaper.Started()
	} else if f.end != nil {
		return nil // its number may be somebody else's by now
	}
	for _, process := range all {
		if process.PPID == parent && !except[process.PID] {
			pids = append(pids, process.PID)
		}
	}
	return pids
}

// Extinct implements tree.Family. That a supervisor ended by itself is the kernel's word for it; without one, finding
// nobody several times over has to do.
func (f *family) Extinct(found int) bool {
	if !f.killed() {
		return f.end != nil
	}
	if f.empty++; found > 0 {
		f.empty = 0
	}
	return f.empty >= enoughEmpty
}
