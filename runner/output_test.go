package main

import (
	"encoding/base64"
	"os"
	"strings"
	"testing"
	"time"
)

// printed requests a part of a phase's output. It returns the text and the whole response.
func (s *session) printed(id string, offset, limit int) (text string, answer object) {
	s.t.Helper()
	answer = s.ask(object{"op": "output", "id": id, "offset": offset, "maxBytes": limit})
	if answer["ok"] != true {
		s.t.Fatal(answer)
	}
	data, err := base64.StdEncoding.DecodeString(answer["base64"].(string))
	if err != nil {
		s.t.Fatal(err)
	}
	return string(data), answer
}

// prints waits until a running phase has printed at least size bytes.
func (s *session) prints(id string, size float64) {
	s.t.Helper()
	for range 6000 {
		if _, answer := s.printed(id, 0, 1); answer["size"].(float64) >= size {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.t.Fatal("it prints nothing")
}

func TestTheOutputOfAPhaseCanBeReadWhileItRunsAndAfterwards(t *testing.T) {
	c, directory := launch(t), shared(t)
	owner, watcher := c.connect(), c.connectSilently()
	hello := watcher.ask(object{"op": "hello", "protocols": []int{1, 2}, "records": false})
	for name, each := range map[string]struct {
		more object
		rest string // expected output after the phase finished, from offset 2 on
	}{
		"a file": {object{"output": object{"path": directory + "/out", "maxBytes": 1000}}, "cde"},
		"none":   {object{"tailBytes": 4}, "cde"},
	} {
		id := owner.start([]string{"/bin/sh", "-c", "printf 'ab\\377'; while [ ! -e " + directory + "/on ]; do sleep 0.01; done; printf cde"}, each.more)
		watcher.prints(id, 3)
		if text, answer := watcher.printed(id, 0, 2); text != "ab" || answer["state"] != "running" || answer["from"] != 0.0 {
			t.Errorf("%s: %q %v", name, text, answer)
		}
		if text, _ := watcher.printed(id, 2, 100); text != "\xff" {
			t.Errorf("%s: %q", name, text)
		}
		write(t, directory+"/on", "", 0o644)
		owner.result(id)
		if text, answer := watcher.printed(id, 3, 100); text != each.rest || answer["state"] != "done" {
			t.Errorf("%s: %q %v", name, text, answer)
		}
		os.Remove(directory + "/on")
	}
	if len(hello["records"].([]any)) != 0 {
		t.Error(hello)
	}
}

func TestReadingOutputChangesNothing(t *testing.T) {
	c := launch(t)
	owner, watcher := c.connect(), c.connect()
	id := owner.start([]string{"/bin/echo", "x"}, nil)
	before := owner.record(object{"op": "wait", "id": id, "timeoutSeconds": 60})
	watcher.printed(id, 0, 100)
	after := owner.record(object{"op": "wait", "id": id, "timeoutSeconds": 0})
	if before["acknowledged"] != false || after["acknowledged"] != false || before["endedAt"] != after["endedAt"] {
		t.Error(before, after)
	}
	for _, each := range []struct {
		request object
		code    string
	}{
		{object{"op": "output", "id": "nothing", "offset": 0, "maxBytes": 1}, "NotFound"},
		{object{"op": "output", "id": id, "offset": -1, "maxBytes": 1}, "Protocol"},
		{object{"op": "output", "id": id, "offset": 0, "maxBytes": 1<<20 + 1}, "Protocol"},
		{object{"op": "output", "id": id, "offset": 0}, "Protocol"},
	} {
		if code := watcher.code(each.request); code != each.code {
			t.Errorf("%v: %s", each.request, code)
		}
	}
}

func TestAnOutputWhoseNameIsGoneOrForgedCanStillBeRead(t *testing.T) {
	directory := shared(t)
	s := launch(t).connect()
	for name, take := range map[string]string{
		"removed":  "rm -f " + directory + "/out",
		"replaced": "rm -f " + directory + "/out; echo forged > " + directory + "/out",
		"a link":   "ln -sf /etc/passwd " + directory + "/out",
		"a fifo":   "rm -f " + directory + "/out; mkfifo " + directory + "/out",
	} {
		script := "printf 'much before '; " + take + "; printf 'the end'"
		id := s.start([]string{"/bin/bash", "-c", script}, object{"output": object{"path": directory + "/out", "maxBytes": 1000}, "tailBytes": 7})
		s.result(id)
		if text, answer := s.printed(id, 0, 100); text != "much before the end" || answer["size"] != 19.0 {
			t.Errorf("%s: %q %v", name, text, answer)
		}
		if text, answer := s.printed(id, 100, 100); text != "" || answer["state"] != "done" {
			t.Errorf("%s: %q %v", name, text, answer)
		}
	}
}

func TestDeletedOutputsTakeLittleRoomAndTheEndOfAnOlderOneIsReturned(t *testing.T) {
	directory := shared(t)
	s := launch(t).connect()
	var ids []string
	for range 20 {
		script := "head -c 3000000 /dev/zero | tr '\\0' x; printf end; rm " + directory + "/out"
		more := object{"output": object{"path": directory + "/out", "maxBytes": 10000000}, "tailBytes": 7}
		ids = append(ids, s.start([]string{"/bin/bash", "-c", script}, more))
		s.result(ids[len(ids)-1])
	}
	for _, id := range ids {
		if text, answer := s.printed(id, 2999996, 100); text != "xxxxend" || answer["size"] != 3000003.0 {
			t.Errorf("%q %v", text, answer)
		}
	}
	if _, answer := s.printed(ids[0], 0, 1); answer["from"] != 2999996.0 {
		t.Error("the first one is still there", answer)
	}
	if _, answer := s.printed(ids[19], 0, 1); answer["from"] != 0.0 {
		t.Error("the last one is gone", answer)
	}
}

func TestAHealthchecksLastWordsCanBeRead(t *testing.T) {
	s := launch(t).connect()
	s.record(object{"op": "healthcheck", "id": "h", "argv": []string{"/bin/sh", "-c", "echo well"}, "retries": 1})
	s.result("h")
	s.record(object{"op": "note", "id": "n", "data": object{"a": 1}})
	if text, _ := s.printed("h", 0, 100); strings.TrimSpace(text) != "well" {
		t.Errorf("%q", text)
	}
	if text, _ := s.printed("n", 0, 100); text != "" {
		t.Errorf("%q", text)
	}
}
