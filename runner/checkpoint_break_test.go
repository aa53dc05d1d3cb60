package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"multistep.dev/runner/internal/frames"
)

// counting starts a process that writes an increasing number to a file, and returns a function that reports whether the process
// still runs.
func counting(s *session, root string) (runs func() bool) {
	s.shell("i=0; while :; do i=$((i+1)); echo $i > /app/z; done &", nil)
	return func() bool {
		before, _ := os.ReadFile(root + "/app/z")
		for range 1000 {
			now, _ := os.ReadFile(root + "/app/z")
			if len(before) > 0 && len(now) > 0 && !bytes.Equal(before, now) {
				return true
			}
		}
		return false
	}
}

func TestACheckpointEndsWhenItsCallerIsGone(t *testing.T) {
	for what, leave := range map[string]func(*testing.T, *session, *container){
		"call was killed": func(t *testing.T, _ *session, c *container) {
			for _, relay := range callers(c) {
				check(syscall.Kill(relay, syscall.SIGKILL))
			}
		},
		"its stdin ended, and nobody reads its stdout": func(_ *testing.T, s *session, _ *container) { s.stdin.Close() },
		"its stdout broke": func(_ *testing.T, s *session, _ *container) { s.stdout.Close() },
	} {
		t.Run(what, func(t *testing.T) {
			c, root := launchSmall(t, "--checkpoints")
			s := c.connectSmall()
			check(exec.Command("sh", "-c", "head -c 30000000 /dev/urandom > "+root+"/app/large").Run())
			runs := counting(s, root)
			s.sendJSON(frames.JSON, object{"op": "checkpoint"})
			if answer := s.receive(); answer["ok"] != true {
				t.Fatal(answer)
			}
			eventually(t, "the counter stops", func() bool { return !runs() })
			leave(t, s, c)
			eventually(t, "the counter runs again", runs)
			if log := content(t, c.log.Name()); strings.Contains(log, "timeout") {
				t.Error("only a timeout ended it:", log)
			}
			if made := c.connectSmall().checkpoint(nil); made.result["previous"] != "" {
				t.Error(made.result)
			}
		})
	}
}

func TestARestoreEndsWhenItsCallerIsGoneAndTheNextOneIsNoConflict(t *testing.T) {
	c, _ := launchSmall(t, "--checkpoints")
	s := c.connectSmall()
	s.shell("echo one > /app/new", nil)
	made := s.checkpoint(nil)
	for what, leave := range map[string]func(*session){
		"its stdin ended": func(s *session) { s.stdin.Close() },
		"its stdout broke although nothing is written to it": func(s *session) { s.stdout.Close() },
	} {
		t.Run(what, func(t *testing.T) {
			fresh, other := launchSmall(t, "--checkpoints")
			abandoned := fresh.connectSmall()
			request := object{"op": "restore", "id": "r", "increments": []object{{"manifest": made.manifest()}}}
			if answer := abandoned.ask(request); answer["proceed"] != true {
				t.Fatal(answer)
			}
			abandoned.send(frames.Data, made.lines[:1])
			r := fresh.connectSmall()
			answers := make(chan object)
			go func() { answers <- r.restore("r", made) }()
			leave(abandoned)
			select {
			case answer := <-answers:
				if answer["ok"] != true || content(t, other+"/app/new") != "one\n" {
					t.Error(answer)
				}
			case <-time.After(time.Minute): // less than the timeout of a restore whose caller sends nothing
				t.Error("the next restore waits")
			}
		})
	}
}

func TestACallerThatWaitsGetsSignsOfLife(t *testing.T) {
	c, _ := launchSmall(t, "--checkpoints")
	s := c.connectSmall()
	request := object{"op": "restore", "id": "r", "increments": []object{{"manifest": strings.Repeat("0", 64)}}}
	if answer := s.ask(request); answer["proceed"] != true {
		t.Fatal(answer)
	}
	other := c.connectSmall()
	if answer := other.ask(object{"op": "checkpoint"}); answer["ok"] != true {
		t.Fatal("not answered at once:", answer)
	}
	for _, each := range []*session{s, other} { // s waits for bodies, and other waits until the restore of s has ended
		kind, size, err := each.frames.Next()
		if kind != frames.Data || size != 0 || err != nil {
			t.Errorf("frame %q of %d bytes, %v", kind, size, err)
		}
	}
	for range 2 {
		check(frames.NewBodyWriter(s.stdin).Finish(frames.Trailer{Error: "the store is away"}))
	}
	if answer := s.receiveAlive(); answer["error"].(object)["code"] != "Body" {
		t.Error(answer)
	}
	if _, failure := other.body(); failure != "" {
		t.Error("the checkpoint that waited:", failure)
	}
}

func TestAMountThatWasMovedWithItsDirectoryIsRefused(t *testing.T) {
	for what, script := range map[string]string{
		"renamed":                "mv /etc /etc2",
		"replaced by a link":     "mv /etc /etc2; ln -s etc2 /etc",
		"replaced by a file":     "mv /etc /etc2; echo > /etc",
		"the runner's directory": "mv /run /run2; ln -s run2 /run",
	} {
		t.Run(what, func(t *testing.T) {
			root := smallRoot(t)
			hosts := filepath.Join(root, "etc", "hosts")
			write(t, hosts, "the image's", 0o644)
			binds := map[string]string{hosts: filepath.Join(root, "app", "image")}
			c, _ := launchRoot(t, root, []string{"--checkpoints"}, func(with *setup) { with.Binds = binds })
			s := c.connectSmall()
			if result := s.shell(script, nil); result["exitCode"] != 0.0 {
				t.Fatal(result)
			}
			wanted := `"/etc"`
			if strings.Contains(script, "/run") {
				wanted = `"/run"`
			}
			if code, message := s.refusal(nil); code != "Unreadable" || !strings.Contains(message, wanted) {
				t.Error(code, message)
			}
		})
	}
}

func TestAStateWithoutTheUserOfAPhaseIsRefused(t *testing.T) {
	root := smallRoot(t)
	write(t, filepath.Join(root, "etc", "passwd"), "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/:/bin/sh\n", 0o644)
	c, _ := launchRoot(t, root, []string{"--checkpoints"})
	s := c.connectSmall()
	s.phase([]string{"true"}, object{"user": "alice"})
	s.checkpoint(nil)
	s.shell("mv /etc/passwd /etc/passwd2; ln -s nowhere /etc/passwd", nil)
	if code, message := s.refusal(nil); code != "Unreadable" || !strings.Contains(message, `"alice"`) {
		t.Error(code, message)
	}
	s.shell("rm /etc/passwd; mv /etc/passwd2 /etc/passwd", nil)
	s.checkpoint(nil)
}

func TestOnlyTheProcessesThatSurvivedAreCounted(t *testing.T) {
	c, _ := launchSmall(t, "--checkpoints")
	s := c.connectSmall()
	sleeps, zombie, inside := marker(), marker(), marker()
	if made := s.checkpoint(nil); made.result["processCount"] != 0.0 {
		t.Error("before any phase:", made.result["processes"])
	}
	s.shell("sleep "+sleeps+" & (setsid sleep "+sleeps+" &)", nil)
	s.shell("(exec 3<&-; sh -c 'sleep 0.01 & exec sleep "+zombie+"' &)", nil) // the child of sleep becomes a zombie
	eventually(t, "both sleep", func() bool { return len(living(sleeps)) == 2 && len(living(zombie)) == 1 })
	eventually(t, "a zombie exists", func() bool {
		children := content(t, fmt.Sprintf("/proc/%d/task/%[1]d/children", living(zombie)[0]))
		return children != "" && strings.Contains(content(t, "/proc/"+strings.TrimSpace(children)+"/stat"), ") Z ")
	})
	running := s.start([]string{"true"}, nil)
	s.result(running)
	session := c.exec("sh", "-c", "sleep "+inside+" & wait")
	eventually(t, "the exec session has children", func() bool { return len(living(inside)) == 3 })
	if made := s.checkpoint(nil); made.result["processCount"] != 3.0 {
		t.Error(made.result["processCount"], made.result["processes"])
	}
	session.Process.Kill()
	for _, pid := range living(inside) {
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

// exec starts a command in the container as an exec session does: its parent process is outside of the container.
func (c *container) exec(argv ...string) *exec.Cmd {
	c.t.Helper()
	command := c.call(argv[0])
	command.Args = append(command.Args[:len(command.Args)-1], argv[1:]...)
	if err := command.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.relays = append(c.relays, command)
	return command
}

// connectAs starts a session through a `runner call` that runs as uid, and sends hello, as an exec does in a container whose user
// is not root. uid must be the UID of PID 1; path is the path of the runner's program.
func (c *container) connectAs(uid, path string) *session {
	c.t.Helper()
	s := c.connectBy(execCommand("nsenter", "-t", itoa(c.pid), "-p", "-n", "-m", "-r", "-S", uid, "-G", uid, "--", path, "call"))
	if hello := s.ask(object{"op": "hello", "protocols": []int{4}}); hello["ok"] != true {
		c.t.Fatal(hello)
	}
	return s
}

func TestACheckpointWithoutRootIsRestored(t *testing.T) {
	start := func() (*session, string) {
		root := smallRoot(t)
		for _, path := range []string{"app", "app/image", "app/deleted"} {
			check(os.Chown(filepath.Join(root, path), 12345, 12345))
		}
		write(t, filepath.Join(root, "app", "of-root"), "of root", 0o644)
		check(os.Chmod(filepath.Join(root, "tmp"), 0o777|os.ModeSticky))
		check(os.Chmod(root, 0o755))
		c, _ := launchRoot(t, root, []string{"--checkpoints"}, func(with *setup) { with.UID = 12345 })
		return c.connectAs("12345", "/multistep/runner"), root
	}
	s, _ := start()
	s.shell("echo one > /app/new; rm /app/deleted; mkdir -m 555 /app/d; echo two > /tmp/two; chmod 2750 /app", nil)
	made := s.checkpoint(nil)
	r, other := start()
	if answer := r.restore("r", made); answer["ok"] != true {
		t.Fatal(answer)
	}
	info, err := os.Stat(other + "/app")
	check(err)
	if content(t, other+"/app/new") != "one\n" || content(t, other+"/tmp/two") != "two\n" || info.Mode() != os.ModeDir|os.ModeSetgid|0o750 {
		t.Error(info.Mode())
	}
	s.shell("mv /app/of-root /app/moved", nil)
	if code, message := s.refusal(nil); code != "Unreadable" || !strings.Contains(message, `"/app/moved"`) {
		t.Error(code, message)
	}
}
