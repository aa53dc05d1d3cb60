// Package tree kills whole families of processes, whatever they do to get away.
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
	lastResort    = 3 * time.Second  // a family that still has new members then outruns us
	giveUp        = 15 * time.Second // what is left then hangs in the kernel
	longestPause  = 20 * time.Millisecond
	shortestPause = 500 * time.Microsecond
)

// ErrLeft means that processes could not be killed.
var ErrLeft = errors.New("processes are left")

// Family is what is to be killed.
type Family interface {
	// Roots are the first of the family, of all the processes there are: what is below them belongs to it too.
	Roots(all []kernel.Process) []int
	// Extinct is asked after each look, with the number of living members that were found.
	Extinct(found int) bool
}

// Kill freezes and then kills a family, until nothing is left.
//
// First everything is stopped, over and over until no new process appears: what is stopped cannot fork. Then
// everything is killed, over and over until nothing lives (somebody may have been woken by another in between). Signals
// go to process groups too: that reaches a child that was forked after we looked.
func Kill(family Family) error {
	hunt := hunt{family: family, seen: map[identity]bool{}, began: time.Now()}
	for range freezePasses {
		if fresh, _ := hunt.pass(syscall.SIGSTOP); fresh == 0 {
			break
		}
	}
	for pause := shortestPause; ; pause = min(2*pause, longestPause) {
		fresh, living := hunt.pass(syscall.SIGKILL)
		switch past := time.Since(hunt.began); {
		case family.Extinct(living):
			return nil
		case past > giveUp:
			return fmt.Errorf("%w: %d", ErrLeft, living)
		case fresh > 0 && past > lastResort:
			killAll()
		}
		if fresh == 0 {
			time.Sleep(pause) // those who know of their death need a moment
		}
	}
}

type identity struct {
	pid   int
	start uint64
}

type hunt struct {
	family Family
	seen   map[identity]bool
	began  time.Time
}

// pass signals every living member once and counts them, and those seen for the first time.
func (h *hunt) pass(signal syscall.Signal) (fresh, living int) {
	all, err := kernel.Processes()
	if err != nil {
		return 0, 1 // try again, until it is given up
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
		if group > 1 { // 0 would be our own, 1 the whole world
			syscall.Kill(-group, signal)
		}
	}
	return fresh, living
}

// members are the roots and all their descendants, never this process.
func members(all []kernel.Process, roots []int) (found []kernel.Process) {
	children, byPID := map[int][]int{}, map[int]kernel.Process{}
	for _, process := range all {
		children[process.PPID] = append(children[process.PPID], process.PID)
		byPID[process.PID] = process
	}
	visited := map[int]bool{os.Getpid(): true, 0: true} // parents change while we look: there may be a circle
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

// killAll kills every process of the container but PID 1, in one go of the kernel that nothing can outrun. It takes
// with it what others left running, and sessions (which come again): only for a family that outran everything else.
func killAll() {
	if os.Getpid() == 1 {
		syscall.Kill(-1, syscall.SIGKILL)
	}
}
