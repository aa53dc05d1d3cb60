package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// If a phase could limit PID 1's CPU time, the kernel would end PID 1 by SIGKILL, as a kubelet does when it evicts a pod.
func TestAPhaseOfRootCannotLimitPID1(t *testing.T) {
	c := launch(t, func(with *setup) { with.UsualCapabilities = true })
	s := c.connect()
	limits := func() string { return content(t, fmt.Sprintf("/proc/%d/limits", c.pid)) }
	before := limits()
	for _, limit := range []string{"cpu", "nofile", "as", "fsize"} {
		result := s.shell("prlimit --pid 1 --"+limit+"=1000:1000", object{"cwd": "/"})
		if result["exitCode"] == 0.0 || limits() != before {
			t.Error(limit, result)
		}
	}
	for _, ids := range []string{"", "--regid=1 --clear-groups", "--regid=0 --clear-groups"} {
		result := s.shell("setpriv "+ids+" prlimit --pid 1 --cpu=1000", nil)
		if result["exitCode"] == 0.0 || limits() != before {
			t.Error(ids, result)
		}
	}
	// The phase's own processes have the usual group IDs, so that they may limit each other.
	status := s.shell("grep ^Gid: /proc/self/status; sleep 5 & prlimit --pid $! --cpu=1000", nil)
	wanted := strings.Repeat(fmt.Sprintf("\t%d", os.Getgid()), 4)
	if status["exitCode"] != 0.0 || !strings.Contains(status["tail"].(string), "Gid:"+wanted+"\n") {
		t.Error(status)
	}
}

// If `runner call` lacks memory, threads or file descriptors, a process or a limit of the container is the cause. The operator
// recognizes this by status 2, with which Go's runtime ends a program without memory or threads, too.
func TestACallWithoutResourcesEndsWithStatus2(t *testing.T) {
	c := launch(t)
	for _, limit := range []string{"ulimit -n 4", "ulimit -v 150000"} {
		relay := c.call(program)
		at := slices.Index(relay.Args, "--") + 1
		relay.Args = slices.Insert(relay.Args, at, "bash", "-c", limit+`; exec "$0" "$@"`)
		var ended *exec.ExitError
		if output, err := relay.CombinedOutput(); !errors.As(err, &ended) || ended.ExitCode() != 2 {
			t.Errorf("%s: %v, %s", limit, err, output)
		}
	}
}

// In the agent host, the runner and all other processes run as a user without capabilities. The container has no_new_privs.
func TestAPhaseWithoutPrivilegesCannotLimitPID1(t *testing.T) {
	c := launch(t, func(with *setup) { with.UID, with.NoNewPrivileges = 65532, true })
	limits := func() string { return content(t, fmt.Sprintf("/proc/%d/limits", c.pid)) }
	before := limits()
	relay := c.call(program)
	relay.Args = slices.Insert(relay.Args, slices.Index(relay.Args, "--"), "-S", "65532", "-G", "65532")
	s := c.connectBy(relay)
	s.ask(object{"op": "hello", "protocols": []int{5}})
	result := s.shell("ulimit -n 100 && ulimit -n && prlimit --pid 1 --cpu=1000", nil)
	if !strings.HasPrefix(result["tail"].(string), "100\n") || result["exitCode"] == 0.0 || limits() != before {
		t.Error(result)
	}
	if result := s.shell("prlimit --pid 1 --cpu && prlimit --pid $$ --cpu", nil); result["exitCode"] != 0.0 {
		t.Error("limits cannot be read:", result)
	}
}

func TestAPhaseWithoutNewPrivilegesMayLimitItsProcesses(t *testing.T) {
	c := launch(t, func(with *setup) { with.UsualCapabilities, with.NoNewPrivileges = true, true })
	if result := c.connect().shell("prlimit --pid $$ --cpu=1000 && prlimit --pid $$ --cpu", nil); result["exitCode"] != 0.0 {
		t.Error(result)
	}
}

func TestAContainerWhoseRunnerIsMovedOrReplacedEnds(t *testing.T) {
	for name, attack := range map[string]func(file string) error{
		"multistep":        func(file string) error { return os.Rename(file, file+"-gone") },
		"multistep/runner": func(file string) error { return errors.Join(os.Remove(file), copyFile("/bin/true", file)) },
	} {
		c, root := launchRoot(t, smallRoot(t), nil)
		c.connectSmall()
		check(attack(filepath.Join(root, name)))
		ended := make(chan int, 1)
		go func() {
			c.process.Wait()
			ended <- c.process.ProcessState.ExitCode()
		}()
		select {
		case code := <-ended:
			if code != 1 {
				t.Error(name, code)
			}
		case <-time.After(time.Minute):
			t.Error(name, "it still runs")
		}
	}
}
