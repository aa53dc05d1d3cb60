package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestTheStdinOfACommandIsTheTextOfItsRequest(t *testing.T) {
	s := launch(t).connect()
	for what, text := range map[string]string{"none": "", "a line": "hello\n", "no line": "x", "more than a pipe holds": strings.Repeat("0123456\n", 32<<10)} {
		result := s.phase([]string{"/usr/bin/wc", "-c"}, object{"stdin": text, "user": "nobody"})
		if result["tail"] != fmt.Sprintf("%d\n", len(text)) || result["exitCode"] != 0.0 {
			t.Error(what, result)
		}
	}
	if code := s.code(object{"op": "start", "id": "x", "argv": []string{"cat"}, "stdin": strings.Repeat("x", 256<<10+1)}); code != "Protocol" {
		t.Error(code)
	}
}

func TestAStdinThatNobodyReadsHoldsNothingUp(t *testing.T) {
	c := launch(t)
	s, text := c.connect(), strings.Repeat("x", 256<<10)
	open := func() int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.pid))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	s.phase([]string{"true"}, nil)
	before := open()
	for _, argv := range [][]string{{"true"}, {"no-such-command"}, {"head", "-c", "10"}} {
		s.phase(argv, object{"stdin": text})
	}
	s.phase([]string{"sleep", "20"}, object{"stdin": text, "timeoutSeconds": 0.2})
	eventually(t, "the pipes are closed", func() bool { return open() <= before })
}

func TestABackgroundProcessMayReadOnFromStdin(t *testing.T) {
	s, file := launch(t).connect(), shared(t)+"/out"
	s.shell("exec 3<&0; (setsid sh -c 'sleep 0.2; wc -c > "+file+"' <&3 &)", object{"stdin": strings.Repeat("x", 200<<10)})
	eventually(t, "it read all", func() bool {
		text, _ := os.ReadFile(file)
		return string(text) == "204800\n"
	})
}

func TestNeitherARecordNorAnErrorHasTheStdin(t *testing.T) {
	c := launch(t)
	s := c.connect()
	for number, request := range []object{
		{"argv": []string{"true"}},
		{"argv": []string{"no-such-command"}},
		{"argv": []string{"true"}, "user": "nobody-knows"},
		{"argv": []string{}},
		{"argv": 7},
		{"argv": []string{"true"}, "surprise": true},
	} {
		request["op"], request["id"], request["stdin"] = "start", fmt.Sprint(number), "the-secret"
		answer := fmt.Sprint(s.ask(request), s.ask(object{"op": "wait", "id": fmt.Sprint(number), "timeoutSeconds": 10}))
		if strings.Contains(answer, "the-secret") {
			t.Error(answer)
		}
	}
	if hello := fmt.Sprint(c.connectSilently().ask(object{"op": "hello", "protocols": []int{2}})); strings.Contains(hello, "the-secret") {
		t.Error(hello)
	}
	if log := content(t, c.log.Name()); strings.Contains(log, "the-secret") {
		t.Error(log)
	}
}

func TestContainersOfAPodHaveSocketsOfTheirOwn(t *testing.T) {
	environment := launch(t)
	host := launchBeside(environment)
	if result := host.connect().shell("readlink /proc/1/ns/pid; cat", object{"stdin": "hi"}); result["exitCode"] != 0.0 || !strings.HasSuffix(result["tail"].(string), "\nhi") {
		t.Error(result)
	}
	environmentNamespace := environment.connect().shell("readlink /proc/1/ns/pid", nil)["tail"]
	if hostNamespace := host.connect().shell("readlink /proc/1/ns/pid", nil)["tail"]; hostNamespace == environmentNamespace {
		t.Error("both sessions reached the same container", hostNamespace)
	}
	stranger := &container{t: t, pid: host.pid, log: host.log} // connects to the environment's socket from the host's container
	if output, err := stranger.call(program).CombinedOutput(); err == nil || !strings.Contains(string(output), "process 0 has taken PID 1's place") {
		t.Errorf("%v: %s", err, output)
	}
}
