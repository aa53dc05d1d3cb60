package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"multistep.dev/runner/internal/frames"
)

// framed is an encoded request and the offsets at which its frames end.
type framed struct {
	bytes.Buffer
	ends []int
}

func (f *framed) add(kind byte, payload []byte) {
	frames.Write(f, kind, payload)
	f.ends = append(f.ends, f.Len())
}

func (f *framed) addJSON(kind byte, value any) {
	payload, _ := json.Marshal(value)
	f.add(kind, payload)
}

// cuts returns the offsets at which a test cuts off the request: in and right after each frame's header, in its payload, and at its
// end.
func (f *framed) cuts() (found []int) {
	start := 0
	for _, end := range f.ends {
		for _, at := range []int{start, start + 1, start + 4, start + 5, (start + 5 + end) / 2, end - 1} {
			if at < end {
				found = append(found, at)
			}
		}
		start = end
	}
	return append(found, start)
}

// cutOff sends the start of a request in a new session, and disconnects before the response.
func (c *container) cutOff(request []byte) {
	c.t.Helper()
	s := c.connect()
	if _, err := s.stdin.Write(request); err != nil {
		c.t.Fatal(err)
	}
	s.stdin.Close()
	s.relay.Process.Kill()
}

func TestAPhaseWhoseRequestWasCutAnywhereIsStartedOnce(t *testing.T) {
	c := launch(t)
	for number := 0; ; number++ {
		request := object{"op": "start", "id": fmt.Sprintf("cut/%d", number), "argv": []string{"/bin/bash", "-c", fmt.Sprintf("echo x >> /run/count-%d", number)}, "timeoutSeconds": 30}
		var whole framed
		whole.addJSON(frames.JSON, request)
		cuts := whole.cuts()
		if number == len(cuts) {
			t.Logf("cut at %d places", number)
			return
		}
		c.cutOff(whole.Bytes()[:cuts[number]])
		s := c.connect()
		s.record(request)
		s.result(request["id"].(string))
		if count := s.shell(fmt.Sprintf("cat /run/count-%d", number), nil)["tail"]; count != "x\n" {
			t.Errorf("cut at byte %d of %d: %q", cuts[number], whole.Len(), count)
		}
	}
}

func TestAnUploadThatWasCutAnywhereLeavesNothingAndMayBeSentAgain(t *testing.T) {
	c := launch(t)
	body := archive(member{"dir/new", strings.Repeat("n", 3000), 0o644}, member{"old", "changed", 0o644})
	wanted := "drwxr-xr-x dir\n-rw-r--r-- dir/new " + strings.Repeat("n", 3000) + "\n-rw-r--r-- old changed"
	digest := sha256.Sum256(body)
	for number := 0; ; number++ {
		target := shared(t)
		var whole framed
		whole.addJSON(frames.JSON, object{"op": "upload", "id": fmt.Sprintf("cut/%d", number), "target": target, "user": ""})
		for start := 0; start < len(body); start += 1700 {
			whole.add(frames.Data, body[start:min(len(body), start+1700)])
		}
		whole.addJSON(frames.End, frames.Trailer{Size: int64(len(body)), SHA256: hex.EncodeToString(digest[:])})
		cuts := whole.cuts()
		if number == len(cuts)-1 { // the last cut sends the whole request
			t.Logf("cut at %d places", number)
			return
		}
		s := c.connect()
		s.upload(target, "", archive(member{"old", "as it was", 0o600}), nil)
		before := listing(t, target)
		c.cutOff(whole.Bytes()[:cuts[number]])
		eventually(t, "nothing is left of the upload", func() bool { return listing(t, target) == before })
		s.stdin.Write(whole.Bytes())
		if answer := s.receive(); answer["proceed"] != true {
			t.Fatal(cuts[number], answer)
		}
		if answer := s.receive(); answer["ok"] != true {
			t.Error(cuts[number], answer)
		}
		// The runner may handle the cut upload only now, so that upload's temporary files can still appear for a moment.
		eventually(t, "only the second upload exists", func() bool { return listing(t, target) == wanted })
	}
}
