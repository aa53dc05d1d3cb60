// Package reap is PID 1's one wait loop: it starts children, tells how they ended, and buries orphans.
package reap

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// Reaper is the only one in its process that may wait for children.
type Reaper struct {
	mu       sync.Mutex // held over fork and over wait, so that no child ends before it is known
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

// Start starts a child. Its end comes out of the channel, once.
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

// Watch tells of the end of a process that is not PID 1's child yet, but is when its parent dies.
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

// Sync returns when all that was waited for so far has been told.
func (r *Reaper) Sync() {
	r.mu.Lock()
	defer r.mu.Unlock()
}

// Started is the set of living children that Start made.
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
		tell(r.children, pid, status)
		tell(r.watched, pid, status)
	}
}

// stopped wakes a supervisor: only somebody hostile stops it, so that the end of its phase is never told.
func (r *Reaper) stopped(pid int) {
	if _, mine := r.children[pid]; mine {
		syscall.Kill(pid, syscall.SIGCONT)
	}
}

func tell(whom map[int]chan syscall.WaitStatus, pid int, status syscall.WaitStatus) {
	if ended, found := whom[pid]; found {
		ended <- status
		delete(whom, pid)
	}
}
