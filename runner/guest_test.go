package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"multistep.dev/runner/internal/frames"
	"multistep.dev/runner/internal/peer"
)

const guestNonce = "00112233445566778899aabbccddeeff"

// admitted sends an `admit` request, which permits guests to connect. It returns the request's id and the guests' token.
func (s *session) admitted(more object) (id, token string) {
	s.t.Helper()
	lastID++
	id = fmt.Sprintf("admit/%d", lastID)
	request := object{"op": "admit", "id": id, "user": ""}
	for key, value := range more {
		request[key] = value
	}
	record := s.record(request)
	token, ok := record["result"].(object)["token"].(string)
	if !ok || len(token) != 64 || record["acknowledged"] != true {
		s.t.Fatal(record)
	}
	return id, token
}

func (s *session) dismissed(admission string, more object) object {
	s.t.Helper()
	lastID++
	request := object{"op": "dismiss", "id": fmt.Sprintf("dismiss/%d", lastID), "admission": admission}
	for key, value := range more {
		request[key] = value
	}
	return s.record(request)["result"].(object)
}

// knock connects to PID 1 as a process of another container does, and sends nothing.
func (c *container) knock() *session {
	c.t.Helper()
	conn := c.dialBy(func() (net.Conn, error) { return net.DialUnix("unix", nil, peer.Address(peer.DefaultSocket)) })
	c.t.Cleanup(func() { conn.Close() })
	return &session{c.t, conn, conn, frames.NewReader(conn), nil}
}

// proof returns the HMAC with which one side of the handshake ("runner" or "guest") proves that it knows the token.
func proof(token, side, first, second string) string {
	key, _ := hex.DecodeString(token)
	digest := hmac.New(sha256.New, key)
	io.WriteString(digest, side+"\x00"+first+"\x00"+second+"\x00")
	return hex.EncodeToString(digest.Sum(nil))
}

// greet makes the handshake of a guest, a process of another container (package guests). It returns PID 1's last response, and an
// error if PID 1's proof is wrong.
func greet(admission, token string, ask func(object) object) (object, error) {
	answer := ask(object{"admission": admission, "nonce": guestNonce})
	if answer["ok"] != true {
		return answer, nil
	}
	theirs := answer["nonce"].(string)
	if answer["proof"] != proof(token, "runner", guestNonce, theirs) {
		return answer, errors.New("PID 1 has another token")
	}
	return ask(object{"proof": proof(token, "guest", theirs, guestNonce)}), nil
}

// guest connects as a process of another container does, and returns the session after a handshake that the runner accepted.
func (c *container) guest(admission, token string) *session {
	c.t.Helper()
	g := c.knock()
	if answer, err := greet(admission, token, g.ask); err != nil || answer["ok"] != true {
		c.t.Fatal(err, answer)
	}
	return g
}

// next returns the type and the payload of the next frame.
func (s *session) next() (kind byte, payload []byte) {
	s.t.Helper()
	kind, _, err := s.frames.Next()
	if err != nil {
		s.t.Fatal(err)
	}
	if payload, err = s.frames.Payload(); err != nil {
		s.t.Fatal(err)
	}
	return kind, payload
}

// run executes a command as a guest and returns its output and result.
func (s *session) run(script string, more object) (stdout, stderr string, result object) {
	s.t.Helper()
	s.begin(script, more)
	return s.finish()
}

func (s *session) begin(script string, more object) {
	s.t.Helper()
	request := object{"op": "exec", "argv": []string{"/bin/bash", "-c", script}}
	for key, value := range more {
		request[key] = value
	}
	s.sendJSON(frames.JSON, request)
}

func (s *session) finish() (stdout, stderr string, result object) {
	s.t.Helper()
	var streams [3]bytes.Buffer
	for {
		kind, payload := s.next()
		if kind == frames.Data {
			streams[payload[0]].Write(payload[1:])
			continue
		}
		var answer object
		check(json.Unmarshal(payload, &answer))
		result, _ = answer["result"].(object)
		if result == nil {
			s.t.Fatal(answer)
		}
		return streams[1].String(), streams[2].String(), result
	}
}

// ends waits until PID 1 closes the session.
func (s *session) ends() {
	s.t.Helper()
	s.stdin.(net.Conn).SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.Copy(io.Discard, s.stdin.(net.Conn)); errors.Is(err, os.ErrDeadlineExceeded) {
		s.t.Error("the session is still open")
	}
}

// dies waits until no process with the marker runs, and fails the test after a timeout.
func dies(t *testing.T, mark string) {
	t.Helper()
	eventually(t, "it was killed", func() bool { return living(mark) == nil })
}

// daemon returns a script that starts a background process with the marker, in a session of its own, and waits until it runs.
func daemon(mark string) string {
	return "(setsid setsid sleep " + mark + " > /dev/null 2>&1 < /dev/null &); until pgrep -f '^sleep " + mark + "' > /dev/null; do sleep 0.01; done"
}

func TestAGuestRunsCommands(t *testing.T) {
	c := launch(t)
	g := c.guest(c.connect().admitted(object{"user": "nobody"}))
	stdout, stderr, result := g.run("id -un; pwd; echo $A $HOME; cat; echo err >&2; exit 3",
		object{"cwd": "/usr", "env": object{"A": "b"}, "stdin": "the input"})
	if stdout != "nobody\n/usr\nb /nonexistent\nthe input" || stderr != "err\n" {
		t.Errorf("%q %q", stdout, stderr)
	}
	_, hasCaptures := result["captures"]
	if result["exitCode"] != 3.0 || result["timedOut"] != false || result["error"] != nil || result["outputBytes"] != 40.0 || hasCaptures {
		t.Error(result)
	}
	if _, _, result := g.run("kill -9 $$", nil); result["signal"] != 9.0 || result["exitCode"] != nil {
		t.Error(result)
	}
	if stdout, _, _ := g.run("seq 200000", nil); len(stdout) != 1288895 || !strings.HasSuffix(stdout, "\n200000\n") {
		t.Error(len(stdout))
	}
	if _, _, result := g.run("sleep 20", object{"timeoutSeconds": 0.2}); result["timedOut"] != true {
		t.Error(result)
	}
	if _, _, result := g.run("true", object{"timeoutSeconds": 0}); result["timedOut"] != true {
		t.Error(result)
	}
	if _, _, result := g.run("true", object{"argv": []string{"no-such-command"}}); errorCode(result) != "NoSuchCommand" {
		t.Error(result)
	}
}

func TestAGuestGetsOutputWhileItsCommandRuns(t *testing.T) {
	c, directory := launch(t), shared(t)
	g := c.guest(c.connect().admitted(nil))
	g.begin("echo first; while [ ! -e "+directory+"/on ]; do sleep 0.01; done; echo second >&2", nil)
	if kind, payload := g.next(); kind != frames.Data || string(payload) != "\x01first\n" {
		t.Errorf("%c %q", kind, payload)
	}
	write(t, directory+"/on", "", 0o644)
	if kind, payload := g.next(); kind != frames.Data || string(payload) != "\x02second\n" {
		t.Errorf("%c %q", kind, payload)
	}
	if _, _, result := g.finish(); result["exitCode"] != 0.0 {
		t.Error(result)
	}
}

func TestAGuestsRequestsAreAnsweredInOrder(t *testing.T) {
	c := launch(t)
	g := c.guest(c.connect().admitted(nil))
	for number := range 5 {
		g.begin("sleep 0.02; echo "+itoa(number), nil)
	}
	for number := range 5 {
		if stdout, _, _ := g.finish(); stdout != itoa(number)+"\n" {
			t.Errorf("%d: %q", number, stdout)
		}
	}
	for _, each := range []struct {
		request object
		code    string
	}{
		{object{"op": "dance"}, "Protocol"},
		{object{"op": "start", "argv": []string{"true"}}, "Protocol"},
		{object{"op": "hello", "protocols": []int{3}}, "Protocol"},
		{object{"op": "exec", "argv": []string{"true"}, "id": "x"}, "Protocol"},
		{object{"op": "exec", "argv": []string{}}, "Protocol"},
		{object{"op": "exec", "argv": []string{"true"}, "output": object{"path": "/tmp/x", "maxBytes": 1}}, "Protocol"},
		{object{"op": "exec", "argv": []string{"true"}, "stdin": strings.Repeat("x", 256<<10+1)}, "Protocol"},
		{object{"op": "upload", "target": "relative"}, "Protocol"},
		{object{"op": "download", "sources": []object{{"path": "relative"}}}, "Protocol"},
	} {
		if code := g.code(each.request); code != each.code {
			t.Errorf("%v: %s", each.request, code)
		}
	}
}

func TestOnlyAnAdmittedGuestIsServed(t *testing.T) {
	c := launch(t)
	s := c.connect()
	wrong := strings.Repeat("00", 32)
	if answer := c.knock().receive(); answer["error"].(object)["message"] != "the caller is in another container" {
		t.Error("nobody is admitted:", answer)
	}
	id, token := s.admitted(nil)
	refused := func(what string, answer object) {
		t.Helper()
		if failure, ok := answer["error"].(object); !ok || failure["code"] != "Refused" || strings.Contains(fmt.Sprint(answer), token) {
			t.Error(what, answer)
		}
	}
	refused("another admission", c.knock().ask(object{"admission": "other", "nonce": guestNonce}))
	refused("a short nonce", c.knock().ask(object{"admission": id, "nonce": "00"}))
	refused("no nonce", c.knock().ask(object{"admission": id, "nonce": strings.Repeat("x", 32)}))
	refused("an operator's session", c.knock().ask(object{"op": "hello", "protocols": []int{3}}))
	refused("a request without a proof", func() object {
		g := c.knock()
		g.ask(object{"admission": id, "nonce": guestNonce})
		return g.ask(object{"op": "exec", "argv": []string{"true"}})
	}())
	refused("a wrong proof", func() object {
		g := c.knock()
		g.ask(object{"admission": id, "nonce": guestNonce})
		return g.ask(object{"proof": proof(wrong, "guest", guestNonce, guestNonce)})
	}())
	refused("a large frame", func() object {
		g := c.knock()
		io.WriteString(g.stdin, "J\x00\x00\x10\x01{")
		return g.receive()
	}())
	if _, err := greet(id, wrong, c.knock().ask); err == nil {
		t.Error("PID 1 proved that it knows another token")
	}
	reflected := c.knock() // the guest sends PID 1's own proof back
	answer := reflected.ask(object{"admission": id, "nonce": guestNonce})
	refused("the runner's proof", reflected.ask(object{"proof": answer["proof"]}))
	late := c.knock()
	answer = late.ask(object{"admission": id, "nonce": guestNonce})
	s.admitted(nil)
	if s.dismissed(id, nil)["found"] != true || s.dismissed(id, nil)["found"] != false || s.dismissed("other", nil)["found"] != false {
		t.Error("dismiss")
	}
	refused("dismissed before the proof", late.ask(object{"proof": proof(token, "guest", answer["nonce"].(string), guestNonce)}))
	refused("dismissed", c.knock().ask(object{"admission": id, "nonce": guestNonce}))
}

// beGuest makes a guest's handshake and runs the command `id`. It reads the admission and the token from stdin.
func beGuest() {
	var admission, token string
	fmt.Scan(&admission, &token)
	conn, err := net.DialUnix("unix", nil, peer.Address(peer.DefaultSocket))
	check(err)
	conn.SetDeadline(time.Now().Add(time.Minute))
	reader := frames.NewReader(conn)
	ask := func(request object) (answer object) {
		frames.WriteJSON(conn, frames.JSON, request)
		_, _, err := reader.Next()
		check(err)
		payload, err := reader.Payload()
		check(err)
		fmt.Printf("%s\n", payload)
		json.Unmarshal(payload, &answer)
		return answer
	}
	if answer, err := greet(admission, token, ask); err != nil || answer["ok"] != true {
		return
	}
	ask(object{"op": "exec", "argv": []string{"/usr/bin/id", "-un"}})
}

func TestAProcessOfTheContainerIsNoGuestEvenWithTheToken(t *testing.T) {
	c := launch(t)
	s := c.connect()
	id, token := s.admitted(object{"user": "nobody"})
	for what, argv := range map[string][]string{
		"a phase":         helper("guest", "-"),
		"a PID namespace": append([]string{"unshare", "-p", "-f", "--mount-proc"}, helper("guest", "-")...),
	} {
		for _, user := range []string{"", "nobody"} {
			result := s.phase(argv, object{"stdin": id + " " + token, "user": user})
			if tail := result["tail"].(string); strings.Contains(tail, `"ok":true`) || (user == "" && !strings.Contains(tail, "was started inside")) {
				t.Error(what, user, result)
			}
		}
	}
	inside := append([]string{"-t", itoa(c.pid), "-p", "-n", "-m", "-r", "--"}, helper("guest", "-")...) // like an exec session
	command := exec.Command("nsenter", inside...)
	command.Stdin = strings.NewReader(id + " " + token)
	if output, _ := command.CombinedOutput(); strings.Contains(string(output), `"ok":true`) {
		t.Errorf("%s", output)
	}
	host := launchBeside(c).connect()
	result := host.phase(helper("guest", "-"), object{"stdin": id + " " + token, "user": "daemon"})
	if tail := result["tail"].(string); !strings.Contains(tail, "\x01nobody\n") {
		t.Error("another container of the pod", result)
	}
}

func TestAGuestActsAsTheAdmittedUser(t *testing.T) {
	c := launch(t)
	s := c.connect()
	plain, root := c.guest(s.admitted(object{"user": "nobody:nogroup"})), c.guest(s.admitted(object{"user": "nobody", "root": true}))
	for _, user := range []string{"", "nobody", "65534", "nobody:nogroup"} {
		if stdout, _, _ := plain.run("id -un; id -G", object{"user": user}); stdout != "nobody\n65534\n" {
			t.Errorf("%q: %q", user, stdout)
		}
	}
	for _, user := range []string{"root", "daemon", "nobody:daemon", "nobody-knows"} {
		if code := plain.code(object{"op": "exec", "argv": []string{"id"}, "user": user}); code != "Refused" {
			t.Errorf("%q: %s", user, code)
		}
		if code := plain.code(object{"op": "upload", "target": "/tmp/x", "user": user}); code != "Refused" {
			t.Errorf("%q: %s", user, code)
		}
	}
	for user, name := range map[string]string{"": "nobody", "root": "root", "daemon": "daemon"} {
		if stdout, _, _ := root.run("id -un", object{"user": user}); stdout != name+"\n" {
			t.Errorf("%q: %q", user, stdout)
		}
	}
	if _, _, result := root.run("true", object{"user": "nobody-knows"}); errorCode(result) != "NoSuchUser" {
		t.Error(result)
	}
	if code := root.code(object{"op": "upload", "target": "/tmp/x", "user": "nobody-knows"}); code != "Upload" {
		t.Error(code)
	}
	if result := s.record(object{"op": "admit", "id": "a", "user": "nobody-knows"})["result"].(object); errorCode(result) != "NoSuchUser" || result["token"] != nil {
		t.Error(result)
	}
}

func TestAGuestTransfersFiles(t *testing.T) {
	c, directory := launch(t), shared(t)
	g := c.guest(c.connect().admitted(object{"user": "nobody"}))
	for _, content := range []string{"one", "two"} {
		if answer := g.ask(object{"op": "upload", "target": directory + "/new"}); answer["proceed"] != true {
			t.Fatal(answer)
		}
		g.sendBody(archive(member{"dir/file", content, 0o644}), nil)
		if answer := g.receive(); answer["ok"] != true || answer["result"].(object)["sha256"] == "" {
			t.Fatal(answer)
		}
		stdout, _, _ := g.run("cat "+directory+"/new/dir/file; stat -c %U "+directory+"/new/dir/file", nil)
		if stdout != content+"nobody\n" {
			t.Errorf("%q", stdout)
		}
	}
	g.ask(object{"op": "upload", "target": directory + "/new"})
	g.sendBody(archive(member{"../escape", "x", 0o644}), nil)
	if answer := g.receive(); answer["error"].(object)["code"] != "Upload" {
		t.Error(answer)
	}
	if _, members, _ := g.download(object{"path": directory + "/new"}); fmt.Sprint(members) != "[0/ 755 0/dir/ 755 0/dir/file 644 two]" {
		t.Error(members)
	}
}

func TestDismissalEndsWhateverAGuestDoes(t *testing.T) {
	c, mark, directory := launch(t), marker(), shared(t)
	s := c.connect()
	id, token := s.admitted(object{"user": "nobody"})
	executing, blocked, idle := c.guest(id, token), c.guest(id, token), c.guest(id, token)
	executing.begin(daemon(mark)+"; echo ready; trap '' TERM; sleep "+mark+"; sleep "+mark, nil)
	executing.next()
	blocked.begin("exec -a yes-"+mark+" yes", nil) // nobody reads its output
	uploading := c.guest(id, token)
	uploading.ask(object{"op": "upload", "target": directory})
	uploading.send(frames.Data, make([]byte, 1000))
	check(os.Truncate(writeEmpty(t, directory+"/huge"), 1<<40))
	downloading := c.guest(id, token)
	downloading.sendJSON(frames.JSON, object{"op": "download", "sources": []object{{"path": directory + "/huge"}}})
	downloading.receive()
	eventually(t, "all are at work", func() bool { return len(living(mark)) >= 4 && len(entries(t, directory)) == 2 })
	other := c.guest(s.admitted(nil))
	if result := s.dismissed(id, object{"kill": false}); result["found"] != true || result["error"] != nil {
		t.Error(result)
	}
	if left := living(mark); left != nil {
		t.Errorf("%d processes are left", len(left))
	}
	if left := entries(t, directory); len(left) != 1 {
		t.Error("the upload's staging directory is left:", left)
	}
	for _, each := range []*session{executing, blocked, idle, uploading, downloading} {
		each.ends()
	}
	if stdout, _, _ := other.run("echo fine", nil); stdout != "fine\n" {
		t.Error("the guest of another admission:", stdout)
	}
}

func writeEmpty(t *testing.T, path string) string {
	t.Helper()
	write(t, path, "", 0o644)
	return path
}

func entries(t *testing.T, directory string) []os.DirEntry {
	t.Helper()
	found, err := os.ReadDir(directory)
	check(err)
	return found
}

func TestBackgroundProcessesOfGuestsLiveUntilADismissalKillsThem(t *testing.T) {
	c := launch(t)
	s := c.connect()
	t.Run("left", func(t *testing.T) {
		mark, file := marker(), shared(t)+"/out"
		id, token := s.admitted(nil)
		g := c.guest(id, token)
		_, _, result := g.run("(setsid bash -c 'while echo tick; do echo tick >> "+file+"; sleep 0.02; done' "+mark+" &)", nil)
		if result["exitCode"] != 0.0 || result["durationSeconds"].(float64) > 5 {
			t.Error(result)
		}
		if stdout, _, _ := g.run("sleep 0.1; echo only mine", nil); stdout != "only mine\n" {
			t.Errorf("%q", stdout)
		}
		g.stdin.Close()
		s.dismissed(id, object{"kill": false})
		before := len(content(t, file))
		eventually(t, "it still writes", func() bool { return len(content(t, file)) > before+20 })
		if again := c.guest(s.admitted(nil)); len(living(mark)) == 0 {
			t.Error("the next step's admission killed it", again)
		}
	})
	t.Run("killed", func(t *testing.T) {
		mark, others := marker(), marker()
		s.shell(daemon(others), nil)
		id, token := s.admitted(object{"user": "nobody"})
		for range 3 {
			g := c.guest(id, token)
			g.run(daemon(mark), nil)
			g.run("true", nil)
			g.stdin.Close()
		}
		if len(living("sleep\x00"+mark)) != 3 {
			t.Error("not all are left")
		}
		s.dismissed(id, nil)
		if left := living(mark); left != nil || len(living("sleep\x00"+others)) != 1 {
			t.Error(left)
		}
	})
	t.Run("killed though their supervisors were", func(t *testing.T) {
		mark := marker()
		id, token := s.admitted(nil)
		g := c.guest(id, token)
		for range 3 {
			g.run(daemon(mark)+"; kill -9 "+parentOfMain+"; sleep 0.1", nil)
		}
		s.dismissed(id, nil)
		if left := living(mark); left != nil {
			t.Error(left)
		}
	})
}

func TestACommandIsKilledWhenItsGuestIsGone(t *testing.T) {
	c := launch(t)
	for what, leave := range map[string]func(*session){
		"silent":             func(*session) {},
		"with more requests": func(g *session) { g.begin("true", nil) },
	} {
		mark := marker()
		g := c.guest(c.connect().admitted(object{"user": "nobody"}))
		g.begin(daemon(mark)+"; echo ready; sleep "+mark, nil)
		g.next()
		leave(g)
		// Counted repeatedly: a process has no command line while it replaces its program, as bash does for its last command.
		eventually(t, what+": both run", func() bool { return len(living("sleep\x00"+mark)) == 2 })
		g.stdin.Close()
		dies(t, mark)
	}
	mark := marker()
	g := c.guest(c.connect().admitted(nil))
	g.begin("exec -a yes-"+mark+" yes", nil)
	g.next()
	g.stdin.Close()
	dies(t, mark)
}

func TestAGuestMayCloseItsSendingSideAndReadOn(t *testing.T) {
	c := launch(t)
	g := c.guest(c.connect().admitted(nil))
	g.begin("sleep 0.3; echo done", nil)
	g.stdin.(*net.UnixConn).CloseWrite()
	if stdout, _, result := g.finish(); stdout != "done\n" || result["exitCode"] != 0.0 {
		t.Error(stdout, result)
	}
	g.ends()
}

func TestTheTimeoutHoldsForAGuestThatReadsNothing(t *testing.T) {
	c, mark := launch(t), marker()
	g := c.guest(c.connect().admitted(nil))
	g.begin("exec -a yes-"+mark+" yes", object{"timeoutSeconds": 0.3})
	eventually(t, "it runs", func() bool { return living("yes-"+mark) != nil })
	dies(t, "yes-"+mark)
	if _, _, result := g.finish(); result["timedOut"] != true {
		t.Error(result)
	}
}

func TestAFloodOfOutputTakesNoMemory(t *testing.T) {
	c := launch(t)
	id, token := c.connect().admitted(nil)
	flood := func(size int) {
		g := c.guest(id, token)
		g.begin("head -c "+itoa(size)+" /dev/zero", nil)
		got := 0
		for {
			kind, payload := g.next()
			if kind != frames.Data {
				break
			}
			got += len(payload) - 1
		}
		if got != size {
			t.Error(got)
		}
	}
	flood(20 << 20)
	started := time.Now()
	flood(400 << 20)
	most := c.memory("VmHWM")
	t.Logf("400 MiB in %v, PID 1 at most %d kB", time.Since(started), most)
	if most > 16_000 && len(buildFlags) == 0 {
		t.Error("too much memory", most)
	}
}

func TestCallersWithoutATokenKeepNoGuestOut(t *testing.T) {
	c := launch(t)
	s := c.connect()
	id, token := s.admitted(nil)
	guest := c.guest(id, token)
	for range 200 {
		c.knock()
	}
	if stdout, _, _ := c.guest(id, token).run("echo fine", nil); stdout != "fine\n" {
		t.Errorf("%q", stdout)
	}
	if stdout, _, _ := guest.run("echo fine", nil); stdout != "fine\n" {
		t.Errorf("%q", stdout)
	}
	most := c.memory("VmHWM")
	t.Logf("PID 1 at most %d kB", most)
	if most > 16_000 && len(buildFlags) == 0 {
		t.Error("too much memory", most)
	}
}

func TestAtMost64GuestsAreConnected(t *testing.T) {
	c := launch(t)
	id, token := c.connect().admitted(nil)
	var all []*session
	for range 64 {
		all = append(all, c.guest(id, token))
	}
	if answer := c.knock().receive(); answer["error"].(object)["message"] != "64 guests are connected, the maximum" {
		t.Error(answer)
	}
	all[0].stdin.Close()
	eventually(t, "a place is free", func() bool {
		g := c.knock()
		answer, err := greet(id, token, func(request object) object {
			frames.WriteJSON(g.stdin, frames.JSON, request)
			return g.receive()
		})
		return err == nil && answer["ok"] == true
	})
}

func TestAHandshakeHasFiveSeconds(t *testing.T) {
	c := launch(t)
	id, _ := c.connect().admitted(nil)
	started := time.Now()
	silent, slow := c.knock(), c.knock()
	slow.ask(object{"admission": id, "nonce": guestNonce})
	silent.ends()
	slow.ends()
	if took := time.Since(started); took < 5*time.Second {
		t.Error("it ended after", took)
	}
}

func TestATokenIsOnlyInTheRecordsOfSessionsThatKnowIt(t *testing.T) {
	c := launch(t)
	s := c.connect()
	id, token := s.admitted(nil)
	again := s.record(object{"op": "admit", "id": id, "user": "nobody"})
	if again["result"].(object)["token"] != token {
		t.Error("another token for the same id:", again)
	}
	if code := s.code(object{"op": "dismiss", "id": id, "admission": id}); code != "Conflict" {
		t.Error(code)
	}
	s.dismissed("other", nil)
	for protocol, wanted := range map[int]int{1: 0, 2: 0, 3: 2} {
		session := c.connectSilently()
		hello := session.ask(object{"op": "hello", "protocols": []int{protocol}})
		if records := hello["records"].([]any); len(records) != wanted || strings.Contains(fmt.Sprint(hello), token) != (wanted > 0) {
			t.Error(protocol, records)
		}
		if protocol < 3 {
			if code := session.code(object{"op": "admit", "id": "x", "user": ""}); code != "Protocol" {
				t.Error(code)
			}
		}
	}
	c.knock().ask(object{"admission": id, "nonce": "00"})
	c.guest(id, token).stdin.Close()
	s.dismissed(id, nil)
	if c.readiness() != 200 || strings.Contains(content(t, c.log.Name()), token) {
		t.Error(content(t, c.log.Name()))
	}
}

func TestGuestsLeakNoDescriptor(t *testing.T) {
	c := launch(t)
	s := c.connect()
	guests := func() {
		for range 10 {
			id, token := s.admitted(nil)
			g := c.guest(id, token)
			g.run("true", object{"stdin": strings.Repeat("x", 100<<10)})
			g.run("true", object{"argv": []string{"no-such-command"}})
			g.put("/run/leak", archive(member{"f", "x", 0o600}))
			g.put("/proc/nowhere", nil)
			g.download(object{"path": "/run/leak"}, object{"path": "/nowhere"})
			g.begin("sleep 20", nil)
			c.knock().ask(object{"admission": id, "nonce": "00"})
			gone := c.guest(id, token)
			gone.begin("echo x; sleep 20", nil)
			gone.next()
			gone.stdin.Close()
			s.dismissed(id, nil)
		}
	}
	count := func() int { return len(entries(t, fmt.Sprintf("/proc/%d/fd", c.pid))) }
	guests()
	before := count()
	guests()
	eventually(t, "nothing more is open than before", func() bool { return count() <= before })
	eventually(t, "nothing is left", func() bool {
		return syscall.Kill(c.pid, 0) == nil && !strings.Contains(s.shell("ps -eo args", nil)["tail"].(string), "sleep 20")
	})
}
