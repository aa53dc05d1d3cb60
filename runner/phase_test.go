package main

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestAPhaseEndsAsItsMainProcessDoes(t *testing.T) {
	s := launch(t).connect()
	for _, each := range []struct {
		script string
		code   any
		signal any
	}{
		{"exit 0", 0.0, nil},
		{"exit 7", 7.0, nil},
		{"kill -TERM $$", nil, 15.0},
		{"kill -9 $$", nil, 9.0},
	} {
		result := s.shell("echo out; echo err >&2;"+each.script, nil)
		if result["exitCode"] != each.code || result["signal"] != each.signal || result["tail"] != "out\nerr\n" ||
			result["timedOut"] != false || result["error"] != nil || result["outputBytes"] != 8.0 {
			t.Error(each.script, result)
		}
	}
}

func TestWhyAPhaseCannotStart(t *testing.T) {
	s, directory := launch(t).connect(), shared(t)
	write(t, directory+"/plain", "echo", 0o644)
	write(t, directory+"/lost", "#!/no/such/interpreter\n", 0o755)
	os.Mkdir(directory+"/closed", 0o700)
	for _, each := range []struct {
		code string
		argv string
		more object
	}{
		{"NoSuchUser", "true", object{"user": "nobody-knows"}},
		{"NoSuchUser", "true", object{"user": "root:nobody-knows"}},
		{"NoSuchUser", "true", object{"user": "-1"}},
		{"NoSuchUser", "true", object{"user": "4294967295"}},
		{"NoSuchCommand", "no-such-command", nil},
		{"NoSuchCommand", "/no/such/command", nil},
		{"NoSuchCommand", directory + "/lost", nil},
		{"NoSuchCommand", "true", object{"makeExecutable": directory + "/missing"}},
		{"NoSuchCommand", "true", object{"env": object{"PATH": "/nowhere"}}},
		{"Permission", directory + "/plain", nil},
		{"Permission", directory, nil},
		{"BadCwd", "true", object{"cwd": directory + "/missing"}},
		{"BadCwd", "true", object{"cwd": directory + "/plain"}},
		{"BadCwd", "true", object{"cwd": directory + "/closed", "user": "nobody"}},
		{"Output", "true", object{"output": object{"path": "/no/such/directory/file", "maxBytes": 10}}},
		{"Output", "true", object{"output": object{"path": "/proc/version", "maxBytes": 10}}},
	} {
		result := s.phase([]string{each.argv}, each.more)
		if errorCode(result) != each.code || result["exitCode"] != nil || result["timedOut"] != false {
			t.Errorf("%s %v: %v, not %s", each.argv, each.more, result, each.code)
		}
	}
}

func TestACommandIsFoundAsAShellFindsIt(t *testing.T) {
	s, directory := launch(t).connect(), shared(t)
	write(t, directory+"/plain", "echo by sh: $1 ${BASH_VERSION:+bash}", 0o755)
	write(t, directory+"/script", "#!/bin/bash\necho by bash: $1 $0", 0o644)
	for _, each := range []struct {
		argv []string
		more object
		tail string
	}{
		{[]string{"plain", "x"}, object{"env": object{"PATH": "/nowhere:" + directory}}, "by sh: x bash\n"},
		{[]string{"./plain", "x"}, object{"cwd": directory}, "by sh: x bash\n"},
		{[]string{directory + "/script", "x"}, object{"makeExecutable": directory + "/script"}, "by bash: x " + directory + "/script\n"},
		{[]string{"pwd"}, object{"cwd": directory}, directory + "\n"},
		{[]string{"pwd"}, nil, "/\n"},
		{[]string{"pwd"}, object{"cwd": "usr"}, "/usr\n"},
	} {
		if result := s.phase(each.argv, each.more); result["tail"] != each.tail {
			t.Errorf("%v: %v", each.argv, result)
		}
	}
}

func TestTheCommandHasASessionAndNothingOfOurs(t *testing.T) {
	s := launch(t).connect()
	result := s.phase([]string{"/usr/bin/python3", "-c", `
import os, signal
print(sorted(os.listdir("/proc/self/fd")), os.read(0, 1), os.getsid(0) == os.getpid())
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
# Python ignores SIGPIPE and SIGXFSZ itself; 32 and 33 are libc's own, which whoever runs the tests may have left ignored.
print(int(status["SigIgn"], 16) & ~(1 << 12 | 1 << 24 | 1 << 31 | 1 << 32), int(status["SigBlk"], 16), os.umask(0))
import resource
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 1024 * 1024)
`}, nil)
	lines := strings.Split(result["tail"].(string), "\n")
	if lines[0] != "['0', '1', '2', '3'] b'' True" || lines[1] != "0 0 18" { // 3 is the descriptor that listdir opened
		t.Error(result)
	}
}

func TestEnvironmentAndUsers(t *testing.T) {
	directory := shared(t)
	write(t, directory+"/passwd", "# a comment\nroot:x:0:0:root:/root:/bin/sh\nalice:x:1001:1002:A:/home/alice:/bin/sh\nbob:x:1003:1003::/home/bob\n42:x:1005:1005::/home/42:\nbroken\n", 0o644)
	write(t, directory+"/group", "root:x:0:\nalice:x:1002:\nstaff:x:50:bob,alice\nwheel:x:51:alice\nother:x:52:bob\n", 0o644)
	c := launch(t, func(with *setup) {
		with.Binds = map[string]string{"/etc/passwd": directory + "/passwd", "/etc/group": directory + "/group"}
		with.Env = append(with.Env, "MULTISTEP_SECRET=x", "USER=image", "SPOILT=\xff", "HOME=/image-home")
	})
	s := c.connect()
	script := `printf '%s %s %s %s %s|' "$(id -u)" "$(id -g)" "$(id -G)" "$HOME" "${USER-none}${LOGNAME-none}"; env | grep -c MULTISTEP_; env | grep -ac $'SPOILT=\xff'`
	for user, wanted := range map[string]string{
		"":            "0 0 0 /image-home rootroot|0\n1\n",
		"root":        "0 0 0 /root rootroot|0\n1\n",
		"alice":       "1001 1002 1002 50 51 /home/alice alicealice|0\n1\n",
		"1001":        "1001 1002 1002 50 51 /home/alice alicealice|0\n1\n",
		"alice:wheel": "1001 51 51 /home/alice alicealice|0\n1\n",
		"alice:77":    "1001 77 77 /home/alice alicealice|0\n1\n",
		"1234":        "1234 0 0 / nonenone|0\n1\n",
		"1234:5":      "1234 5 5 / nonenone|0\n1\n",
		"42":          "1005 1005 1005 /home/42 4242|0\n1\n",
	} {
		if result := s.shell(script, object{"user": user}); result["tail"] != wanted {
			t.Errorf("%q: %q, not %q", user, result["tail"], wanted)
		}
	}
	given := s.shell("echo $HOME $USER $NEW $FROM_IMAGE", object{"user": "alice", "env": object{"HOME": "/h", "USER": "u", "NEW": "a b"}})
	if given["tail"] != "/h u a b yes\n" {
		t.Error(given)
	}
}

func TestTheDefaultUserOfPhases(t *testing.T) {
	for _, change := range []func(*setup){
		func(with *setup) { with.Args = append(with.Args, "--default-user", "nobody") },
		func(with *setup) { with.Env = append(with.Env, "MULTISTEP_DEFAULT_USER=nobody") },
	} {
		s := launch(t, change).connect()
		if result := s.shell("id -un", nil); result["tail"] != "nobody\n" {
			t.Error(result)
		}
		if result := s.shell("id -un", object{"user": "root"}); result["tail"] != "root\n" {
			t.Error(result)
		}
		directory := shared(t)
		s.record(object{"op": "reset", "id": "r", "directories": []object{{"path": directory + "/new", "mode": 0o700, "user": ""}}})
		if owner := owner(t, directory+"/new"); owner != 0 {
			t.Error("a reset has nothing to do with phases", owner)
		}
	}
}

func TestARunnerWithoutRoot(t *testing.T) {
	directory := shared(t)
	c := launch(t, func(with *setup) { with.UID, with.Env = 12345, []string{"PATH=/usr/bin:/bin"} })
	relay := execCommand("nsenter", "-t", itoa(c.pid), "-p", "-n", "-m", "-S", "12345", "-G", "12345", "--", program, "call")
	s := c.connectBy(relay)
	hello := s.ask(object{"op": "hello", "protocols": []int{1}})
	if !strings.HasPrefix(hello["runtimeDir"].(string), "/tmp/multistep-") {
		t.Error(hello)
	}
	result := s.shell("id -u; echo $HOME", object{"output": object{"path": directory + "/out", "maxBytes": 100}})
	if result["tail"] != "12345\n/\n" || content(t, directory+"/out") != "12345\n/\n" {
		t.Error(result)
	}
	for user, code := range map[string]string{"12345:12345": "", "0": "Permission", "root": "Permission"} {
		if result := s.phase([]string{"true"}, object{"user": user}); errorCode(result) != code {
			t.Error(user, result)
		}
	}
	asRoot := c.connectBy(c.call(program))
	asRoot.sendJSON('J', object{"op": "hello", "protocols": []int{1}})
	if answer := asRoot.receive(); answer["ok"] != false {
		t.Error("another user from outside is not the runner's: ", answer)
	}
	os.RemoveAll(hello["runtimeDir"].(string))
}

func owner(t *testing.T, path string) int {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return int(info.Sys().(*syscall.Stat_t).Uid)
}

func TestOutputIsMadeAnewAndNeverThroughALink(t *testing.T) {
	s, directory := launch(t).connect(), shared(t)
	victim := filepath.Join(t.TempDir(), "victim")
	write(t, victim, "precious", 0o644)
	os.Symlink(victim, directory+"/link")
	os.Link(victim, directory+"/hard")
	for _, name := range []string{"link", "hard", "new"} {
		path := directory + "/" + name
		s.shell("echo hello", object{"user": "nobody", "output": object{"path": path, "maxBytes": 100}})
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() || owner(t, path) != 65534 || content(t, path) != "hello\n" {
			t.Error(name, info, err)
		}
		s.shell("exit 3", object{"user": "nobody", "exitCodeFile": path})
		if content(t, path) != "3" || owner(t, path) != 65534 {
			t.Error(name, content(t, path))
		}
	}
	if content(t, victim) != "precious" || owner(t, victim) != 0 {
		t.Error("written through a link")
	}
}

func TestAHostileUsersLinkLeadsNowhere(t *testing.T) {
	s, directory := launch(t).connect(), shared(t)
	outside := t.TempDir()
	s.shell("cd "+directory+" && ln -s "+outside+" away && ln -s "+directory+" here", object{"user": "nobody"})
	os.Symlink(outside, directory+"/by-root-but-movable")
	for _, link := range []string{"away", "here", "by-root-but-movable"} {
		path := directory + "/" + link + "/file"
		result := s.shell("exit 3", object{"output": object{"path": path, "maxBytes": 100}})
		if errorCode(result) != "Output" {
			t.Error(link, result)
		}
		result = s.shell("exit 3", object{"exitCodeFile": path, "captures": []object{{"path": path, "maxBytes": 10}}})
		if errorCode(result) != "Output" || result["captures"].(object)[path] != nil {
			t.Error(link, result)
		}
		reset := s.record(object{"op": "reset", "id": "r" + link, "directories": []object{{"path": path, "mode": 511, "user": ""}}})
		if errorCode(reset["result"].(object)) == "" {
			t.Error(link, reset)
		}
		if code := s.code(object{"op": "upload", "id": "u" + link, "target": path}); code != "Upload" {
			t.Error(link, code)
		}
	}
	if entries, _ := os.ReadDir(outside); len(entries) != 0 {
		t.Error(entries)
	}
}

func TestOutputIsCutWithAWord(t *testing.T) {
	s, directory := launch(t).connect(), shared(t)
	path := directory + "/out"
	result := s.shell("head -c 1000000 /dev/zero | tr '\\0' x; echo end", object{
		"tailBytes": 10, "output": object{"path": path, "maxBytes": 1000},
	})
	text := content(t, path)
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if result["outputTruncated"] != true || result["outputBytes"] != 1000004.0 || result["tail"] != "xxxxxxend\n" ||
		lines[0] != strings.Repeat("x", 1000) || !strings.Contains(lines[1], "cut") || len(lines) != 2 {
		t.Errorf("%v %.1100q", result, text)
	}
	exact := s.shell("head -c 1000 /dev/zero", object{"output": object{"path": path, "maxBytes": 1000}})
	if exact["outputTruncated"] != false || len(content(t, path)) != 1000 {
		t.Error(exact)
	}
	odd := s.shell(`printf 'ab\xc3\xa9\xffz'`, object{"tailBytes": 4})
	if odd["tail"] != "é\uFFFDz" {
		t.Errorf("%q", odd["tail"])
	}
	if odd = s.shell(`printf 'ab\xc3\xa9z'`, object{"tailBytes": 2}); odd["tail"] != "z" {
		t.Errorf("%q", odd["tail"])
	}
}

func TestAFullDiskStopsNobody(t *testing.T) {
	s, directory := launch(t).connect(), shared(t)
	s.shell("mount -t tmpfs -o size=64k none "+directory, nil)
	result := s.shell("head -c 1000000 /dev/zero; echo end", object{"tailBytes": 4, "output": object{"path": directory + "/out", "maxBytes": 10000000}})
	if result["outputTruncated"] != true || result["exitCode"] != 0.0 || result["tail"] != "end\n" {
		t.Error(result)
	}
}

func TestTheExitCodeFile(t *testing.T) {
	s, path := launch(t).connect(), shared(t)+"/exit-code.txt"
	for script, wanted := range map[string]string{"exit 0": "", "exit 3": "3", "kill -9 $$": "137"} {
		os.Remove(path)
		s.shell(script, object{"exitCodeFile": path})
		if got, _ := os.ReadFile(path); string(got) != wanted {
			t.Errorf("%s: %q", script, got)
		}
	}
	os.Remove(path)
	s.shell("sleep 60", object{"exitCodeFile": path, "timeoutSeconds": 0.1})
	if _, err := os.Lstat(path); err == nil {
		t.Error("a timeout is no exit")
	}
}

func TestCaptures(t *testing.T) {
	s, directory := launch(t).connect(), shared(t)
	script := `cd ` + directory + `; printf '{"reward": 1}' >reward.json; ln -s reward.json link; mkfifo fifo; mkdir dir
		: >empty; printf 0123456789 >large; printf '\xff\x00' >binary`
	var captures []object
	for _, name := range []string{"reward.json", "link", "fifo", "dir", "empty", "large", "binary", "missing", "no/parent"} {
		captures = append(captures, object{"path": directory + "/" + name, "maxBytes": map[bool]int{true: 4, false: 100}[name == "large"]})
	}
	got := s.shell(script, object{"captures": captures, "user": "nobody"})["captures"].(object)
	for name, wanted := range map[string]any{
		"reward.json": object{"base64": base64.StdEncoding.EncodeToString([]byte(`{"reward": 1}`)), "size": 13.0, "truncated": false},
		"empty":       object{"base64": "", "size": 0.0, "truncated": false},
		"large":       object{"base64": base64.StdEncoding.EncodeToString([]byte("0123")), "size": 10.0, "truncated": true},
		"binary":      object{"base64": "/wA=", "size": 2.0, "truncated": false},
		"link":        nil, "fifo": nil, "dir": nil, "missing": nil, "no/parent": nil,
	} {
		if value, there := got[directory+"/"+name]; !there || !reflect.DeepEqual(value, wanted) {
			t.Errorf("%s: %v %v", name, there, value)
		}
	}
}

func TestCapturesAreBoundedForALifetime(t *testing.T) {
	s, path := launch(t).connect(), shared(t)+"/large"
	check(os.WriteFile(path, make([]byte, 1<<20), 0o644))
	for i := range 6 {
		captured := s.phase([]string{"true"}, object{"captures": []object{{"path": path, "maxBytes": 1 << 20}}})["captures"].(object)[path].(object)
		if captured["truncated"] != (i >= 4) || captured["size"] != 1048576.0 {
			t.Error(i, captured["truncated"], captured["size"])
		}
	}
	if hello := s.ask(object{"op": "hello", "protocols": []int{1}}); len(hello["records"].([]any)) != 6 {
		t.Error("hello must always have room")
	}
}

func TestWhatIsRemovedBeforeTheStart(t *testing.T) {
	s, directory := launch(t).connect(), shared(t)
	victim := t.TempDir()
	write(t, victim+"/precious", "x", 0o644)
	write(t, directory+"/file", "x", 0o644)
	check(os.MkdirAll(directory+"/dir/sub", 0o755))
	check(os.Symlink(victim, directory+"/link"))
	var paths []string
	for _, name := range []string{"file", "dir", "link", "missing", "no/parent"} {
		paths = append(paths, directory+"/"+name)
	}
	if result := s.shell("ls -A "+directory, object{"remove": paths}); result["tail"] != "" || result["error"] != nil {
		t.Error(result)
	}
	if content(t, victim+"/precious") != "x" {
		t.Error("a link was followed")
	}
	if code := s.code(object{"op": "start", "id": "x", "argv": []string{"true"}, "remove": []string{"relative"}}); code != "Protocol" {
		t.Error(code)
	}
}

func TestCapturesAreReadAfterTheProcessesAreGone(t *testing.T) {
	s, path := launch(t).connect(), shared(t)+"/reward"
	script := `(setsid bash -c 'i=0; while :; do i=$((i+1)); echo $i >` + path + `.x; mv ` + path + `.x ` + path + `; done' &) ; sleep 0.3`
	result := s.shell(script, object{"killAtEnd": true, "captures": []object{{"path": path, "maxBytes": 100}}})
	captured, err := base64.StdEncoding.DecodeString(result["captures"].(object)[path].(object)["base64"].(string))
	if err != nil || string(captured) != content(t, path) {
		t.Errorf("%q %q", captured, content(t, path))
	}
}

func TestALimitOfNothingStartsNothing(t *testing.T) {
	s, path := launch(t).connect(), shared(t)+"/ran"
	for _, limit := range []float64{0, -1} {
		result := s.shell("touch "+path, object{"timeoutSeconds": limit})
		if result["timedOut"] != true || result["exitCode"] != nil {
			t.Error(result)
		}
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("it was started")
	}
	if result := s.shell("echo x", object{"timeoutSeconds": nil}); result["tail"] != "x\n" {
		t.Error(result)
	}
}

func TestOutOfMemoryKillsAreCounted(t *testing.T) {
	s := launch(t).connect()
	if result := s.shell("true", nil); result["oomKills"] != 0.0 {
		t.Error(result)
	}
}

func TestAHealthcheckTriesUntilItIsHealthy(t *testing.T) {
	s, directory := launch(t).connect(), shared(t)
	check := func(script string, more object) object {
		lastID++
		request := object{"op": "healthcheck", "id": "h/" + strconv.Itoa(lastID), "argv": []string{"/bin/bash", "-c", script}, "intervalSeconds": 0.01, "startIntervalSeconds": 0.01}
		for key, value := range more {
			request[key] = value
		}
		s.record(request)
		return s.result(request["id"].(string))
	}
	third := "cd " + directory + "; echo x >>tries; [ $(wc -l <tries) = 3 ]"
	if result := check(third, nil); result["healthy"] != true || result["attempts"] != 3.0 || result["exitCode"] != 0.0 {
		t.Error(result)
	}
	if result := check("echo no; exit 4", object{"retries": 1}); result["healthy"] != false || result["attempts"] != 1.0 || result["exitCode"] != 4.0 || result["tail"] != "no\n" {
		t.Error(result)
	}
	lost := marker()
	// the duration is not checked with -race, because a program built with -race takes a second to exit
	if result := check("sleep "+lost, object{"retries": 1, "timeoutSeconds": 1.9}); result["timedOut"] != true || result["healthy"] != false || (len(buildFlags) == 0 && result["durationSeconds"].(float64) > 1.8) {
		t.Error(result)
	}
	if left := living(lost); left != nil {
		t.Error(left)
	}
	server := marker()
	check("(sleep "+server+" &)", nil) // when the check ends, its background process may not have called execve yet
	eventually(t, "what a healthcheck leaves running lives on", func() bool { return len(living("sleep\x00"+server)) == 1 })
}

func TestLargeSpecsReachTheCommand(t *testing.T) {
	s := launch(t).connect()
	value := strings.Repeat("v", 100<<10)
	env := object{}
	for i := range 5 {
		env["LARGE"+strconv.Itoa(i)] = value
	}
	started := time.Now()
	if result := s.shell("echo ${#LARGE4}", object{"env": env}); result["tail"] != "102400\n" {
		t.Error(result, time.Since(started))
	}
}
