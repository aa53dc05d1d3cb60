package reap

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// Reaper waits for children. No other code in the process may wait for them.
type Reaper struct {
	mu       sync.Mutex // locked during fork and during wait, so that no child is reaped before it is registered
	children map[int]chan syscall.WaitStatus
	watched  map[int]chan syscall.WaitStatus
}

// New starts the wait loop.
func New() *Reaper {
	r := &Reaper{children: map[int]chan syscall.WaitStatus{}, watched: map[int]chan syscall.WaitStatus{}}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	go func() {
		for range ended {
			r.reap()
		}
	}()
	return r
}

// Start starts a child. The channel receives the child's wait status once.
func (r *Reaper) Start(path string, argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return 0, nil, err
	}
	ended := make(chan syscall.WaitStatus, 1)
	r.children[pid] = ended
	return pid, ended, nil
}

// Kill kills a child unless it was reaped. ended is the channel that Start returned. It identifies the child, because another child
// may now have the PID.
func (r *Reaper) Kill(pid int, ended <-chan syscall.WaitStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.children[pid] == ended {
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

// Watch returns a channel for the wait status of a process that only becomes PID 1's child when its parent exits.
func (r *Reaper) Watch(pid int) <-chan syscall.WaitStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	ended := make(chan syscall.WaitStatus, 1)
	r.watched[pid] = ended
	return ended
}

// Unwatch ends a Watch.
func (r *Reaper) Unwatch(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.watched, pid)
}

// Sync returns after all statuses that the wait loop has collected until now were sent to their channels.
func (r *Reaper) Sync() {
	r.mu.Lock()
	defer r.mu.Unlock()
}

// Started returns the PIDs of the running children that Start started.
func (r *Reaper) Started() map[int]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	started := make(map[int]bool, len(r.children))
	for pid := range r.children {
		started[pid] = true
	}
	return started
}

func (r *Reaper) reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG|syscall.WUNTRACED|syscall.WALL, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if status.Stopped() {
			r.stopped(pid)
			continue
		}
		notify(r.children, pid, status)
		notify(r.watched, pid, status)
	}
}

// stopped resumes a child that a signal stopped, if Start started it. Only a hostile process sends such a signal, for example to
// keep a supervisor from reporting the end of its phase.
func (r *Reaper) stopped(pid int) {
	if _, mine := r.children[pid]; mine {
		syscall.Kill(pid, syscall.SIGCONT)
	}
}

func notify(waiting map[int]chan syscall.WaitStatus, pid int, status syscall.WaitStatus) {
	if ended, found := waiting[pid]; found {
		ended <- status
		delete(waiting, pid)
	}
}
