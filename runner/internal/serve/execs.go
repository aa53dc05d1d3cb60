package serve

import (
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"multistep.dev/runner/internal/kernel"
)

const (
	minPause = time.Second // between two checks
	maxPause = 4 * time.Second
)

// pause waits between two checks for blocked exec sessions. The time is random, so that an agent cannot undo its attack just before
// each check.
func pause() { time.Sleep(minPause + rand.N(maxPause-minPause)) }

// execSession is a process that the container runtime started in the container.
type execSession struct {
	pid   int
	start uint64
}

// endStopped kills each process of an exec session (such as `runner call`) that is stopped at two checks. A root agent can stop
// such a process with SIGSTOP, which the operator cannot distinguish from an unresponsive node. If the process is killed, the
// kubelet reports the end of the session to the operator.
func endStopped() {
	stopped := map[execSession]bool{} // whether a check found the process stopped
	for ; ; pause() {
		processes, _ := kernel.Processes()
		now := map[execSession]bool{}
		for _, each := range processes {
			if each.PPID != 0 || each.PID == os.Getpid() {
				continue
			}
			session := execSession{each.PID, each.Start}
			if each.State == 'T' && stopped[session] {
				syscall.Kill(each.PID, syscall.SIGKILL)
				log.Printf("killed process %d, an exec session that was stopped", each.PID)
			}
			now[session] = each.State == 'T' || stopped[session]
		}
		stopped = now
	}
}

// execFiles lists the files that the container runtime reads in the container before it starts the program of an exec session.
var execFiles = []string{"/etc/passwd", "/etc/group"}

const (
	maxExecFile = 16 << 20 // bytes that the container runtime reads in a few seconds
	maxLinks    = 40       // as in the kernel
)

// awaitBlockedExecs returns an error when reading one of execFiles may never end, or when this program is no longer at its path. In
// the first case the container runtime's exec sessions wait forever, in the second they fail, which the operator cannot distinguish
// from an unresponsive node. The error ends PID 1, and with it the phase that caused the error. A root agent that may create user
// namespaces can move the mount with this program: in a namespace of its own, the agent can change directories from which it has
// unmounted everything.
func awaitBlockedExecs() error {
	program, _ := os.Executable()
	own, _ := os.Stat(program)
	for ; ; pause() {
		if now, err := os.Stat(program); own != nil && !os.SameFile(own, now) && !errors.Is(err, syscall.ENOMEM) {
			return fmt.Errorf("%s was moved or replaced, so no exec session can start", program)
		}
		for _, name := range execFiles {
			if problem := blocksReader(name); problem != "" {
				return fmt.Errorf("%s %s, so no exec session can start", name, problem)
			}
		}
	}
}

// blocksReader returns why reading a file may not end; "" if it ends, or if the file cannot be opened.
func blocksReader(name string) string {
	if leadsToProc(name) {
		return "leads to /proc"
	}
	info, err := os.Stat(name)
	switch {
	case err != nil || info.IsDir():
		return ""
	case !info.Mode().IsRegular(): // a FIFO, a terminal, or a device without an end
		return "is no regular file"
	case info.Size() > maxExecFile:
		return fmt.Sprintf("has %d bytes", info.Size())
	}
	return ""
}

// leadsToProc returns whether the file is a link to a file in /proc. There, the container runtime may find a pipe, such as its own
// stdin, where PID 1 finds another file.
func leadsToProc(name string) bool {
	for range maxLinks {
		directory, base := filepath.Split(name)
		directory, err := filepath.EvalSymlinks(directory)
		if err != nil {
			return false
		}
		if strings.HasPrefix(directory+"/", "/proc/") {
			return true
		}
		target, err := os.Readlink(directory + "/" + base)
		if err != nil {
			return false // no link
		}
		if name = target; !filepath.IsAbs(target) {
			name = directory + "/" + target
		}
	}
	return false
}
