package main

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"multistep.dev/runner/internal/frames"
	"multistep.dev/runner/internal/peer"
)

const operatorKey = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

// launchWithHost starts the environment and the agent host of a pod. The agent host has the operator's key.
func launchWithHost(t *testing.T) (environment, host *container) {
	t.Helper()
	environment = launch(t)
	host = launchBeside(environment, "MULTISTEP_OPERATOR_KEY="+operatorKey)
	host.connect() // waits until the host's runner listens
	return environment, host
}

func gcm(key string) cipher.AEAD {
	digits, err := hex.DecodeString(key)
	check(err)
	block, err := aes.NewCipher(digits)
	check(err)
	made, err := cipher.NewGCM(block)
	check(err)
	return made
}

// sealedBy encrypts a request with the key. It returns a `host` request that contains the encrypted one, and its nonce.
func sealedBy(key string, request object) (object, []byte) {
	plain, err := json.Marshal(request)
	check(err)
	nonce := make([]byte, 12)
	rand.Read(nonce)
	message := gcm(key).Seal(nonce, nonce, plain, []byte("request"))
	return object{"op": "host", "message": object{"sealed": base64.StdEncoding.EncodeToString(message)}}, nonce
}

// opened decrypts the answer to the request with this nonce.
func opened(t *testing.T, answer object, nonce []byte) (found object) {
	t.Helper()
	text, ok := answer["sealed"].(string)
	if !ok || answer["ok"] != true {
		t.Fatal(answer)
	}
	message, err := base64.StdEncoding.DecodeString(text)
	check(err)
	plain, err := gcm(operatorKey).Open(nil, message[:12], message[12:], append([]byte("answer"), nonce...))
	if err != nil {
		t.Fatal(err)
	}
	check(json.Unmarshal(plain, &found))
	return found
}

// askHost sends an encrypted request to the agent host's runner through the environment's runner, and returns the decrypted answer.
func (s *session) askHost(request object) object {
	s.t.Helper()
	sealed, nonce := sealedBy(operatorKey, request)
	return opened(s.t, s.ask(sealed), nonce)
}

func (s *session) greetHost() {
	s.t.Helper()
	if hello := s.askHost(object{"op": "hello", "protocols": []int{5}}); hello["ok"] != true || hello["protocol"] != 5.0 {
		s.t.Fatal(hello)
	}
}

func TestOneSessionReachesTheEnvironmentAndItsAgentHost(t *testing.T) {
	environment, host := launchWithHost(t)
	s := environment.connect()
	s.greetHost()
	s.askHost(object{"op": "start", "id": "1//host/a", "argv": []string{"sh", "-c", "cat; readlink /proc/1/ns/pid; env"}, "stdin": "hi ", "tailBytes": 4096})
	answer := s.askHost(object{"op": "wait", "id": "1//host/a", "timeoutSeconds": 20})
	tail := answer["record"].(object)["result"].(object)["tail"].(string)
	theirs := s.shell("readlink /proc/1/ns/pid", nil)["tail"].(string)
	if !strings.HasPrefix(tail, "hi pid:") || strings.Contains(tail, theirs) {
		t.Errorf("%q, in the environment %q", tail, theirs)
	}
	if strings.Contains(tail, operatorKey) {
		t.Error("a phase of the agent host has the key", tail)
	}
	if found := s.ask(object{"op": "wait", "id": "1//host/a", "timeoutSeconds": 0}); found["ok"] != false {
		t.Error("the environment has the agent host's record:", found)
	}
	if again := host.connect().record(object{"op": "wait", "id": "1//host/a", "timeoutSeconds": 0}); again["result"].(object)["tail"] != tail {
		t.Error(again)
	}
	if answer := s.askHost(object{"op": "ack", "id": "1//host/a"}); answer["record"].(object)["acknowledged"] != true {
		t.Error(answer)
	}
	if refused := s.askHost(object{"op": "start", "id": "1//host/b", "argv": []string{}}); refused["ok"] != false {
		t.Error(refused)
	}
}

func TestSessionsWithTheAgentHostAreIndependent(t *testing.T) {
	environment, _ := launchWithHost(t)
	slow, fast := environment.connect(), environment.connect()
	slow.greetHost()
	fast.greetHost()
	slow.askHost(object{"op": "start", "id": "slow", "argv": []string{"sleep", "600"}})
	waiting, _ := sealedBy(operatorKey, object{"op": "wait", "id": "slow", "timeoutSeconds": 600})
	slow.sendJSON(frames.JSON, waiting)
	if answer := fast.askHost(object{"op": "note", "id": "n", "data": object{"a": 1}}); answer["ok"] != true {
		t.Error(answer)
	}
}

func TestOnlyTheOperatorsRequestsReachTheAgentHost(t *testing.T) {
	environment, _ := launchWithHost(t)
	hello := object{"op": "hello", "protocols": []int{5}}
	wrong, _ := sealedBy(strings.Repeat("00", 32), hello)
	genuine, nonce := sealedBy(operatorKey, hello)
	text := genuine["message"].(object)["sealed"].(string)
	for what, request := range map[string]object{
		"another key":      wrong,
		"a changed byte":   {"op": "host", "message": object{"sealed": text[:20] + string(text[20]^1) + text[21:]}},
		"a short message":  {"op": "host", "message": object{"sealed": "AAAA"}},
		"no message":       {"op": "host"},
		"a long message":   {"op": "host", "message": object{"sealed": strings.Repeat("AAAA", 2000)}},
		"no valid message": {"op": "host", "message": object{"sealed": "x"}},
	} {
		if answer := environment.connect().ask(request); answer["ok"] != false {
			t.Error(what, answer)
		}
	}
	for _, op := range []string{"upload", "download", "admit", "dismiss", "host", "reset", "exec", ""} {
		request, _ := sealedBy(operatorKey, object{"op": op, "id": "x"})
		if code := environment.connect().code(request); code != "NoHost" {
			t.Error(op, code)
		}
	}
	s := environment.connect()
	first := s.ask(genuine)
	opened(t, first, nonce)
	other, otherNonce := sealedBy(operatorKey, hello)
	second := s.ask(other)
	message, _ := base64.StdEncoding.DecodeString(first["sealed"].(string))
	if _, err := gcm(operatorKey).Open(nil, message[:12], message[12:], append([]byte("answer"), otherNonce...)); err == nil {
		t.Error("an answer passes as that to another request")
	}
	opened(t, second, otherNonce)
}

// knockHost connects to the agent host's runner as a process of another container does.
func (c *container) knockHost() net.Conn {
	c.t.Helper()
	conn := c.dialBy(func() (net.Conn, error) { return net.DialUnix("unix", nil, peer.Address(peer.HostSocket)) })
	c.t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(time.Minute))
	return conn
}

func TestWhoeverCannotSealIsDisconnected(t *testing.T) {
	_, host := launchWithHost(t)
	for what, sent := range map[string]string{
		"silence":        "",
		"a guest":        `{"admission": "x", "nonce": "` + guestNonce + `"}`,
		"a plain hello":  `{"op": "hello", "protocols": [5]}`,
		"a large number": strings.Repeat("1", 5<<10),
	} {
		conn := host.knockHost()
		if sent != "" {
			check(frames.Write(conn, frames.JSON, []byte(sent)))
		}
		if got, err := io.ReadAll(conn); len(got) != 0 || err != nil && !strings.Contains(err.Error(), "reset") {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
}

func TestManyCallersWithoutTheKeyLeaveTheOperatorItsOwnSession(t *testing.T) {
	environment, host := launchWithHost(t)
	for range 40 {
		host.knockHost()
	}
	if result := host.connect().shell("echo served", nil); result["exitCode"] != 0.0 {
		t.Error(result)
	}
	eventually(t, "the callers are disconnected", func() bool {
		request, _ := sealedBy(operatorKey, object{"op": "hello", "protocols": []int{5}})
		return environment.connect().ask(request)["ok"] == true
	})
}

func TestWithoutAnAgentHostItsRequestsAreRefused(t *testing.T) {
	hello, _ := sealedBy(operatorKey, object{"op": "hello", "protocols": []int{5}})
	single := launch(t)
	if code := single.connect().code(hello); code != "NoHost" {
		t.Error("no agent host:", code)
	}
	launchBeside(single).connect()
	if answer := single.connect().ask(hello); answer["ok"] != false { // the error is NoHost or that of the agent host's runner
		t.Error("an agent host without a key:", answer)
	}
	old := single.connectSilently()
	old.ask(object{"op": "hello", "protocols": []int{4}})
	if code := old.code(hello); code != "Protocol" {
		t.Error("protocol 4:", code)
	}
}

func TestTheEndOfTheAgentHostLeavesTheSessionUsable(t *testing.T) {
	environment, host := launchWithHost(t)
	s := environment.connect()
	s.greetHost()
	s.askHost(object{"op": "start", "id": "slow", "argv": []string{"sleep", "600"}})
	waiting, _ := sealedBy(operatorKey, object{"op": "wait", "id": "slow", "timeoutSeconds": 600})
	s.sendJSON(frames.JSON, waiting)
	host.process.Process.Kill()
	if answer := s.receive(); answer["error"].(object)["code"] != "NoHost" {
		t.Error("during a request:", answer)
	}
	s.ask(object{"op": "start", "id": "squatter", "argv": helper("squatter", "-")})
	eventually(t, "an agent listens", func() bool { return s.shell("grep -q "+peer.HostSocket+" /proc/net/unix", nil)["exitCode"] == 0.0 })
	if code := s.code(waiting); code != "NoHost" {
		t.Error("after it:", code)
	}
	if result := s.shell("echo still here", nil); result["exitCode"] != 0.0 {
		t.Error(result)
	}
}

// beSquatter listens on the agent host's socket, as an agent could after the agent host has ended.
func beSquatter() {
	listener, err := net.ListenUnix("unix", peer.Address(peer.HostSocket))
	check(err)
	for {
		listener.AcceptUnix()
	}
}
