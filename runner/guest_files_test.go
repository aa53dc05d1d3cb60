package main

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"multistep.dev/runner/internal/frames"
)

const secret = "only root may read this"

// launchWithHomes starts a container with the users alice (who is in the group staff) and bob, their homes, and files that they
// cannot read or write.
func launchWithHomes(t *testing.T) (*container, *session) {
	t.Helper()
	directory := shared(t)
	write(t, directory+"/passwd", "root:x:0:0:root:/root:/bin/bash\nalice:x:1001:1002::/run/home/alice:/bin/bash\nbob:x:1003:1003::/run/home/bob:/bin/bash\n", 0o644)
	write(t, directory+"/group", "root:x:0:\nalice:x:1002:\nstaff:x:50:alice\nbob:x:1003:\n", 0o644)
	c := launch(t, func(with *setup) {
		with.Binds = map[string]string{"/etc/passwd": directory + "/passwd", "/etc/group": directory + "/group"}
		with.Dir = "/run" // a failing test may write only here and in /root, whose contents disappear with the container
	})
	s := c.connect()
	result := s.shell(`set -e; umask 022; cd /run; mount -t tmpfs -o mode=700 none /root
		mkdir -p home/alice home/bob tests logs/verifier staff sticky listed; chown alice:alice home/alice; chown bob:bob home/bob; chmod 700 home/*
		for f in /root/f home/bob/f tests/hidden logs/verifier/f logs/verifier/open listed/f; do echo -n '`+secret+`' > $f; chmod 600 $f; done
		chmod 644 logs/verifier/open; chmod 700 logs/verifier; echo -n public > listed/public; mkdir -m 700 listed/sub; mkdir -m 755 tests/old
		echo -n old > sticky/f; chmod 1777 sticky; chgrp staff staff; chmod 2770 staff
		ln -s /run/tests home/alice/tests; ln -s /etc/shadow home/alice/shadow; chown -h alice:alice home/alice/*
		mkfifo home/alice/fifo; chown alice home/alice/fifo`, nil)
	if result["exitCode"] != 0.0 {
		t.Fatal(result)
	}
	return c, s
}

// put uploads a tar stream as a guest and returns the last response.
func (s *session) put(target string, body []byte) object {
	s.t.Helper()
	if answer := s.ask(object{"op": "upload", "target": target}); answer["proceed"] != true {
		return answer
	}
	s.sendBody(body, nil)
	return s.receive()
}

// output runs a script as root and returns its output.
func (s *session) output(script string) string {
	s.t.Helper()
	return s.shell(script, nil)["tail"].(string)
}

func TestAGuestTransfersWhatItsUserMay(t *testing.T) {
	c, s := launchWithHomes(t)
	for _, admission := range []object{{"user": "alice"}, {"user": "1001"}, {"user": "alice", "root": true}} {
		g := c.guest(s.admitted(admission))
		for _, target := range []string{"/run/home/alice", "/run/home/alice/new/sub", "/run/staff/alice", "/run/sticky/alice"} {
			for _, text := range []string{"one", "two"} {
				body := archive(member{"dir/", "", 0o750}, member{"dir/file", text, 0o640}, member{"link -> dir", "", 0o777}, member{"closed/", "", 0o500},
					member{"closed/file", text, 0o400}, member{"hard => dir/file", "", 0})
				if answer := g.put(target, body); answer["ok"] != true {
					t.Fatal(admission, target, answer)
				}
				wanted := "dir alice alice 750\ndir/file alice alice 640\nlink alice alice 777\nclosed alice alice 500\n" +
					"closed/file alice alice 400\nhard alice alice 640\n" + text + text + text
				if found := s.output("cd " + target + "; stat -c '%n %U %G %a' dir dir/file link closed closed/file hard; cat dir/file closed/file hard; ls -A | grep multistep"); found != wanted {
					t.Errorf("%v %s: %q", admission, target, found)
				}
				s.shell("chmod 700 "+target+"/closed", nil)
			}
			_, members, trailer := g.download(object{"path": target + "/dir"}, object{"path": target + "/link/file"}, object{"path": "/etc/passwd", "sent": []string{""}})
			if wanted := "[0/ 750 0/file 640 two 1 640 two 2 644 ]"; fmt.Sprint(members) != wanted || trailer.Unreadable != nil {
				t.Error(admission, target, members, trailer)
			}
			s.shell("cd "+target+" && rm -rf dir closed link hard", nil)
		}
		s.shell("rm -rf /run/home/alice/new /run/staff/* /run/sticky/alice", nil)
	}
}

func TestDirectoriesThatAGuestsUploadCreatesBelongToItsUser(t *testing.T) {
	c, s := launchWithHomes(t)
	if answer := c.guest(s.admitted(object{"user": "alice"})).put("/run/sticky/a/b", archive(member{"c/file", "x", 0o600})); answer["ok"] != true {
		t.Fatal(answer)
	}
	if owners := s.output("cd /run/sticky; stat -c '%U %G %a' a a/b a/b/c a/b/c/file"); owners != "alice alice 755\nalice alice 755\nalice alice 755\nalice alice 600\n" {
		t.Errorf("%q", owners)
	}
}

func TestAGuestUploadsNothingThatItsUserMayNot(t *testing.T) {
	c, s := launchWithHomes(t)
	everything := "cd /run; find home/bob tests logs staff sticky listed /root multistep -printf '%p %m %u %l\n' | sort; ls /run; cat sticky/f tests/hidden"
	before := s.output(everything)
	alice, bob := c.guest(s.admitted(object{"user": "alice"})), c.guest(s.admitted(object{"user": "bob"}))
	file := archive(member{"f", "hostile", 0o666})
	for _, each := range []struct {
		guest  *session
		target string
		body   []byte
	}{
		{alice, "/run/tests", file}, {alice, "/run/tests/new", file}, {alice, "/root", file}, {alice, "/run/new", file}, {alice, "$RUNTIME/new", file},
		{alice, "/run/home/bob", file}, {bob, "/run/home/alice", file}, {bob, "/run/staff", file}, {alice, "/run/logs/verifier", file},
		{alice, "/run/sticky", file},            // root owns /run/sticky/f
		{alice, "/run/home/alice/tests", file},  // a link that alice created
		{alice, "/proc/1/root/run/tests", file}, // through PID 1's root directory
		{alice, "/proc/1/cwd/tests", file},      // through PID 1's working directory
		{alice, "/run", archive(member{"tests/hidden", "hostile", 0o666})},
		{alice, "/run", archive(member{"tests/", "", 0o777})},
		{alice, "/run/home/alice", archive(member{"../bob/f", "hostile", 0o666})},
	} {
		user := map[*session]string{alice: "alice", bob: "bob"}[each.guest]
		answer := each.guest.put(each.target, each.body)
		failure, refused := answer["error"].(object)
		if !refused || failure["code"] != "Upload" || !strings.Contains(failure["message"].(string), user) || !strings.Contains(failure["message"].(string), strings.TrimPrefix(each.target, "$RUNTIME")) {
			t.Error(each.target, answer)
		}
	}
	if after := s.output(everything); after != before {
		t.Errorf("%s\n%s", before, after)
	}
	for _, each := range []member{{"tests/f", "hers", 0o644}, {"tests", "hers", 0o644}} { // the upload replaces alice's link
		if answer := alice.put("/run/home/alice", archive(each)); answer["ok"] != true {
			t.Error(each, answer)
		}
		s.shell("cd /run/home/alice; rm -r tests; ln -s /run/tests", nil)
	}
	if after := s.output(everything); after != before {
		t.Errorf("%s\n%s", before, after)
	}
	if answer := c.guest(s.admitted(object{"user": "alice", "root": true})).put("/run/tests", file); answer["ok"] != true {
		t.Error("with root", answer)
	}
}

func TestAGuestDownloadsNothingThatItsUserMayNot(t *testing.T) {
	c, s := launchWithHomes(t)
	verifier := s.start([]string{"/bin/bash", "-c", "echo '" + secret + "'; sleep 30"}, // PID 1 has the output file open
		object{"output": object{"path": "/run/logs/verifier/stdout.txt", "maxBytes": 1000}, "killAtEnd": true})
	eventually(t, "it has written", func() bool { return s.output("cat /run/logs/verifier/stdout.txt") == secret+"\n" })
	var own []object
	sources := []object{{"path": "/etc/shadow"}, {"path": "/run/logs/verifier"}, {"path": "/run/logs/verifier/open"}, {"path": "/run/tests/hidden"}, {"path": "/root"}, {"path": "/root/f"},
		{"path": "/run/home/bob"}, {"path": "/run/home/alice/shadow"}, {"path": "/proc/1/environ"}, {"path": "/proc/self/environ"}, {"path": "/proc/1/fd"},
		{"path": "/proc/1/root/root"}, {"path": "/proc/1/cwd/home/bob"}, {"path": "/proc/1/mem"}, {"path": "/proc/1/map_files"}, {"path": "/proc/1/task/1/fd"}}
	for fd := range 40 { // links to PID 1's open files, which a thread of PID 1 could open
		sources = append(sources, object{"path": fmt.Sprintf("/proc/1/fd/%d", fd)})
		own = append(own, object{"path": fmt.Sprintf("/proc/self/fd/%d", fd)})
	}
	g := c.guest(s.admitted(object{"user": "alice"}))
	_, members, trailer := g.download(sources...)
	if len(members) != 0 {
		t.Errorf("%.500q", members)
	}
	for number := range 14 {
		if name := fmt.Sprint(number); !strings.Contains(fmt.Sprint(trailer.Unreadable)+" ", name+" ") && !strings.Contains(fmt.Sprint(trailer.Unreadable), name+"]") {
			t.Error(sources[number], trailer.Unreadable)
		}
	}
	if _, members, _ := g.download(own...); strings.Contains(fmt.Sprint(members), secret) {
		t.Errorf("%.500q", members)
	}
	types, members, trailer := g.download(object{"path": "/run/listed"}, object{"path": "/etc/shadow"}, object{"path": "/run/home/alice"}, object{"path": "/nowhere"})
	if fmt.Sprint(types) != "[directory file directory missing]" || fmt.Sprint(trailer.Unreadable) != "[0/sub 0/f 1]" && fmt.Sprint(trailer.Unreadable) != "[0/f 0/sub 1]" {
		t.Error(types, trailer)
	}
	if text := fmt.Sprint(members); !strings.Contains(text, "0/public 644 public") || strings.Contains(text, secret) || !strings.Contains(text, "2/shadow 777 -> /etc/shadow") {
		t.Error(members)
	}
	if _, members, trailer := c.guest(s.admitted(object{"user": "alice", "root": true})).download(object{"path": "/run/home/bob/f"}); fmt.Sprint(members) != "[0 600 "+secret+"]" || trailer.Unreadable != nil {
		t.Error("with root", members)
	}
	if state := s.record(object{"op": "wait", "id": verifier, "timeoutSeconds": 0})["state"]; state != "running" {
		t.Error(state)
	}
}

func TestAUserThatPID1CannotBecomeTransfersNothing(t *testing.T) {
	directory := shared(t)
	c := launch(t, func(with *setup) { with.UID, with.Env = 12345, append(with.Env, "TMPDIR="+directory) })
	s := c.connectBy(execCommand("nsenter", "-t", itoa(c.pid), "-p", "-n", "-m", "-S", "12345", "-G", "12345", "--", program, "call"))
	s.ask(object{"op": "hello", "protocols": []int{3}})
	own, other := c.guest(s.admitted(nil)), c.guest(s.admitted(object{"user": "daemon"}))
	if answer := own.put(directory+"/own", archive(member{"f", "x", 0o600})); answer["ok"] != true {
		t.Error(answer)
	}
	if _, members, _ := own.download(object{"path": directory + "/own/f"}); fmt.Sprint(members) != "[0 600 x]" {
		t.Error(members)
	}
	for _, answer := range []object{other.put(directory+"/other", nil), other.ask(object{"op": "download", "sources": []object{{"path": directory + "/own"}}})} {
		if failure, refused := answer["error"].(object); !refused || !strings.Contains(failure["message"].(string), "daemon") {
			t.Error(answer)
		}
	}
	if len(entries(t, directory)) != 2 { // "own" and the runtime directory
		t.Error(listing(t, directory))
	}
}

// TestTransfersOfSeveralUsersDoNotMix runs concurrent transfers of two users' guests and of the operator: no transfer may get the
// permissions of another transfer.
func TestTransfersOfSeveralUsersDoNotMix(t *testing.T) {
	c, s := launchWithHomes(t)
	const rounds = 15
	var wait sync.WaitGroup
	transfers := func(session *session, put func(target, text string) object, home, foreign string) {
		defer wait.Done()
		for round := range rounds {
			text := fmt.Sprintf("%s %d", home, round)
			if answer := put(home, text); answer["ok"] != true {
				t.Error(home, answer)
			}
			if _, members, trailer := session.download(object{"path": home + "/mine"}); fmt.Sprint(members) != "[0 600 "+text+"]" || trailer.Unreadable != nil {
				t.Error(home, members, trailer)
			}
			if foreign == "" {
				continue
			}
			if answer := put(foreign, text); answer["ok"] != false {
				t.Error(home, foreign, answer)
			}
			if _, members, _ := session.download(object{"path": foreign + "/mine"}, object{"path": foreign}); len(members) != 0 {
				t.Error(home, foreign, members)
			}
		}
	}
	for number := range 4 {
		for user, other := range map[string]string{"alice": "bob", "bob": "alice"} {
			g := c.guest(s.admitted(object{"user": user}))
			wait.Add(1)
			go transfers(g, func(target, text string) object { return g.put(target, archive(member{"mine", text, 0o600})) },
				fmt.Sprintf("/run/home/%s/%d", user, number), fmt.Sprintf("/run/home/%s/%d", other, number))
		}
		operator, uploads := c.connect(), 0
		wait.Add(1)
		go transfers(operator, func(target, text string) object {
			uploads++
			answer := operator.ask(object{"op": "upload", "id": fmt.Sprintf("operator/%d/%d", number, uploads), "target": target, "user": ""})
			if answer["proceed"] == true {
				operator.sendBody(archive(member{"mine", text, 0o600}), nil)
				answer = operator.receive()
			}
			return answer
		}, fmt.Sprintf("/root/%d", number), "")
	}
	wait.Wait()
	if owners := s.output("stat -c %U:%G /root/?/mine /run/home/*/?/mine | sort | uniq -c | tr -s ' \n' ' '; ls -A /run/home/*/? /root/? | grep -c multistep"); owners != " 4 alice:alice 4 bob:bob 4 root:root 0\n" {
		t.Errorf("%q", owners)
	}
	if users := s.output("cat /proc/1/task/*/status | grep -E '^(Uid|Gid|Groups|CapEff)' | sort -u | wc -l; cat /proc/1/task/*/status | grep ^Uid | sort -u"); users != "4\nUid:\t0\t0\t0\t0\n" {
		t.Errorf("PID 1's threads: %q", users)
	}
}

// uploading starts an upload as alice, sends a part of its body, and returns the PID of the process that writes the files.
func uploading(t *testing.T, c *container, s *session) (g *session, admission, pid string) {
	t.Helper()
	admission, token := s.admitted(object{"user": "alice"})
	g = c.guest(admission, token)
	if answer := g.ask(object{"op": "upload", "target": "/run/home/alice"}); answer["proceed"] != true {
		t.Fatal(answer)
	}
	g.send(frames.Data, make([]byte, 1000))
	pid = strings.TrimSpace(s.output("pgrep -u alice -f '^runner transfer'"))
	if pid == "" || strings.Contains(pid, "\n") {
		t.Fatalf("%q", pid)
	}
	return g, admission, pid
}

func TestATransferHasOnlyItsUsersPermissionsAndNoProcessOfTheUserCanInspectIt(t *testing.T) {
	c, s := launchWithHomes(t)
	_, _, pid := uploading(t, c, s)
	status := s.output("grep -E '^(Uid|Gid|Groups|CapPrm|CapEff|CapInh|CapAmb):' /proc/" + pid + "/task/*/status | cut -d: -f2- | tr -s '\t ' ' ' | sort -u")
	const none = ": 0000000000000000\n"
	if status != "CapAmb"+none+"CapEff"+none+"CapInh"+none+"CapPrm"+none+"Gid: 1002 1002 1002 1002\nGroups: 50 1002 \nUid: 1001 1001 1001 1001\n" {
		t.Errorf("%q", status)
	}
	result := s.shell("cd /proc/"+pid+"; ls fd cwd/ root/; cat environ mem maps syscall; exec 3>mem", object{"user": "alice"})
	if tail := result["tail"].(string); strings.Count(tail, "Permission denied")+strings.Count(tail, "Operation not permitted") != 8 {
		t.Error(tail)
	}
	if descriptors := s.output("for f in /proc/" + pid + "/fd/*; do readlink $f; done | sed 's/:.*//' | sort | uniq -c | tr -s ' \n' ' '"); strings.Count(descriptors, "/run/home/alice") != 2 {
		t.Errorf("%q", descriptors)
	}
}

func TestAUserThatKillsItsTransferGetsAnError(t *testing.T) {
	c, s := launchWithHomes(t)
	g, admission, pid := uploading(t, c, s)
	s.shell("kill -9 "+pid, object{"user": "alice"})
	g.sendBody(make([]byte, 1<<20), object{"size": 1<<20 + 1000, "sha256": "0"})
	if answer := g.receive(); answer["ok"] != false {
		t.Error(answer)
	}
	s.shell("rm -rf /run/home/alice/.multistep*", nil)
	if answer := g.put("/run/home/alice", archive(member{"f", "x", 0o600})); answer["ok"] != true {
		t.Error("the session's next upload:", answer)
	}
	s.shell("truncate -s 1T /run/home/alice/huge", object{"user": "alice"})
	g.sendJSON(frames.JSON, object{"op": "download", "sources": []object{{"path": "/run/home/alice/huge"}}})
	g.receive()
	s.shell("pkill -9 -u alice", nil)
	body := frames.NewBody(g.frames)
	if err := body.Rest(); err != nil || !strings.Contains(body.Trailer().Error, "alice") {
		t.Error(err)
	}
	if s.dismissed(admission, nil)["found"] != true {
		t.Error("dismiss")
	}
}

func TestAUserThatStopsItsTransferCannotPreventItsDismissal(t *testing.T) {
	c, s := launchWithHomes(t)
	_, admission, pid := uploading(t, c, s)
	stopper := s.start([]string{"/bin/bash", "-c", "while kill -STOP " + pid + "; do :; done"}, object{"user": "alice"})
	eventually(t, "the transfer is stopped", func() bool { return s.output("ps -o stat= -p " + pid)[:1] == "T" })
	if s.dismissed(admission, nil)["found"] != true {
		t.Error("dismiss")
	}
	if result := s.result(stopper); result["exitCode"] != 0.0 || result["timedOut"] != false {
		t.Error(result)
	}
}

func TestATransferEndsWithItsGuestAndLeavesNothing(t *testing.T) {
	c, s := launchWithHomes(t)
	for _, end := range []func(*session, string){
		func(g *session, _ string) { g.stdin.Close() },
		func(_ *session, admission string) { s.dismissed(admission, nil) },
	} {
		g, admission, pid := uploading(t, c, s)
		end(g, admission)
		eventually(t, "its process ended", func() bool { return s.output("kill -0 "+pid+" 2>&1") != "" })
		if left := s.output("ls -A /run/home/alice | grep multistep"); left != "" {
			t.Error(left)
		}
	}
}
