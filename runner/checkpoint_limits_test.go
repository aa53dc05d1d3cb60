package main

import (
	"io"
	"os/exec"
	"strings"
	"testing"

	"multistep.dev/runner/internal/frames"
)

const (
	workSeconds = 8 // less than the idle time after which a waiting session gets a keep-alive frame
	large       = "head -c 30000000 /dev/urandom > "
)

// expectKeepAlive waits for a keep-alive frame, which the runner sends after an idle time longer than workSeconds.
func (s *session) expectKeepAlive() {
	s.t.Helper()
	if kind, size, err := s.frames.Next(); kind != frames.Data || size != 0 || err != nil {
		s.t.Fatalf("frame %q of %d bytes, %v", kind, size, err)
	}
}

func TestTheTimeInWhichACallerReadsNothingOfACheckpointIsNoWork(t *testing.T) {
	c, root := launchSmall(t, "--checkpoints")
	s, other := c.connectSmall(), c.connectSmall()
	check(exec.Command("sh", "-c", large+root+"/app/large").Run())
	if answer := s.ask(object{"op": "checkpoint", "maxSeconds": workSeconds}); answer["ok"] != true {
		t.Fatal(answer)
	}
	files := frames.NewBody(s.frames)
	_, err := io.CopyN(io.Discard, files, 1) // the first checkpoint is under way, so the other session waits for it
	check(err)
	if answer := other.ask(object{"op": "checkpoint"}); answer["ok"] != true {
		t.Fatal(answer)
	}
	other.expectKeepAlive()
	if _, err := io.Copy(io.Discard, files); err != nil || files.Trailer().Error != "" {
		t.Fatal(err, files.Trailer())
	}
	for _, each := range []*session{s, other} {
		if _, failure := each.body(); failure != "" {
			t.Error(failure)
		}
	}
}

func TestTheTimeInWhichACallerSendsNothingOfARestoreIsNoWork(t *testing.T) {
	c, _ := launchSmall(t, "--checkpoints")
	s := c.connectSmall()
	s.shell("echo one > /app/new", nil)
	made := s.checkpoint(nil)
	fresh, other := launchSmall(t, "--checkpoints")
	r := fresh.connectSmall()
	request := object{"op": "restore", "id": "r", "increments": []object{{"manifest": made.manifest()}}, "maxSeconds": workSeconds}
	if answer := r.ask(request); answer["proceed"] != true {
		t.Fatal(answer)
	}
	r.expectKeepAlive()
	r.sendIncrement(made)
	if answer := r.receiveAlive(); answer["ok"] != true || content(t, other+"/app/new") != "one\n" {
		t.Error(answer)
	}
}

func TestARestoreHasATotalLimitOverAllSessions(t *testing.T) {
	c, _ := launchSmall(t, "--checkpoints")
	request := object{"op": "restore", "id": "r", "increments": []object{{"manifest": strings.Repeat("0", 64)}}, "maxSeconds": 1e-6}
	answer := c.connectSmall().ask(request)
	if answer["proceed"] != true {
		t.Fatal("before it took any time:", answer)
	}
	eventually(t, "a later session is refused at once", func() bool {
		s := c.connectSmall()
		defer s.stdin.Close()
		answer = s.ask(request)
		return answer["ok"] == false
	})
	if code := answer["error"].(object)["code"]; code != "TooSlow" {
		t.Error(answer)
	}
	if answer := c.connectSmall().ask(merged(request, object{"id": "other"})); answer["proceed"] != true {
		t.Error("another restore:", answer)
	}
}
