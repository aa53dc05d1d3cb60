package tree

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"multistep.dev/runner/internal/kernel"
)

const (
	freezePasses  = 20
	lastResort    = 3 * time.Second  // after this time, killAll kills all processes at once if new members still appear
	giveUp        = 15 * time.Second // Kill fails after this time, because processes that are still alive are assumed to hang in the kernel
	longestPause  = 20 * time.Millisecond
	shortestPause = 500 * time.Microsecond
)

// ErrLeft means that some processes could not be killed.
var ErrLeft = errors.New("processes are left")

// Family is a set of process trees to kill.
type Family interface {
	// Roots selects the family's root processes from all processes. Their descendants also belong to the family.
	Roots(all []kernel.Process) []int
	// Extinct returns whether no member is left. Kill calls it after each pass of SIGKILL, with the number of living members found.
	Extinct(found int) bool
}

// Kill stops and then kills a family, until no process is left.
//
// Kill first stops all members repeatedly until no new process appears, because a stopped process cannot fork. It then kills all
// members repeatedly until none is alive, because another process may have resumed a stopped one. It also signals their process
// groups, which reaches children forked after the processes were listed.
func Kill(family Family) error {
	hunt := hunt{family: family, seen: map[identity]bool{}, started: time.Now()}
	for range freezePasses {
		if fresh, _ := hunt.pass(syscall.SIGSTOP); fresh == 0 {
			break
		}
	}
	for pause := shortestPause; ; pause = min(2*pause, longestPause) {
		fresh, living := hunt.pass(syscall.SIGKILL)
		switch past := time.Since(hunt.started); {
		case family.Extinct(living):
			return nil
		case past > giveUp:
			return fmt.Errorf("%w: %d", ErrLeft, living)
		case fresh > 0 && past > lastResort:
			killAll()
		}
		if fresh == 0 {
			time.Sleep(pause) // processes take a moment to exit
		}
	}
}

type identity struct {
	pid   int
	start uint64
}

type hunt struct {
	family  Family
	seen    map[identity]bool
	started time.Time
}

// pass signals every living member once. It returns how many members it saw for the first time, and how many are alive.
func (h *hunt) pass(signal syscall.Signal) (fresh, living int) {
	all, err := kernel.Processes()
	if err != nil {
		return 0, 1 // assume a living member, so that Kill retries until giveUp
	}
	groups := map[int]bool{}
	for _, process := range members(all, h.family.Roots(all)) {
		if !process.Alive() {
			continue
		}
		living++
		if id := (identity{process.PID, process.Start}); !h.seen[id] {
			h.seen[id] = true
			fresh++
		}
		syscall.Kill(process.PID, signal)
		groups[process.Group] = true
	}
	delete(groups, syscall.Getpgrp())
	for group := range groups {
		if group > 1 { // kill(0) would signal this process's own group, and kill(-1) all processes
			syscall.Kill(-group, signal)
		}
	}
	return fresh, living
}

// members returns the roots and all their descendants, except this process.
func members(all []kernel.Process, roots []int) (found []kernel.Process) {
	children, byPID := map[int][]int{}, map[int]kernel.Process{}
	for _, process := range all {
		children[process.PPID] = append(children[process.PPID], process.PID)
		byPID[process.PID] = process
	}
	visited := map[int]bool{os.Getpid(): true, 0: true} // parents change while processes are listed, so there may be a cycle
	for todo := roots; len(todo) > 0; {
		pid := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if process, exists := byPID[pid]; exists && !visited[pid] {
			visited[pid] = true
			found = append(found, process)
			todo = append(todo, children[pid]...)
		}
	}
	return found
}

// killAll kills all processes of the container except PID 1, in one system call that no process can evade. It is the last resort,
// because it also kills other phases' background processes and exec sessions, which the operator opens again. It does nothing in a
// process other than PID 1.
func killAll() {
	if os.Getpid() == 1 {
		syscall.Kill(-1, syscall.SIGKILL)
	}
}
