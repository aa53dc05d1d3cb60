package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// timesOut runs a script until its timeout, and fails the test if a process with the marker is left.
func timesOut(t *testing.T, s *session, marker, script string, more object) object {
	t.Helper()
	request := object{"timeoutSeconds": 0.5}
	for key, value := range more {
		request[key] = value
	}
	result := s.shell(script, request)
	if result["timedOut"] != true || result["error"] != nil {
		t.Error(result)
	}
	time.Sleep(20 * time.Millisecond)
	if left := living(marker); left != nil {
		t.Errorf("%d processes are left", len(left))
	}
	return result
}

func TestTheTimeLimitKillsEverything(t *testing.T) {
	for name, script := range map[string]string{
		"a child":             "sleep MARK & wait",
		"a daemon":            "(setsid setsid sleep MARK &) ; (setsid bash -c 'trap \"\" TERM HUP INT; (setsid sleep MARK &); sleep MARK' &); sleep MARK",
		"a nohup":             "nohup sleep MARK & disown; sleep MARK",
		"a stopped one":       "sleep MARK & kill -STOP $!; sleep MARK",
		"many":                "for i in $(seq 300); do (setsid sleep MARK &); done; sleep MARK",
		"who wakes the other": "(setsid bash -c 'while :; do pkill -CONT -f MARK; done' MARK &); (setsid sleep MARK &); sleep MARK",
		"who forks for ever":  "f() { while :; do (setsid sleep MARK &) ; sleep 0.001; done; }; f & f & f MARK",
		"a PID namespace":     "unshare -p -f --mount-proc bash -c '(setsid sleep MARK &); sleep MARK'",
		"a subreaper": `python3 -c 'import ctypes,os,time
ctypes.CDLL(None).prctl(36, 1)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: time.sleep(60)
time.sleep(60)' MARK`,
	} {
		t.Run(name, func(t *testing.T) {
			for _, user := range []string{"", "nobody"} {
				if user != "" && name == "a PID namespace" {
					continue
				}
				mark := marker()
				timesOut(t, launch(t).connect(), mark, strings.ReplaceAll(script, "MARK", mark), object{"user": user})
			}
		})
	}
}

func TestTheTimeLimitKillsWhoRunsAway(t *testing.T) {
	for _, rabbits := range []int{1, 4} {
		s, mark := launch(t).connect(), marker()
		command := strings.Join(rabbit(shared(t)+"/"+mark), " ")
		started := time.Now()
		timesOut(t, s, mark, "for i in $(seq "+itoa(rabbits)+"); do "+command+" & done; sleep "+mark, nil)
		t.Log(rabbits, time.Since(started))
	}
}

func TestTheTimeoutKillsProcessesThatResembleZombies(t *testing.T) {
	s, mark := launch(t).connect(), marker()
	result := s.phase(helper("headless", mark), object{"timeoutSeconds": 0.5})
	if left := living(mark); left != nil || result["timedOut"] != true {
		t.Error(left, result)
	}
}

func TestBackgroundProcessesLiveOnAfterANormalEnd(t *testing.T) {
	s, path, mark := launch(t).connect(), shared(t)+"/out", marker()
	script := "(setsid bash -c 'while :; do echo tick; sleep 0.02; done' " + mark + " &) ; echo main"
	result := s.shell(script, object{"user": "nobody", "output": object{"path": path, "maxBytes": 1 << 20}})
	if result["exitCode"] != 0.0 || result["durationSeconds"].(float64) > 5 {
		t.Error(result)
	}
	before := len(content(t, path))
	eventually(t, "it still writes", func() bool { return len(content(t, path)) > before+20 })
	// The background process survives the end of the next phase, even if that phase times out.
	other := marker()
	timesOut(t, s, other, "sleep "+other, nil)
	s.phase([]string{"true"}, object{"killAtEnd": true})
	before = len(content(t, path))
	eventually(t, "it still writes", func() bool { return len(content(t, path)) > before+20 })
}

func TestBackgroundOutputIsCutTooAndNobodyDies(t *testing.T) {
	s, path, mark := launch(t).connect(), shared(t)+"/out", marker()
	s.shell("(setsid bash -c 'for i in $(seq 2000); do echo 0123456789; done; exec sleep "+mark+"' &)", object{"output": object{"path": path, "maxBytes": 1000}})
	eventually(t, "all was written", func() bool { return strings.Contains(content(t, path), "cut") && len(living("sleep\x00"+mark)) == 1 })
}

func TestKillAtEnd(t *testing.T) {
	s, mark := launch(t).connect(), marker()
	script := "(setsid sleep " + mark + " &) ; (setsid bash -c 'trap \"\" TERM; sleep " + mark + "; :' &); sleep 0.1; exit 5"
	result := s.shell(script, object{"killAtEnd": true, "user": "nobody"})
	if left := living(mark); left != nil || result["exitCode"] != 5.0 || result["timedOut"] != false {
		t.Error(left, result)
	}
}

// parentOfMain is a shell expression for the PID of the supervisor, the parent of a phase's main process.
const parentOfMain = "$(ps -o ppid= $$)"

func TestAKilledSupervisorChangesNothing(t *testing.T) {
	t.Run("a normal end", func(t *testing.T) {
		s, path := launch(t).connect(), shared(t)+"/out"
		result := s.shell("kill -9 "+parentOfMain+"; sleep 0.3; echo still here; exit 6", object{"output": object{"path": path, "maxBytes": 100}})
		if result["exitCode"] != 6.0 || result["tail"] != "still here\n" || result["error"] != nil {
			t.Error(result)
		}
	})
	t.Run("the timeout", func(t *testing.T) {
		s, mark := launch(t).connect(), marker()
		timesOut(t, s, mark, "(setsid sleep "+mark+" &); kill -9 "+parentOfMain+"; (setsid bash -c 'sleep "+mark+"; :' &); sleep "+mark, nil)
	})
	t.Run("killAtEnd", func(t *testing.T) {
		s, mark := launch(t).connect(), marker()
		result := s.shell("(setsid sleep "+mark+" &); kill -9 "+parentOfMain+"; sleep 0.1", object{"killAtEnd": true})
		if left := living(mark); left != nil || result["exitCode"] != 0.0 {
			t.Error(left, result)
		}
	})
	t.Run("the main process dies with it", func(t *testing.T) {
		s, mark := launch(t).connect(), marker()
		result := s.shell("(setsid sleep "+mark+" &); kill -9 "+parentOfMain+" $$", object{"killAtEnd": true})
		if left := living(mark); left != nil || result["signal"] != 9.0 {
			t.Error(left, result)
		}
	})
	t.Run("others' background lives on", func(t *testing.T) {
		s, mark := launch(t).connect(), marker()
		s.shell("(setsid sleep "+mark+" &)", nil)
		s.shell("kill -9 "+parentOfMain+"; sleep 0.1", object{"killAtEnd": true})
		eventually(t, "others' background lives on", func() bool { return len(living("sleep\x00"+mark)) == 1 })
	})
}

func TestAStoppedSupervisorIsWoken(t *testing.T) {
	s := launch(t).connect()
	result := s.shell("kill -STOP "+parentOfMain+"; sleep 0.1; exit 6", object{"timeoutSeconds": 20})
	if result["exitCode"] != 6.0 {
		t.Error(result)
	}
}

func TestEverythingIsReaped(t *testing.T) {
	c := launch(t)
	s := c.connect()
	s.shell("for i in $(seq 50); do (setsid sleep 0.05 &) ; done", nil)
	s.shell("kill -9 "+parentOfMain+"; for i in $(seq 50); do (setsid sleep 0.05 &) ; done", nil)
	var states string
	eventually(t, "only PID 1 and its callers are left", func() bool {
		if len(buildFlags) > 0 {
			time.Sleep(1500 * time.Millisecond) // the race detector delays each exit by a second, also that of the last supervisor
		}
		states = s.shell("ps -eo pid,ppid,stat,args", nil)["tail"].(string)
		return !strings.Contains(states, "defunct") && strings.Count(states, "runner phase") == 1
	})
	if testing.Verbose() {
		fmt.Println(states)
	}
}

func TestPhasesRunAtTheSameTime(t *testing.T) {
	s, directory := launch(t).connect(), shared(t)
	script := "touch " + directory + "/$0; while [ $(ls " + directory + " | wc -l) -lt 8 ]; do sleep 0.05; done"
	var ids []string
	for number := range 8 { // each phase waits until all of them run
		ids = append(ids, s.start([]string{"/bin/sh", "-c", script, itoa(number)}, nil))
	}
	for _, id := range ids {
		if result := s.result(id); result["exitCode"] != 0.0 {
			t.Error(result)
		}
	}
}

func TestNoDescriptorIsLeaked(t *testing.T) {
	c := launch(t)
	s := c.connect()
	count := func() int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.pid))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	phases := func() {
		for range 20 {
			s.shell("true", object{"output": object{"path": "/tmp/multistep-test-out", "maxBytes": 10}})
			s.phase([]string{"no-such-command"}, nil)
			s.phase([]string{"true"}, object{"output": object{"path": "/no/such/place", "maxBytes": 10}})
			c.connect().stdin.Close()
		}
	}
	const kept = 16 // the number of output files kept open, as phase.maxOpen
	s.shell("true", nil)
	before := count()
	phases()
	eventually(t, "all but the last outputs are closed", func() bool { return count() <= before+kept })
	phases()
	eventually(t, "nothing more is open than before", func() bool { return count() <= before+kept })
	os.Remove("/tmp/multistep-test-out")
	syscall.Sync()
}
