package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"multistep.dev/runner/internal/frames"
)

// launchSmall starts a runner with the arguments in a new root directory, so that the runner has few files to list. The host's /usr
// is bind-mounted in it.
func launchSmall(t *testing.T, arguments ...string) (*container, string) {
	t.Helper()
	return launchRoot(t, smallRoot(t), arguments)
}

func smallRoot(t *testing.T) string {
	t.Helper()
	root := shared(t)
	for _, directory := range []string{"proc", "dev", "tmp", "app", "usr", "run", "etc", "multistep"} {
		check(os.Mkdir(filepath.Join(root, directory), 0o755))
	}
	for _, link := range []string{"bin", "lib", "lib64"} {
		check(os.Symlink("usr/"+link, filepath.Join(root, link)))
	}
	check(copyFile(program, filepath.Join(root, "multistep", "runner")))
	write(t, filepath.Join(root, "app", "image"), "from the image", 0o644)
	write(t, filepath.Join(root, "app", "deleted"), "from the image", 0o644)
	write(t, filepath.Join(root, "dev", "null"), "", 0o666)
	os.Remove(filepath.Join(root, "dev", "null"))
	check(syscall.Mknod(filepath.Join(root, "dev", "null"), syscall.S_IFCHR|0o666, 1<<8|3))
	os.Chmod(filepath.Join(root, "dev", "null"), 0o666)
	return root
}

func launchRoot(t *testing.T, root string, arguments []string, change ...func(*setup)) (*container, string) {
	t.Helper()
	waitForCtimeTick(t, root)
	waitForCtimeTick(t, filepath.Join(root, "app", "deleted"))
	c := launch(t, append(change, func(with *setup) {
		with.Root, with.Args, with.Dir = root, append([]string{"/multistep/runner"}, arguments...), "/app"
		if with.Binds == nil {
			with.Binds = map[string]string{}
		}
		with.Binds[filepath.Join(root, "usr")] = "/usr"
	})...)
	return c, root
}

func (c *container) connectSmall() *session {
	c.t.Helper()
	s := c.connectBy(c.call("/multistep/runner"))
	if hello := s.ask(object{"op": "hello", "protocols": []int{4}}); hello["ok"] != true {
		c.t.Fatal(hello)
	}
	return s
}

// body receives a body, and returns its content and the error in its trailer ("" if there is none).
func (s *session) body() ([]byte, string) {
	s.t.Helper()
	body := frames.NewBody(s.frames)
	content, err := io.ReadAll(body)
	if err != nil {
		s.t.Fatal(err)
	}
	return content, body.Trailer().Error
}

// stored is an increment in the form in which the operator stores it.
type stored struct {
	files, lines []byte
	result       object
}

func (s *session) checkpoint(more object) stored {
	s.t.Helper()
	request := object{"op": "checkpoint"}
	for key, value := range more {
		request[key] = value
	}
	if answer := s.ask(request); answer["ok"] != true {
		s.t.Fatal(answer)
	}
	made := stored{}
	made.files, _ = s.body()
	made.lines, _ = s.body()
	answer := s.receive()
	if answer["ok"] != true {
		s.t.Fatal(answer)
	}
	made.result = answer["checkpoint"].(object)
	return made
}

func (s stored) manifest() string { return s.result["manifest"].(string) }

func (s stored) text(t *testing.T) string {
	t.Helper()
	plain, err := gzip.NewReader(bytes.NewReader(s.lines))
	check(err)
	text, err := io.ReadAll(plain)
	check(err)
	return string(text)
}

func (s *session) commit(made stored) object {
	s.t.Helper()
	lastID++
	return s.ask(object{"op": "commit", "id": fmt.Sprintf("commit/%d", lastID), "manifest": made.manifest()})
}

func (s *session) restore(id string, chain ...stored) object {
	s.t.Helper()
	var increments []object
	for _, each := range chain {
		increments = append(increments, object{"manifest": each.manifest()})
	}
	answer := s.ask(object{"op": "restore", "id": id, "increments": increments})
	if answer["proceed"] != true {
		return answer
	}
	for _, each := range chain {
		s.sendIncrement(each)
	}
	return s.receiveAlive()
}

func (s *session) sendIncrement(increment stored) {
	s.t.Helper()
	for _, content := range [][]byte{increment.lines, increment.files} {
		body := frames.NewBodyWriter(s.stdin)
		body.Write(content)
		check(body.Finish(frames.Trailer{}))
	}
}

// receiveAlive skips keep-alive frames and returns the next answer.
func (s *session) receiveAlive() object {
	s.t.Helper()
	for {
		kind, size, err := s.frames.Next()
		if err != nil || kind == frames.Data && size > 0 || kind == frames.End {
			s.t.Fatalf("no answer: frame %q, %v", kind, err)
		}
		if kind == frames.JSON {
			return s.decoded()
		}
	}
}

// refusal requests a checkpoint, and returns the code and the message of the error with which the runner refuses it.
func (s *session) refusal(more object) (code, message string) {
	s.t.Helper()
	if answer := s.ask(merged(object{"op": "checkpoint"}, more)); answer["ok"] != true {
		s.t.Fatal("a refusal in place of the first answer:", answer)
	}
	if _, failure := s.body(); failure == "" {
		s.t.Error("the body has no error")
	}
	failure, _ := s.receive()["error"].(object)
	code, _ = failure["code"].(string)
	message, _ = failure["message"].(string)
	return code, message
}

// waitForCtimeTick waits until the next change of a file is certain to change its ctime. Before that, every increment contains the
// file, whether it changed or not.
func waitForCtimeTick(t *testing.T, path string) {
	t.Helper()
	eventually(t, path+" is older than a tick of ctime", func() bool {
		var stat syscall.Stat_t
		check(syscall.Lstat(path, &stat))
		return time.Since(time.Unix(stat.Ctim.Unix())) > 60*time.Millisecond
	})
}

func TestACheckpointIsRestoredInAFreshContainer(t *testing.T) {
	c, root := launchSmall(t, "--checkpoints")
	s := c.connectSmall()
	s.shell("echo one > /app/new; rm /app/deleted; mkdir /app/d; ln -s /nowhere /app/d/link", nil)
	waitForCtimeTick(t, root+"/app/d/link")
	first := s.checkpoint(nil)
	if answer := s.commit(first); answer["ok"] != true {
		t.Fatal(answer)
	}
	s.shell("echo two >> /app/new; echo three > /app/d/more", nil)
	second := s.checkpoint(nil)
	if second.result["previous"] != first.result["manifest"] || second.result["processCount"] != 0.0 || second.result["sharedMemory"] != false {
		t.Error(second.result)
	}
	if text := second.text(t); strings.Contains(text, "deleted") || strings.Contains(text, "link") || !strings.Contains(text, `"/app/d/more"`) {
		t.Error("the second increment:", text)
	}
	for _, own := range []string{"/usr", "/proc", "/multistep", "/run/multistep", "/dev"} {
		if strings.Contains(first.text(t), fmt.Sprintf("%q", own)) {
			t.Error("a checkpoint contains", own)
		}
	}
	fresh, other := launchSmall(t, "--checkpoints")
	r := fresh.connectSmall()
	answer := r.restore("restore", first, second)
	if answer["ok"] != true {
		t.Fatal(answer)
	}
	if content(t, other+"/app/new") != "one\ntwo\n" || content(t, other+"/app/d/more") != "three\n" {
		t.Error("contents")
	}
	if _, err := os.Lstat(other + "/app/deleted"); err == nil {
		t.Error("a deleted file exists")
	}
	if again := r.restore("restore", first, second); again["record"].(object)["endedAt"] != answer["record"].(object)["endedAt"] {
		t.Error("the same id again:", again)
	}
	r.shell("echo four > /app/four", nil)
	third := r.checkpoint(nil)
	if third.result["previous"] != second.manifest() || third.result["entries"] != 3.0 {
		t.Error("an increment after a restore:", third.result, third.text(t))
	}
}

func TestCommitIsIdempotentAndOnlyThenTheNextIncrementFollows(t *testing.T) {
	c, _ := launchSmall(t, "--checkpoints")
	s := c.connectSmall()
	s.shell("echo one > /app/new", nil)
	lost := s.checkpoint(nil)
	again := s.checkpoint(nil)
	if again.result["previous"] != "" || !strings.Contains(again.text(t), `"/app/new"`) {
		t.Error("an increment that was not committed is packed again:", again.text(t))
	}
	if code := s.code(object{"op": "commit", "id": "x", "manifest": strings.Repeat("0", 64)}); code != "NotFound" {
		t.Error(code)
	}
	for range 2 {
		if answer := s.commit(again); answer["ok"] != true {
			t.Error(answer)
		}
	}
	if lost.manifest() != again.manifest() {
		t.Error("the same files have two manifests")
	}
	if next := s.checkpoint(nil); strings.Contains(next.text(t), `"/app/image"`) {
		t.Error(next.text(t))
	}
	if whole := s.checkpoint(object{"full": true}); whole.result["previous"] != "" || !strings.Contains(whole.text(t), `"/app/new"`) {
		t.Error(whole.text(t))
	}
}

func TestWithoutTheListACheckpointIsRefused(t *testing.T) {
	c, _ := launchSmall(t)
	s := c.connectSmall()
	if code, _ := s.refusal(nil); code != "NoBase" {
		t.Error(code)
	}
	if code := s.code(object{"op": "commit", "id": "x", "manifest": strings.Repeat("0", 64)}); code != "NoBase" {
		t.Error(code)
	}
}

func TestACheckpointPastItsLimitsIsATypedRefusal(t *testing.T) {
	c, root := launchSmall(t, "--checkpoints")
	s := c.connectSmall()
	s.shell("for i in 1 2 3 4 5 6 7 8 9; do echo $i > /app/$i; done", nil)
	write(t, filepath.Join(root, "app", "zeros"), strings.Repeat("0", 3_000_000), 0o644)
	for _, limit := range []object{{"maxFiles": 5}, {"maxBytes": 1000000}, {"maxPackedBytes": 10}, {"maxSeconds": 1e-9}} {
		code, message := s.refusal(limit)
		if wanted := map[bool]string{true: "TooSlow", false: "TooLarge"}[limit["maxSeconds"] != nil]; code != wanted {
			t.Error(limit, code, message)
		}
	}
	if made := s.checkpoint(nil); made.result["previous"] != "" {
		t.Error("the session is usable:", made.result)
	}
}

func merged(objects ...object) object {
	all := object{}
	for _, each := range objects {
		for key, value := range each {
			all[key] = value
		}
	}
	return all
}

func TestTwoCountersInLockstepAreNotTorn(t *testing.T) {
	c, root := launchSmall(t, "--checkpoints")
	s := c.connectSmall()
	sleeps := marker()
	padding := filepath.Join(root, "app", "m")
	check(os.WriteFile(padding, bytes.Repeat([]byte("x"), 8<<20), 0o644))
	s.shell("i=0; while :; do i=$((i+1)); echo $i > /app/a; echo $i > /app/z; done &", nil)
	s.shell("sleep "+sleeps+" &", nil)
	eventually(t, "the process to stop exists", func() bool {
		pids := living(sleeps)
		return len(pids) == 1 && strings.Contains(content(t, fmt.Sprintf("/proc/%d/stat", pids[0])), "(sleep) S")
	})
	stopped := fmt.Sprintf("/proc/%d/stat", living(sleeps)[0])
	check(syscall.Kill(living(sleeps)[0], syscall.SIGSTOP))
	eventually(t, "it is stopped", func() bool { return strings.Contains(content(t, stopped), "(sleep) T") })
	eventually(t, "both counters exist", func() bool {
		_, err := os.Stat(root + "/app/z")
		return err == nil
	})
	for range 3 {
		made := s.checkpoint(nil)
		if made.result["processCount"] != 2.0 {
			t.Error("survivors:", made.result["processes"])
		}
		fresh, other := launchSmall(t)
		if answer := fresh.connectSmall().restore("r", made); answer["ok"] != true {
			t.Fatal(answer)
		}
		var a, z int
		fmt.Sscan(content(t, other+"/app/a"), &a)
		fmt.Sscan(content(t, other+"/app/z"), &z)
		if a != 0 && z != 0 && (a-z < 0 || a-z > 1) { // 0: the file was read between its truncation and the write
			t.Errorf("torn: %d and %d", a, z)
		}
		var before int
		fmt.Sscan(content(t, root+"/app/z"), &before)
		eventually(t, "the counters run again", func() bool {
			now := 0
			fmt.Sscan(content(t, root+"/app/z"), &now)
			return now > before
		})
	}
	if stat := content(t, stopped); !strings.Contains(stat, "(sleep) T") {
		t.Error("a process that was stopped before was resumed:", stat)
	}
}

func TestABrokenSessionThawsTheProcesses(t *testing.T) {
	c, root := launchSmall(t, "--checkpoints")
	s := c.connectSmall()
	check(exec.Command("sh", "-c", "head -c 30000000 /dev/urandom > "+root+"/app/large").Run())
	s.shell("i=0; while :; do i=$((i+1)); echo $i > /app/z; done &", nil)
	s.sendJSON(frames.JSON, object{"op": "checkpoint"})
	if answer := s.receive(); answer["ok"] != true {
		t.Fatal(answer)
	}
	for _, relay := range callers(c) { // at this point the runner has sent only a part of the body
		check(syscall.Kill(relay, syscall.SIGKILL))
	}
	eventually(t, "the counter runs again", func() bool {
		before, _ := os.ReadFile(root + "/app/z")
		for range 1000 {
			now, _ := os.ReadFile(root + "/app/z")
			if len(before) > 0 && len(now) > 0 && !bytes.Equal(before, now) {
				return true
			}
		}
		return false
	})
	if made := c.connectSmall().checkpoint(nil); made.result["previous"] != "" {
		t.Error(made.result)
	}
}

func TestProcessesThatForkWithoutEndAreStopped(t *testing.T) {
	c, root := launchSmall(t, "--checkpoints")
	s := c.connectSmall()
	program := rabbit(filepath.Join(root, "app", "rabbit"))
	if program[0] != filepath.Join(root, "app", "rabbit") {
		return // rabbit has no program for this architecture
	}
	t.Cleanup(func() { s.relay.Process.Signal(syscall.SIGCONT) }) // nsenter stops itself when its child is stopped
	s.phase([]string{"/app/rabbit"}, nil)
	if made := s.checkpoint(nil); made.result["processCount"] == 0.0 {
		t.Error(made.result)
	}
}

// callers returns the PIDs of the `runner call` processes in the container.
func callers(c *container) (pids []int) {
	for _, pid := range living("runner\x00call") {
		mine, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
		if its, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", c.pid)); mine == its {
			pids = append(pids, pid)
		}
	}
	return pids
}

func TestAChangedStreamIsDamagedAndABrokenOneMayBeSentAgain(t *testing.T) {
	c, _ := launchSmall(t, "--checkpoints")
	s := c.connectSmall()
	s.shell("echo one > /app/new; head -c 40000 /usr/bin/env > /app/x", nil)
	made := s.checkpoint(nil)
	fresh, other := launchSmall(t)
	r := fresh.connectSmall()
	for what, wrong := range map[string]stored{
		"truncated files":    {made.files[:len(made.files)/2], made.lines, made.result},
		"no files":           {nil, made.lines, made.result},
		"a changed byte":     {flipped(made.files), made.lines, made.result},
		"truncated manifest": {made.files, made.lines[:len(made.lines)-9], made.result},
		"another manifest":   {made.files, made.lines, object{"manifest": strings.Repeat("1", 64)}},
	} {
		answer := r.restore("r", wrong)
		if failure, _ := answer["error"].(object); failure["code"] != "Damaged" {
			t.Error(what, answer)
		}
	}
	answer := r.ask(object{"op": "restore", "id": "r", "increments": []object{{"manifest": made.manifest()}}})
	if answer["proceed"] != true {
		t.Fatal(answer)
	}
	for range 2 {
		check(frames.NewBodyWriter(r.stdin).Finish(frames.Trailer{Error: "the store is away"}))
	}
	if answer := r.receive(); answer["error"].(object)["code"] != "Body" {
		t.Error(answer)
	}
	if answer := r.restore("r", made); answer["ok"] != true || content(t, other+"/app/new") != "one\n" {
		t.Error(answer)
	}
}

func flipped(data []byte) []byte {
	changed := bytes.Clone(data)
	changed[len(changed)/2] ^= 1
	return changed
}
