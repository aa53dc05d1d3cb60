package freeze

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"multistep.dev/runner/internal/kernel"
)

const (
	lastResort = time.Second      // if processes still fork after this time, kill(-1, SIGSTOP) stops all of them at once
	giveUp     = 10 * time.Second // freezing fails after this time, because a process that still runs is assumed to hang in the kernel
	firstPause = 200 * time.Microsecond
	maxPause   = 20 * time.Millisecond
)

// ErrRunning means that some processes could not be stopped.
var ErrRunning = errors.New("processes cannot be stopped")

type identity struct {
	pid   int
	start uint64
}

// Frozen is the set of stopped processes.
type Frozen struct {
	// Processes are the environment's processes that were alive when all were stopped. Processes of exec sessions are not among them.
	Processes []kernel.Process
	mu        sync.Mutex
	stopped   map[identity]bool // processes that this package stopped
	before    map[identity]bool // processes that were stopped before, which Thaw leaves stopped
	supervise func() map[int]bool
	thawed    bool
}

// All stops all processes except this one, its supervisors, and processes from outside of the container, such as exec sessions.
// supervisors returns the PIDs of the supervisors. They only wait for their children, and package reap would resume them at once.
// The caller must call Thaw, even after an error.
func All(ctx context.Context, supervisors func() map[int]bool) (*Frozen, error) {
	f := &Frozen{stopped: map[identity]bool{}, supervise: supervisors}
	return f, f.freeze(ctx)
}

func (f *Frozen) freeze(ctx context.Context) error {
	started := time.Now()
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		before := kernel.LastPID()
		running, err := f.pass()
		forked := kernel.LastPID() != before // the list of processes may lack a process that was forked after it was made
		past := time.Since(started)
		switch {
		case err != nil:
			return err
		case running == 0 && !forked:
			return nil
		case past > giveUp:
			return fmt.Errorf("%w: %d", ErrRunning, running)
		case past > lastResort:
			f.stopAtOnce()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// pass sends SIGSTOP to all running processes. It returns the number of processes that were not yet stopped.
func (f *Frozen) pass() (running int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.thawed {
		return 0, context.Canceled
	}
	all, err := kernel.Processes()
	if err != nil {
		return 0, err
	}
	environment := f.environment(all)
	first := f.before == nil
	if first {
		f.before = map[identity]bool{}
	}
	sleeping := map[int]bool{}
	for _, process := range environment {
		sleeping[process.PID] = process.State == 'D'
	}
	for _, process := range environment {
		id := identity{process.PID, process.Start}
		if resting(process) {
			if first {
				f.before[id] = true
			}
			if f.stopped[id] && sleeping[process.PPID] { // the parent may wait in vfork, and cannot stop before its child's execve
				running++
				syscall.Kill(process.PID, syscall.SIGCONT)
			}
			continue
		}
		running++
		if delete(f.before, id); syscall.Kill(process.PID, syscall.SIGSTOP) == nil {
			f.stopped[id] = true
		}
	}
	f.Processes = survivors(environment, all)
	return running, nil
}

// stopAtOnce stops all processes in one system call, which no fork can evade, and resumes those from outside of the container.
func (f *Frozen) stopAtOnce() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if os.Getpid() != 1 || f.thawed {
		return
	}
	stopped := map[identity]bool{} // whether an exec session's process was stopped before the kill
	earlier, _ := kernel.Processes()
	for _, process := range earlier {
		stopped[identity{process.PID, process.Start}] = process.PPID == 0 && process.State == 'T'
	}
	syscall.Kill(-1, syscall.SIGSTOP)
	now, _ := kernel.Processes()
	for _, process := range now {
		id := identity{process.PID, process.Start}
		switch {
		case process.PID == os.Getpid():
		case process.PPID == 0 && !stopped[id]:
			syscall.Kill(process.PID, syscall.SIGCONT)
		case process.PPID != 0 && !f.before[id]:
			f.stopped[id] = true
		}
	}
}

// environment returns the living processes of the environment, and those that exec sessions started in the container.
func (f *Frozen) environment(all []kernel.Process) (found []kernel.Process) {
	own := f.supervise()
	for _, process := range all {
		if process.PPID != 0 && process.PID != os.Getpid() && !own[process.PID] && process.Alive() {
			found = append(found, process)
		}
	}
	return found
}

// survivors returns the processes that no exec session started. A session is a process without a parent in this PID namespace.
func survivors(environment, all []kernel.Process) (found []kernel.Process) {
	parents := make(map[int]int, len(all))
	for _, process := range all {
		parents[process.PID] = process.PPID
	}
	for _, process := range environment {
		top := process.PID
		for range all { // a limit, because parents change while the processes are listed, so there may be a cycle
			parent, known := parents[top]
			if !known || parent == 0 {
				break
			}
			top = parent
		}
		if parent, known := parents[top]; !known || parent != 0 || top == os.Getpid() {
			found = append(found, process)
		}
	}
	return found
}

// resting returns whether all threads of a process are stopped. The state of a process is that of its main thread only.
func resting(process kernel.Process) bool {
	if process.Threads <= 1 {
		return still(process.State)
	}
	directory := "/proc/" + strconv.Itoa(process.PID) + "/task"
	threads, err := os.ReadDir(directory)
	if err != nil {
		return false
	}
	for _, thread := range threads {
		if id, err := strconv.Atoi(thread.Name()); err == nil {
			if each, err := kernel.Thread(process.PID, id); err == nil && !still(each.State) {
				return false
			}
		}
	}
	return true
}

// still returns whether a thread of this state executes nothing, because it is stopped, traced or ended.
func still(state byte) bool {
	return state == 'T' || state == 't' || state == 'Z' || state == 'X'
}

// Thaw resumes the processes that All stopped. Further calls do nothing.
func (f *Frozen) Thaw() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.thawed {
		return
	}
	f.thawed = true
	for id := range f.stopped {
		if now, err := kernel.Stat(id.pid); err == nil && now.Start == id.start {
			syscall.Kill(id.pid, syscall.SIGCONT)
		}
	}
}
